"""The `bytes` layout: keys and values of any size, in records of the heap."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.batch import U8, U32, U64, offsets_of
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.plan import Plan, Seen
from gpkvs.engine.device.planned import ExpiredKeysError
from gpkvs.media.layout import NO_SLOT, ChangeKind
from gpkvs.media.slot_kinds import names_expiry

_NO_BLOBS = {"blobs": 0, "blob_file_pages": 0}  # a batch that may meet any is the host's


class BytesPhases(Phases):
    """The phases of a table whose slots refer to records."""

    _has_versions = True

    def _require_present(self, plan: Plan) -> None:
        if not plan.batch.has_only_sets:  # also of a GET that was not ordered
            self._require_all_present(plan, plan.seen.source_word, None)
        if plan.batch.has_writes:
            self._require_all_present(plan, plan.chains.old_word, plan.chains.old_meta)

    def _require_all_present(self, plan: Plan, reference: U64, meta: U64 | None) -> None:
        download, met = self._backend.download, np.zeros(1, np.uint64)
        self._backend.host.launch(
            "meet_expired",
            len(reference),
            reference=download(reference),
            meta=0 if meta is None else download(meta),
            heap=self._files.heap.address,
            heap_bytes=self._files.heap.bytes,
            record_format=self._files.root.store_format,
            now=plan.now,
            met=met,
        )
        if met[0]:
            raise ExpiredKeysError

    def _route_arguments(self, plan: Plan) -> dict[str, Argument]:
        return {"key_offsets": plan.key_offsets, "key_lengths": plan.key_lengths}

    def _key_arguments(self, keys: U8) -> dict[str, Argument]:
        del keys
        return {}

    def _stage_arguments(self, plan: Plan) -> dict[str, Argument]:
        reference = self._backend.scratch(len(plan.batch), np.uint64)
        if len(plan.put_op):
            reference[plan.put_op] = self._backend.upload(plan.records.reference)
        return {
            "chain_fingerprint0": plan.chains.fingerprint0,
            "chain_fingerprint1": plan.chains.fingerprint1,
            "reference": reference,
            "key_lengths": plan.key_lengths,
            "value_lengths": plan.value_lengths,
            "record_format": self._files.root.store_format,
            "expiries": 0 if plan.batch.expiries is None else self._backend.upload(plan.batch.expiries),
            "first_sequence": plan.first_sequence,
            "given_versions": 0,
        }

    def _bounds(self, plan: Plan) -> U32:
        reads_only = not plan.batch.has_writes
        lengths = self._backend.scratch(plan.gets, np.uint32)
        self._backend.launch(
            "result_bound",
            plan.gets,
            get_op=0 if reads_only else plan.get_op,
            source_word=plan.seen.source_word,
            source_op=0 if reads_only else plan.seen.source_op,
            key_lengths=plan.key_lengths,
            segment_units=self._files.segment_units,
            heap=0,
            heap_bytes=0,
            record_format=self._files.root.store_format,
            **_NO_BLOBS,
            lends_blobs=0,
            length=lengths,
        )
        return lengths

    def _lengths(self, plan: Plan) -> U32:
        # Records are read by the host's threads: from here on, what GETs see is on the host.
        download, seen = self._backend.download, plan.seen
        plan.seen = Seen(
            download(seen.status), download(seen.versions), download(seen.source_word), download(seen.source_op)
        )
        lengths: U32 = self._backend.result_column(plan.gets, np.uint32)
        heap, reads_only = self._files.heap, not plan.batch.has_writes
        self._backend.launch(
            "measure",
            plan.gets,
            get_op=plan.get_op if plan.batch.has_writes else 0,
            source_word=plan.seen.source_word,
            source_op=0 if reads_only else plan.seen.source_op,
            value_lengths=0 if reads_only else plan.value_lengths,
            keys=plan.batch.keys,
            key_offsets=plan.key_offsets,
            key_lengths=plan.host_key_lengths,
            heap=heap.address,
            heap_bytes=heap.bytes,
            record_format=self._files.root.store_format,
            **_NO_BLOBS,
            table_id=self.table.entry.id,
            status=plan.seen.status,
            versions=plan.seen.versions,
            length=lengths,
        )
        return lengths

    def _values(self, plan: Plan) -> U8:
        offset = self._backend.download(offsets_of(self._backend.upload(self.lengths(plan))))
        values: U8 = self._backend.result_column(plan.result_bytes, np.uint8)
        reads_only = not plan.batch.has_writes
        self._backend.launch(
            "gather_bytes",
            plan.gets,
            get_op=0 if reads_only else plan.get_op,
            source_word=plan.seen.source_word,
            source_op=0 if reads_only else plan.seen.source_op,
            values=plan.batch.values,
            value_offsets=0 if reads_only else plan.value_offsets,
            heap=self._files.heap.address,
            record_format=self._files.root.store_format,
            **_NO_BLOBS,
            length=self.lengths(plan),
            offset=offset,
            out=values,
        )
        return values

    def kept_records(self, plan: Plan) -> U32:
        """Return the SETs that need a record in the heap, in arrival order: the last one of each key that stays."""
        if plan.batch.has_only_sets and len(plan.chains) == len(plan.batch):  # each SET has a key of its own
            numbers: U32 = self._xp.arange(len(plan.batch), dtype=np.uint32)
            return numbers
        kept = self._xp.zeros(len(plan.batch), np.bool_)
        kept[plan.folded.final_op[plan.folded.change == ChangeKind.PUT.value]] = True
        return self._backend.numbers_where(kept)

    def freed(self, plan: Plan) -> U64:
        """Return the references that no slot will hold any more."""
        return self._of_changed_slots(plan, plan.chains.old_word)

    def old_expiring(self, plan: Plan) -> int:
        """See `Phases.old_expiring`."""
        if not self.table.held.expiring:
            return 0
        return self._backend.total(names_expiry(self._of_changed_slots(plan, plan.chains.old_meta)))

    @staticmethod
    def _of_changed_slots(plan: Plan, of_chains: U64) -> U64:
        """Return of a column of all chains what it has of those that store over a slot."""
        if plan.batch.has_only_sets and not plan.placed.new_keys:
            return of_chains
        of_changed: U64 = of_chains[(plan.chains.slot != NO_SLOT) & (plan.folded.change != ChangeKind.NONE.value)]
        return of_changed
