"""Many workloads over several processes, and what came of them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gpkvs.crash.explore import Explorer, Options, Violation, Visited
from gpkvs.crash.models import Model
from gpkvs.crash.workloads import EXTRA, Workload, all_workloads
from gpkvs.native import TRACE_VARIABLE

_SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Totals:
    """What a campaign did."""

    workloads: int = 0
    epochs: int = 0
    exhaustive: int = 0
    states: Counter[Model] = field(default_factory=Counter)
    distinct: int = 0
    recoveries: int = 0
    judged: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)


def part_of(workloads: int, seed: int) -> list[Workload]:
    """Return a seeded part of all workloads: at least all of one letter."""
    every = all_workloads()
    short = [workload for workload in every if len(workload.letters) == 1]
    rest = [workload for workload in every if len(workload.letters) > 1]
    more = Random(seed).sample(rest, max(0, min(len(rest), workloads - len(short))))
    return short + more


class Campaign:
    """Explores workloads in processes that load the traced build of the kernels.

    Parameters
    ----------
    options
        What to visit.
    processes
        How many; 0 takes one for each processor that this process may use.
    """

    def __init__(self, options: Options, processes: int = 0) -> None:
        self._options = options
        self._processes = processes or len(os.sched_getaffinity(0))

    def run(self, workloads: list[Workload], on_visited: Callable[[Visited], None]) -> Totals:
        """Explore all of them; `on_visited` is told of each one when it is done."""
        begin = time.perf_counter()
        totals = Totals()
        distinct: set[bytes] = set()
        with memory_directory() as directory, _pool(self._processes, directory, self._options) as pool:
            # The longest first.
            ordered = sorted(workloads, key=lambda workload: workload.letters not in EXTRA)
            waiting: set[Future[Visited]] = {pool.submit(_explore, workload) for workload in ordered}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    visited = future.result()
                    totals.workloads += 1
                    totals.epochs += visited.epochs
                    totals.exhaustive += visited.exhaustive
                    totals.states += visited.states
                    totals.recoveries += visited.recoveries
                    totals.judged += visited.judged
                    totals.violations += visited.violations
                    layout = visited.workload.layout.encode()
                    distinct |= {layout + key for key in visited.distinct}
                    on_visited(visited)
        totals.distinct = len(distinct)
        totals.seconds = time.perf_counter() - begin
        return totals


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Make a directory in memory, or where temporary files go if there is no memory file system; remove it in the end."""
    where = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="gpkvs-crash-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def _pool(processes: int, directory: Path, options: Options) -> Iterator[ProcessPoolExecutor]:
    before = os.environ.get(TRACE_VARIABLE)
    os.environ[TRACE_VARIABLE] = "1"  # read when the new processes import gpkvs
    try:
        with ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(directory, options)
        ) as pool:
            yield pool
    finally:
        if before is None:
            del os.environ[TRACE_VARIABLE]


_explorer: Explorer


def _start(directory: Path, options: Options) -> None:
    global _explorer  # noqa: PLW0603 - one process has one
    _explorer = Explorer(Path(tempfile.mkdtemp(dir=directory)), options)


def _explore(workload: Workload) -> Visited:
    return _explorer.explore(workload)
