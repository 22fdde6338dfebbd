"""gpkvs serve: a server of one store, for clients on the network."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from gpkvs.cli.config_options import options_from_configs
from gpkvs.cli.environment import unread_variables
from gpkvs.cli.exit_status import IN_USE, INTERRUPTED, exits
from gpkvs.cli.hand_over import Settings, SettingsTooLongError, hand_over
from gpkvs.cli.settings_file import Reload, SettingsFileError, read_settings
from gpkvs.config import SERVER, ServerConfig, StoreConfig
from gpkvs.server.logs import LOG_LEVEL, LogFormat, LogLevel
from gpkvs.server.serve_options import ServeOptions

# The sources whose values win over the settings file.
_STRONGER = ("COMMANDLINE", "ENVIRONMENT")


def _load_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options' defaults from a settings file; the command line and the environment win over it."""
    if path is not None:
        try:
            settings = read_settings(path, _known_settings(context))
        except SettingsFileError as error:
            raise typer.BadParameter(str(error)) from error
        context.default_map = {**(context.default_map or {}), **settings}
    return path


def _known_settings(context: typer.Context) -> list[str]:
    return sorted(str(parameter.name) for parameter in context.command.params if parameter.name != "config")


def _stronger_log_level(context: typer.Context) -> Any:
    """Return the log level that wins over the settings file's, if one is given."""
    source = context.get_parameter_source("log_level")
    return context.params["log_level"] if source is not None and source.name in _STRONGER else None


@exits(
    {
        0: "stopped as asked",
        1: "the server could not start (certificate and key that do not fit are also tried again)",
        2: "a file of TLS or users is wrong",
        IN_USE: "another process has the store",
        70: "a write to the store's files failed (start it again: it recovers)",
        INTERRUPTED: "Ctrl-C before the start of the server",
    },
    interrupted=False,
)
@options_from_configs
def serve_command(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Option(
            help="The store's directory. If it is missing or empty, a store is created there.", envvar="GPKVS_DATA"
        ),
    ],
    store: StoreConfig,
    server: ServerConfig,
    config: Annotated[
        Path | None,
        typer.Option(
            help='A TOML file of these options, such as: index_bytes = "256MiB".',
            envvar="GPKVS_CONFIG",
            metavar="FILE.toml",
            is_eager=True,
            callback=_load_file,
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="A file that the server writes when it serves: the addresses of gRPC, of metrics, and of the Redis "
            "protocol if it speaks it, a line each.",
            envvar="GPKVS_READY_FILE",
            rich_help_panel=SERVER,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of the log on stderr.", envvar="GPKVS_LOG_FORMAT", rich_help_panel=SERVER)
    ] = "text",
    log_level: Annotated[
        LogLevel,
        typer.Option(
            help="The lowest level that is logged; SIGHUP reads it from the settings file again.",
            envvar="GPKVS_LOG_LEVEL",
            rich_help_panel=SERVER,
        ),
    ] = LOG_LEVEL,
) -> None:
    """Serve a store over gRPC until SIGTERM or Ctrl-C.

    Recovers the store first if its last user crashed. An option may also stand in the environment (GPKVS_LISTEN for
    --listen) or in a TOML file (listen = "..."); the command line wins over the environment, the environment over the
    file.

    Example: gpkvs serve --data /var/lib/gpkvs --index-bytes 256MiB --heap-bytes-max 8GiB
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server handles it, also after the hand-over
    reload = Reload(config, _known_settings(context), context.default_map or {}, _stronger_log_level(context))
    options = ServeOptions(data, store, server, ready_file, reload)
    try:
        hand_over(Settings(options, log_format, log_level, unread_variables()))
    except SettingsTooLongError as error:
        raise typer.BadParameter(str(error)) from error
