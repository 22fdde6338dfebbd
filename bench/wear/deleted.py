"""How much space a store keeps when nine tenths of its records were deleted, and it was idle for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from gpkvs.batch import Op
from gpkvs.bench.engine.workload import Columns, Workload
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs, batch_of, index_bytes
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.wear.options import WEAR_PEERS, Found, WearOptions, WearPeer, stored_bytes
from gpkvs.bench.wear.space import SHAPE, heap_file_bytes
from gpkvs.client.sync import Client
from gpkvs.proto.v1 import admin_pb2
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess

_KEPT = 10  # one record of so many
_BATCH = 512
_LOOK_SECONDS = 1.0
_INDEX_ROOM, _HEAP_MAX_ROOM = 1.3, 2
_LIVE_AIM, _SEGMENTS_AIM = 1.5, 10
_SEGMENTS_UNKNOWN = 16  # of a heap that does not say how many it has


def measure_deleted(options: WearOptions, progress: Progress, found: Found) -> None:
    """Load, delete and wait: a server of gpkvs, and the peers."""
    workload = Workload(SHAPE, options.large_records, min(_BATCH, options.large_records))
    progress(f"deleted: nine tenths of {workload.records:,} x 1 KB, a server of gpkvs")
    with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as name:
        found.comparisons.append(_gpkvs(options, workload, Path(name) / "store"))
    for peer in options.peers:
        progress(f"deleted: nine tenths of {workload.records:,} x 1 KB, {WEAR_PEERS[peer].name}")
        with TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as name:
            found.comparisons.append(_peer(options, workload, peer, Path(name)))


def _parts(workload: Workload) -> Iterator[tuple[Columns, Columns]]:
    """Yield all records, and those of them that are deleted."""
    for columns in workload.loads("random"):
        gone = [n for n in range(len(columns)) if n % _KEPT]
        yield columns, Columns(columns.numbers[gone], columns.keys[gone], columns.values[gone])


def _gpkvs(options: WearOptions, workload: Workload, path: Path) -> Comparison:
    record = SHAPE.key_bytes + SHAPE.value_bytes + 32
    server_options = ServerOptions(
        index=str(index_bytes(SHAPE, int(_INDEX_ROOM * workload.records))),
        heap="",  # what is asked for is not given back
        heap_max=str(_HEAP_MAX_ROOM * workload.records * record + (8 << 20)),
        log="16MiB",
        commit="auto",
        journal="16MiB",
    )
    with closing(ServerProcess(path, server_options)) as server:
        asyncio.run(_ready(server))
        with Client(server.target, timeout=60) as client:
            for columns, _ in _parts(workload):
                client.execute(batch_of(Op.SET, columns))
            for _, gone in _parts(workload):
                client.execute(batch_of(Op.DELETE, gone))
            deleted = time.monotonic()
            while True:
                comparison = _comparison(workload, client.info(), path, time.monotonic() - deleted)
                if comparison.as_json()["is_met"] or time.monotonic() - deleted >= options.idle_seconds:
                    return comparison
                time.sleep(_LOOK_SECONDS)


async def _ready(server: ServerProcess) -> None:
    await server.ready()


def _comparison(workload: Workload, info: admin_pb2.InfoResponse, path: Path, seconds: float) -> Comparison:
    segment = info.heap_bytes // (getattr(info, "heap_segments", 0) or _SEGMENTS_UNKNOWN)
    return Comparison(
        f"{workload.records:,} records of 1 KB, nine tenths deleted: heap file",
        EmbeddedGpkvs.name,
        "live records",
        [heap_file_bytes(path, info.journal_bytes) / info.heap_live_bytes],
        round(_LIVE_AIM + _SEGMENTS_AIM * segment / info.heap_live_bytes, 2),
        is_least=False,
        note=f"after {seconds:.0f} s; the aim is {_LIVE_AIM} and {_SEGMENTS_AIM} segments",
    )


def _peer(options: WearOptions, workload: Workload, peer: WearPeer, path: Path) -> Comparison:
    store = WEAR_PEERS[peer](path, workload, options.promise, 0)
    try:
        store.load(workload)
        for _, gone in _parts(workload):
            store.delete(store.prepare_get(gone))
        store.settle()
        live = workload.records * (SHAPE.key_bytes + SHAPE.value_bytes) / _KEPT
        return Comparison(
            f"{workload.records:,} records of 1 KB, nine tenths deleted: files",
            store.name,
            "live records",
            [stored_bytes(path) / live],
        )
    finally:
        store.close()
