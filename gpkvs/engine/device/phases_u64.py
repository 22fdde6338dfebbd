"""The `u64` layout: 8-byte keys and 8-byte values, both in the slot. No versions, no records.

Native code launches the kernels of a batch that writes, many in one call (``kernels/number_plan.hpp``). Between two of
them Python takes longer than a kernel.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import WHOLE, Processor, Shard
from gpkvs.batch import U8, U32, U64, Status
from gpkvs.engine.device.number_plan import NumberPlan, Step
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.plan import NOTHING_SEEN, Placed, Plan, Seen, SlotChanges
from gpkvs.engine.device.planned import ForHostError
from gpkvs.engine.meter import Meter
from gpkvs.engine.table import Table
from gpkvs.media.files import StoreFiles

_NUMBER_BITS_MIN = 16  # `NumberPlanner.numbers`
_WORDS_OF_CHANGE = 4  # a slot's number, its digest, its key and its value
# Steps of one call.
_LOCATE, _SELECT = int(Step.LOCATE), Step.SELECT | Step.TELL
_LOCATE_SELECT, _LOCATE_ORDER, _SELECT_ORDER = _LOCATE | _SELECT, Step.LOCATE | Step.ORDER, Step.SELECT | Step.ORDER
_STAGE, _VALUES = Step.STAGE | Step.TELL, Step.VALUES | Step.TELL
_ORDER_STAGE = Step.ORDER | _STAGE


class U64Phases(Phases):
    """The phases of a table whose slots hold the value.

    Parameters
    ----------
    place, files, table, meter
        As `Phases` has them.
    shard
        Of whose keys the writes are planned; by default all.
    """

    _has_versions = False

    def __init__(self, place: Processor, files: StoreFiles, table: Table, meter: Meter, shard: Shard = WHOLE) -> None:
        super().__init__(place, files, table, meter)
        self._is_whole = shard.count == 1
        self._shard = shard

    @cached_property
    def _launched(self) -> NumberPlan:
        """What stays the same from plan to plan; made by the first one, which runs where the processor is in use."""
        return NumberPlan(
            self._backend,
            hash_key0=self._hash_key0,
            hash_key1=self._hash_key1,
            shard=self._shard.number,
            shards=self._shard.count,
            stripe_blocks=self._shard.stripe_blocks,
        )

    def read(self, plan: Plan) -> None:
        """See `Phases.read`; it finds ways for new keys too, and stages what changes."""
        failpoint.hit("before_route")
        if not plan.batch.has_writes:
            self._look(plan)
            self._meter.lap("find")
            return
        launched = plan.launched = self._begin(plan)
        self._meter.lap("route")
        failpoint.hit("before_order")
        last = self._select(plan, launched)
        self._meter.lap("order")
        failpoint.hit("before_find")
        self._make_room(plan, launched, launched.get("ordered"))
        if plan.batch.has_reads and self._is_whole:
            self._make_room_for_values(plan, launched)
            last |= Step.VALUES
        failpoint.hit("before_fold")
        launched.run(last)
        launched.look()
        self._meter.lap("find")

    def _look(self, plan: Plan) -> None:
        """Look up the keys of a batch that only reads: its result."""
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

    def _begin(self, plan: Plan) -> NumberPlan:
        """Begin to look the keys up, and to order a batch of SETs."""
        backend, batch, launched = self._backend, plan.batch, self._launched
        plan.fetch()  # kinds and values, too: begun behind a look-up, they would wait until it is done
        count, only_sets = len(batch), batch.has_only_sets
        looks = 2 * batch.gets >= count
        selects = looks or not self._is_whole
        # A word has room for the number of a slot and that of an operation (kernels/number_plan.hpp).
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

    def _see(self, plan: Plan, launched: NumberPlan) -> None:
        """Have columns for what operations see."""
        if plan.seen is NOTHING_SEEN:
            plan.seen = self.columns_of_seen(len(plan.batch))
        address, seen = self._backend.address, plan.seen
        launched.set(
            status=address(seen.status), source_word=address(seen.source_word), source_op=address(seen.source_op)
        )

    def _select(self, plan: Plan, launched: NumberPlan) -> int:
        """Select what is to be ordered, and order it if it is all; return the steps that are left.

        Kinds and values are asked for here: what copies them does it while the keys are looked up.
        """
        selects = launched.get("selects")
        if not plan.batch.has_only_sets:
            launched.set(ops=self._backend.address(plan.ops))
            launched.run(_SELECT if selects else _SELECT_ORDER)
        launched.set(values=self._backend.address(plan.values))
        if not selects:
            return _STAGE
        launched.set(ordered=launched.look().needed)
        return _ORDER_STAGE

    def _make_room(self, plan: Plan, launched: NumberPlan, slots: int) -> None:
        """Have room for so many slots that change: one column for their numbers, digests and contents."""
        columns: U64 = self._backend.scratch(_WORDS_OF_CHANGE * slots, np.uint64)
        at = self._backend.address(columns)
        launched.set(changed_slot=at, contents=at + 2 * columns.itemsize * slots)
        plan.changing = columns

    def _changes(self, plan: Plan, changes: int) -> SlotChanges:
        """Return the first slots that change."""
        columns = plan.changing
        slots = len(columns) // _WORDS_OF_CHANGE
        contents = columns[2 * slots : 2 * (slots + changes)].reshape(changes, 2)
        return SlotChanges(columns[:changes], contents, columns[slots : slots + changes])

    def _make_room_for_values(self, plan: Plan, launched: NumberPlan) -> None:
        values: U64 = self._xp.empty(len(plan.batch), np.uint64)
        launched.set(found_values=self._backend.address(values))
        plan.found_values = values

    def place(self, plan: Plan) -> None:
        """See `Phases.place`."""
        assert plan.launched
        failpoint.hit("before_place")
        counts = plan.launched.counts
        if counts.unplaced or counts.unsorted:
            raise ForHostError
        plan.placed = Placed(counts.changes, counts.new_keys)
        self._meter.lap("place")

    def stage(self, plan: Plan) -> None:
        """See `Phases.stage`."""
        launched = plan.launched
        assert launched
        counts = launched.counts
        if counts.moved:
            launched.set(changes=counts.changes)
            self._make_room(plan, launched, counts.changes + counts.moved)
            launched.run(Step.STAGE_MOVED)
        plan.changes = self._changes(plan, counts.changes + counts.moved)

    def removed(self, plan: Plan) -> int:
        """See `Phases.removed`."""
        assert plan.launched
        return plan.launched.counts.removed_keys

    def _result_bytes(self, plan: Plan) -> int:
        if not plan.batch.has_writes:
            return 8 * (len(plan.batch) - plan.missed)
        launched = plan.launched
        assert launched
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
