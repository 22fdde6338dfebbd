"""The `bytes` layout: keys and values of any size, in records of the heap."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.batch import U8, U32, U64, RequestResult
from gpkvs.layout import Change
from gpkvs.plan import Plan, offsets_of
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

    def result(self, plan: Plan) -> RequestResult:
        """See `Table.result`."""
        offsets = offsets_of(plan.get_lengths)
        total = int(plan.get_lengths.sum(dtype=np.uint64))
        values: U8 = np.empty(total, np.uint8)
        self._backend.launch(
            "gather",
            len(plan.get_op) if total else 0,
            get_op=plan.get_op,
            source_word=plan.folded.source_word,
            source_op=plan.folded.source_op,
            values=plan.batch.values,
            value_offsets=plan.value_offsets,
            heap=self._files.heap.address,
            length=plan.get_lengths,
            offset=offsets,
            out=values,
        )
        return RequestResult(plan.folded.status, plan.folded.versions, plan.get_lengths, values)
