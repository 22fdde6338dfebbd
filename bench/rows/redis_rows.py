"""redis-server with rows as strings, through redis-py."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path

from gpkvs.bench.peers.contender import Promise, need_extra
from gpkvs.bench.peers.redis_peer import NAME, Redis
from gpkvs.bench.peers.resp_port import require_redis
from gpkvs.bench.redis.memory import held_by_redis
from gpkvs.bench.rows.byte_rows import Adds, ByteRows, key_bytes
from gpkvs.bench.rows.table import Float32, RowBatch, RowTable


class RedisRows(ByteRows):
    """A redis-server of its own, and one connection to it; arguments as of `GpkvsRows`.

    Nobody else uses it. So an add is an MGET and an MSET: what would make them one transaction would only cost it time.
    """

    name = NAME

    def __init__(self, directory: Path, table: RowTable, promise: Promise) -> None:
        super().__init__(table.layout)
        client = need_extra("redis", "redis")
        require_redis()
        self._directory = directory
        self._server = Redis(directory, promise)
        self.version = self._server.version
        hiredis = f"hiredis {version('hiredis')}" if importlib.util.find_spec("hiredis") else "without hiredis"
        self.settings = f"{self._server.settings}; MGET, MSET of redis-py {version('redis')}, {hiredis}"
        self._client = client.Redis(port=self._server.port)

    def load(self, table: RowTable) -> None:
        """Store all rows."""
        for batch in table.loads():
            self.set(self.keys_of(batch), self.rows_of(batch.rows))

    def keys_of(self, batch: RowBatch) -> list[bytes]:
        """Return keys as bytes."""
        return key_bytes(batch)

    def get(self, keys: list[bytes]) -> Float32:
        """Read a batch, and join the values."""
        return self.array(self._client.mget(keys))

    def set(self, keys: list[bytes], rows: list[bytes]) -> None:
        """Store a batch."""
        self._client.mset(dict(zip(keys, rows, strict=True)))

    def add(self, adds: Adds) -> None:
        """Read, add and store."""
        self.set(adds.keys, self.added(self.get(adds.keys), adds))

    def taken_bytes(self) -> int:
        """Return the memory of the server's process."""
        return held_by_redis(self._server, self._directory).total

    def close(self) -> None:
        """End the connection and the server."""
        self._client.close()
        self._server.close()
