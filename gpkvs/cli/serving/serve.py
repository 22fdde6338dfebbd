"""gpkvs serve: a server of one store, for clients on the network."""

from __future__ import annotations

import signal
from dataclasses import replace

import typer

from gpkvs.cli.options.config_options import options_from_configs
from gpkvs.cli.options.environment import unread_variables
from gpkvs.cli.options.settings_command import settings_faults
from gpkvs.cli.options.settings_file import Reload
from gpkvs.cli.serving.hand_over import Settings, SettingsTooLongError, hand_over
from gpkvs.cli.serving.serve_settings import (
    ConfigFile,
    Data,
    LogFormatOption,
    LogLevelOption,
    ReadyFile,
    known_settings,
    stronger_log_level,
)
from gpkvs.cli.terminal.exit_status import IN_USE, INTERRUPTED, WRONG_OPTIONS, exits
from gpkvs.cli.terminal.failure import say
from gpkvs.config import ServerConfig, StoreConfig
from gpkvs.server.serve_options import ServeOptions
from gpkvs.server.setting_checks import file_faults, setting_faults
from gpkvs.server.signs import logs
from gpkvs.server.signs.logs import LOG_LEVEL


@exits(
    {
        0: "stopped as asked",
        1: "the server could not start (certificate and key that do not fit are also tried again)",
        2: "settings, or files that they name, are wrong",
        IN_USE: "another process has the store",
        70: "a write to the store's files failed (start it again: it recovers)",
        INTERRUPTED: "Ctrl-C before the start of the server",
    },
    interrupted=False,
)
@options_from_configs
def serve_command(
    context: typer.Context,
    data: Data,
    store: StoreConfig,
    server: ServerConfig,
    config: ConfigFile = None,
    ready_file: ReadyFile = None,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = LOG_LEVEL,
) -> None:
    """Serve a store over gRPC until SIGTERM or Ctrl-C.

    Recovers the store first if its last user crashed. An option may also stand in the environment (GPKVS_LISTEN for
    --listen) or in a TOML file (listen = "..."); the command line wins over the environment, the environment over the
    file.

    Example: gpkvs serve --data /var/lib/gpkvs --index-bytes 256MiB --heap-bytes-max 8GiB
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server handles it, also after the hand-over
    given = ServeOptions(data, store, server, ready_file)
    if faults := [*settings_faults(context), *setting_faults(store, server)]:
        if log_format == "json":
            logs.configure(log_format, log_level)
        for fault in (*faults, *file_faults(given)):
            say(fault, log_format)
        raise typer.Exit(WRONG_OPTIONS)
    reload = Reload(config, known_settings(context), context.default_map or {}, stronger_log_level(context))
    try:
        hand_over(Settings(replace(given, reload=reload), log_format, log_level, unread_variables()))
    except SettingsTooLongError as error:
        raise typer.BadParameter(str(error)) from error
