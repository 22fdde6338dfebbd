"""The `u64` layout: 8-byte keys and 8-byte values, both in the slot. No versions, no records."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.batch import U8, U32, U64, Op, Status
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.plan import NOTHING_SEEN, Found, FoundGets, Plan, Seen


class U64Phases(Phases):
    """The phases of a table whose slots hold the value."""

    _has_versions = False

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

    def _route_arguments(self, plan: Plan) -> dict[str, Argument]:
        del plan
        return {}

    def _key_arguments(self, keys: U8) -> dict[str, Argument]:
        return {"keys": keys}

    def _stage_arguments(self, plan: Plan) -> dict[str, Argument]:
        return {
            "keys": plan.keys,
            "values": plan.values,
            # Without it, operation i has value i.
            "value_offsets": 0 if len(plan.batch.value_lengths) == len(plan.batch) else self._value_offsets(plan),
            "hash_key0": self._hash_key0,
            "hash_key1": self._hash_key1,
        }

    def _bounds(self, plan: Plan) -> U32:
        nothing: U32 = self._xp.zeros(plan.gets, np.uint32)  # values are in the slots
        return nothing

    def _lengths(self, plan: Plan) -> U32:
        status = plan.seen.status[plan.get_op] if plan.batch.has_writes else self._backend.upload(plan.seen.status)
        lengths: U32 = (status == Status.OK.value) * np.uint32(8)
        return lengths

    def _result_bytes(self, plan: Plan) -> int:
        if plan.batch.has_writes:
            plan.found = self._find_values(plan)
            return 8 * plan.found.count
        return 8 * (len(plan.batch) - plan.missed)

    def _see_own_writes(self, plan: Plan) -> None:
        seen, order = plan.seen, plan.chains.order
        self._backend.launch(
            "own_values",
            len(order),
            order=order,
            source_op=seen.source_op,
            values=plan.values,
            value_offsets=self._value_offsets(plan),
            source_word=seen.source_word,
        )

    def _find_values(self, plan: Plan) -> Found:
        """Find out which GETs found a value."""
        count, seen = len(plan.batch), plan.seen
        (found,) = self._scratch(count, np.uint8)
        self._backend.launch("found_gets", count, ops=plan.ops, status=seen.status, found=found)
        ends: U32 = found.cumsum(dtype=np.uint32)
        return FoundGets(int(self._backend.download(ends[-1:])[0]), found, ends)

    def _value_offsets(self, plan: Plan) -> U64:
        """Return where the value of each SET begins; what stands at other operations means nothing."""
        sets = plan.ops == Op.SET.value
        offsets: U64 = 8 * sets.cumsum(dtype=np.uint64) - 8
        return offsets

    def _values(self, plan: Plan) -> U8:
        words = plan.seen.source_word
        if plan.batch.has_writes:
            found = plan.found
            assert isinstance(found, FoundGets)
            values: U64 = self._xp.empty(found.count, np.uint64)
            self._backend.launch(
                "pick_found", len(words), found=found.found, ends=found.ends, source_word=words, values=values
            )
            return values.view(np.uint8)
        if plan.missed:
            upload = self._backend.upload
            words = upload(words)[upload(plan.seen.status) == Status.OK.value]
        return words.view(np.uint8)

    def _require_present(self, plan: Plan) -> None:
        del plan  # numbers never expire
