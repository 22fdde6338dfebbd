"""What the benchmark of a store on a disk measures, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpkvs.bench.engine.workload import Workload
from gpkvs.bench.peers.contender import Contender
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.results import Measurement
from gpkvs.bench.server.measured_server import ServerBenchOptions
from gpkvs.config import MIB

OWN = EmbeddedGpkvs.name


@dataclass(frozen=True)
class DiskOptions:
    """What to measure, and for how long.

    Parameters
    ----------
    directory
        On a disk: for all stores but one.
    memory
        On a tmpfs: for the store that only survives its process.
    records
        How many each store holds before anything is timed.
    batch
        Operations in a large batch.
    rounds
        Each gives a ratio; their median counts.
    seconds
        How long each contender runs in a round.
    device_batch, device_index_bytes
        Operations in a batch, and the size of the index, where device writes are counted.
    journal_bytes
        The size of the journal; 0: as a store of the usual sizes has it.
    server_records
        Records of the server's table and of redis.
    """

    directory: Path
    memory: Path = Path("/dev/shm")
    records: int = 2_000_000
    batch: int = 65_536
    rounds: int = 7
    seconds: float = 0.8
    device_batch: int = 4096
    device_index_bytes: int = 512 * MIB
    journal_bytes: int = 0
    server_records: int = 1_000_000


@dataclass
class Found:
    """The results of the engine so far."""

    comparisons: list[Comparison] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)

    def contender(self, contender: Contender, workload: Workload, name: str = "") -> None:
        """Note what a contender is and how it was opened."""
        known = self.contenders.setdefault(name or contender.name, {"version": contender.version})
        known[workload.shape.name] = {"settings": contender.settings}


@contextmanager
def opened(*makers: tuple[Path, Callable[[Path], Contender]]) -> Iterator[list[Contender]]:
    """Open contenders, each in a new directory; close them and remove the directories."""
    with ExitStack() as stack:
        contenders = []
        for parent, make in makers:
            path = Path(stack.enter_context(TemporaryDirectory(dir=parent, prefix="gpkvs-bench-")))
            contenders.append(make(path))
            stack.callback(contenders[-1].close)
        yield contenders


def gpkvs_on_disk(
    workload: Workload, options: DiskOptions, sets_max: int, index: int = 0
) -> Callable[[Path], Contender]:
    """Return what opens a store of gpkvs with a journal."""
    return lambda path: EmbeddedGpkvs(path, workload, "msync", sets_max, index=index, journal=options.journal_bytes)


def server_options_of(options: DiskOptions) -> ServerBenchOptions:
    """Return the same for the benchmark of the server."""
    return ServerBenchOptions(
        options.directory, "msync", options.server_records, runs=options.rounds, seconds=options.seconds
    )
