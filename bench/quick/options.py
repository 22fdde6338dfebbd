"""What the quick benchmark measures, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpkvs.bench.report.results import Measurement, Run

OPERATIONS = ("SET", "GET")
BATCH = 4096
PIPELINE = 64
CONNECTIONS = 50
# Tasks of a gpkvs and its peers: 6 embedded on both sides, 4 of the Redis protocol on both, 2 over gRPC.
_SIDES = 22
# The rest of the time goes to loading, to starts, and to making batches.
_MEASURED_SHARE = 0.75


@dataclass(frozen=True)
class QuickOptions:
    """What to measure, and for how long.

    Parameters
    ----------
    directory
        The directory for the stores: its file system decides what they survive.
    seconds
        How long all of it takes, about.
    records
        How many each store holds before anything is timed; a batch at least.
    runs
        Of each measurement, in turn with the peer's; the median counts.
    """

    directory: Path
    seconds: float = 60.0
    records: int = 500_000
    runs: int = 3

    @property
    def run_seconds(self) -> float:
        """The length of a run."""
        return self.seconds * _MEASURED_SHARE / (_SIDES * self.runs)


@dataclass
class Found:
    """What was measured so far.

    Attributes
    ----------
    runs
        By task and store; of each task gpkvs comes first.
    contenders
        Version and settings of each store.
    absent
        Why a peer, or a part, was not measured.
    """

    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    contenders: dict[str, dict[str, str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def add(self, task: str, store: str, run: Run) -> None:
        """Keep a run."""
        self.runs.setdefault((task, store), []).append(run)

    def measurements(self) -> list[Measurement]:
        """Return all runs by task and store."""
        return [Measurement(task, store, runs) for (task, store), runs in self.runs.items()]


def in_turn(names: list[str], number: int) -> list[str]:
    """Return the stores in the order of a round: each comes first in every second one."""
    return names[::-1] if number % 2 else names
