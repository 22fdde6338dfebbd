"""The benchmark of scans: all keys of a table, and all records, in the same process and over gRPC, beside LMDB.

The store and LMDB hold the same records and take turns. The store is then served as it is; clients scan it, and export
it to a file. Every scan must return each record that was stored.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import uvloop

from gpkvs.bench.engine.workload import SHAPES, Shape, Workload
from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.peers.embedded_gpkvs import TABLE, EmbeddedGpkvs
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.results import Measurement, Run, ratios
from gpkvs.bench.server.measured_server import ServerBenchOptions, serve, server_options
from gpkvs.client import Client
from gpkvs.config import DEFAULT_TABLE
from gpkvs.export.file_format import Header
from gpkvs.export.writer import ExportWriter
from gpkvs.scan import ScanPiece

ScanPeer = Literal["lmdb"]
SCAN_PEERS: tuple[ScanPeer, ...] = get_args(ScanPeer)

# The first one's figures are over the others'. LMDB's cursor makes Python objects, as "gpkvs" does here.
OWN, COLUMNS, CLIENT, EXPORT = "gpkvs", "gpkvs, as columns", "gpkvs, a client", "gpkvs, an export"
_KEYS_AIM, _EXPORT_AIM = 5.0, 1.0  # millions a second


@dataclass(frozen=True)
class ScanOptions:
    """What to measure.

    Parameters
    ----------
    directory
        For the stores and the exported file: its file system decides the promise.
    promise
        What an acknowledged batch must survive.
    records
        How many each store holds.
    batch
        Records in a batch while they are loaded.
    runs
        Scans of each kind; the median counts.
    shapes
        Sizes of keys and values.
    peers
        The stores to compare with.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 2_000_000
    batch: int = 4096
    runs: int = 5
    shapes: tuple[Shape, ...] = tuple(SHAPES.values())
    peers: tuple[ScanPeer, ...] = SCAN_PEERS


Scan = Callable[[], int]
"""Scans a table; returns how many records it had."""

Tasks = dict[tuple[str, str], Scan]
"""What is measured in turn: by task and contender."""


