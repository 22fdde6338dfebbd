"""A command that takes settings: it goes through all of them, and hears of everything that is wrong at once.

A command of typer ends at the first option that it cannot read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand

from gpkvs.cli.removed_settings import no_such_setting
from gpkvs.text import quoted

_FAULTS: Final = "gpkvs.settings.faults"
_WRONG: Final = "gpkvs.settings.wrong"


class BadSettings(typer.BadParameter):
    """Several things are wrong with what an option names.

    Parameters
    ----------
    faults
        A line for each.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class SettingsCommand(TyperCommand):
    """Runs with the default in place of what it cannot read: `settings_faults` says what that is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; again and again, without those that turn out to be wrong."""
        if ctx.resilient_parsing:  # a shell completes words
            return super().parse_args(ctx, args)
        ctx.ignore_unknown_options = ctx.allow_extra_args = True
        faults: list[str] = ctx.meta.setdefault(_FAULTS, [])
        wrong: dict[str, Any] = ctx.meta.setdefault(_WRONG, {})
        while True:
            try:
                left = super().parse_args(ctx, list(args))
                break
            except typer.BadParameter as error:
                option: Any = error.param
                assert option is not None
                assert option.name not in wrong
                faults += getattr(error, "faults", None) or [error.format_message()]
                wrong[option.name] = _never_wrong(option)
        faults += _unknown(left, [word for option in self.params for word in option.opts])
        return []

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, without checks for those that are known to be wrong."""
        wrong = ctx.meta.get(_WRONG, {})
        return [wrong.get(option.name, option) for option in super().get_params(ctx)]


def settings_faults(context: typer.Context) -> list[str]:
    """Return what was wrong with the options of a `SettingsCommand`."""
    return list(context.meta.get(_FAULTS, ()))


def _never_wrong(option: Any) -> Any:
    """Return a copy of an option that takes anything, and has its default whatever it is given."""
    other = copy.copy(option)
    other.process_value = lambda _context, _value: option.default
    return other


def _unknown(words: list[str], options: list[str]) -> Iterator[str]:
    """Return what is wrong with the words that no option took; the word behind an unknown option is its value."""
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if name.startswith("-"):
            yield no_such_setting("option", name, options, "--")
        elif not is_value:
            yield f"the word {quoted(word)} belongs to no option: leave it out"
        is_value = name.startswith("-") and not equals
