"""Explores many workloads in several processes, and adds up the results."""

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
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TypeVar

from gpkvs.native import TRACE_VARIABLE
from gpkvs.recovery.proof.powerfail.crash_models import Model
from gpkvs.recovery.proof.powerfail.explorer import (
    Explorer,
    ExplorerOptions,
    StateName,
    StateReport,
    StateViolation,
    Visited,
)
from gpkvs.recovery.proof.powerfail.missing_persists import WORKLOADS, MutantVerdict, Place, mutations_in, verdict
from gpkvs.recovery.proof.powerfail.trace import Mutation
from gpkvs.recovery.proof.powerfail.workloads import EXTRA, Workload, all_workloads

_SHARED_MEMORY = Path("/dev/shm")
_DIES_WITH_COMMAND = "gpkvs.recovery.proof.powerfail.dies_with_command"  # whoever imports it does
_T = TypeVar("_T")


@dataclass
class Totals:
    """The sums over all workloads."""

    workloads: int = 0
    epochs: int = 0
    exhaustive: int = 0
    states: Counter[Model] = field(default_factory=Counter)
    distinct: int = 0
    recoveries: int = 0
    judged: int = 0
    natively: int = 0
    seconds: float = 0.0
    violations: list[StateViolation] = field(default_factory=list)

    def add(self, visited: Visited) -> None:
        """Add the exploration of one workload."""
        self.workloads += 1
        self.epochs += visited.epochs
        self.exhaustive += visited.exhaustive
        self.states += visited.states
        self.recoveries += visited.recoveries
        self.judged += visited.judged
        self.natively += visited.natively
        self.violations += visited.violations


def part_of(workloads: int, seed: int) -> list[Workload]:
    """Return a seeded part of all workloads, two thirds of it of one letter; without W, which takes longest."""
    every = [workload for workload in all_workloads() if workload.letters != "W"]
    short = [workload for workload in every if len(workload.letters) == 1]
    rest = [workload for workload in every if len(workload.letters) > 1]
    rng, singles = Random(seed), min(len(short), -(-2 * workloads // 3))
    return rng.sample(short, singles) + rng.sample(rest, min(len(rest), workloads - singles))


class Campaign:
    """Explores workloads in processes that load the traced build of the kernels.

    Parameters
    ----------
    options
        What to visit.
    processes
        How many; 0 takes one for each processor that this process may use.
    """

    def __init__(self, options: ExplorerOptions, processes: int = 0) -> None:
        self._options = options
        self._processes = processes or len(os.sched_getaffinity(0))

    def explore(self, workloads: list[Workload], on_visited: Callable[[Visited], None]) -> Totals:
        """Explore workloads; call `on_visited` with each when it is done."""
        begin = time.perf_counter()
        totals = Totals()
        distinct: set[bytes] = set()
        # The longest first.
        ordered = sorted(workloads, key=lambda workload: workload.letters not in EXTRA)
        with self._pool() as pool:
            for visited in _as_done([pool.submit(_explore, workload) for workload in ordered]):
                totals.add(visited)
                layout = visited.workload.layout.encode()
                distinct |= {layout + key for key in visited.distinct}
                on_visited(visited)
        totals.distinct = len(distinct)
        totals.seconds = time.perf_counter() - begin
        return totals

    def mutate(
        self, on_found: Callable[[int], None], on_verdict: Callable[[MutantVerdict], None]
    ) -> list[MutantVerdict]:
        """Try every mutant; call `on_found` with their number, and `on_verdict` with each verdict."""
        places: dict[Mutation, list[Place]] = {}
        verdicts = []
        with self._pool() as pool:
            for found in _as_done([pool.submit(_mutations, workload) for workload in WORKLOADS]):
                for mutation, where in found.items():
                    places.setdefault(mutation, []).extend(where)
            on_found(len(places))
            tried = [pool.submit(_verdict, mutation, sorted(places[mutation])) for mutation in sorted(places, key=str)]
            for verdict_of_one in _as_done(tried):
                verdicts.append(verdict_of_one)
                on_verdict(verdict_of_one)
        return verdicts

    def visit(self, state: StateName) -> StateReport:
        """Visit one state."""
        with self._pool() as pool:
            return pool.submit(_visit, state).result()

    @contextmanager
    def _pool(self) -> Iterator[ProcessPoolExecutor]:
        before = os.environ.get(TRACE_VARIABLE)
        os.environ[TRACE_VARIABLE] = "1"  # read when gpkvs is imported
        # All are forks of one process, which has imported it and runs one thread.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([_DIES_WITH_COMMAND, __name__])
        try:
            with (
                memory_directory() as directory,
                ProcessPoolExecutor(
                    self._processes,
                    context,
                    initializer=_start,
                    initargs=(directory, self._options, dict(os.environ)),
                ) as pool,
            ):
                try:
                    yield pool
                except BaseException:
                    # Nobody waits for their results. They must be gone before the directory is removed.
                    pool.shutdown(wait=False, cancel_futures=True)
                    for child in multiprocessing.active_children():
                        child.kill()
                        child.join()
                    raise
        finally:
            if before is None:
                del os.environ[TRACE_VARIABLE]


def _as_done(futures: list[Future[_T]]) -> Iterator[_T]:
    """Return results as they come."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Make a directory in memory, or else where temporary files go; remove it at the end."""
    where = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"gpkvs-crash-{os.getpid()}-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path)


_explorer: Explorer


def _start(directory: Path, options: ExplorerOptions, environment: dict[str, str]) -> None:
    global _explorer  # noqa: PLW0603 - each process has one
    import_module(_DIES_WITH_COMMAND).die_with_parent()
    os.environ.clear()
    os.environ.update(environment)  # what was forked has that of the first campaign of this process
    _explorer = Explorer(Path(tempfile.mkdtemp(dir=directory)), options)


def _explore(workload: Workload) -> Visited:
    return _explorer.explore(workload)


def _mutations(workload: str) -> dict[Mutation, list[Place]]:
    return mutations_in(_explorer, workload)


def _verdict(mutation: Mutation, places: list[Place]) -> MutantVerdict:
    return verdict(_explorer, mutation, places)


def _visit(state: StateName) -> StateReport:
    return _explorer.visit(state)
