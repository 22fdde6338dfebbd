"""Times the start of a store on a GPU, step by step, by the size of an index."""

from __future__ import annotations

import asyncio
import shutil
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import gpkvs
from gpkvs.config import MIB
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess

_TABLE = "numbers"
_SERVER_SECONDS_MAX = 300.0


def measure_start(folder: Path, index_bytes: int) -> dict[str, Any]:
    """Return the seconds of the steps; the store is made and removed here."""
    keys = np.random.default_rng(3).integers(0, 1 << 64, 1 << 20, np.uint64)
    try:
        with gpkvs.open(
            folder, backend="cuda", index_bytes=16 * MIB, heap_bytes=64 * MIB, log_bytes=256 * MIB
        ) as store:
            begin = perf_counter()
            store.create_table(_TABLE, layout=U64_LAYOUT.name, index_bytes=index_bytes)
            found = {"index_bytes": index_bytes, "create_table": perf_counter() - begin}
            store.set_many(keys, keys, table=_TABLE)
        begin = perf_counter()
        store = gpkvs.open(folder, backend="cuda")
        found["open"] = perf_counter() - begin
        with store:
            found |= _attach_steps(store)
        found["server_to_serving"] = asyncio.run(_serve(folder))
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _attach_steps(store: gpkvs.Store) -> dict[str, float]:
    """Detach the index from the GPU and attach it again, step by step."""
    backend: Any = store._backend
    index = store._files.indexes[store.table(_TABLE).id]
    backend.detach_index(index)
    begin = perf_counter()
    memory = import_module("gpkvs.backends.cuda.host_memory").HostMemory(index.address, index.region.bytes)
    registered = perf_counter()
    memory.close()
    again = perf_counter()
    backend.attach_index(index)
    attached = perf_counter() - again
    return {
        "of_that_register_with_cuda": registered - begin,
        "of_that_copy_to_the_mirror": attached - (registered - begin),
    }


async def _serve(folder: Path) -> float:
    server = ServerProcess(folder, ServerOptions(backend="cuda", index="16MiB", heap="64MiB", log="256MiB"))
    try:
        seconds = await server.ready(_SERVER_SECONDS_MAX)
        await server.stop()
    finally:
        server.close()
        server.log.unlink(missing_ok=True)
    return seconds
