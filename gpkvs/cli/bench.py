"""gpkvs bench: the speed of the engine and the server on this machine, beside other stores that promise the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gpkvs.bench.disk.benchmark import DISK_PARTS, run_disk
from gpkvs.bench.disk.options import DiskOptions, server_options_of
from gpkvs.bench.door.benchmark import run_door
from gpkvs.bench.door.options import DOORS, DoorOptions
from gpkvs.bench.door.options import PARTS as DOOR_PARTS
from gpkvs.bench.engine.benchmark import EngineOptions, run_engine, steps
from gpkvs.bench.engine.workload import SHAPES
from gpkvs.bench.expiry.benchmark import ExpiryOptions, expiry_rows, run_expiry
from gpkvs.bench.gpu.benchmark import PARTS as GPU_PARTS
from gpkvs.bench.gpu.benchmark import GpuOptions, gpu_tables, run_gpu
from gpkvs.bench.gpu.paper import paper_tables, run_paper
from gpkvs.bench.gpu.paths import PathsOptions, draw_paths, paths_tables, run_paths
from gpkvs.bench.growth.benchmark import GROWTH_PEERS, GrowthOptions, run_growth
from gpkvs.bench.operations.benchmark import OperationsOptions, run_operations
from gpkvs.bench.peers.contender import Promise
from gpkvs.bench.peers.embedded_stores import PeerName
from gpkvs.bench.redis.benchmark import run_redis
from gpkvs.bench.redis.options import PARTS as REDIS_PARTS
from gpkvs.bench.redis.options import RedisOptions
from gpkvs.bench.report.report import KINDS, write_report
from gpkvs.bench.report.results import write_result
from gpkvs.bench.report.tables import Rows, tables_of
from gpkvs.bench.scan.benchmark import SCAN_PEERS, ScanOptions, run_scan
from gpkvs.bench.security.benchmark import run_security
from gpkvs.bench.security.options import SecurityOptions
from gpkvs.bench.server.benchmark import PARTS, run_server
from gpkvs.bench.server.measured_server import ServerBenchOptions
from gpkvs.bench.wear.benchmark import run_wear
from gpkvs.bench.wear.options import WEAR_PARTS, WEAR_PEERS, WearOptions
from gpkvs.cli.cleanup import ended_by_signals
from gpkvs.cli.exit_status import EVERY, exits
from gpkvs.cli.output import failures_exit

app = typer.Typer(
    name="bench",
    help="Measure the engine and the server beside other stores, and keep the figures.",
    epilog=EVERY,
    no_args_is_help=True,
)

_ALL_DISK_PARTS = (*DISK_PARTS, "server")
_DIRECTORY = "Where the benchmark makes its stores, and removes them: a tmpfs for `process`, a disk for `msync`."
_PROMISE = "What an acknowledged batch survives, in all stores alike: the death of the process, or a loss of power."
_GPU_DIRECTORY = "Where the benchmark makes its store, and removes it: a tmpfs, whose files the GPU can store to."
_JSON = "Write all results, with every single run, to this file."
_PROFILE = "Show where the time went as well."


@contextmanager
def _shown(total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show steps on stderr: as a bar on a terminal, else as lines."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total, completed=-1 if total else 0)

        def show(step: str) -> None:
            bar.update(task, description=step, advance=1)
            if not console.is_terminal:
                console.print(step, markup=False)

        yield show


def _print(tables: Iterable[Rows], result: dict[str, Any], json_file: Path | None) -> None:
    """Print a result's tables, and write the result to a file."""
    console = Console(highlight=False)
    for rows in tables:
        console.print(rows.rich())
    if json_file:
        write_result(json_file, result)
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"kept in {json_file}", markup=False)