def run_scan(options: ScanOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If a peer is not installed, the directory gives another promise, or a scan returns too few or too many records.
    """
    began = perf_counter()
    require_promise(options.directory, options.promise)
    described = describe_run(options.directory)
    contenders: dict[str, dict[str, Any]] = {}
    runs: dict[tuple[str, str], list[Run]] = {}
    for shape in options.shapes:
        with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as folder:
            _measure_shape(options, shape, Path(folder), progress, contenders, runs)
    measurements = [Measurement(task, contender, found) for (task, contender), found in runs.items()]
    return {
        "benchmark": "scan",
        "promise": options.promise,
        **described,
        "seconds": perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name not in ("directory", "shapes")},
            "shapes": {shape.name: shape.text for shape in options.shapes},
        },
        "contenders": contenders,
        "measurements": [measurement.as_json() for measurement in measurements],
        "ratios": ratios(measurements, OWN, []),
        "comparisons": [one.as_json() for one in _comparisons(runs, options)],
    }


def _measure_shape(
    options: ScanOptions,
    shape: Shape,
    folder: Path,
    progress: Progress,
    contenders: dict[str, dict[str, Any]],
    runs: dict[tuple[str, str], list[Run]],
) -> None:
    """Load the stores with records of one shape, and scan them."""
    workload = Workload(shape, options.records, options.batch)
    data = folder / "gpkvs"
    data.mkdir()
    store = EmbeddedGpkvs(data, workload, options.promise, 0)
    peers: list[Lmdb] = []
    try:
        progress(f"loading {options.records:,} records, {shape.name}")
        store.load(workload)
        contenders.setdefault(OWN, {"version": store.version})[shape.name] = {"settings": store.settings}
        for _ in options.peers:
            (folder / "lmdb").mkdir()
            peer = Lmdb(folder / "lmdb", workload, options.promise, 0)
            peers.append(peer)
            peer.load(workload)
            contenders.setdefault(peer.name, {"version": peer.version})[shape.name] = {"settings": peer.settings}
        tasks = _tasks_of_store(store, shape)
        for peer in peers:
            tasks |= _tasks_of_lmdb(peer, shape)
        _take_turns(tasks, options, progress, runs)
    finally:
        store.close()
        for peer in peers:
            peer.close()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_measure_server(options, shape, folder, progress, runs))


async def _measure_server(
    options: ScanOptions, shape: Shape, folder: Path, progress: Progress, runs: dict[tuple[str, str], list[Run]]
) -> None:
    """Serve the store that is loaded, and scan it as a client."""
    sizes = server_options(ServerBenchOptions(options.directory), shape, options.records)
    async with serve(folder / "gpkvs", sizes) as server:
        with Client(server.target, table=_table(shape), timeout=60) as client:
            _take_turns(_tasks_of_client(client, shape, folder), options, progress, runs)


def _take_turns(tasks: Tasks, options: ScanOptions, progress: Progress, runs: dict[tuple[str, str], list[Run]]) -> None:
    for number in range(options.runs):
        for (task, contender), scan in tasks.items():
            progress(f"{task}: {contender}, run {number + 1}")
            began = perf_counter()
            records = scan()
            seconds = perf_counter() - began
            if records != options.records:
                raise BenchError(f"{contender} returns {records:,} records, {options.records:,} are there")
            runs.setdefault((task, contender), []).append(Run(records, seconds))


def _table(shape: Shape) -> str:
    return TABLE if shape.is_numbers else DEFAULT_TABLE


def _names(shape: Shape) -> tuple[str, str]:
    return f"all keys, {shape.name}", f"all records, {shape.name}"


def _tasks_of_store(contender: EmbeddedGpkvs, shape: Shape) -> Tasks:
    """Return the scans in this process."""

    def pieces(*, keys_only: bool) -> Iterator[ScanPiece]:
        cursor = b""
        while True:
            piece = contender.store.scan_step(_table(shape), cursor, keys_only=keys_only)
            yield piece
            cursor = piece.cursor
            if not cursor:
                return

    keys, records = _names(shape)
    return {
        (keys, OWN): lambda: sum(len(piece.key_list()) for piece in pieces(keys_only=True)),
        (keys, COLUMNS): lambda: sum(map(len, pieces(keys_only=True))),
        (records, OWN): lambda: sum(len(list(piece.pairs())) for piece in pieces(keys_only=False)),
        (records, COLUMNS): lambda: sum(map(len, pieces(keys_only=False))),
    }


def _tasks_of_lmdb(peer: Lmdb, shape: Shape) -> Tasks:
    keys, records = _names(shape)
    return {
        (keys, peer.name): lambda: _count(peer.scan(values=False)),
        (records, peer.name): lambda: _count(peer.scan(values=True)),
    }


def _count(objects: Iterator[Any]) -> int:
    """Return how many there are, at the speed of C."""
    numbered = deque(enumerate(objects, 1), maxlen=1)
    return numbered[0][0] if numbered else 0


def _tasks_of_client(client: Client, shape: Shape, folder: Path) -> Tasks:
    """Return the scans over gRPC, and an export: to a file that is whole and synced at the end."""

    def export() -> int:
        header = Header(_table(shape), "u64" if shape.is_numbers else "bytes")
        with ExportWriter(folder / "export", header, overwrite=True) as writer:
            for piece in client.scan_pieces(cursor=writer.cursor):
                writer.add(piece)
            writer.finish()
            return writer.records

    keys, records = _names(shape)
    return {
        (keys, CLIENT): lambda: sum(map(len, client.scan_pieces(keys_only=True))),
        (records, CLIENT): lambda: sum(map(len, client.scan_pieces())),
        (records, EXPORT): export,
    }


def _comparisons(runs: dict[tuple[str, str], list[Run]], options: ScanOptions) -> Iterator[Comparison]:
    for shape in options.shapes:
        keys, records = _names(shape)
        for task, contender, aim in ((keys, COLUMNS, _KEYS_AIM), (records, EXPORT, _EXPORT_AIM)):
            rates = [run.rate / 1e6 for run in runs[task, contender]]
            yield Comparison(task, contender, "1 M a second", rates, aim)
        for task in (keys, records):
            if other := runs.get((task, Lmdb.name)):
                pairs = zip(runs[task, OWN], other, strict=True)
                yield Comparison(task, OWN, Lmdb.name, [own.rate / peer.rate for own, peer in pairs])
