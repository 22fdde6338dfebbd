"""The `bytes` layout: keys and values of any size, in records of the heap."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.batch import U32, U64
from gpkvs.layout import Change
from gpkvs.plan import Plan
from gpkvs.table import Table


class BytesTable(Table):
    """A table whose slots refer to records."""

    def _find_arguments(self, plan: Plan) -> dict[str, Argument]:
        del plan
        return {}

    def _stage_arguments(self, plan: Plan) -> dict[str, Argument]:
        return {
            "chain_fingerprint0": plan.chains.fingerprint0,
            "chain_fingerprint1": plan.chains.fingerprint1,
            "reference": plan.reference,
            "first_sequence": plan.first_sequence,
        }

    def _gather_arguments(self) -> dict[str, Argument]:
        return {"heap": self._files.heap.address}

    def _lengths(self, plan: Plan, get_op: U32) -> U32:
        lengths = np.empty(len(get_op), np.uint32)
        heap = self._files.heap
        self._backend.launch(
            "measure",
            len(get_op),
            get_op=get_op,
            source_word=plan.folded.source_word,
            source_op=plan.folded.source_op,
            value_lengths=plan.value_lengths,
            keys=plan.batch.keys,
            key_offsets=plan.key_offsets,
            key_lengths=plan.batch.key_lengths,
            heap=heap.address,
            heap_bytes=heap.bytes,
            table_id=self.entry.id,
            status=plan.folded.status,
            versions=plan.folded.versions,
            length=lengths,
        )
        return lengths

    def kept_records(self, plan: Plan) -> U32:
        """See `Table.kept_records`."""
        final_op = plan.folded.final_op[plan.placed.chain]
        kept = np.zeros(len(plan.batch), np.bool_)
        kept[final_op[plan.folded.change[plan.placed.chain] == Change.PUT]] = True
        return np.flatnonzero(kept).astype(np.uint32)

    def _old_records(self, plan: Plan, chain: U32) -> U64:
        freed: U64 = plan.chains.old_word[chain]
        return freed
