"""The `u64` layout: 8-byte keys and 8-byte values, both in the slot. No versions, no records."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.batch import U8, U32, U64, Op, RequestResult, Status, constant
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.plan import Delivered, Found, FoundGets, Plan, Seen


class U64Phases(Phases):
    """The phases of a table whose slots hold the value."""

    _has_versions = False

    def _look(self, plan: Plan) -> None:
        parts = self._backend.parts(plan.batch)
        if len(parts) == 1 and plan.delivered is None:
            super()._look(plan)
            return
        # While one part of the keys is on its way, another is looked up, and what a third one sees is on its way back.
        backend, count = self._backend, len(plan.batch)
        seen = plan.seen = self.columns_of_looks(count)
        if plan.delivered:
            status, words = plan.delivered.status, plan.delivered.source_word
        else:
            status, words = backend.result_column(count, np.uint8), backend.result_column(count, np.uint64)
        arriving = [backend.upload_later(plan.batch.keys[8 * first : 8 * last]) for first, last in parts]
        for (first, last), keys in zip(parts, arriving, strict=True):
            part = Seen(seen.status[first:last], seen.versions, seen.source_word[first:last], seen.source_op)
            self._look_at(plan, keys(), part)
            backend.download_later(part.source_word, words[first:last])
            wait = backend.download_later(part.status, status[first:last])
        plan.delivered = Delivered(status, words, wait)

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
        status = plan.seen.status[plan.get_op] if plan.batch.has_writes else plan.seen.status
        lengths: U32 = (status == Status.OK.value) * np.uint32(8)
        return lengths

    def _result_bytes(self, plan: Plan) -> int:
        if plan.batch.has_writes:
            plan.found = self._find_values(plan)
            return 8 * plan.found.count
        # OK is 0: as truth values they are counted where they are, without a column of lengths.
        missed = self._backend.total(plan.seen.status.view(np.bool_))
        return 8 * (len(plan.batch) - missed)

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

    def result(self, plan: Plan) -> RequestResult:
        """See `Phases.result`; of what is on its way already, it waits for the arrival."""
        if plan.delivered is None:
            return super().result(plan)
        count, all_found = len(plan.batch), plan.result_bytes == 8 * len(plan.batch)
        values, lengths = plan.delivered.source_word.view(np.uint8), constant(np.uint32(8), count)
        if not all_found:
            deliver = self._backend.deliver
            values, lengths = deliver(self._values(plan)), deliver(self.lengths(plan))
        plan.delivered.wait()
        return RequestResult(plan.delivered.status, constant(np.uint64(0), count), lengths, values)

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
        # `look` left them side by side.
        if plan.result_bytes < 8 * len(words):
            words = words[plan.seen.status == Status.OK.value]
        return words.view(np.uint8)

    def _require_present(self, plan: Plan) -> None:
        del plan  # numbers never expire

    def kept_records(self, plan: Plan) -> U32:
        """See `Phases.kept_records`; values need none."""
        del plan
        nothing: U32 = self._xp.empty(0, np.uint32)
        return nothing

    def freed(self, plan: Plan) -> U64:
        """See `Phases.freed`."""
        del plan
        nothing: U64 = self._xp.empty(0, np.uint64)
        return nothing
