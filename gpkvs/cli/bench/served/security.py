"""gpkvs bench security: what TLS, tokens and users cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.security.benchmark import run_security
from gpkvs.bench.security.options import SecurityOptions
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a server does not do what it should"})
def security_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = SecurityOptions.promise,
    records: Annotated[int, typer.Option(help="Records that each server holds.", min=1)] = SecurityOptions.records,
    runs: Annotated[
        int, typer.Option(help="Pairs of runs, with and without; their median counts.", min=1)
    ] = SecurityOptions.runs,
    seconds: Annotated[float, typer.Option(help="Seconds of a run.", min=0.01)] = SecurityOptions.seconds,
    clients: Annotated[
        int, typer.Option(help="Client processes of streams and handshakes.", min=1)
    ] = SecurityOptions.clients,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Measure what TLS and a token cost a server, beside a server without.

    Streams of GETs and SETs of 100-byte values with TLS over plain ones, in messages of 4,096 and of 64 operations;
    single SETs with a token and without; the login alone; handshakes a second. Servers take turns, and medians of
    pairs count. The clients' messages are made before they are timed. With the defaults it takes two minutes and 2 GiB
    of the file system.

    Example: gpkvs bench security --json bench/results/security-process.json
    """
    options = SecurityOptions(directory, promise, records, runs, seconds, clients)
    with (
        failures_exit(1),
        ended_by_signals(),
        shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_security(options, show))
    print_result(tables_of(result, profile=False), result, json_file)
