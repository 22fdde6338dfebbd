"""gpkvs config show: the settings that `gpkvs serve` would use, and where each comes from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpkvs.cli.options.config_options import given_settings, options_from_configs
from gpkvs.cli.options.environment import unread_variables
from gpkvs.cli.options.settings_command import SettingsCommand, settings_faults
from gpkvs.cli.options.settings_file import READ_AGAIN
from gpkvs.cli.options.sizes import format_bytes
from gpkvs.cli.serving.serve_settings import (
    DEFAULT,
    FILE,
    ConfigFile,
    DataIfGiven,
    LogFormatOption,
    LogLevelOption,
    ReadyFile,
    origin_of,
)
from gpkvs.cli.terminal.exit_status import EVERY, WRONG_OPTIONS, exits
from gpkvs.cli.terminal.output import AsJson, print_json
from gpkvs.config import AT_START, GROUPS, SERVER, ServerConfig, Setting, StoreConfig
from gpkvs.config_checks import journal_stays
from gpkvs.errors import GpkvsError
from gpkvs.media.directory import access_errors, checked_sizes, store_exists
from gpkvs.media.ignored_settings import ignored_heap_bytes_max, ignored_settings
from gpkvs.server.account.bounds import memory_bytes_of
from gpkvs.server.serve_options import ServeOptions
from gpkvs.server.setting_checks import file_faults, setting_faults
from gpkvs.server.signs.logs import LOG_LEVEL
from gpkvs.text import readable_bytes

if TYPE_CHECKING:
    from gpkvs.media.files import Glance

app = typer.Typer(
    help="Show the settings of a server, and where each comes from.",
    epilog=EVERY,
    no_args_is_help=True,
)

EXIT_WITHOUT_EFFECT = 1

_MUST_BE_GIVEN = "must be given"
_AT_SIGHUP = "SIGHUP"  # the command line and the environment win over what the file says then


@dataclass(frozen=True)
class Shown:
    """A setting as it is shown.

    Attributes
    ----------
    name
        As a settings file has it.
    value
        What is given, or the default; sizes in bytes.
    meaning
        What counts where nothing is given and the default is no value.
    origin
        Where the value comes from.
    counts
        Where a change counts.
    """

    name: str
    group: str
    value: Any
    meaning: str
    is_size: bool
    origin: str
    counts: str

    @property
    def text(self) -> str:
        """The value for people, as an option takes it."""
        if self.value is None:
            return f"({self.meaning})"
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return format_bytes(self.value) if self.is_size else str(self.value)

    @property
    def as_json(self) -> dict[str, Any]:
        """The same for scripts."""
        value = str(self.value) if isinstance(self.value, Path) else self.value
        return {
            "name": self.name,
            "option": f"--{self.name.replace('_', '-')}",
            "variable": f"GPKVS_{self.name.upper()}",
            "group": self.group,
            "value": value,
            "meaning": self.meaning if value is None else None,
            "origin": self.origin,
            "counts": self.counts,
        }


@dataclass(frozen=True)
class Fault:
    """Something that is given, or missing, and does not do what its owner may believe."""

    name: str
    text: str
    is_note: bool = False  # which is right in many places: it is no fault of its own


@app.command("show", cls=SettingsCommand)
@exits(
    {
        0: "shown",
        EXIT_WITHOUT_EFFECT: "shown, and something is wrong with it: an environment variable that nothing reads, a "
        "setting that the store does not follow, a store that cannot be read, no --data",
    }
)
@options_from_configs
def show_command(
    context: typer.Context,
    store: StoreConfig,
    server: ServerConfig,
    data: DataIfGiven = None,
    config: ConfigFile = None,
    ready_file: ReadyFile = None,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = LOG_LEVEL,
    changed: Annotated[bool, typer.Option("--changed", help="Show only what is not the default.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show each setting of `gpkvs serve`, its value, where that comes from, and where a change of it counts.

    Takes the options of `gpkvs serve`, and reads the settings file and the environment as it does. Put `config show` in
    place of `serve` in your command line. If --data names a store, the command also says which settings that store does
    not follow. It reads the store beside a running server, and changes nothing.

    What stands in parentheses counts where nothing is given. A change counts after a restart, on SIGHUP, or only in a
    new store. The server also reads the files of TLS and of users again when they change. No setting holds a secret:
    they name files.

    Example: gpkvs config show --changed --config /etc/gpkvs.toml --data /var/lib/gpkvs
    """
    faults = [Fault("", line) for line in unread_variables()]
    found: Glance | None = None
    wrong: list[object] = [*settings_faults(context), *setting_faults(store, server)]
    wrong += file_faults(ServeOptions(data or Path(), store, server, ready_file))
    if data is None:
        faults.append(Fault("data", "gpkvs serve needs --data: the store's directory"))
    else:
        try:
            found = _look_at(data)
            if found and found.root.has_journal and store.durability == "none":
                wrong.append(journal_stays())
            faults += _not_followed(found, store) if found and not wrong else []
        except GpkvsError as error:
            faults.append(Fault("data", str(error)))
    if wrong:
        for fault in (*wrong, *(fault.text for fault in faults)):
            typer.echo(f"gpkvs: {fault}", err=True)
        raise typer.Exit(WRONG_OPTIONS)
    own = {"data": data, "config": config, "ready_file": ready_file, "log_format": log_format, READ_AGAIN: log_level}
    shown = list(_shown(context, own, (store, server), found))
    if changed:
        defaults = {str(option.name): option.default for option in context.command.params}
        shown = [setting for setting in shown if setting.value != defaults[setting.name]]
    if as_json:
        print_json(
            {
                "settings": [setting.as_json for setting in shown],
                "store": _facts(found) if found else None,
                "faults": [asdict(fault) for fault in faults],
            }
        )
    else:
        _print(shown, data, found, faults)
    if not all(fault.is_note for fault in faults):
        raise typer.Exit(EXIT_WITHOUT_EFFECT)


