"""gpkvs bench door: what serves gRPC, beside servers that do nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpkvs.bench.door.benchmark import run_door
from gpkvs.bench.door.options import PARTS as DOOR_PARTS
from gpkvs.bench.door.options import DoorOptions
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "h2load is missing, or a server does not answer as it should"})
def door_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = DoorOptions.promise,
    records: Annotated[int, typer.Option(help="Records that each server holds.", min=1)] = DoorOptions.records,
    runs: Annotated[
        int, typer.Option(help="Rounds of each measurement; their median counts.", min=1)
    ] = DoorOptions.runs,
    seconds: Annotated[float, typer.Option(help="Seconds of a run, about.", min=0.01)] = DoorOptions.seconds,
    message: Annotated[int, typer.Option(help="Operations in a message of a stream.", min=1)] = DoorOptions.message,
    crowd: Annotated[int, typer.Option(help="Connections of the crowd.", min=3)] = DoorOptions.crowd,
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(DOOR_PARTS)}; by default all. May be repeated.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Load `gpkvs serve` with a native client, beside servers that do nothing, and beside redis.

    Parts: unary (single calls on 50 connections and on 4 x 100 streams), methods (other single calls over SETs),
    alone (the latency of one call), tls (the same as unary, over plain), pipeline (streams of messages, beside
    redis -P 64), crowd (1,000 connections, of which one floods and one reads nothing), floods (one client beside
    hostile ones), busy (unary, alone and pipeline while a Python thread computes: in the server's process, and in a
    process beside it). The client is h2load (apt-get install nghttp2-client); the server's metrics must count the
    answers that it got. The other servers are compiled if g++, libnghttp2-dev and libgrpc++-dev are installed; what
    is missing is left out and named. With the defaults it takes half an hour.

    Example: gpkvs bench door --json bench/results/door-process.json
    """
    options = DoorOptions(
        directory=directory,
        promise=promise,
        records=records,
        runs=runs,
        seconds=seconds,
        message=message,
        crowd=crowd,
    )
    parts = chosen("part", part, DOOR_PARTS)
    with (
        failures_exit(1),
        ended_by_signals(),
        shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_door(options, parts, show))
    print_result(tables_of(result, profile=False), result, json_file)
