"""The `u64` layout: 8-byte keys and 8-byte values, both in the slot. No versions, no records."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.batch import U8, U32, U64, Status
from gpkvs.plan import Plan
from gpkvs.table import Table


class U64Table(Table):
    """A table whose slots hold the value."""

    _has_versions = False

    def _fetch(self, plan: Plan) -> None:
        plan.fetch_values()

    def _route_arguments(self, plan: Plan) -> dict[str, Argument]:
        del plan
        return {}

    def _key_arguments(self, plan: Plan) -> dict[str, Argument]:
        return {"keys": plan.keys}

    def _stage_arguments(self, plan: Plan) -> dict[str, Argument]:
        return {
            "keys": plan.keys,
            "values": plan.values,
            # Without it, operation i has value i.
            "value_offsets": 0 if len(plan.batch.value_lengths) == len(plan.batch) else plan.value_offsets,
            "buckets": self.entry.buckets,
            "hash_key0": self._hash_key0,
            "hash_key1": self._hash_key1,
        }

    def _lengths(self, plan: Plan) -> U32:
        status = plan.seen.status[plan.get_op] if plan.batch.has_writes else plan.seen.status
        lengths: U32 = (status == Status.OK.value) * np.uint32(8)
        return lengths

    def _values(self, plan: Plan) -> U8:
        if plan.batch.has_writes:
            return self._gather(plan, values=plan.values)
        # `look` left them side by side.
        words = plan.seen.source_word
        if plan.reply_bytes < 8 * len(words):
            words = words[plan.seen.status == Status.OK.value]
        return words.view(np.uint8)

    def kept_records(self, plan: Plan) -> U32:
        """See `Table.kept_records`; values need none."""
        del plan
        nothing: U32 = self._xp.empty(0, np.uint32)
        return nothing

    def freed(self, plan: Plan) -> U64:
        """See `Table.freed`."""
        del plan
        nothing: U64 = self._xp.empty(0, np.uint64)
        return nothing