def _look_at(data: Path) -> Glance | None:
    """Return what the store of a directory is, if there is one."""
    with access_errors(data):
        if not data.exists() or not store_exists(data):
            return None
        from gpkvs.media.files import glance  # noqa: PLC0415 - it loads NumPy, for which no new store should wait

        return glance(data)


def _not_followed(found: Glance, store: StoreConfig) -> Iterator[Fault]:
    """Return what a store does not follow; `gpkvs serve` logs the same."""
    largest = ignored_heap_bytes_max(found.root, store)
    for ignored in (*ignored_settings(found.root, found.catalog, store), *([largest] if largest else [])):
        yield Fault(ignored.name, ignored.text, is_note=ignored.level < logging.WARNING)


def _shown(
    context: typer.Context, own: dict[str, Any], configs: tuple[StoreConfig, ServerConfig], found: Glance | None
) -> Iterator[Shown]:
    """Return all settings in the order of the help."""
    for group in ("", *GROUPS):
        if not group:
            yield _of_serve(context, "data", own, group, _MUST_BE_GIVEN)
            yield _of_serve(context, "config", own, group, "none")
        for config in configs:
            for name, value, setting in given_settings(config):
                if setting.group == group:
                    meaning = _meaning(name, setting, configs, found) if value is None else ""
                    origin = origin_of(context, name)
                    yield Shown(name, group, value, meaning, setting.is_size, origin, setting.counts)
        if group == SERVER:
            yield _of_serve(context, "ready_file", own, group, "none")
            yield _of_serve(context, "log_format", own, group)
            yield _of_serve(context, READ_AGAIN, own, group)


def _of_serve(context: typer.Context, name: str, own: dict[str, Any], group: str, meaning: str = "") -> Shown:
    """Return an option that `gpkvs serve` has beside the configs."""
    origin = origin_of(context, name)
    counts = _AT_SIGHUP if name == READ_AGAIN and origin in (DEFAULT, FILE) else AT_START
    return Shown(name, group, own[name], meaning, is_size=False, origin=origin, counts=counts)


def _meaning(name: str, setting: Setting, configs: tuple[StoreConfig, ServerConfig], found: Glance | None) -> str:
    """Return what counts where nothing is given, by the code that decides it."""
    store, server = configs
    if found and (size := _facts(found).get(name)) is not None:
        return f"the store has {format_bytes(size)}" if size else "the store has none"
    if name == "memory_max":
        return f"{setting.none_means}: {readable_bytes(memory_bytes_of(server))}"
    if name == "log_bytes_max":
        return format_bytes(store.log_size_max)
    if name == "journal_bytes_max" and not store.journal_follows_index:
        return format_bytes(store.journal_size_max)
    if name in asdict(store.sizes):
        return format_bytes(getattr(checked_sizes(store.sizes), name))
    return str(setting.none_means) or "none"


def _facts(found: Glance) -> dict[str, Any]:
    """Return what a store keeps from its creation, by the names of the settings."""
    root = found.root
    return {
        "format": str(root.store_format),
        "commit": "journal" if root.has_journal else "undo",
        "index_bytes": found.catalog.default_index_bytes,
        "heap_bytes": root.heap_bytes_own,
        "heap_bytes_max": max(root.heap_bytes_own, root.heap_bytes_max),
        "log_bytes": root.log_bytes,
        "journal_bytes": root.journal_bytes,
    }


def _print(shown: list[Shown], data: Path | None, found: Glance | None, faults: list[Fault]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    view = Table("setting", "value", "comes from", "a change counts", box=None, pad_edge=False)
    for setting in shown:
        view.add_row(Text(setting.name), Text(setting.text), Text(setting.origin), Text(setting.counts))
    console.print(view if shown else "every setting has its default")
    lines = [fault.text for fault in faults]
    if found:
        facts = _facts(found)
        lines.insert(0, f"{data} holds a store of format {facts['format']}, which commits by {facts['commit']}")
    elif data is not None and not any(fault.name == "data" for fault in faults):
        lines.insert(0, f"there is no store in {data} yet: gpkvs serve makes one")
    for line in lines:
        console.print(Text(line))
