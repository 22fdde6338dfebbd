"""The configuration of a store and of a server; units stand in the names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

DurabilityName = Literal["auto", "fence", "flush", "msync", "process", "none"]
BackendName = Literal["auto", "cpu", "cuda"]

DEFAULT_TABLE = "default"


@dataclass(frozen=True)
class Limits:
    """What a request may hold; over a limit it is refused before anything is written."""

    key_bytes_min: int = 1
    key_bytes_max: int = 4096
    value_bytes_min: int = 0
    value_bytes_max: int = 16 * MIB
    request_ops_max: int = 1 << 20
    result_bytes_max: int = 64 * MIB  # values that one request may read


@dataclass(frozen=True)
class Sizes:
    """Sizes of a store, fixed when it is created.

    The defaults suit a laptop: 2 million slots (good for 1.6 million records), 1 GiB of records, a log for
    batches of 1.3 million changes. Space is reserved at creation, so a later write never fails for want of disk.
    """

    index_bytes: int = 64 * MIB
    heap_bytes: int = 1 * GIB
    log_bytes: int = 64 * MIB


@dataclass(frozen=True)
class StoreConfig:
    """How to open a store."""

    backend: BackendName = "auto"
    durability: DurabilityName = "auto"
    accept_loss: bool = False  # open a store that durability=none left torn
    threads: int = 0  # of the cpu backend; 0: one for each processor this process may use
    index_bytes: int | None = None  # sizes of a new store; None: not given, those of `Sizes`
    heap_bytes: int | None = None
    log_bytes: int | None = None
    limits: Limits = field(default_factory=Limits)
    batch_result_bytes_max: int = 64 * MIB  # values that one transaction may read; the rest of a batch waits
    tables_max: int = 1000  # beyond so many, no table is made; each is a file that stays open
    tables_bytes_max: int | None = None  # of all indexes together; None: no limit but the disk

    @property
    def sizes(self) -> Sizes:
        """Of a new store."""
        given = {"index_bytes": self.index_bytes, "heap_bytes": self.heap_bytes, "log_bytes": self.log_bytes}
        return Sizes(**{name: size for name, size in given.items() if size is not None})


@dataclass(frozen=True)
class ServerConfig:
    """How to serve a store."""

    listen: str = "127.0.0.1:7171"
    metrics: str = "127.0.0.1:9171"
    message_bytes_max: int = 64 * MIB
    queue_requests_max: int = 65_536
    memory_bytes_max: int | None = None  # clients may take so much; None: a quarter of the machine's
    receive_seconds_max: float = 30.0  # until the only message of a call is whole
    batch_ops_max: int = 1 << 20
    batch_bytes_max: int = 256 * MIB
    stream_requests_max: int = 64  # of one Pipeline, that were read and have no response yet
    stream_bytes_max: int = 32 * MIB  # of their columns and responses; the last one read may pass it
    drain_seconds_max: float = 30.0
