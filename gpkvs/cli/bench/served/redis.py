"""gpkvs bench redis: the Redis protocol beside Redis."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.redis.benchmark import run_redis
from gpkvs.bench.redis.options import PARTS as REDIS_PARTS
from gpkvs.bench.redis.options import RedisOptions
from gpkvs.bench.report.tables import tables_of
from gpkvs.cli.bench.shared import DIRECTORY, JSON, PROMISE, chosen, print_result, shown
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.cli.terminal.exit_status import exits
from gpkvs.cli.terminal.output import failures_exit
from gpkvs.config import FormatName


@exits({0: "measured", 1: "redis is missing, or a server does not answer as it should"})
def redis_command(
    directory: Annotated[Path, typer.Option(help=DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=PROMISE)] = RedisOptions.promise,
    records: Annotated[int, typer.Option(help="Records that each server holds.", min=1)] = RedisOptions.records,
    runs: Annotated[
        int, typer.Option(help="Rounds of each measurement; their median counts.", min=1)
    ] = RedisOptions.runs,
    seconds: Annotated[float, typer.Option(help="Seconds of a run, about.", min=0.01)] = RedisOptions.seconds,
    connections: Annotated[int, typer.Option(help="Connections of clients.", min=1)] = RedisOptions.connections,
    load_processes: Annotated[
        int,
        typer.Option(help="Processes of redis-benchmark; with one, that may be the limit of both servers.", min=1),
    ] = RedisOptions.load_processes,
    io_threads: Annotated[
        int, typer.Option(help="Threads in which redis reads and writes.", min=1, max=128)
    ] = RedisOptions.io_threads,
    store_format: Annotated[
        FormatName, typer.Option("--format", help="Format of gpkvs's store, for the part memory.")
    ] = RedisOptions.store_format,
    idle: Annotated[
        float, typer.Option(help="Seconds of rest before memory is looked at for the last time.", min=0)
    ] = RedisOptions.idle_seconds,
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"Part to run: {', '.join(REDIS_PARTS)}; by default all. May be repeated."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=JSON, dir_okay=False)] = None,
) -> None:
    """Load `gpkvs serve --resp` as users of Redis do, beside a real redis-server that keeps the same promise.

    Parts: single (redis-benchmark, one command at a time on each connection), pipelined (-P 64), transactions (MULTI of
    eight SETs, by a client of its own that g++ compiles), memory (of 16-byte keys with values of 100 bytes: loaded,
    overwritten once, and at rest for a minute; gpkvs with its store's files, redis without its append-only file). redis
    writes its append-only file before it answers, and syncs it for the promise msync. Install it with apt-get install
    redis-server. With the defaults it takes four minutes and 3 GiB of the file system.

    Example: gpkvs bench redis --json bench/results/redis-process.json
    """
    options = RedisOptions(
        directory, promise, records, runs, seconds, connections, load_processes, io_threads, store_format, idle
    )
    parts = chosen("part", part, REDIS_PARTS)
    with (
        failures_exit(1),
        ended_by_signals(),
        shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_redis(options, parts, show))
    print_result(tables_of(result, profile=False), result, json_file)
