"""What the benchmark of wear measures, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from gpkvs.bench.engine.workload import Workload
from gpkvs.bench.peers.contender import Contender, Promise
from gpkvs.bench.peers.lmdb_peer import Lmdb
from gpkvs.bench.peers.rocksdb_peer import BlobDb
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.results import Measurement
from gpkvs.config import MIB

WearPart = Literal["overwrites", "space", "deleted"]
WEAR_PARTS: tuple[WearPart, ...] = get_args(WearPart)

WearPeer = Literal["blobdb", "lmdb"]
WEAR_PEERS: dict[WearPeer, type[BlobDb | Lmdb]] = {"blobdb": BlobDb, "lmdb": Lmdb}

Distribution = Literal["uniform", "zipfian"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)


@dataclass(frozen=True)
class WearOptions:
    """What to measure, and how much of it.

    Parameters
    ----------
    directory
        For the stores: its file system decides the promise.
    promise
        What an acknowledged batch must survive.
    heap_bytes
        Of gpkvs, where records of 100 bytes are overwritten; the number of records follows from it.
    shares
        How much of the heap the records take.
    overwrites
        How often each of them is written again.
    batch
        Operations in a batch.
    large_records, large_overwrites
        Of records of 1 KB, for the space that the files take.
    idle_seconds
        How long a server may tidy up after deletes.
    peers
        The stores to compare with.
    """

    directory: Path
    promise: Promise = "process"
    heap_bytes: int = 128 * MIB
    shares: tuple[float, ...] = (0.5, 0.7, 0.85)
    overwrites: int = 20
    batch: int = 4096
    large_records: int = 100_000
    large_overwrites: int = 20
    idle_seconds: float = 120.0
    peers: tuple[WearPeer, ...] = get_args(WearPeer)


@dataclass
class Found:
    """The results so far."""

    comparisons: list[Comparison] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: int = 0  # the most that a measurement had

    def contender(self, contender: Contender, workload: Workload) -> None:
        """Note what a contender is and how it was opened."""
        known = self.contenders.setdefault(contender.name, {"version": contender.version})
        known[workload.shape.name] = {"settings": contender.settings}


def stored_bytes(directory: Path) -> int:
    """Return the bytes that the files of a directory take on the file system."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())
