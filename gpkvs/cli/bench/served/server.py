"""gpkvs bench server: the server beside other servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.report.tables import tables_of
from gpkvs.bench.server.benchmark import PARTS, run_server
from gpkvs.bench.server.measured_server import ServerBenchOptions
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROFILE, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit


@exits({0: "measured", 1: "something is missing, or a server does not do what it should"})
def server_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = ServerBenchOptions.promise,
    records: Annotated[
        int, typer.Option(help="Records of 8-byte keys and values that are loaded before anything is timed.", min=1)
    ] = ServerBenchOptions.records,
    large_records: Annotated[
        int, typer.Option(help="Records of 1 KiB, for memory and start-up time.", min=1)
    ] = ServerBenchOptions.large_records,
    runs: Annotated[
        int, typer.Option(help="Runs of each measurement; the median counts.", min=1)
    ] = ServerBenchOptions.runs,
    seconds: Annotated[float, typer.Option(help="Seconds of a run.", min=0.01)] = ServerBenchOptions.seconds,
    message: Annotated[int, typer.Option(help="Operations in a message.", min=1)] = ServerBenchOptions.message,
    in_flight: Annotated[
        int, typer.Option(help="Messages of a stream that wait for their responses at a time.", min=1)
    ] = ServerBenchOptions.in_flight,
    connections: Annotated[
        int, typer.Option(help="Connections of single calls, and of redis-benchmark.", min=1)
    ] = ServerBenchOptions.connections,
    callers: Annotated[
        int, typer.Option(help="Concurrent callers of the client that gathers them into messages.", min=1)
    ] = ServerBenchOptions.callers,
    starts: Annotated[
        int, typer.Option(help="Starts of each store, after a stop and after a kill.", min=1)
    ] = ServerBenchOptions.starts,
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(PARTS)}; by default all. May be repeated.")
    ] = None,
    redis: Annotated[bool, typer.Option("--redis/--no-redis", help="Compare with redis.")] = True,
    profile: Annotated[bool, typer.Option("--profile", help=PROFILE)] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Clients of a real server, beside redis-benchmark on a real redis-server.

    Parts: throughput (streams of messages, single calls, gathered calls, each beside redis), memory (resident, beside
    the mapped store), start (time to SERVING against the size of the store, after a stop and after a kill), metrics
    (what they cost), calls (how many functions the server calls for a message), transactions (of two reads and two
    writes by 64 callers, beside gathered SETs, and beside etcd if it is installed). The benchmark needs Debian's
    redis-server. With the defaults it takes some minutes and 4 GiB of the file system; docs/performance.md says what is
    timed.

    Example: gpkvs bench server --part throughput --json bench/results/server-process.json
    """
    options = ServerBenchOptions(
        directory=directory,
        promise=promise,
        records=records,
        large_records=large_records,
        runs=runs,
        seconds=seconds,
        message=message,
        in_flight=in_flight,
        connections=connections,
        callers=callers,
        starts=starts,
        has_redis=redis,
    )
    parts = chosen("part", part, PARTS)
    with (
        failures_exit(1),
        ended_by_signals(),
        shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_server(options, parts, show))
    print_result(tables_of(result, profile=profile), result, json_file)
