"""The `u64` layout: 8-byte keys and 8-byte values, both in the slot. No versions, no records."""

from __future__ import annotations

import numpy as np

from gpkvs.batch import U8, U32, U64, Status
from gpkvs.engine.device.batch_plan import BatchPlan, Step
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.plan import NOTHING_SEEN, Plan, Seen
from gpkvs.process import failpoint

# Steps of one call.
_STAGE, _VALUES = Step.STAGE | Step.TELL, Step.VALUES | Step.TELL


class U64Phases(Phases):
    """The phases of a table whose slots hold the value. What changes is staged as soon as it is found."""

    _has_versions = False

    def _fetch(self, plan: Plan, launched: BatchPlan) -> None:
        del launched
        plan.fetch()  # kinds and values, too: begun behind a look-up, they would wait until it is done

    def _look(self, plan: Plan) -> None:
        if plan.seen is NOTHING_SEEN:
            plan.seen = self.columns_of_looks(plan)
        seen = plan.seen
        plan.missed = self._backend.get_numbers(plan.batch.keys, self._index, seen.status, seen.source_word)

    def columns_of_looks(self, plan: Plan) -> Seen:
        """Return uninitialised columns for a batch of GETs, which are its result: where its keys are."""
        count, is_on_host = len(plan.batch), isinstance(plan.batch.keys, np.ndarray)
        column = self._backend.result_column if is_on_host else self._xp.empty
        nothing = NOTHING_SEEN
        return Seen(column(count, np.uint8), nothing.versions, column(count, np.uint64), nothing.source_op)

    def _fetch_values(self, plan: Plan, launched: BatchPlan) -> None:
        launched.set(values=self._backend.address(plan.values))

    def _find(self, plan: Plan, launched: BatchPlan) -> None:
        last = self._order(launched) | _STAGE
        self._make_room(plan, launched, launched.get("ordered"))
        if plan.batch.has_reads and self._is_whole:
            self._make_room_for_values(plan, launched)
            last |= Step.VALUES
        failpoint.hit("before_fold")
        launched.run(last)
        launched.look()

    def _make_room_for_values(self, plan: Plan, launched: BatchPlan) -> None:
        values: U64 = self._xp.empty(len(plan.batch), np.uint64)
        launched.set(found_values=self._backend.address(values))
        plan.found_values = values

    def stage(self, plan: Plan) -> None:
        """See `Phases.stage`; it was done, but for occupants that are displaced."""
        launched = plan.launched
        counts = launched.counts
        if counts.moved:
            launched.set(changes=counts.changes)
            self._make_room(plan, launched, counts.changes + counts.moved)
            launched.run(Step.STAGE_MOVED)
        plan.changes = self._changes(plan, counts.changes + counts.moved)

    def _result_bytes(self, plan: Plan) -> int:
        if not plan.batch.has_writes:
            return 8 * (len(plan.batch) - plan.missed)
        launched = plan.launched
        if not self._is_whole:  # what it sees had to wait for other shards
            self._make_room_for_values(plan, launched)
            launched.run(_VALUES)
            launched.look()
        return 8 * launched.counts.values

    def _lengths(self, plan: Plan) -> U32:
        status = plan.seen.status[plan.get_op] if plan.batch.has_writes else self._backend.upload(plan.seen.status)
        lengths: U32 = (status == Status.OK.value) * np.uint32(8)
        return lengths

    def _values(self, plan: Plan) -> U8:
        if plan.batch.has_writes:
            values = plan.found_values[: plan.result_bytes // 8]
            if len(values) < len(plan.batch) and not isinstance(plan.batch.keys, np.ndarray):
                values = values.copy()  # they are the result, and would keep a column as long as the batch
            return values.view(np.uint8)
        words = plan.seen.source_word
        if plan.missed:
            upload = self._backend.upload
            words = upload(words)[upload(plan.seen.status) == Status.OK.value]
        return words.view(np.uint8)
