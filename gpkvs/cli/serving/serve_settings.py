"""The options of `gpkvs serve` that no config makes, and where the values of all options come from.

`gpkvs config show` takes the same options, by the same code: it shows what `gpkvs serve` would use.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gpkvs.cli.options.settings_command import BadSettings
from gpkvs.cli.options.settings_file import READ_AGAIN, SettingsFileError, read_settings
from gpkvs.config import SERVER
from gpkvs.server.signs.logs import LogFormat, LogLevel

FLAG, ENVIRONMENT, FILE, DEFAULT = "flag", "environment", "file", "default"
"""Where a value comes from: what comes first wins."""

_ORIGINS: Final = {"COMMANDLINE": FLAG, "ENVIRONMENT": ENVIRONMENT, "DEFAULT_MAP": FILE}


def _load_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options' defaults from a settings file; the command line and the environment win over it."""
    if path is not None:
        try:
            settings = read_settings(path, known_settings(context))
        except SettingsFileError as error:
            _take(context, error.settings)
            raise BadSettings(error.faults) from error
        _take(context, settings)
    return path


def _take(context: typer.Context, settings: Mapping[str, Any]) -> None:
    context.default_map = {**(context.default_map or {}), **settings}


def known_settings(context: typer.Context) -> list[str]:
    """Return the settings that a file may have: those that a variable of the environment sets, too."""
    parameters: list[Any] = context.command.params
    return sorted(str(option.name) for option in parameters if option.envvar and option.name != "config")


def origin_of(context: typer.Context, name: str) -> str:
    """Return where the value of a setting comes from."""
    source = context.get_parameter_source(name)
    return DEFAULT if source is None else _ORIGINS.get(source.name, DEFAULT)


def stronger_log_level(context: typer.Context) -> Any:
    """Return the log level that wins over the settings file's, if one is given."""
    return context.params[READ_AGAIN] if origin_of(context, READ_AGAIN) in (FLAG, ENVIRONMENT) else None


_data_option: Any = typer.Option(
    help="The store's directory. If it is missing or empty, a store is created there.", envvar="GPKVS_DATA"
)
Data = Annotated[Path, _data_option]
DataIfGiven = Annotated[Path | None, _data_option]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help='A TOML file of these options, such as: index_bytes = "256MiB".',
        envvar="GPKVS_CONFIG",
        metavar="FILE.toml",
        is_eager=True,
        callback=_load_file,
    ),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        help="A file that the server writes when it serves: the addresses of gRPC, of metrics, and of the Redis "
        "protocol if it speaks it, a line each.",
        envvar="GPKVS_READY_FILE",
        rich_help_panel=SERVER,
    ),
]
LogFormatOption = Annotated[
    LogFormat, typer.Option(help="Format of the log on stderr.", envvar="GPKVS_LOG_FORMAT", rich_help_panel=SERVER)
]
LogLevelOption = Annotated[
    LogLevel,
    typer.Option(
        help="The lowest level that is logged; SIGHUP reads it from the settings file again.",
        envvar="GPKVS_LOG_LEVEL",
        rich_help_panel=SERVER,
    ),
]
