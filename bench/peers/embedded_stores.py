"""The embedded stores that the engine's benchmark knows; a new one is a file in this folder and a line here."""

from __future__ import annotations

from typing import Literal

from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.peers.rocksdb_peer import RocksDb

PeerName = Literal["lmdb", "rocksdb"]
PEERS: dict[PeerName, type[Lmdb | RocksDb]] = {"lmdb": Lmdb, "rocksdb": RocksDb}
