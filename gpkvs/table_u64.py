"""The `u64` layout: 8-byte keys and 8-byte values, both in the slot. No versions, no records."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.batch import U32, U64, Status
from gpkvs.plan import Plan
from gpkvs.table import Table

_NOTHING_32 = np.empty(0, np.uint32)
_NOTHING_64 = np.empty(0, np.uint64)


class U64Table(Table):
    """A table whose slots hold the value."""

    def _find_arguments(self, plan: Plan) -> dict[str, Argument]:
        return {"keys": plan.batch.keys}

    def _stage_arguments(self, plan: Plan) -> dict[str, Argument]:
        return {
            "keys": plan.batch.keys,
            "values": plan.batch.values,
            "value_offsets": plan.value_offsets,
            "buckets": self.entry.buckets,
            "hash_key0": self._hash_key0,
            "hash_key1": self._hash_key1,
        }

    def _gather_arguments(self) -> dict[str, Argument]:
        return {}

    def _lengths(self, plan: Plan, get_op: U32) -> U32:
        plan.folded.versions[:] = 0
        return np.where(plan.folded.status[get_op] == Status.OK, np.uint32(8), np.uint32(0))

    def kept_records(self, plan: Plan) -> U32:
        """See `Table.kept_records`; values need none."""
        del plan
        return _NOTHING_32

    def _old_records(self, plan: Plan, chain: U32) -> U64:
        del plan, chain
        return _NOTHING_64