@app.command("engine")
@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def engine_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = EngineOptions.promise,
    records: Annotated[
        int, typer.Option(help="Records that are loaded before anything is timed.", min=1)
    ] = EngineOptions.records,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = EngineOptions.batch,
    runs: Annotated[int, typer.Option(help="Runs of each measurement; the median counts.", min=1)] = EngineOptions.runs,
    batches: Annotated[int, typer.Option(help="Batches in a run, at most.", min=1)] = EngineOptions.batches_max,
    seconds: Annotated[
        float, typer.Option(help="Timed seconds in a run, at most (but at least three batches).", min=0)
    ] = EngineOptions.seconds_max,
    shape: Annotated[
        list[str] | None,
        typer.Option(help=f"Shape of the records: {', '.join(SHAPES)}; by default all. May be repeated."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(get_args(PeerName))}, or none; by default all."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help=_PROFILE)] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Batches on the embedded store, beside LMDB and RocksDB.

    All stores get the same batches of uniform keys, one after the other, and keep the same promise. Install the peers
    with pip install 'gpkvs[bench]'; docs/performance.md says how each is set up and what is timed. With the defaults
    the benchmark takes some minutes and 4 GiB of the file system.

    Example: gpkvs bench engine --records 1000000 --json bench/results/engine-process.json
    """
    options = EngineOptions(
        directory=directory,
        promise=promise,
        records=records,
        batch=batch,
        runs=runs,
        batches_max=batches,
        seconds_max=seconds,
        shapes=tuple(SHAPES[name] for name in _chosen("shape", shape, tuple(SHAPES))),
        peers=_chosen("peer", peer, get_args(PeerName)),
    )
    with failures_exit(1), ended_by_signals(), _shown(steps(options)) as show:
        result = run_engine(options, show)
    _print(tables_of(result, profile=profile), result, json_file)


@app.command("operations")
@exits({0: "measured", 1: "something is missing, or the store returns wrong numbers"})
def operations_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = OperationsOptions.promise,
    records: Annotated[
        int, typer.Option(help="Records that are loaded before anything is timed.", min=16)
    ] = OperationsOptions.records,
    batch: Annotated[
        int, typer.Option(help="Operations in a batch: one transaction.", min=16)
    ] = OperationsOptions.batch,
    rounds: Annotated[
        int, typer.Option(help="Batches of each kind; the median of their ratios counts.", min=1)
    ] = OperationsOptions.rounds,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Measure batches of increments, conditions, appends and EXISTSs beside plain SETs and GETs of as many keys.

    All kinds of batches take turns on the same keys of one embedded store, and the median of the rounds' ratios counts.
    With the defaults it takes half a minute and 2 GiB of the file system.

    Example: gpkvs bench operations --json bench/results/operations-process.json
    """
    options = OperationsOptions(directory, promise, records, batch, rounds)
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_operations(options, show)
    _print(tables_of(result, profile=False), result, json_file)


@app.command("server")
@exits({0: "measured", 1: "something is missing, or a server does not do what it should"})
def server_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = ServerBenchOptions.promise,
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
    profile: Annotated[bool, typer.Option("--profile", help=_PROFILE)] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
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
    parts = _chosen("part", part, PARTS)
    with (
        failures_exit(1),
        ended_by_signals(),
        _shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_server(options, parts, show))
    _print(tables_of(result, profile=profile), result, json_file)


@app.command("disk")
@exits({0: "measured", 1: "something is missing, or a store or server does not do what it should"})
def disk_command(
    directory: Annotated[
        Path, typer.Option(help="On a disk: where the benchmark makes its stores, and removes them.", file_okay=False)
    ] = Path("/var/tmp"),
    memory: Annotated[
        Path, typer.Option(help="On a tmpfs: for the store that only survives its process.", file_okay=False)
    ] = DiskOptions.memory,
    records: Annotated[
        int, typer.Option(help="Records that each store holds before anything is timed.", min=4)
    ] = DiskOptions.records,
    server_records: Annotated[
        int, typer.Option(help="Records that the server and redis hold.", min=4)
    ] = DiskOptions.server_records,
    batch: Annotated[int, typer.Option(help="Operations in a large batch.", min=1)] = DiskOptions.batch,
    rounds: Annotated[
        int, typer.Option(help="Rounds of each measurement; the median of their ratios counts.", min=1)
    ] = DiskOptions.rounds,
    seconds: Annotated[float, typer.Option(help="Seconds of each side in a round.", min=0.01)] = DiskOptions.seconds,
    index_bytes: Annotated[
        int, typer.Option(help="Size of the index where device writes are counted.", min=1 << 20)
    ] = DiskOptions.device_index_bytes,
    journal_bytes: Annotated[
        int, typer.Option(help="Size of the journal; 0: as a store of the usual sizes has it.", min=0)
    ] = DiskOptions.journal_bytes,
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"Part to run: {', '.join(_ALL_DISK_PARTS)}; by default all. May be repeated."),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Write engine-msync.json and server-msync.json to this folder.", file_okay=False)
    ] = None,
) -> None:
    """Measure a store on a disk, with its journal, beside stores that sync: every figure that has a target.

    Both sides of a ratio take turns, and the median of the rounds' ratios counts. Parts: batches (SETs beside LMDB,
    RocksDB and a store in memory, with checkpoints running), one-set (beside a flush of the disk), tails (SETs beside
    checkpoints and compactions), reads (GETs beside SETs), writes (what the device gets for a byte of a user), opening
    (beside reading the same bytes), server (beside redis). The benchmark needs the peers of pip install 'gpkvs[bench]'
    and Debian's redis-server. With the defaults it takes ten minutes, 8 GiB of the disk and 5 GiB of the tmpfs; leave
    the machine alone meanwhile.

    Example: gpkvs bench disk --directory /var/tmp --results bench/results
    """
    options = DiskOptions(
        directory=directory,
        memory=memory,
        records=records,
        batch=batch,
        rounds=rounds,
        seconds=seconds,
        device_index_bytes=index_bytes,
        journal_bytes=journal_bytes,
        server_records=server_records,
    )
    parts = _chosen("part", part, _ALL_DISK_PARTS)
    engine_parts = tuple(one for one in DISK_PARTS if one in parts)
    with failures_exit(1), ended_by_signals(), _shown() as show:
        found = [run_disk(options, engine_parts, show)] if engine_parts else []
        if "server" in parts:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found.append(runner.run(run_server(server_options_of(options), ("throughput", "reads"), show)))
    for result in found:
        kept = results / f"{result['benchmark']}-msync.json" if results else None
        _print(tables_of(result, profile=True), result, kept)


