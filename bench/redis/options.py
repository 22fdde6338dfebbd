"""What the benchmark of the Redis protocol measures, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gpkvs.bench.peers.contender import Promise
from gpkvs.config import FormatName

# What a heap has not needed for a minute goes back.
IDLE_SECONDS = 65.0

Part = Literal["single", "pipelined", "transactions", "memory"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class RedisOptions:
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
        Rounds of each measurement; in each, both servers take turns. Medians count.
    seconds
        The length of a run, about.
    connections
        Of redis-benchmark, and of the transactions.
    load_processes
        Of redis-benchmark, which share the connections; one may be the limit of both servers.
    io_threads
        Of redis, which reads and writes in so many.
    store_format
        Of gpkvs's store, for the part memory.
    idle_seconds
        How long both rest before their memory is looked at for the last time.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 1_000_000
    runs: int = 7
    seconds: float = 2.0
    connections: int = 50
    load_processes: int = 1
    io_threads: int = 1
    store_format: FormatName = "auto"
    idle_seconds: float = IDLE_SECONDS
