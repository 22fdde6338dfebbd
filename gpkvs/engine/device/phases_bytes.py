"""The `bytes` layout: keys and values of any size, in records of the heap. Each phase is a kernel of its own.

route -> order -> find -> fold -> measure, then place -> stage; a batch that only reads goes route -> look -> measure.
"""

from __future__ import annotations

import numpy as np

from gpkvs import failpoint
from gpkvs.backends.base import Processor
from gpkvs.batch import U8, U32, U64, offsets_of
from gpkvs.engine.device.phases import Phases
from gpkvs.engine.device.plan import NOTHING_SEEN, Chains, Fingerprints, Folded, PlacedChains, Plan, Seen, SlotChanges
from gpkvs.engine.device.planned import ForHostError
from gpkvs.engine.device.slot_placement import Placement
from gpkvs.engine.meter import Meter
from gpkvs.engine.table import Table
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import NO_SLOT, ChangeKind
from gpkvs.media.slot_kinds import names_expiry

_PLACES_BITS = 2  # of an operation: so few GETs are ordered because another key has the place of theirs
_NO_BLOBS = {"blobs": 0, "blob_file_pages": 0}  # a batch that may meet any is the host's


class BytesPhases(Phases):
    """The phases of a table whose slots refer to records.

    Parameters
    ----------
    place, files, table, meter
        As `Phases` has them.
    """

    _has_versions = True

    def __init__(self, place: Processor, files: StoreFiles, table: Table, meter: Meter) -> None:
        super().__init__(place, files, table, meter)
        self._placement = Placement(place, table)

    def read(self, plan: Plan) -> None:
        """See `Phases.read`."""
        failpoint.hit("before_route")
        if plan.batch.has_writes:
            fingerprints = self._route(plan)
            self._meter.lap("route")
            plan.chains = self._find(plan, fingerprints)
            failpoint.hit("before_fold")
            plan.folded = self._last_sets(plan) if plan.batch.has_only_sets else self._fold(plan)
            self._meter.lap("fold")
        else:
            self._look(plan)
            self._meter.lap("find")
        if plan.now:
            self._require_present(plan)

    def place(self, plan: Plan) -> None:
        """See `Phases.place`."""
        if plan.batch.has_only_sets:
            changed = self._xp.arange(len(plan.chains), dtype=np.uint32)
        else:
            changed = self._backend.numbers_where(plan.folded.change != ChangeKind.NONE.value)
        failpoint.hit("before_place")
        plan.placed = self._placement.place(plan.chains, changed)
        self._meter.lap("place")

    def _route(self, plan: Plan) -> Fingerprints:
        """Hash the keys of a plan."""
        count = len(plan.batch)
        word0, word1 = self._scratch(count, np.uint64, np.uint64)
        self._backend.launch(
            "route_bytes",
            count,
            key_offsets=plan.key_offsets,
            key_lengths=plan.key_lengths,
            keys=plan.keys,
            hash_key0=self._hash_key0,
            hash_key1=self._hash_key1,
            fingerprint0=word0,
            fingerprint1=word1,
        )
        return Fingerprints(word0, word1)

    def _find(self, plan: Plan, fingerprints: Fingerprints) -> Chains:
        failpoint.hit("before_order")
        order, chain_of, start, last_write = self._order(plan, fingerprints)
        count = len(start) - 1
        word0, word1, slot, old_word, old_meta = self._scratch(count, *[np.uint64] * 5)
        (block,) = self._scratch(count, np.uint32)
        chains = Chains(order, chain_of, start, last_write, word0, word1, block, slot, old_word, old_meta)
        self._meter.lap("order")
        failpoint.hit("before_find")
        self._backend.launch(
            "find_bytes",
            count,
            old_meta=old_meta,
            order=order,
            chain_start=start,
            fingerprint0=fingerprints.word0,
            fingerprint1=fingerprints.word1,
            index=self._index,
            **self._index.geometry,
            chain_fingerprint0=word0,
            chain_fingerprint1=word1,
            block=block,
            slot=slot,
            old_word=old_word,
        )
        self._meter.lap("find")
        return chains

    def _order(self, plan: Plan, fingerprints: Fingerprints) -> tuple[U32, U32, U32, U32]:
        """Sort operations as `Backend.order` does; of a batch of many GETs, not those whose keys it does not write."""
        batch, word0, word1 = plan.batch, fingerprints.word0, fingerprints.word1
        if not batch.has_only_sets and plan.seen is NOTHING_SEEN:
            plan.seen = self.columns_of_seen(len(batch))
        if 2 * batch.gets >= len(batch):
            self._look_up(fingerprints, plan.seen)
            numbers = self._to_order(plan, fingerprints)
            order, chain_of, start, last_write = self._backend.order(*self._take(plan, fingerprints, numbers))
            return numbers[order], chain_of, start, last_write
        return self._backend.order(word0, word1, plan.ops)

    def _take(self, plan: Plan, fingerprints: Fingerprints, numbers: U32) -> tuple[U64, U64, U8]:
        """Return fingerprints and kinds of some operations."""
        count = len(numbers)
        word0, word1 = self._scratch(count, np.uint64, np.uint64)
        (ops,) = self._scratch(count, np.uint8)
        self._backend.launch(
            "take_ops",
            count,
            numbers=numbers,
            fingerprint0=fingerprints.word0,
            fingerprint1=fingerprints.word1,
            ops=plan.ops,
            taken0=word0,
            taken1=word1,
            taken_ops=ops,
        )
        return word0, word1, ops

    def _to_order(self, plan: Plan, fingerprints: Fingerprints) -> U32:
        """Return the operations that must be ordered, in arrival order; all others see what the table holds."""
        count = len(plan.batch)
        places = 1 << (count.bit_length() + _PLACES_BITS)
        written, (needs,) = self._xp.zeros(places, np.uint8), self._scratch(count, np.uint8)
        word0, launch = fingerprints.word0, self._backend.launch
        launch("mark_written", count, ops=plan.ops, fingerprint0=word0, places=places, written=written)
        launch(
            "needs_order",
            count,
            ops=plan.ops,
            fingerprint0=word0,
            places=places,
            written=written,
            needs=needs,
            source_op=plan.seen.source_op,
        )
        return self._backend.numbers_where(needs)

    def _look(self, plan: Plan) -> None:
        """Look up the keys of a batch that only reads."""
        count = len(plan.batch)
        status, versions = self._result_columns(count)
        plan.seen = Seen(status, versions, self._xp.empty(count, np.uint64), self._xp.empty(0, np.uint32))
        fingerprints = self._route(plan)
        self._meter.lap("route")
        self._look_up(fingerprints, plan.seen)

    def _look_up(self, fingerprints: Fingerprints, seen: Seen) -> None:
        self._backend.launch(
            "look_bytes",
            len(seen.status),
            versions=seen.versions,
            fingerprint0=fingerprints.word0,
            fingerprint1=fingerprints.word1,
            index=self._index,
            **self._index.geometry,
            status=seen.status,
            source_word=seen.source_word,
        )

    def _last_sets(self, plan: Plan) -> Folded:
        """Fold a batch of SETs only: each sees that it is done, the last one of each key stays."""
        chains = plan.chains
        change, final_op = self._scratch(len(chains), np.uint8, np.uint32)
        self._backend.launch(
            "last_set", len(chains), order=chains.order, chain_start=chains.start, change=change, final_op=final_op
        )
        return Folded(change, final_op)

    def _fold(self, plan: Plan) -> Folded:
        chains, seen = plan.chains, plan.seen
        change, final_op = self._scratch(len(chains), np.uint8, np.uint32)
        self._backend.launch(
            "fold_bytes",
            len(chains.order),
            old_meta=chains.old_meta,
            first_sequence=plan.first_sequence,
            versions=seen.versions,
            order=chains.order,
            chain_of=chains.chain_of,
            chain_start=chains.start,
            last_write=chains.last_write,
            ops=plan.ops,
            slot=chains.slot,
            old_word=chains.old_word,
            status=seen.status,
            source_word=seen.source_word,
            source_op=seen.source_op,
            change=change,
            final_op=final_op,
        )
        return Folded(change, final_op)

    def stage(self, plan: Plan) -> None:
        """See `Phases.stage`; the references of new records are known."""
        placed, chains = plan.placed, plan.chains
        assert isinstance(placed, PlacedChains)
        m = placed.changes
        moved = placed.chain[:0] if placed.moved_to is None else self._backend.numbers_where(placed.moved_to != NO_SLOT)
        words = self._index.layout.slot_bytes // 8
        changed_slot = self._backend.scratch(m + len(moved), np.uint64)
        contents = self._backend.scratch((m + len(moved)) * words, np.uint64).reshape(-1, words)
        self._backend.launch(
            "stage_bytes",
            m,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            reference=self._references(plan),
            key_lengths=plan.key_lengths,
            value_lengths=plan.value_lengths,
            record_format=self._files.root.store_format,
            expiries=0 if plan.batch.expiries is None else self._backend.upload(plan.batch.expiries),
            first_sequence=plan.first_sequence,
            given_versions=0,
            changed_chain=placed.chain,
            change=plan.folded.change,
            final_op=plan.folded.final_op,
            slot=placed.slot,
            changed_slot=changed_slot,
            contents=contents,
        )
        if placed.moved_to is not None:
            changed_slot[m:] = placed.moved_to[moved]
            self._backend.launch(
                "load_slots_bytes", len(moved), slot=changed_slot[moved], index=self._index, contents=contents[m:]
            )
        digest = self._backend.scratch(len(changed_slot), np.uint64)
        plan.changes = SlotChanges(changed_slot, contents, digest)

    def _references(self, plan: Plan) -> U64:
        """Return the new record of each operation, where it has one."""
        given, ops = self._backend.upload(plan.records.reference), plan.put_op
        if len(ops) == len(plan.batch):
            return given
        references = self._backend.scratch(len(plan.batch), np.uint64)
        if len(ops):
            references[ops] = given
        return references

    def removed(self, plan: Plan) -> int:
        """See `Phases.removed`."""
        if plan.batch.has_only_sets:
            return 0
        return self._backend.total(plan.folded.change == ChangeKind.REMOVE.value)

    def _result_bytes(self, plan: Plan) -> int:
        return self._backend.total(self.lengths(plan))

    def _require_present(self, plan: Plan) -> None:
        """Leave a batch to the host that names a key which looks expired."""
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
            raise ForHostError

    def bounds(self, plan: Plan) -> U32:
        """See `Phases.bounds`."""
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