@app.command("wear")
@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def wear_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = WearOptions.promise,
    heap_bytes: Annotated[
        int, typer.Option(help="Size of the heap for records of 100 B; their number follows.", min=1 << 20)
    ] = WearOptions.heap_bytes,
    overwrites: Annotated[int, typer.Option(help="How often each of them is overwritten.", min=1)] = (
        WearOptions.overwrites
    ),
    share: Annotated[
        list[float] | None,
        typer.Option(
            help="How much of the heap, without reserve and tails, they take; by default 0.5, 0.7 and 0.85. "
            "May be repeated.",
            max=1,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = WearOptions.batch,
    large_records: Annotated[int, typer.Option(help="Records of 1 KB, for the space of files.", min=10)] = (
        WearOptions.large_records
    ),
    large_overwrites: Annotated[int, typer.Option(help="How often each of them is overwritten.", min=1)] = (
        WearOptions.large_overwrites
    ),
    idle: Annotated[float, typer.Option(help="Seconds that a server may tidy up after deletes.", min=0)] = (
        WearOptions.idle_seconds
    ),
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(WEAR_PARTS)}; by default all. May be repeated.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(WEAR_PEERS)}, or none; by default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Overwrite records again and again in a heap that is nearly full, beside RocksDB with BlobDB and LMDB.

    Parts: overwrites (records of 100 B that take 0.5, 0.7 and 0.85 of the heap without reserve and tails, uniform and
    zipfian: what is refused, what is written for a byte of a user, the rate over that at 0.5 and over the peers', how
    late batches are while records are moved), space (records of 1 KB: files over live records), deleted (a server whose
    records are mostly deleted and that is then idle: heap file over live records). What the device gets is counted on a
    disk (--promise msync). With the defaults it takes twenty minutes, most of them for the peers, and 2 GiB; the aims
    are meant for --heap-bytes 536870912 --large-records 1000000 --large-overwrites 100.

    Example: gpkvs bench wear --part overwrites --json bench/results/wear-process.json
    """
    options = WearOptions(
        directory=directory,
        promise=promise,
        heap_bytes=heap_bytes,
        overwrites=overwrites,
        shares=tuple(sorted(share)) if share else WearOptions.shares,
        batch=batch,
        large_records=large_records,
        large_overwrites=large_overwrites,
        idle_seconds=idle,
        peers=_chosen("peer", peer, tuple(WEAR_PEERS)),
    )
    parts = _chosen("part", part, WEAR_PARTS)
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_wear(options, parts, show)
    _print(tables_of(result, profile=False), result, json_file)


@app.command("expiry")
@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def expiry_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = ExpiryOptions.promise,
    keys: Annotated[int, typer.Option(help="Keys that expire, and as many that stay.", min=1)] = ExpiryOptions.keys,
    spread: Annotated[float, typer.Option(help="Seconds over which they expire.", min=0.001)] = (
        ExpiryOptions.spread_seconds
    ),
    batch: Annotated[int, typer.Option(help="Operations in a batch of the traffic.", min=1)] = ExpiryOptions.batch,
    redis: Annotated[bool, typer.Option(help="Compare with redis.")] = ExpiryOptions.redis,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """How long after their time expired keys are removed, beside traffic on other keys, and beside redis.

    Nobody sees a key after its time, in either store, removed or not. The lag is how long it takes up space.

    Example: gpkvs bench expiry --keys 100000 --json bench/results/expiry-process.json
    """
    options = ExpiryOptions(directory, promise, keys, spread, batch, redis=redis)
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_expiry(options, show)
    _print([expiry_rows(result)], result, json_file)


@app.command("growth")
@exits({0: "measured", 1: "something is missing, or a store returns wrong values"})
def growth_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = GrowthOptions.promise,
    records: Annotated[int, typer.Option(help="Keys that are inserted.", min=1)] = GrowthOptions.records,
    batch: Annotated[int, typer.Option(help="Keys in a batch: one transaction.", min=1)] = GrowthOptions.batch,
    index_bytes: Annotated[int, typer.Option(help="Size of the index at first.", min=1)] = GrowthOptions.index_bytes,
    steps_bytes: Annotated[
        int, typer.Option(help="Size of the indexes whose steps are measured alone; 0: none.", min=0)
    ] = GrowthOptions.steps_bytes,
    shape: Annotated[str, typer.Option(help=f"Shape of the records: {', '.join(SHAPES)}.")] = GrowthOptions.shape.name,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(GROWTH_PEERS)}, or none; by default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Insert keys into a small store that grows: how late batches are meanwhile, beside a store made large, and redis.

    All get the same batches of new keys, one after the other, and keep the same promise. The result has p50, p99 and
    the longest batch of each moment, with growth and moves marked; `gpkvs bench report` draws them. With the defaults
    it takes two minutes and 5 GiB of the file system.

    Example: gpkvs bench growth --records 1000000 --json bench/results/growth-process.json
    """
    options = GrowthOptions(
        directory=directory,
        promise=promise,
        records=records,
        batch=batch,
        index_bytes=index_bytes,
        steps_bytes=steps_bytes,
        shape=SHAPES[_chosen("shape", [shape], tuple(SHAPES))[0]],
        peers=_chosen("peer", peer, GROWTH_PEERS),
    )
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_growth(options, show)
    _print(tables_of(result, profile=False), result, json_file)


