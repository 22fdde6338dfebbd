"""What the benchmark of large values measures, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from gpkvs.bench.redis.options import IDLE_SECONDS
from gpkvs.bench.report.comparison import Comparison, rates_over
from gpkvs.bench.report.results import Measurement
from gpkvs.bench.report.tables import gigabytes_text
from gpkvs.bench.values.value_store import ValueStore
from gpkvs.config import KIB, MIB, FormatName

MemoryPart = Literal["server", "embedded", "space"]
MEMORY_PARTS: tuple[MemoryPart, ...] = get_args(MemoryPart)
DiskPart = Literal["disk", "disk-space"]
DISK_PARTS: tuple[DiskPart, ...] = get_args(DiskPart)

MIX_BYTES_MIN, MIX_BYTES_MAX = 256 * KIB, 64 * MIB
"""Of values of mixed sizes."""

ValuesPeer = Literal["lmdb", "blobdb", "files", "redis"]
PEERS: tuple[ValuesPeer, ...] = get_args(ValuesPeer)


@dataclass(frozen=True)
class ValuesOptions:
    """What to measure, and how much of it.

    Parameters
    ----------
    directory
        On a tmpfs: for parts whose stores survive their process.
    disk
        On a disk: for parts whose stores survive a loss of power.
    sizes
        Of values. A store that takes less leaves out the rest.
    total_bytes
        Of all values that a store holds at a time.
    runs
        Rounds of each measurement; in each, all sides take turns. Medians count.
    seconds
        The most that a run takes. It also ends when each key had its turn.
    connections
        Of clients of a server: one, and so many.
    peers
        What to compare with.
    store_format
        Of gpkvs's store.
    idle_seconds
        How long stores rest before their space is looked at for the last time.
    """

    directory: Path
    disk: Path
    sizes: tuple[int, ...] = (256 * KIB, MIB, 4 * MIB, 32 * MIB)
    total_bytes: int = 128 * MIB
    runs: int = 5
    seconds: float = 0.5
    connections: int = 4
    peers: tuple[ValuesPeer, ...] = PEERS
    store_format: FormatName = "auto"
    idle_seconds: float = IDLE_SECONDS


@dataclass
class Found:
    """The results so far."""

    comparisons: list[Comparison] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)

    def contender(self, store: ValueStore, part: str) -> None:
        """Note what a store is, and how it was opened for a part."""
        known = self.contenders.setdefault(store.name, {"version": store.version})
        known[part] = {"settings": store.settings}

    def add(self, task: str, own: str, measured: dict[str, Measurement], size: int, aims: dict[str, float]) -> None:
        """Note the measurements of one task, and how many times as fast as each other one our own store was."""
        self.measurements += measured.values()
        for name, other in measured.items():
            if name == own:
                continue
            ours = measured[own]
            note = f"{gigabytes_text(ours.rate * size)}, {gigabytes_text(other.rate * size)}"
            self.comparisons.append(Comparison(task, own, name, rates_over(ours, other), aims.get(name), note=note))
