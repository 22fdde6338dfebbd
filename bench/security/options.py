"""What the benchmark of security measures, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpkvs.bench.peers.contender import Promise


@dataclass(frozen=True)
class SecurityOptions:
    """What to measure, and for how long.

    Parameters
    ----------
    directory
        The directory for the stores: its file system decides the promise.
    promise
        What an acknowledged write must survive.
    records
        How many each server holds before anything is timed.
    runs
        Pairs of runs of each kind, one with and one without; the median of their ratios or differences counts.
    seconds
        The length of a run.
    clients
        Client processes of streams and of handshakes.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 100_000
    runs: int = 9
    seconds: float = 1.0
    clients: int = 4
