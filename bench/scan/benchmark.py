"""The benchmark of scans: keys and records of a table, of the embedded store, over gRPC, and into a file.

Beside them a cursor of LMDB goes over the same data, which is in its pages in the order of keys. All runs take turns.
Columns are what gpkvs returns; LMDB's package returns Python objects, so that gpkvs also makes these.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgpack

from gpkvs.batch import Op
from gpkvs.bench.engine.workload import SHAPES, Shape, Workload
from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.peers.embedded_gpkvs import TABLE, EmbeddedGpkvs, batch_of, index_bytes
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, Run, latencies_ms, ratios
from gpkvs.bench.server.measured_server import ServerBenchOptions, serve, server_options
from gpkvs.client import AsyncClient, Client
from gpkvs.config import DEFAULT_TABLE
from gpkvs.recovery.proof.servers.server_process import GPKVS
from gpkvs.scan import ScanPiece

OWN, OVER_GRPC = EmbeddedGpkvs.name, f"{EmbeddedGpkvs.name} over gRPC"
_KEYS, _KEY_OBJECTS, _RECORDS, _EXPORT = "scan keys", "scan keys, as objects", "scan records", "export"
_STEP_KEYS, _STEP_BYTES = 65_536, 4 << 20
_KEYS_AIM, _EXPORT_AIM = 5e6, 1e6  # a second

Task = Callable[[], Run]


@dataclass(frozen=True)
class ScanOptions:
    """What to measure.

    Parameters
    ----------
    directory
        For the stores: its file system decides the promise.
    promise
        What an acknowledged batch must survive.
    records
        How many are scanned.
    batch
        Records in a batch while they are loaded.
    rounds
        Of all tasks, in turn.
    shape
        Sizes of keys and values.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 2_000_000
    batch: int = 16_384
    rounds: int = 3
    shape: Shape = SHAPES["bytes"]


def run_scan(options: ScanOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If LMDB is not installed, the directory gives another promise, or a scan returns a wrong number of keys.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    described = describe_run(options.directory)
    workload = Workload(options.shape, options.records, options.batch)
    contenders: dict[str, dict[str, Any]] = {}
    found = asyncio.run(_measure(options, workload, progress, contenders))
    measurements = [Measurement(task, name, runs) for (task, name), runs in found.items()]
    return {
        "benchmark": "scan",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name not in ("directory", "shape")},
            "runs": options.rounds,
            "shapes": {options.shape.name: options.shape.text},
        },
        "contenders": contenders,
        "measurements": [measurement.as_json() for measurement in measurements],
        "ratios": ratios(measurements, OWN, []),
        "comparisons": [one.as_json() for one in _comparisons(measurements)],
    }


def _comparisons(measurements: list[Measurement]) -> Iterator[Comparison]:
    by_name = {(one.task, one.contender): one for one in measurements}
    for task, name, aim in ((_KEYS, OWN, _KEYS_AIM), (_EXPORT, OVER_GRPC, _EXPORT_AIM)):
        rates = [run.rate for run in by_name[task, name].runs]
        yield Comparison(f"{task}: millions a second", name, "1", [rate / 1e6 for rate in rates], aim / 1e6)
    for task in (_KEY_OBJECTS, _RECORDS, _EXPORT):
        name = OVER_GRPC if task == _EXPORT else OWN
        own, other = by_name[task, name], by_name[task, Lmdb.name]
        each = [mine.rate / beside.rate for mine, beside in zip(own.runs, other.runs, strict=True)]
        yield Comparison(task, name, Lmdb.name, each)


async def _measure(
    options: ScanOptions, workload: Workload, progress: Progress, contenders: dict[str, dict[str, Any]]
) -> dict[tuple[str, str], list[Run]]:
    found: dict[tuple[str, str], list[Run]] = {}
    with ExitStack() as stack:
        paths = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-")))
            for _ in range(4)
        ]
        own = EmbeddedGpkvs(paths[0], workload, options.promise, 0)
        stack.callback(own.close)
        lmdb = Lmdb(paths[1], workload, options.promise, 0)
        stack.callback(lmdb.close)
        for store in (own, lmdb):
            progress(f"loading {workload.records:,} records into {store.name}")
            store.load(workload)
            contenders[store.name] = {"version": store.version, "settings": store.settings}
        of_server = server_options(ServerBenchOptions(options.directory), options.shape, options.records)
        async with serve(paths[2] / "store", of_server) as server:
            progress(f"loading {workload.records:,} records into a server")
            table = await _load_server(server.target, workload)
            tasks = _tasks(options, own, lmdb, server.target, table, paths[3])
            for round_ in range(options.rounds):
                for (task, name), run in tasks.items():
                    progress(f"round {round_ + 1}: {task}, {name}")
                    done = await asyncio.to_thread(run)
                    if done.operations != options.records:
                        raise BenchError(f"{name} returns {done.operations:,} of {options.records:,} ({task})")
                    found.setdefault((task, name), []).append(done)
    return found


