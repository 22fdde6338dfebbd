"""The resident memory of a server, and its time to start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

from gpkvs.batch import Batch, Op
from gpkvs.bench.engine.workload import SHAPES, Shape, Workload
from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.peers.embedded_gpkvs import TABLE, batch_of, index_bytes
from gpkvs.bench.server.load import all_records, fill
from gpkvs.bench.server.measured_server import (
    LARGE,
    START_SECONDS_MAX,
    ServerBenchOptions,
    serve,
    server_options,
)
from gpkvs.bench.server.process_usage import Resident, resident
from gpkvs.client import AsyncClient
from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess

_BATCH_BYTES = 1 << 20
_KILL_AFTER_SECONDS = 0.5


async def measure_memory(options: ServerBenchOptions, directory: Path, progress: Progress) -> dict[str, Any]:
    """Return the resident memory of a server that holds records of 1 KiB: empty, after loading, after reading all."""
    records = options.large_records
    data = directory / "memory"
    found: dict[str, Any] = {"records": records, "value_bytes": LARGE.value_bytes}
    progress(f"memory: loading and reading {records:,} records of 1 KiB")
    async with (
        serve(data, server_options(options, LARGE, records)) as server,
        AsyncClient(server.target, timeout=60) as client,
    ):
        found["empty"] = _bytes(resident(server.pid, data))
        for step, op in (("loaded", Op.SET), ("read", Op.GET)):
            await fill(client, requests(LARGE, records, op))
            found[step] = _bytes(resident(server.pid, data))
    return found


def _bytes(found: Resident) -> dict[str, int]:
    return {"store_bytes": found.store_bytes, "other_bytes": found.other_bytes}


def requests(shape: Shape, records: int, op: Op) -> Iterator[Batch]:
    """Yield requests of about 1 MiB on all records, once."""
    size = max(_BATCH_BYTES // (shape.key_bytes + shape.value_bytes), 1)
    if shape.is_numbers:
        return all_records(records, size)
    return (batch_of(op, columns) for columns in Workload(shape, records, size).loads("random"))


@dataclass(frozen=True)
class _Store:
    """A store whose server is started again and again."""

    shape: Shape
    records: int
    data: Path
    options: ServerOptions

    @property
    def used_bytes(self) -> int:
        """The bytes of its files on the file system."""
        return sum(file.stat().st_blocks * 512 for file in self.data.iterdir() if file.is_file())


async def measure_start(options: ServerBenchOptions, directory: Path, progress: Progress) -> list[dict[str, Any]]:
    """Return the seconds from the start of the process to SERVING, for stores of several sizes.

    After a stop in order, and after a kill in the middle of a stream of SETs.
    """
    found = []
    for shape, most in ((SHAPES["u64"], options.records), (LARGE, options.large_records)):
        for records in sorted({max(most // 100, 1), max(most // 10, 1), most}):
            progress(f"start-up time with {records:,} records of {shape.text}")
            data = directory / f"start-{shape.key_bytes}-{records}"
            # The SETs during which the server is killed append to the heap too: they need room.
            store = _Store(
                shape, records, data, server_options(options, shape, records, sets_max=records // 4 + 100_000)
            )
            found.append(await _starts(store, options.starts))
            for file in data.iterdir():
                file.unlink()
    return found


async def _starts(store: _Store, starts: int) -> dict[str, Any]:
    async with serve(store.data, store.options) as server, _client(server, store) as client:
        if store.shape.is_numbers:
            await client.create_table(TABLE, layout="u64", index_bytes=index_bytes(store.shape, store.records))
        await fill(client, requests(store.shape, store.records, Op.SET))
    clean, killed, undone = [], [], 0
    for _ in range(starts):
        async with serve(store.data, store.options) as server:
            clean.append(server.ready_seconds)
            await _kill_under_load(server, store)
        async with serve(store.data, store.options) as server:
            killed.append(server.ready_seconds)
        undone += json.loads((store.data / "recovery.json").read_text())["undone"]
    return {
        "shape": store.shape.text,
        "records": store.records,
        "store_bytes": store.used_bytes,
        "clean_seconds": clean,
        "killed_seconds": killed,
        "undone": undone,
    }


def _client(server: ServerProcess, store: _Store) -> AsyncClient:
    return AsyncClient(server.target, table=TABLE if store.shape.is_numbers else "", timeout=60)


async def _kill_under_load(server: ServerProcess, store: _Store) -> None:
    """Kill a server while SETs run."""
    async with _client(server, store) as client:

        async def load() -> None:
            # The same few megabytes again and again, so that the heap has room for them.
            first = [batch for batch, _ in zip(requests(store.shape, store.records, Op.SET), range(4), strict=False)]
            end = perf_counter() + START_SECONDS_MAX
            with suppress(GpkvsError):
                await fill(client, (batch for batch in cycle(first) if perf_counter() < end))

        task = asyncio.create_task(load())
        await asyncio.sleep(_KILL_AFTER_SECONDS)
        server.kill()
        await task
