"""Explores workloads of gpkvs.gpm in processes that load the traced build of the kernels."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpkvs.native import TRACE_VARIABLE
from gpkvs.recovery.proof.gpmfail.explorer import GpmVisited, events_of, explore, named
from gpkvs.recovery.proof.powerfail.campaign import memory_directory
from gpkvs.recovery.proof.powerfail.trace import ORDERING, Kind, Mutation

_MUTANT_SAMPLES = 16
# Not needed: the one leaves `commit`, which syncs all, less to wait for; the other is of a disk, whose sync is enough.
_NOT_NEEDED = ("sync in versions._flush_now", "host store in checkpoint._write:")


@dataclass(frozen=True)
class GpmVerdict:
    """Whether a state shows what a mutated build leaves out.

    Attributes
    ----------
    mutation
        What it leaves out.
    caught
        The first state that shows it; empty if none does.
    """

    mutation: Mutation
    caught: str


class GpmCampaign:
    """Explores workloads.

    Parameters
    ----------
    seed
        Of every random choice.
    processes
        How many; 0 takes one for each processor that this process may use.
    """

    def __init__(self, seed: int, processes: int = 0) -> None:
        self._seed = seed
        self._processes = processes or len(os.sched_getaffinity(0))

    def explore(self, workloads: list[str]) -> Iterator[GpmVisited]:
        """Yield what was visited of each workload, as they are done."""
        with self._pool() as pool:
            for done in as_completed([pool.submit(_explore, name, self._seed) for name in workloads]):
                yield done.result()

    def mutate(self, workloads: list[str]) -> Iterator[GpmVerdict]:
        """Leave out each fence, write-back and sync, one place at a time; yield whether a state shows it."""
        with self._pool() as pool:
            places: dict[Mutation, list[str]] = {}
            for found in [pool.submit(_mutations, name, self._seed) for name in workloads]:
                name, mutations = found.result()
                for mutation in mutations:
                    places.setdefault(mutation, []).append(name)
            tried = [pool.submit(_verdict, mutation, places[mutation], self._seed) for mutation in places]
            for done in as_completed(tried):
                yield done.result()

    @contextmanager
    def _pool(self) -> Iterator[ProcessPoolExecutor]:
        before = os.environ.get(TRACE_VARIABLE)
        os.environ[TRACE_VARIABLE] = "1"  # the new processes read it when they import gpkvs
        context = multiprocessing.get_context("spawn")
        try:
            with (
                memory_directory() as directory,
                ProcessPoolExecutor(self._processes, context, initializer=_start, initargs=(directory,)) as pool,
            ):
                yield pool
        finally:
            if before is None:
                del os.environ[TRACE_VARIABLE]


_directory: Path


def _start(directory: Path) -> None:
    global _directory  # noqa: PLW0603 - each process has one
    _directory = Path(tempfile.mkdtemp(dir=directory))


def _explore(name: str, seed: int) -> GpmVisited:
    return explore(named(name), _directory / "explored", seed)


def _mutations(name: str, seed: int) -> tuple[str, set[Mutation]]:
    kinds: dict[str, set[Kind]] = {}
    for event in events_of(named(name), _directory / "explored", seed):
        if event.kind in ORDERING:
            kinds.setdefault(event.site, set()).add(event.kind)
    return name, {Mutation(site, frozenset(found)) for site, found in kinds.items() if not site.startswith(_NOT_NEEDED)}


def _verdict(mutation: Mutation, workloads: list[str], seed: int) -> GpmVerdict:
    for name in workloads:
        visited = explore(named(name), _directory / "explored", seed, _MUTANT_SAMPLES, mutation)
        if visited.violations:
            return GpmVerdict(mutation, visited.violations[0].state)
    return GpmVerdict(mutation, "")
