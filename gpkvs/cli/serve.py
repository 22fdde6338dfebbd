"""gpkvs serve: a server of one store, for clients on the network."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gpkvs.cli.config_options import options_from_configs
from gpkvs.cli.environment import unread_variables
from gpkvs.cli.exit_status import IN_USE, INTERRUPTED, UNEXPECTED, WRONG_OPTIONS, exits
from gpkvs.cli.output import failures_exit, tell_error
from gpkvs.cli.settings_file import Reload, load_file
from gpkvs.config import SERVER, ServerConfig, StoreConfig
from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.garbage import loading_modules
from gpkvs.server import logs
from gpkvs.server.access.users import UsersError
from gpkvs.server.logs import LOG_LEVEL, LogFormat, LogLevel
from gpkvs.server.tls import TlsFilesError, TlsFilesUnsettledError

_log = logging.getLogger("gpkvs.server")


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
            callback=load_file,
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
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server handles it
    logs.configure(log_format, log_level)
    for line in unread_variables():
        _log.warning(line, extra={"event": "setting_ignored"})
    with loading_modules():
        from gpkvs.server.app import ServeOptions, run  # noqa: PLC0415 - neither --help nor tab completion waits for it

    tell = _log_error if log_format == "json" else tell_error  # who reads the log as JSON gets JSON to its end
    # systemd does not try again after wrong options, which also name the files of the start. It does so for a pair of
    # files of which one is still on its way.
    with (
        failures_exit(1, tell=tell),
        failures_exit(WRONG_OPTIONS, (InvalidArgumentError, TlsFilesError, UsersError), tell),
        failures_exit(1, TlsFilesUnsettledError, tell),
        _faults_logged(),
    ):
        run(ServeOptions(data, store, server, ready_file, Reload(context, config)))


def _log_error(error: GpkvsError) -> None:
    _log.critical("%s", error, extra={"event": "failed"})


@contextmanager
def _faults_logged() -> Iterator[None]:
    """Log what nobody expected, in the format of the log."""
    try:
        yield
    except GpkvsError:
        raise
    except MemoryError as error:
        raise GpkvsError("the process got no memory: raise the limit on it (ulimit -v, MemoryMax)") from error
    except Exception as error:
        _log.critical("an unexpected error, which is a fault of gpkvs", exc_info=True, extra={"event": "failed"})
        raise typer.Exit(UNEXPECTED) from error
