"""Contenders take turns: each round has a run of each, so that all meet the same weather on the machine."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from time import perf_counter
from typing import Any

from gpkvs.bench.peers.contender import Contender
from gpkvs.bench.peers.embedded_gpkvs import EmbeddedGpkvs
from gpkvs.bench.report.results import Run, latencies_ms

_JOURNAL_FILL_BATCHES_MAX = 10_000


def in_turn(rounds: int, runs: Sequence[Callable[[], Any]]) -> list[list[Any]]:
    """Call each function once in every round, each round beginning with another one; return the results of each."""
    found: list[list[Any]] = [[] for _ in runs]
    for number in range(rounds):
        for at in range(len(runs)):
            which = (number + at) % len(runs)
            found[which].append(runs[which]())
    return found


@dataclass
class Turns:
    """The runs of one contender at one task.

    Parameters
    ----------
    contender
        The store.
    batches
        Prepared SETs, used again and again.
    size
        Operations in each.
    seconds
        Of a run.
    callers
        Threads that make SETs, each one at a time.

    Attributes
    ----------
    checkpoints, checkpoint_bytes
        That ended, and that were written to the index's file, in the timed parts.
    """

    contender: Contender
    batches: list[Any]
    size: int
    seconds: float
    callers: int = 1
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    phases: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = cycle(self.batches)

    def run(self) -> Run:
        """Make SETs for some seconds.

        A store with a journal is brought into the middle of a checkpoint first, as it is under a load that lasts. What
        a store leaves to be done later is done before the next contender's turn.
        """
        if isinstance(self.contender, EmbeddedGpkvs):
            fill_journal(self.contender, self._next)
        before = _Counted.of(self.contender)
        run = self._timed()
        self._count(before, _Counted.of(self.contender))
        self.contender.settle()
        return run

    def _timed(self) -> Run:
        latencies: list[float] = []
        gc.collect()
        gc.disable()
        start = perf_counter()
        end = start + self.seconds
        # A list's append and an iterator's next are whole for threads of Python.
        threads = [threading.Thread(target=self._call, args=(end, latencies)) for _ in range(self.callers - 1)]
        for thread in threads:
            thread.start()
        self._call(end, latencies)
        for thread in threads:
            thread.join()
        seconds = perf_counter() - start
        gc.enable()
        return Run(len(latencies) * self.size, seconds, latencies_ms(latencies, 50, 99))

    def _call(self, end: float, latencies: list[float]) -> None:
        began = perf_counter()
        while True:  # once at least, however busy the machine is
            self.contender.set(next(self._next))
            now = perf_counter()
            latencies.append(now - began)
            if now >= end:
                return
            began = now

    def _count(self, before: _Counted, after: _Counted) -> None:
        self.checkpoints += after.checkpoints - before.checkpoints
        self.checkpoint_bytes += after.checkpoint_bytes - before.checkpoint_bytes
        for phase, seconds in after.phases.items():
            if seconds > before.phases[phase]:
                self.phases[phase] = self.phases.get(phase, 0.0) + seconds - before.phases[phase]


@dataclass(frozen=True)
class _Counted:
    """What a store of gpkvs has counted; nothing for a peer."""

    checkpoints: int = 0
    checkpoint_bytes: int = 0
    phases: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(contender: Contender) -> _Counted:
        if not isinstance(contender, EmbeddedGpkvs):
            return _Counted()
        journal, phases = contender.journal(), dict(contender.store.meter.phase_seconds)
        if journal is None:
            return _Counted(phases=phases)
        return _Counted(journal.checkpoints, journal.checkpoint_bytes, phases)


def fill_journal(contender: EmbeddedGpkvs, batches: Iterator[Any]) -> None:
    """Make SETs until a checkpoint runs, if the store has a journal."""
    if contender.journal() is None:
        return
    for _ in range(_JOURNAL_FILL_BATCHES_MAX):
        if contender.is_tidying():
            return
        contender.set(next(batches))
