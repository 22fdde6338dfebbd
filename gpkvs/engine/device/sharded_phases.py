"""The phases of a large batch on a table of numbers, planned by several processors together.

Each processor has a share of the index: stripes of its blocks, which are dealt in turn. All of them get all keys, and
each orders, finds, folds, places and stages what its own blocks hold. A block is the unit of placement, so no processor
needs what another one found. Where results are wanted, each stores those of its own operations to the first one's
columns.

A batch that only reads needs no shares, since every processor can read all of an index: each looks up a part of the
operations, in their order.

Tables of records are planned by the first processor alone: their time is that of the host's threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np

from gpkvs.backends.base import Backend, Processor, Shard
from gpkvs.batch import U32, Batch, Op, RequestResult
from gpkvs.engine.device.phases_u64 import U64Phases
from gpkvs.engine.device.plan import Plan, Seen
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.state.table import Table
from gpkvs.media.files import StoreFiles

_T = TypeVar("_T")


class ShardedPlan(Plan):
    """A transaction, planned by several processors.

    Attributes
    ----------
    parts
        What each of them plans: the writes to its own blocks, or a part of the reads.
    """

    def __init__(self, processors: tuple[Processor, ...], batch: Batch, first_sequence: int, now: int) -> None:
        super().__init__(processors[0], batch, first_sequence, now)
        if batch.has_writes:
            self._parts = [Plan(place, batch, first_sequence, now) for place in processors]
        else:
            cuts = zip(processors, _cut(batch, len(processors)), strict=True)
            self._parts = [Plan(place, part, first_sequence, now) for place, part in cuts]

    @property
    def parts(self) -> list[Plan]:
        """See `Plan.parts`."""
        return self._parts


def _cut(batch: Batch, parts: int) -> list[Batch]:
    """Cut GETs of numbers into parts of the same size; nothing is copied."""
    bounds = [len(batch) * part // parts for part in range(parts + 1)]
    return [
        Batch.of_numbers(Op.GET, batch.keys[8 * first : 8 * last], batch.values) for first, last in pairwise(bounds)
    ]


class ShardedPhases(U64Phases):
    """The phases of one table of numbers, where several processors plan.

    Parameters
    ----------
    backend
        Whose processors plan.
    files, table, meter
        As `Phases` has them.
    """

    def __init__(self, backend: Backend, files: StoreFiles, table: Table, meter: Meter) -> None:
        super().__init__(backend, files, table, meter)
        self._all = backend
        processors = self._processors = tuple(backend.processors)
        self._of_parts = [
            # Their laps would be between each other's.
            U64Phases(place, files, table, Meter(), Shard(number, len(processors), backend.stripe_blocks))
            for number, place in enumerate(processors)
        ]

    def begin(self, batch: Batch, first_sequence: int, now: int) -> Plan:
        """See `Phases.begin`."""
        return ShardedPlan(self._processors, batch, first_sequence, now)

    def read(self, plan: Plan) -> None:
        """See `Phases.read`."""
        if not plan.batch.has_writes:
            self._look_up_parts(plan)
            return
        if not plan.batch.has_only_sets:
            seen = self._of_parts[0].columns_of_seen(len(plan.batch))
            for part in plan.parts:
                part.seen = seen
        self._each(plan, lambda phases, part: phases.read(part))
        self._all.meet()
        self._meter.lap("find")

    def _look_up_parts(self, plan: Plan) -> None:
        """Look up each part of the keys; what their operations see is brought together where the keys are."""
        ends = np.cumsum([len(part.batch) for part in plan.parts]).tolist()
        parts = [slice(*bounds) for bounds in pairwise([0, *ends])]
        if isinstance(plan.batch.keys, np.ndarray):
            self._look_up_for_host(plan, parts)
        else:
            self._look_up_for_first(plan, parts)
        plan.result_bytes = sum(part.result_bytes for part in plan.parts)
        plan.missed = sum(part.missed for part in plan.parts)
        self._meter.lap("find")

    def _look_up_for_host(self, plan: Plan, parts: list[slice]) -> None:
        seen = plan.seen = self.columns_of_looks(plan)
        for part, where in zip(plan.parts, parts, strict=True):
            part.seen = Seen(seen.status[where], seen.versions, seen.source_word[where], seen.source_op)
        self._each(plan, _look_up_part)

    def _look_up_for_first(self, plan: Plan, parts: list[slice]) -> None:
        seen = plan.seen = self.columns_of_looks(plan)
        first = parts[0]
        plan.parts[0].seen = Seen(seen.status[first], seen.versions, seen.source_word[first], seen.source_op)
        self._each(plan, _look_up_part)
        self._all.meet()
        for part, where in zip(plan.parts[1:], parts[1:], strict=True):
            seen.status[where] = part.seen.status
            seen.source_word[where] = part.seen.source_word

    def measure(self, plan: Plan) -> None:
        """See `Phases.measure`."""
        if plan.batch.has_writes:
            self._of_parts[0].measure(plan.parts[0])
            plan.result_bytes = plan.parts[0].result_bytes
        self._meter.lap("measure")

    def place(self, plan: Plan) -> None:
        """See `Phases.place`."""
        self._each(plan, lambda phases, part: phases.place(part))
        self._meter.lap("place")

    def stage(self, plan: Plan) -> None:
        """See `Phases.stage`."""
        self._each(plan, lambda phases, part: phases.stage(part))

    def removed(self, plan: Plan) -> int:
        """See `Phases.removed`."""
        return sum(phases.removed(part) for phases, part in zip(self._of_parts, plan.parts, strict=True))

    def lengths(self, plan: Plan) -> U32:
        """See `Phases.lengths`."""
        if plan.batch.has_writes:
            return self._of_parts[0].lengths(plan.parts[0])
        return super().lengths(plan)

    def result(self, plan: Plan) -> RequestResult:
        """See `Phases.result`."""
        if plan.batch.has_writes:
            return self._of_parts[0].result(plan.parts[0])
        return super().result(plan)

    def _each(self, plan: Plan, phase: Callable[[U64Phases, Plan], _T]) -> list[_T]:
        """Run a phase of all parts at the same time; return what they return."""
        pairs = zip(self._of_parts, plan.parts, strict=True)
        return self._all.each([partial(phase, phases, part) for phases, part in pairs])


def _look_up_part(phases: U64Phases, part: Plan) -> None:
    phases.read(part)
    phases.measure(part)