@app.command("scan")
@exits({0: "measured", 1: "something is missing, or a scan returns too few or too many records"})
def scan_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = ScanOptions.promise,
    records: Annotated[int, typer.Option(help="Records that each store holds.", min=1)] = ScanOptions.records,
    runs: Annotated[int, typer.Option(help="Scans of each kind; the median counts.", min=1)] = ScanOptions.runs,
    shape: Annotated[
        list[str] | None,
        typer.Option(help=f"Shape of the records: {', '.join(SHAPES)}; by default all. May be repeated."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help=f"Store to compare with: {', '.join(SCAN_PEERS)}, or none; by default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Scan a table from end to end: keys only, and whole records, beside the cursor of LMDB.

    In this process the stores take turns, with the same records. A server then serves the store: a client scans it, and
    exports it to a file. With the defaults it takes one minute and 2 GiB of the file system.

    Example: gpkvs bench scan --json bench/results/scan-process.json
    """
    options = ScanOptions(
        directory=directory,
        promise=promise,
        records=records,
        runs=runs,
        shapes=tuple(SHAPES[name] for name in _chosen("shape", shape, tuple(SHAPES))),
        peers=_chosen("peer", peer, SCAN_PEERS),
    )
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_scan(options, show)
    _print(tables_of(result, profile=False), result, json_file)


@app.command("security")
@exits({0: "measured", 1: "something is missing, or a server does not do what it should"})
def security_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = SecurityOptions.promise,
    records: Annotated[int, typer.Option(help="Records that each server holds.", min=1)] = SecurityOptions.records,
    runs: Annotated[
        int, typer.Option(help="Pairs of runs, with and without; their median counts.", min=1)
    ] = SecurityOptions.runs,
    seconds: Annotated[float, typer.Option(help="Seconds of a run.", min=0.01)] = SecurityOptions.seconds,
    clients: Annotated[
        int, typer.Option(help="Client processes of streams and handshakes.", min=1)
    ] = SecurityOptions.clients,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
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
        _shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_security(options, show))
    _print(tables_of(result, profile=False), result, json_file)


@app.command("door")
@exits({0: "measured", 1: "h2load is missing, or a server does not answer as it should"})
def door_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = DoorOptions.promise,
    door: Annotated[
        list[str] | None,
        typer.Option(help=f"Door of `gpkvs serve`: {', '.join(DOORS)}; by default all. May be repeated."),
    ] = None,
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
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Load `gpkvs serve` with a native client, beside servers that do nothing, and beside redis.

    Parts: unary (single calls on 50 connections and on 4 x 100 streams), alone (the latency of one call), tls (the same
    as unary, over plain), pipeline (streams of messages, beside redis -P 64), crowd (1,000 connections, of which one
    floods and one reads nothing), floods (one client beside hostile ones), busy (unary, alone and pipeline while a
    Python thread computes: in the server's process, and in a process beside it). The client is h2load (apt-get install
    nghttp2-client); the server's metrics must count the answers that it got. The other servers are compiled if g++,
    libnghttp2-dev and libgrpc++-dev are installed; what is missing is left out and named. With the defaults it takes
    half an hour.

    Example: gpkvs bench door --json bench/results/door-process.json
    """
    options = DoorOptions(
        directory=directory,
        promise=promise,
        doors=_chosen("door", door, DOORS),
        records=records,
        runs=runs,
        seconds=seconds,
        message=message,
        crowd=crowd,
    )
    parts = _chosen("part", part, DOOR_PARTS)
    with (
        failures_exit(1),
        ended_by_signals(),
        _shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_door(options, parts, show))
    _print(tables_of(result, profile=False), result, json_file)


@app.command("redis")
@exits({0: "measured", 1: "redis is missing, or a server does not answer as it should"})
def redis_command(
    directory: Annotated[Path, typer.Option(help=_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    promise: Annotated[Promise, typer.Option(help=_PROMISE)] = RedisOptions.promise,
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
    part: Annotated[
        list[str] | None,
        typer.Option(help=f"Part to run: {', '.join(REDIS_PARTS)}; by default all. May be repeated."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Load `gpkvs serve --resp` as users of Redis do, beside a real redis-server that keeps the same promise.

    Parts: single (redis-benchmark, one command at a time on each connection), pipelined (-P 64), transactions (MULTI of
    eight SETs, by a client of its own that g++ compiles), memory (of 16-byte keys with values of 100 bytes; gpkvs with
    its store's files, redis without its append-only file). redis writes its append-only file before it answers, and
    syncs it for the promise msync. Install it with apt-get install redis-server. With the defaults it takes three
    minutes and 3 GiB of the file system.

    Example: gpkvs bench redis --json bench/results/redis-process.json
    """
    options = RedisOptions(directory, promise, records, runs, seconds, connections, load_processes, io_threads)
    parts = _chosen("part", part, REDIS_PARTS)
    with (
        failures_exit(1),
        ended_by_signals(),
        _shown() as show,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(run_redis(options, parts, show))
    _print(tables_of(result, profile=False), result, json_file)


@app.command("gpu")
@exits({0: "measured", 1: "something is missing"})
def gpu_command(
    directory: Annotated[Path, typer.Option(help=_GPU_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    index_bytes: Annotated[int, typer.Option(help="Size of the table's index.", min=64 << 10)] = GpuOptions.index_bytes,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = GpuOptions.batch,
    batches: Annotated[int, typer.Option(help="Different batches; each is run once.", min=4)] = GpuOptions.batches,
    part: Annotated[
        list[str] | None, typer.Option(help=f"Part to run: {', '.join(GPU_PARTS)}; by default all. May be repeated.")
    ] = None,
    start_index_bytes: Annotated[
        int, typer.Option(help="Size of the larger index for which the start is timed.", min=64 << 10)
    ] = GpuOptions.start_index_bytes,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Measure the engine on one GPU against the limits of the GPU and its link, in the same run.

    Parts: numbers (SET, GET and 95:5 of 8-byte keys and values, from arrays of the host and of the GPU), small
    (batches of 1 to 131,072, on the host's threads and on the GPU), records (16-byte keys, 100-byte values, beside the
    time of the host's threads alone), recovery (verify and undo of a whole batch, opening the store again), start (to
    serving, with a small and a large index), server (YCSB from several client processes, on this backend and on cpu),
    growth (batches of new keys while the index grows from 64 KiB to 4 GiB; the steps of growth alone, to 8 GiB).
    The benchmark needs an NVIDIA GPU and CuPy; docs/gpu.md says what limits what. With the defaults it takes five
    minutes and 40 GiB of the file system.

    Example: gpkvs bench gpu --json bench/results/gpu.json
    """
    options = GpuOptions(directory, index_bytes, batch, batches, _chosen("part", part, GPU_PARTS), start_index_bytes)
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_gpu(options, show)
    _print(gpu_tables(result), result, json_file)


@app.command("paper")
@exits({0: "measured", 1: "something is missing"})
def paper_command(
    directory: Annotated[Path, typer.Option(help=_GPU_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    index_bytes: Annotated[int, typer.Option(help="Size of the table's index.", min=64 << 10)] = GpuOptions.index_bytes,
    batch: Annotated[int, typer.Option(help="Operations in a batch: one transaction.", min=1)] = GpuOptions.batch,
    batches: Annotated[int, typer.Option(help="Different batches.", min=4)] = GpuOptions.batches,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
) -> None:
    """Repeat the comparisons of the paper behind the engine (GPM, ASPLOS '22), with this code.

    It compares who makes results durable: the host after a copy of the table (CAP-fs, CAP-mm: mock-ups), the host after
    the GPU stored (GPM-NDP), or the GPU (GPM). It also compares a coalesced log with one that has locks, and measures
    write amplification and restoration. It needs an NVIDIA GPU and CuPy; docs/gpu.md has the figures beside the
    paper's. With the defaults it takes a minute.

    Example: gpkvs bench paper --json bench/results/paper.json
    """
    options = GpuOptions(directory, index_bytes, batch, batches, ())
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_paper(options, show)
    _print(paper_tables(result), result, json_file)


@app.command("paths")
@exits({0: "measured", 1: "something is missing"})
def paths_command(
    directory: Annotated[Path, typer.Option(help=_GPU_DIRECTORY, exists=True, file_okay=False)] = Path("/dev/shm"),
    large_index_bytes: Annotated[
        int, typer.Option(help="Size of the index for uniform keys.", min=64 << 10)
    ] = PathsOptions.large_index_bytes,
    large_keys: Annotated[int, typer.Option(help="Keys in it.", min=1)] = PathsOptions.large_keys,
    json_file: Annotated[Path | None, typer.Option("--json", help=_JSON, dir_okay=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the grid into this file, as SVG.", dir_okay=False)] = None,
) -> None:
    """Measure how well a store chooses who plans a batch, the host's threads or the GPU.

    A fixed grid of 48 kinds of batches (GET and SET, 1 to 2,097,152 operations, arrays of the host and of the GPU,
    uniform keys in a large table and zipfian ones in a small table) runs in turn on the host, on the GPU, and as the
    store chooses. The regret is what the choice takes longer than the better of both. It needs an NVIDIA GPU and CuPy.
    With the defaults it takes four minutes and 9 GiB of the file system.

    Example: gpkvs bench paths --json bench/results/paths.json --plot paths.svg
    """
    options = PathsOptions(directory, large_index_bytes, large_keys=large_keys)
    with failures_exit(1), ended_by_signals(), _shown() as show:
        result = run_paths(options, show)
    if plot:
        plot.write_text(draw_paths(result))
    _print(paths_tables(result), result, json_file)


@app.command("report")
@exits({0: "written", 1: "there are no results, or the document has no marks"})
def report_command(
    results: Annotated[Path, typer.Option(help="The folder of the JSON files.", exists=True, file_okay=False)] = Path(
        "bench/results"
    ),
    document: Annotated[
        Path,
        typer.Option(help="A Markdown file with two marks. The tables go between them, the plots beside the file."),
    ] = Path("docs/performance.md"),
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Benchmark whose results are written: {', '.join(KINDS)}; by default all but redis. May be repeated."
        ),
    ] = None,
) -> None:
    """Write results that were kept into a document, as tables and plots.

    Example: gpkvs bench report --results bench/results --document docs/performance.md
    """
    with failures_exit(1):
        for file in write_report(results, document, _chosen("benchmark", benchmark, KINDS) if benchmark else ()):
            typer.echo(file)


def _chosen(option: str, names: list[str] | None, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the names that were chosen, or all."""
    if not names:
        return known
    for name in names:
        if name not in known and name != "none":
            raise typer.BadParameter(f"there is no {option} {name!r}; there are {', '.join(known)}", param_hint=option)
    return tuple(name for name in known if name in names)
