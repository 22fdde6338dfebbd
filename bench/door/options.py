"""What the benchmark of the door measures, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gpkvs.bench.peers.contender import Promise

Part = Literal["unary", "methods", "alone", "tls", "pipeline", "crowd", "floods", "busy"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class DoorOptions:
    """What to measure, and for how long.

    Parameters
    ----------
    directory
        The directory for the stores: its file system decides the promise.
    promise
        What an acknowledged write must survive.
    records
        How many each server, and redis, hold before anything is timed.
    runs
        Rounds of each measurement; in each, all servers take turns. Medians count.
    seconds
        The length of a run, about.
    message
        Operations in a message of a stream.
    crowd
        Connections of the crowd, one of which floods and one of which reads nothing.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 1_000_000
    runs: int = 5
    seconds: float = 2.0
    message: int = 4096
    crowd: int = 1000
