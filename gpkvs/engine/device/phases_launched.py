"""The phases of a large batch on a table of numbers where kernels run on a GPU: native code launches them.

They are those of `U64Phases`, and so are the bytes that follow. Where something does not fit, that class plans the
batch again, and knows who is refused: planning only reads PM.
"""

from __future__ import annotations

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import WHOLE, Processor, Shard
from gpkvs.batch import U8, U64
from gpkvs.engine.capacity import DoesNotFitError
from gpkvs.engine.device.number_plan import NumberPlan, Step
from gpkvs.engine.device.phases_u64 import U64Phases
from gpkvs.engine.device.plan import NOTHING_SEEN, Found, Placed, Plan, SlotChanges
from gpkvs.engine.meter import Meter
from gpkvs.engine.table import Table
from gpkvs.media.files import StoreFiles

_NUMBER_BITS_MIN = 16  # `NumberPlanner.numbers`


class LaunchedPhases(U64Phases):
    """The phases of a table of numbers, launched by native code; a batch that only reads goes as there.

    Parameters
    ----------
    place, files, table, result_bytes_max, meter
        As `Phases` has them; the place has a launcher.
    shard
        Of whose keys the writes are planned; by default all.
    """

    def __init__(
        self,
        place: Processor,
        files: StoreFiles,
        table: Table,
        result_bytes_max: int,
        meter: Meter,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__(place, files, table, result_bytes_max, meter)
        assert place.launcher
        self._is_whole = shard.count == 1
        self._shard = {"shard": shard.number, "shards": shard.count, "stripe_blocks": shard.stripe_blocks}

    def read(self, plan: Plan) -> None:
        """See `Phases.read`; it finds ways for new keys too, and stages what changes."""
        if not plan.batch.has_writes:
            super().read(plan)
            return
        failpoint.hit("before_route")
        launched = plan.launched = self._begin(plan)
        self._meter.lap("route")
        failpoint.hit("before_order")
        operations = self._select(plan, launched)
        launched.order(operations)
        self._meter.lap("order")
        failpoint.hit("before_find")
        launched.set(values=self._backend.address(plan.values))
        plan.changes = self._columns_of_changes(launched, operations)
        failpoint.hit("before_fold")
        launched.run(Step.FINISH)
        if plan.batch.has_reads and self._is_whole:
            self._launch_values(plan, launched)
        self._backend.settle()
        self._meter.lap("find")

    def _begin(self, plan: Plan) -> NumberPlan:
        """Look the keys up."""
        backend, batch = self._backend, plan.batch
        plan.fetch()  # kinds and values, too: begun behind a look-up, they would wait until it is done
        looks = 2 * batch.gets >= len(batch)
        # A word has room for the number of a slot and that of an operation (kernels/number_plan.hpp).
        assert self._index.slots_mapped << max(len(batch).bit_length(), _NUMBER_BITS_MIN) < 1 << 63
        launched = NumberPlan(
            backend,
            count=len(batch),
            has_only_sets=batch.has_only_sets,
            looks=looks,
            selects=looks or not self._is_whole,
            keys=backend.address(plan.keys),
            index=backend.address(self._index),
            hash_key0=self._hash_key0,
            hash_key1=self._hash_key1,
            **self._index.geometry,
            **self._shard,
        )
        if not batch.has_only_sets:
            if plan.seen is NOTHING_SEEN:
                plan.seen = self.columns_of_seen(len(batch))
            launched.set(
                status=backend.address(plan.seen.status),
                source_word=backend.address(plan.seen.source_word),
                source_op=backend.address(plan.seen.source_op),
            )
        launched.begin()
        return launched

    def _select(self, plan: Plan, launched: NumberPlan) -> int:
        """Select the operations that are to be ordered; return how many they are."""
        count = len(plan.batch)
        if not plan.batch.has_only_sets:
            launched.set(ops=self._backend.address(plan.ops))
        elif self._is_whole:
            return count
        launched.run(Step.SELECT)
        if not launched.get("selects"):
            return count
        if not plan.batch.has_only_sets:
            plan.values  # noqa: B018 - they come while operations are selected
        self._backend.settle()
        return launched.counts.needed

    def _launch_values(self, plan: Plan, launched: NumberPlan) -> None:
        values: U64 = self._xp.empty(len(plan.batch), np.uint64)
        launched.set(found_values=self._backend.address(values))
        launched.run(Step.VALUES)
        plan.found_values = values

    def _find_values(self, plan: Plan) -> Found:
        launched = plan.launched
        if launched is None:
            return super()._find_values(plan)
        if not self._is_whole:  # what it sees had to wait for other shards
            self._launch_values(plan, launched)
            self._backend.settle()
        return Found(launched.counts.values)

    def _values(self, plan: Plan) -> U8:
        if plan.launched is None or not plan.batch.has_writes:
            return super()._values(plan)
        values = plan.found_values[: plan.found.count]
        if len(values) < len(plan.batch) and not isinstance(plan.batch.keys, np.ndarray):
            values = values.copy()  # they are the result, and would keep a column as long as the batch
        return values.view(np.uint8)

    def place(self, plan: Plan) -> None:
        """See `Phases.place`; a shard that finds no way for a key only says that something does not fit."""
        launched = plan.launched
        assert launched
        failpoint.hit("before_place")
        counts = launched.counts
        if not (counts.unplaced or counts.unsorted):
            plan.placed = Placed(counts.changes, counts.new_keys)
        elif self._is_whole:
            self._plan_again(plan)
        else:
            raise DoesNotFitError({})
        self._meter.lap("place")

    def _plan_again(self, plan: Plan) -> None:
        """Plan phase by phase: it may find other ways, or knows who is refused."""
        plan.launched = None
        super().read(plan)
        super().measure(plan)
        super().place(plan)

    def _columns_of_changes(self, launched: NumberPlan, slots: int) -> SlotChanges:
        """Have so many slots staged."""
        backend, words = self._backend, self._index.layout.slot_bytes // 8
        slot, digest = self._scratch(slots, np.uint64, np.uint64)
        contents = backend.scratch(slots * words, np.uint64).reshape(-1, words)
        launched.set(changed_slot=backend.address(slot), contents=backend.address(contents))
        return SlotChanges(slot, contents, digest)

    def stage(self, plan: Plan) -> None:
        """See `Phases.stage`."""
        launched = plan.launched
        if launched is None:
            super().stage(plan)
            return
        counts = launched.counts
        if counts.moved:
            launched.set(changes=counts.changes)
            plan.changes = self._columns_of_changes(launched, counts.changes + counts.moved)
            launched.run(Step.STAGE_MOVED)
        else:
            plan.changes = plan.changes.first(counts.changes)

    def removed(self, plan: Plan) -> int:
        """See `Phases.removed`."""
        return plan.launched.counts.removed_keys if plan.launched else super().removed(plan)


def numbers_phases(place: Processor) -> type[U64Phases]:
    """Return the phases of tables of numbers for a place: native code launches them where it can."""
    return LaunchedPhases if place.launcher else U64Phases
