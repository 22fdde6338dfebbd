"""gpkvs serve: a store, for clients on the network."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from gpkvs.cli.exit_status import exits
from gpkvs.cli.output import failures_exit
from gpkvs.cli.quantity import parse_bytes
from gpkvs.cli.settings_file import Reload, load_file
from gpkvs.config import BackendName, DurabilityName, Limits, ServerConfig, StoreConfig
from gpkvs.server import logs
from gpkvs.server.app import ServeOptions, run
from gpkvs.server.logs import LOG_LEVEL, LogFormat, LogLevel

_SIZES, _LIMITS, _SERVER = "Sizes of a new store", "Limits", "Server"


def _size(help_text: str, name: str, panel: str, shown: str) -> Any:
    return typer.Option(
        help=help_text,
        envvar=f"GPKVS_{name}",
        parser=parse_bytes,
        metavar="SIZE",
        rich_help_panel=panel,
        show_default=shown,
    )


@exits(
    {
        0: "stopped as asked",
        1: "the server could not start",
        70: "a write to the store's files failed (start it again: it recovers)",
    },
    interrupted=False,
)
def serve_command(
    context: typer.Context,
    data: Annotated[
        Path,
        typer.Option(help="The store's directory. Missing or empty: a store is created there.", envvar="GPKVS_DATA"),
    ],
    backend: Annotated[
        BackendName, typer.Option(help="Where the kernels run.", envvar="GPKVS_BACKEND")
    ] = StoreConfig.backend,
    durability: Annotated[
        DurabilityName,
        typer.Option(
            help="The persistence domain; auto takes what is found and says what that survives. none turns the undo "
            "log off, for benchmarks.",
            envvar="GPKVS_DURABILITY",
        ),
    ] = StoreConfig.durability,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Open a store that was in use with durability=none and was not closed, dropping what cannot be read.",
            envvar="GPKVS_ACCEPT_LOSS",
        ),
    ] = StoreConfig.accept_loss,
    threads: Annotated[
        int,
        typer.Option(help="Of the cpu backend; 0: one for each processor.", envvar="GPKVS_THREADS", min=0, max=1024),
    ] = StoreConfig.threads,
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
    listen: Annotated[
        str,
        typer.Option(
            help="Where gRPC listens; port 0 takes a free one.",
            envvar="GPKVS_LISTEN",
            metavar="HOST:PORT",
            rich_help_panel=_SERVER,
        ),
    ] = ServerConfig.listen,
    metrics: Annotated[
        str,
        typer.Option(
            help="Where Prometheus metrics are served.",
            envvar="GPKVS_METRICS",
            metavar="HOST:PORT",
            rich_help_panel=_SERVER,
        ),
    ] = ServerConfig.metrics,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="Written when serving: the gRPC address, then the metrics address, a line each.",
            envvar="GPKVS_READY_FILE",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Of the log on stderr.", envvar="GPKVS_LOG_FORMAT", rich_help_panel=_SERVER)
    ] = "text",
    log_level: Annotated[
        LogLevel,
        typer.Option(
            help="The least that is logged; SIGHUP reads it from the file again.",
            envvar="GPKVS_LOG_LEVEL",
            rich_help_panel=_SERVER,
        ),
    ] = LOG_LEVEL,
    drain_seconds_max: Annotated[
        float,
        typer.Option(
            help="After SIGTERM, how long accepted requests may take to finish.",
            envvar="GPKVS_DRAIN_SECONDS_MAX",
            min=0,
            rich_help_panel=_SERVER,
        ),
    ] = ServerConfig.drain_seconds_max,
    index_bytes: Annotated[int | None, _size("Index: 32 bytes for each slot.", "INDEX_BYTES", _SIZES, "64MiB")] = None,
    heap_bytes: Annotated[int | None, _size("Keys and values.", "HEAP_BYTES", _SIZES, "1GiB")] = None,
    log_bytes: Annotated[
        int | None, _size("Undo log: 48 bytes for each change of a transaction.", "LOG_BYTES", _SIZES, "64MiB")
    ] = None,
    tables_max: Annotated[
        int,
        typer.Option(
            help="Tables the store may have; each is a file that stays open.",
            envvar="GPKVS_TABLES_MAX",
            min=1,
            rich_help_panel=_LIMITS,
        ),
    ] = StoreConfig.tables_max,
    tables_bytes_max: Annotated[
        int | None, _size("The indexes of all tables together.", "TABLES_BYTES_MAX", _LIMITS, "no limit but the disk")
    ] = StoreConfig.tables_bytes_max,
    key_bytes_max: Annotated[int, _size("Of a key.", "KEY_BYTES_MAX", _LIMITS, "4KiB")] = Limits.key_bytes_max,
    value_bytes_max: Annotated[int, _size("Of a value.", "VALUE_BYTES_MAX", _LIMITS, "16MiB")] = Limits.value_bytes_max,
    request_ops_max: Annotated[
        int,
        typer.Option(help="Operations in a request.", envvar="GPKVS_REQUEST_OPS_MAX", min=1, rich_help_panel=_LIMITS),
    ] = Limits.request_ops_max,
    message_bytes_max: Annotated[
        int, _size("A message, either way.", "MESSAGE_BYTES_MAX", _LIMITS, "64MiB")
    ] = ServerConfig.message_bytes_max,
    memory_max: Annotated[
        int | None,
        _size(
            "Memory that clients may make the server take; what passes it is refused, and other limits are lowered to "
            "fit.",
            "MEMORY_MAX",
            _LIMITS,
            "a quarter of the machine's",
        ),
    ] = ServerConfig.memory_bytes_max,
    receive_seconds_max: Annotated[
        float,
        typer.Option(
            help="How long the message of a call may take to arrive.",
            envvar="GPKVS_RECEIVE_SECONDS_MAX",
            min=0.1,
            rich_help_panel=_LIMITS,
        ),
    ] = ServerConfig.receive_seconds_max,
    batch_ops_max: Annotated[
        int,
        typer.Option(
            help="Operations that are gathered into one transaction.",
            envvar="GPKVS_BATCH_OPS_MAX",
            min=1,
            rich_help_panel=_LIMITS,
        ),
    ] = ServerConfig.batch_ops_max,
    batch_bytes_max: Annotated[
        int, _size("Keys and values of one transaction.", "BATCH_BYTES_MAX", _LIMITS, "256MiB")
    ] = ServerConfig.batch_bytes_max,
    queue_requests_max: Annotated[
        int,
        typer.Option(
            help="Requests that may wait; more are refused (RESOURCE_EXHAUSTED).",
            envvar="GPKVS_QUEUE_REQUESTS_MAX",
            min=1,
            rich_help_panel=_LIMITS,
        ),
    ] = ServerConfig.queue_requests_max,
    stream_requests_max: Annotated[
        int,
        typer.Option(
            help="Requests of one Pipeline that are read ahead; then the client waits.",
            envvar="GPKVS_STREAM_REQUESTS_MAX",
            min=1,
            rich_help_panel=_LIMITS,
        ),
    ] = ServerConfig.stream_requests_max,
    stream_bytes_max: Annotated[
        int, _size("Of these requests and their answers.", "STREAM_BYTES_MAX", _LIMITS, "32MiB")
    ] = ServerConfig.stream_bytes_max,
) -> None:
    """Serve a store over gRPC until SIGTERM or Ctrl-C.

    Recovers the store first if its last user crashed. An option may also stand in the environment (GPKVS_LISTEN for
    --listen) or in a TOML file (listen = "..."); the command line wins over the environment, the environment over the
    file.

    Example: gpkvs serve --data /var/lib/gpkvs --index-bytes 256MiB --heap-bytes 8GiB
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server handles it
    logs.configure(log_format, log_level)
    options = ServeOptions(
        data=data,
        store=StoreConfig(
            backend=backend,
            durability=durability,
            accept_loss=accept_loss,
            threads=threads,
            index_bytes=index_bytes,
            heap_bytes=heap_bytes,
            log_bytes=log_bytes,
            tables_max=tables_max,
            tables_bytes_max=tables_bytes_max,
            limits=Limits(
                key_bytes_max=key_bytes_max, value_bytes_max=value_bytes_max, request_ops_max=request_ops_max
            ),
        ),
        server=ServerConfig(
            listen=listen,
            metrics=metrics,
            message_bytes_max=message_bytes_max,
            queue_requests_max=queue_requests_max,
            memory_bytes_max=memory_max,
            receive_seconds_max=receive_seconds_max,
            batch_ops_max=batch_ops_max,
            batch_bytes_max=batch_bytes_max,
            stream_requests_max=stream_requests_max,
            stream_bytes_max=stream_bytes_max,
            drain_seconds_max=drain_seconds_max,
        ),
        ready_file=ready_file,
        reload=Reload(context, config),
    )
    with failures_exit(1):
        run(options)
