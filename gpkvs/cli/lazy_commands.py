"""Subcommands that are loaded when they are run: `gpkvs get` waits for neither the benchmarks nor NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gpkvs.cli.terminal.interrupt import ctrl_c_ends_at_once
from gpkvs.process.garbage import loading_modules


class LazyGroup(TyperGroup):
    """A group of commands whose modules are loaded by name.

    Attributes
    ----------
    subcommands
        For each name, where its function or `typer.Typer` is (``module:attribute``), and the first paragraph of its
        help. `--help` shows that paragraph without loading the module.
    panels
        The names under each heading of the help, in their order; others stand under "Commands" before them.
    """

    subcommands: ClassVar[Mapping[str, tuple[str, str]]] = {}
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        panels = {name: panel for panel, names in self.panels.items() for name in names}
        places = {name: place for place, name in enumerate(panels)}
        for name in sorted(self.subcommands, key=lambda name: places.get(name, -1)):
            _, summary = self.subcommands[name]
            self.add_command(TyperCommand(name, help=summary, rich_help_panel=panels.get(name)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is run, or whose arguments a shell wants to complete."""
        if args and args[0] in self.subcommands:
            self.add_command(load(args[0], self.subcommands[args[0]][0]))
        return super().resolve_command(ctx, args)


def load(name: str, place: str) -> Any:
    """Return the command at ``module:attribute``, as typer makes it."""
    module, _, attribute = place.partition(":")
    with ctrl_c_ends_at_once(), loading_modules():
        found = getattr(import_module(module), attribute)
        around = typer.Typer(rich_markup_mode="markdown")
        around.callback()(lambda: None)  # so that it is a group, of this one command
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name)
        else:
            around.command(name, cls=getattr(found, "command_class", None))(found)
        return get_command(around).commands[name]  # type: ignore[attr-defined]
