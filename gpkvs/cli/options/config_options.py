"""The settings of configs as options of a command (`gpkvs.config.Setting`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from gpkvs.cli.options.settings_command import SettingsCommand
from gpkvs.cli.options.sizes import format_bytes, parse_bytes
from gpkvs.config import GROUPS, Setting

_ANNOTATED: Any = Annotated  # mypy refuses a type that is known only at run time


def options_from_configs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each setting of the configs that it takes.

    Typer sees these options instead of the parameters whose type is a config. The command is called with the configs
    that the options make. It is a `SettingsCommand`, and asks `settings_faults` before it uses them.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    configs = {name: taken.annotation for name, taken in parameters.items() if is_dataclass(taken.annotation)}
    options: list[Parameter] = []
    for name, parameter in parameters.items():
        options += _options(configs[name]) if name in configs else [parameter.replace(kind=Parameter.KEYWORD_ONLY)]
    options.sort(key=_place)

    @wraps(command)
    def run(**given: Any) -> None:
        made = {name: _make(config, given) for name, config in configs.items()}
        command(**given, **made)

    run.command_class = SettingsCommand  # type: ignore[attr-defined]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def setting_names(config: Any) -> Iterator[str]:
    """Return the names of the options that a config makes, as a settings file has them."""
    for field, kind, setting in _settings(config):
        if setting is None:
            yield from setting_names(kind)
        else:
            yield setting.name or field


class GivenSetting(NamedTuple):
    """A setting of a config that was made."""

    name: str  # of the option, as a settings file has it
    value: Any
    setting: Setting


def given_settings(made: Any) -> Iterator[GivenSetting]:
    """Return the settings of a config that options have made, with their values."""
    for field, _, setting in _settings(type(made)):
        value = getattr(made, field)
        if setting is None:
            yield from given_settings(value)
        else:
            yield GivenSetting(setting.name or field, value, setting)


def _settings(config: Any) -> Iterator[tuple[str, Any, Setting | None]]:
    """Return name, type and setting of each field that users set; a config inside this one has no setting."""
    for name, hint in get_type_hints(config, include_extras=True).items():
        if is_dataclass(hint):
            yield name, hint, None
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Setting):
                yield name, hint.__origin__, note


def _options(config: Any) -> Iterator[Parameter]:
    for field, kind, setting in _settings(config):
        if setting is None:
            yield from _options(kind)
            continue
        name, default = setting.name or field, getattr(config, field)
        annotation = _ANNOTATED[kind, _option(setting, name, kind, default)]
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(setting: Setting, name: str, kind: type, default: Any) -> Any:
    words = [f"--{name.replace('_', '-')}"] if kind is bool else []  # typer would add a --no-...
    more: dict[str, Any] = {"metavar": setting.metavar}
    if setting.is_size:
        shown = setting.none_means if default is None else default
        shown = shown if isinstance(shown, str) else format_bytes(shown)
        more = {"metavar": "SIZE", "parser": parse_bytes, "show_default": shown}
    return typer.Option(
        *words,
        help=setting.help,
        envvar=f"GPKVS_{name.upper()}",
        min=None if setting.is_size else setting.min,  # `gpkvs.config_checks` looks at sizes
        max=None if setting.is_size else setting.max,
        rich_help_panel=setting.group or None,
        **more,
    )


def _make(config: Any, given: dict[str, Any]) -> Any:
    """Return the config that the given options make, and take them out."""
    return config(
        **{
            field: _make(kind, given) if setting is None else given.pop(setting.name or field)
            for field, kind, setting in _settings(config)
        }
    )


def _place(option: Parameter) -> int:
    """Return the place of an option's group in the help."""
    notes = getattr(option.annotation, "__metadata__", ())
    group = next((note.rich_help_panel for note in notes if note.rich_help_panel), None)
    return 0 if group is None else 1 + GROUPS.index(group)
