"""The phases that plan a batch of one table: what both layouts share. They only read PM.

read -> measure -> place -> stage; a batch that only reads goes read -> measure. Native code launches the kernels of a
batch that writes, many in one call (``kernels/plan/batch_plan.hpp``). What does not fit, and what only the host's
planner sees to, is left to that one: `ForHostError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import WHOLE, Column, Processor, Shard
from gpkvs.batch import U8, U32, U64, Batch, RequestResult, Status, constant
from gpkvs.engine.device.batch_plan import BatchPlan, Step
from gpkvs.engine.device.plan import NOTHING_SEEN, Placed, Plan, Seen, SlotChanges
from gpkvs.engine.device.planned import ForHostError
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.state.table import Table
from gpkvs.media.files import StoreFiles
from gpkvs.process import failpoint

_NUMBER_BITS_MIN = 16  # `BatchPlanner.numbers`
# Steps of one call.
_LOCATE, _SELECT = int(Step.LOCATE), Step.SELECT | Step.TELL
_LOCATE_SELECT, _LOCATE_ORDER, _SELECT_ORDER = _LOCATE | _SELECT, Step.LOCATE | Step.ORDER, Step.SELECT | Step.ORDER


class Phases(ABC):
    """The phases of one table, on one processor.

    Parameters
    ----------
    place
        Where the plan runs: it runs the kernels and holds the columns.
    files
        The mapped store.
    table
        Whose operations are planned.
    meter
        Told when a phase ends.
    shard
        Of whose keys the writes are planned; by default all.
    """

    def __init__(self, place: Processor, files: StoreFiles, table: Table, meter: Meter, shard: Shard = WHOLE) -> None:
        self._backend = place
        self._files = files
        self._index = table.index
        self._meter = meter
        self._shard = shard
        self._is_whole = shard.count == 1
        self.table = table

    @cached_property
    def _launched(self) -> BatchPlan:
        """What stays the same from plan to plan; made by the first one, which runs where the processor is in use."""
        hash_key0, hash_key1 = self._index.hash_keys
        return BatchPlan(
            self._backend,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            has_records=self._index.has_records,
            shard=self._shard.number,
            shards=self._shard.count,
            stripe_blocks=self._shard.stripe_blocks,
        )

    @property
    def _xp(self) -> ModuleType:
        return self._backend.xp

    def begin(self, batch: Batch, first_sequence: int, now: int) -> Plan:
        """Return an empty plan of some operations; the arguments are those of `Plan`."""
        return Plan(self._backend, batch, first_sequence, now)

    def read(self, plan: Plan) -> None:
        """Find every key, what each operation sees, and ways for new keys; PM is only read.

        Raises
        ------
        ForHostError
            If some key looks expired.
        """
        failpoint.hit("before_route")
        if not plan.batch.has_writes:
            self._look(plan)
            self._meter.lap("find")
            return
        launched = plan.launched = self._begin(plan)
        self._meter.lap("route")
        failpoint.hit("before_order")
        self._select(plan, launched)
        self._meter.lap("order")
        failpoint.hit("before_find")
        self._find(plan, launched)
        self._meter.lap("find")

    def _begin(self, plan: Plan) -> BatchPlan:
        """Begin to look the keys up, and to order a batch of SETs."""
        backend, batch, launched = self._backend, plan.batch, self._launched
        self._fetch(plan, launched)
        count, only_sets = len(batch), batch.has_only_sets
        looks = 2 * batch.gets >= count
        selects = looks or not self._is_whole
        # A word has room for the number of a slot and that of an operation (kernels/plan/batch_plan.hpp).
        assert self._index.slots_mapped << max(count.bit_length(), _NUMBER_BITS_MIN) < 1 << 63
        plan.room = launched.begin(
            count=count,
            ordered=count,
            has_only_sets=only_sets,
            looks=looks,
            selects=selects,
            keys=backend.address(plan.keys),
            index=backend.address(self._index),
            **self._index.geometry,
        )
        if not only_sets:
            self._see(plan, launched)
        launched.run(_LOCATE_SELECT if only_sets and selects else _LOCATE_ORDER if only_sets else _LOCATE)
        return launched

    def _see(self, plan: Plan, launched: BatchPlan) -> None:
        """Have columns for what operations see."""
        if plan.seen is NOTHING_SEEN:
            plan.seen = self.columns_of_seen(len(plan.batch))
        address, seen = self._backend.address, plan.seen
        launched.set(
            status=address(seen.status),
            source_word=address(seen.source_word),
            source_op=address(seen.source_op),
            versions=address(seen.versions),
        )

    def _select(self, plan: Plan, launched: BatchPlan) -> None:
        """Select what is to be ordered, and order it if it is all.

        Kinds and values are asked for here: what copies them does it while the keys are looked up.
        """
        selects = launched.get("selects")
        if not plan.batch.has_only_sets:
            launched.set(ops=self._backend.address(plan.ops))
            launched.run(_SELECT if selects else _SELECT_ORDER)
        self._fetch_values(plan, launched)
        if selects:
            launched.set(ordered=launched.look().needed)

    @staticmethod
    def _order(launched: BatchPlan) -> int:
        """Return the step that orders operations, if it is left."""
        return int(Step.ORDER) if launched.get("selects") else 0

    @abstractmethod
    def _fetch(self, plan: Plan, launched: BatchPlan) -> None:
        """Bring columns to where the plan runs, and tell of those that the layout's look-up needs."""

    @abstractmethod
    def _fetch_values(self, plan: Plan, launched: BatchPlan) -> None:
        """Tell of values, if they are needed where the plan runs."""

    @abstractmethod
    def _look(self, plan: Plan) -> None:
        """Look up the keys of a batch that only reads."""

    @abstractmethod
    def _find(self, plan: Plan, launched: BatchPlan) -> None:
        """Order what is left to order, find ways, and look at what was told."""

    def measure(self, plan: Plan) -> None:
        """Find out how long the values of all GETs are, which reads and checks the records that they come from."""
        plan.result_bytes = self._result_bytes(plan) if plan.batch.has_reads else 0
        self._meter.lap("measure")

    def place(self, plan: Plan) -> None:
        """See that every new key has found a way.

        Raises
        ------
        ForHostError
            If one has none.
        """
        failpoint.hit("before_place")
        counts = plan.launched.counts
        if counts.unplaced or counts.unsorted:
            raise ForHostError
        plan.placed = Placed(counts.changes, counts.new_keys)
        self._meter.lap("place")

    @abstractmethod
    def stage(self, plan: Plan) -> None:
        """Work out the new contents of every slot that changes."""

    def _make_room(self, plan: Plan, launched: BatchPlan, slots: int) -> None:
        """Have room for so many slots that change: one column for their numbers, digests and contents."""
        columns: U64 = self._backend.scratch((2 + self._slot_words) * slots, np.uint64)
        at = self._backend.address(columns)
        launched.set(changed_slot=at, contents=at + 2 * columns.itemsize * slots)
        plan.changing = columns

    def _changes(self, plan: Plan, changes: int) -> SlotChanges:
        """Return the first slots that change."""
        columns, words = plan.changing, self._slot_words
        slots = len(columns) // (2 + words)
        contents = columns[2 * slots : 2 * slots + words * changes].reshape(changes, words)
        return SlotChanges(columns[:changes], contents, columns[slots : slots + changes])

    @property
    def _slot_words(self) -> int:
        return self._index.layout.slot_bytes // 8

    def removed(self, plan: Plan) -> int:
        """Return how many keys the table loses."""
        return plan.launched.counts.removed_keys

    def old_expiring(self, plan: Plan) -> int:
        """Return how many slots with an expiry lose their record, to a new one or for good."""
        del plan
        return 0

    def result(self, plan: Plan) -> RequestResult:
        """Return the results of a plan, with the values of its GETs, where the keys are: on the host or the device.

        On their way to the host they are there after `Backend.delivered`: the commit need not wait for them.
        """
        on_host, count = isinstance(plan.batch.keys, np.ndarray), len(plan.batch)
        if plan.batch.has_only_sets:
            return self._result_of_sets(plan)
        deliver = self._backend.deliver if on_host else _as_it_is
        versions = deliver(plan.seen.versions) if self._has_versions else constant(np.uint64(0), count)
        values = deliver(self._values(plan) if plan.result_bytes else self._xp.empty(0, np.uint8))
        alike = not self._has_versions and plan.result_bytes == 8 * plan.gets
        lengths = constant(np.uint32(8), plan.gets) if alike else deliver(self.lengths(plan))
        return RequestResult(deliver(plan.seen.status), versions, lengths, values)

    def _result_of_sets(self, plan: Plan) -> RequestResult:
        """Return the results of SETs only: all are done, with versions in the order of their arrival."""
        count, first = len(plan.batch), plan.first_sequence
        versions = constant(np.uint64(0), count)
        if self._has_versions:
            versions = self._backend.deliver(self._xp.arange(first, first + count, dtype=np.uint64))
        status = constant(np.uint8(Status.OK), count)  # zeros would be a page fault for each 4 KiB
        return RequestResult(status, versions, np.empty(0, np.uint32), np.empty(0, np.uint8))

    def lengths(self, plan: Plan) -> U32:
        """Return the length of each GET's value."""
        if plan.get_lengths is None:
            plan.get_lengths = self._lengths(plan)
        return plan.get_lengths

    def columns_of_seen(self, count: int) -> Seen:
        """Return uninitialised columns for what the operations of a batch with writes see."""
        status, versions = self._result_columns(count)
        return Seen(status, versions, *self._scratch(count, np.uint64, np.uint32))

    def _result_columns(self, count: int) -> tuple[U8, U64]:
        """Return columns for status and, where there are any, versions; they outlive the transaction."""
        return self._xp.empty(count, np.uint8), self._xp.empty(count if self._has_versions else 0, np.uint64)

    def _scratch(self, count: int, *types: type[np.generic]) -> list[NDArray[Any]]:
        """Return new columns, one of each type, that last as long as the transaction."""
        return [self._backend.scratch(count, dtype) for dtype in types]

    @property
    @abstractmethod
    def _has_versions(self) -> bool:
        """Whether slots hold versions."""

    @abstractmethod
    def _result_bytes(self, plan: Plan) -> int:
        """Return the bytes of the values of all GETs."""

    @abstractmethod
    def _lengths(self, plan: Plan) -> U32:
        """Return the length of each GET's value, after checking where it comes from."""

    @abstractmethod
    def _values(self, plan: Plan) -> U8:
        """Return the values of the GETs, one after the other."""


def _as_it_is(column: Column) -> Column:
    return column
