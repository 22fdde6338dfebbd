"""The `bytes` layout: keys and values of any size, in records of the heap.

Its slots are staged when the host has found room for the records that are kept, and knows where they lie.
"""

from __future__ import annotations

import numpy as np

from gpkvs.batch import U8, U32, U64, offsets_of
from gpkvs.engine.device.batch_plan import BatchPlan, Step
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.plan import Plan, Seen
from gpkvs.engine.device.planned import ForHostError
from gpkvs.media.slot_kinds import names_expiry
from gpkvs.process import failpoint

_KEEP = Step.KEEP | Step.TELL
_NO_BLOBS = {"blobs": 0, "blob_file_pages": 0}  # a batch that may meet any is the host's


class BytesPhases(Phases):
    """The phases of a table whose slots refer to records."""

    _has_versions = True

    def _fetch(self, plan: Plan, launched: BatchPlan) -> None:
        address = self._backend.address
        launched.set(
            key_offsets=address(plan.key_offsets),
            key_lengths=address(plan.key_lengths),
            first_sequence=plan.first_sequence,
            record_format=self._files.root.store_format,
        )

    def _fetch_values(self, plan: Plan, launched: BatchPlan) -> None:
        del plan, launched  # they go from the host to the heap

    def _look(self, plan: Plan) -> None:
        count, (hash_key0, hash_key1) = len(plan.batch), self._index.hash_keys
        status, versions = self._result_columns(count)
        plan.seen = seen = Seen(status, versions, self._xp.empty(count, np.uint64), self._xp.empty(0, np.uint32))
        fingerprint0, fingerprint1 = self._scratch(count, np.uint64, np.uint64)
        self._backend.launch(
            "route_bytes",
            count,
            key_offsets=plan.key_offsets,
            key_lengths=plan.key_lengths,
            keys=plan.keys,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            fingerprint0=fingerprint0,
            fingerprint1=fingerprint1,
        )
        self._meter.lap("route")
        self._backend.launch(
            "look_bytes",
            count,
            versions=seen.versions,
            fingerprint0=fingerprint0,
            fingerprint1=fingerprint1,
            index=self._index,
            **self._index.geometry,
            status=seen.status,
            source_word=seen.source_word,
        )
        if plan.now:
            self._require_present(plan, seen.source_word, None)

    def _find(self, plan: Plan, launched: BatchPlan) -> None:
        failpoint.hit("before_fold")
        launched.run(self._order(launched) | _KEEP)
        chains = launched.look().chains
        if not plan.now:
            return
        if not plan.batch.has_only_sets:  # also of a GET that was not ordered
            self._require_present(plan, plan.seen.source_word, None)
        old_word, old_meta = (launched.column(plan.room, name, chains, np.uint64) for name in ("old_word", "old_meta"))
        self._require_present(plan, old_word, old_meta)

    def _require_present(self, plan: Plan, reference: U64, meta: U64 | None) -> None:
        """Leave a batch to the host that names a key which looks expired."""
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
            raise ForHostError

    def kept_records(self, plan: Plan) -> U32:
        """Return the SETs that need a record in the heap, in arrival order: the last one of each key that stays."""
        launched = plan.launched
        numbers: U32 = launched.column(plan.room, "kept", launched.counts.kept, np.uint32)
        return numbers

    def stage(self, plan: Plan) -> None:
        """See `Phases.stage`."""
        launched, records, address = plan.launched, plan.records, self._backend.address
        counts, references = launched.counts, self._backend.upload(records.reference)
        expiries = None if plan.batch.expiries is None else self._backend.upload(plan.batch.expiries)
        self._make_room(plan, launched, counts.changes + counts.moved)
        launched.set(
            changes=counts.changes,
            records=len(records),
            references=address(references),
            value_lengths=address(plan.value_lengths),
            expiries=0 if expiries is None else address(expiries),
        )
        launched.run(Step.STAGE_MOVED if counts.moved else Step.STAGE)
        plan.changes = self._changes(plan, counts.changes + counts.moved)

    def freed(self, plan: Plan) -> U64:
        """Return the references that no slot will hold any more; 0 for a change of a slot that held none."""
        launched = plan.launched
        freed: U64 = launched.column(plan.room, "freed", launched.counts.changes, np.uint64)
        return freed

    def old_expiring(self, plan: Plan) -> int:
        """See `Phases.old_expiring`."""
        launched = plan.launched
        if not self.table.held.expiring:
            return 0
        freed_meta = launched.column(plan.room, "freed_meta", launched.counts.changes, np.uint64)
        return int(np.count_nonzero(names_expiry(self._backend.download(freed_meta))))

    def _result_bytes(self, plan: Plan) -> int:
        return self._backend.total(self.lengths(plan))

    def bounds(self, plan: Plan) -> U32:
        """Return how long each GET's value in the heap is at most, from what its slot says alone.

        Up to 15 bytes are too much. What a GET sees of its own batch does not count: whether that SET has room is not
        known yet.
        """
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