async def _load_server(target: str, workload: Workload) -> str:
    """Load the records into a server; return the table."""
    shape = workload.shape
    table = TABLE if shape.is_numbers else DEFAULT_TABLE
    async with AsyncClient(target, table=table, timeout=60) as client:
        if shape.is_numbers:
            await client.create_table(TABLE, layout="u64", index_bytes=index_bytes(shape, workload.records))
        for columns in workload.loads("random"):
            await client.execute(batch_of(Op.SET, columns))
    return table


def _tasks(
    options: ScanOptions, own: EmbeddedGpkvs, lmdb: Lmdb, target: str, table: str, folder: Path
) -> dict[tuple[str, str], Task]:
    own_table = TABLE if options.shape.is_numbers else DEFAULT_TABLE

    def steps(*, keys_only: bool) -> Iterator[ScanPiece]:
        cursor = b""
        while True:
            piece = own.store.scan_step(
                own_table, cursor, keys_only=keys_only, keys_max=_STEP_KEYS, bytes_max=_STEP_BYTES
            )
            yield piece
            cursor = piece.cursor
            if not cursor:
                return

    def over_grpc(*, keys_only: bool) -> Iterator[ScanPiece]:
        with Client(target, table=table, timeout=60) as client:
            yield from client.scan_pieces(keys_only=keys_only)

    return {
        (_KEYS, OWN): lambda: _timed(steps(keys_only=True), len),
        (_KEYS, OVER_GRPC): lambda: _timed(over_grpc(keys_only=True), len),
        (_KEY_OBJECTS, OWN): lambda: _timed(steps(keys_only=True), lambda piece: len(piece.key_list())),
        (_KEY_OBJECTS, Lmdb.name): lambda: _cursor(lmdb, values=False),
        (_RECORDS, OWN): lambda: _timed(steps(keys_only=False), lambda piece: sum(1 for _ in piece.pairs())),
        (_RECORDS, OVER_GRPC): lambda: _timed(over_grpc(keys_only=False), lambda piece: sum(1 for _ in piece.pairs())),
        (_RECORDS, Lmdb.name): lambda: _cursor(lmdb, values=True),
        (_EXPORT, OVER_GRPC): lambda: _export(target, table, folder),
        (_EXPORT, Lmdb.name): lambda: _cursor_to_file(lmdb, folder),
    }


def _timed(pieces: Iterator[ScanPiece], count: Callable[[ScanPiece], int]) -> Run:
    began = last = perf_counter()
    keys, seconds = 0, []
    for piece in pieces:
        keys += count(piece)
        if piece.damaged:
            raise BenchError(f"{piece.damaged:,} records are damaged")
        now = perf_counter()
        seconds.append(now - last)
        last = now
    return Run(keys, last - began, latencies_ms(seconds, 50, 99, 100))


def _cursor(lmdb: Lmdb, *, values: bool) -> Run:
    began = perf_counter()
    count = sum(1 for _ in lmdb.records(values=values))
    return Run(count, perf_counter() - began)


def _cursor_to_file(lmdb: Lmdb, folder: Path) -> Run:
    """Write what a cursor returns as msgpack, as an export does."""
    path, pack, count = folder / "lmdb", msgpack.Packer(), 0
    began = perf_counter()
    with path.open("wb", buffering=1 << 20) as file:
        for key, value in lmdb.records(values=True):
            file.write(pack.pack((key, value, 0)))
            count += 1
        file.flush()
        os.fsync(file.fileno())
    seconds = perf_counter() - began
    path.unlink()
    return Run(count, seconds)


def _export(target: str, table: str, folder: Path) -> Run:
    """Run the command; the time is its own, without that of starting Python."""
    path = folder / "export"
    words = [*GPKVS, "export", "--out", str(path), "--target", target, "--table", table]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"gpkvs export failed: {done.stderr}")
    path.unlink()
    said = re.search(r": ([0-9,]+) records?, .* in ([0-9.]+) s$", done.stderr, re.MULTILINE)
    assert said, done.stderr
    return Run(int(said[1].replace(",", "")), float(said[2]))
