"""What gpkvs and redis hold in memory for the same records, part by part."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import RespPort, keys_of
from gpkvs.bench.server.process_usage import resident
from gpkvs.client import AsyncClient
from gpkvs.config import MIB
from gpkvs.recovery.proof.servers.server_process import ServerProcess

_AT_ONCE = 10_000


@dataclass(frozen=True)
class Held:
    """The bytes of a server's memory, by part.

    Attributes
    ----------
    parts
        Each with its name: records, heap beside them, index, log, own memory, files of libraries.
    """

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())

    @property
    def text(self) -> str:
        """The parts, for people."""
        return ", ".join(f"{name} {size / MIB:,.0f}" for name, size in self.parts.items()) + " MiB"


async def held_by_gpkvs(server: ServerProcess, store: Path) -> Held:
    """Return what a server holds: its process, and the files of its store, which are in memory too."""
    async with AsyncClient(server.target) as client:
        info = await client.info()
    files = _allocated_bytes(store)
    index = sum(size for name, size in files.items() if name.startswith("index"))
    heap = sum(files.get(name, 0) for name in ("heap", "data"))
    used = resident(server.pid, store)
    return Held(
        {
            "records": info.heap_live_bytes,
            "heap beside them": heap - info.heap_live_bytes,
            "index": index,
            "log and other files": sum(files.values()) - heap - index,
            "own memory": used.own_bytes,
            "files of libraries": used.library_bytes,
        }
    )


def _allocated_bytes(store: Path) -> dict[str, int]:
    """Return what the files of a store take of their file system."""
    return {file.name: file.stat().st_blocks * 512 for file in store.iterdir()}


def held_by_redis(redis: Redis, folder: Path) -> Held:
    """Return what redis holds: its process, without its append-only file."""
    used = resident(redis.pid, folder)
    return Held({"own memory": used.own_bytes, "files of libraries": used.library_bytes})


async def overwrite(port: RespPort, records: int, value_bytes: int) -> None:
    """Store each record once more, in random order."""
    await asyncio.to_thread(_overwrite, port, records, value_bytes)


def _overwrite(port: RespPort, records: int, value_bytes: int) -> None:
    order = np.random.default_rng(1).permutation(records)
    with port.connected() as send:
        for first in range(0, records, _AT_ONCE):
            keys = keys_of(order[first : first + _AT_ONCE])
            values = np.full((len(keys), value_bytes), ord("y"), np.uint8)
            send(port.commands(keys, values), len(keys))
