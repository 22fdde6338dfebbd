"""One table: the phases of a transaction that look at its index and decide, in volatile memory.

route -> order -> find -> fold -> measure, then for writes place -> stage. Nothing here stores to PM but `log` and
`apply`, which the engine calls when it is their turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpkvs import failpoint
from gpkvs.admission import DoesNotFitError, Placement, first_set_of_chain, request_of_op
from gpkvs.backends.base import Backend
from gpkvs.batch import U8, U32, U64, Batch, Op, RequestResult
from gpkvs.catalog import TableEntry
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from gpkvs.files import StoreFiles
from gpkvs.layout import BLOCK_BUCKETS, NO_SLOT, Change
from gpkvs.plan import Chains, Changes, Folded, Placed, Plan, offsets_of
from gpkvs.pm.region import Region


class Table:
    """One table of an open store.

    Parameters
    ----------
    backend
        Runs the kernels.
    files
        The mapped store.
    entry, index
        The table's catalogue entry and its mapped index.
    reply_bytes_max
        Values that one request may read.
    records
        Keys in the table, as recovery counted them.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        entry: TableEntry,
        index: Region,
        reply_bytes_max: int,
        records: int,
    ) -> None:
        self._backend = backend
        self._heap = files.heap
        self.entry = entry
        self.index = index
        self._buckets = entry.blocks * BLOCK_BUCKETS
        self._hash_key0, self._hash_key1 = files.root.hash_keys
        self._reply_bytes_max = reply_bytes_max
        self.records = records

    def read(self, plan: Plan) -> None:
        """Find every key and fold its operations; PM is only read.

        Raises
        ------
        DoesNotFitError
            If a request would return more than it may.
        """
        plan.chains = self._find(plan)
        failpoint.hit("before_fold")
        plan.folded = self._fold(plan)
        plan.get_op, plan.get_lengths = self._measure(plan)

    def place(self, plan: Plan) -> None:
        """Find a way for every new key.

        Raises
        ------
        DoesNotFitError
            With the requests whose keys find none.
        """
        changed = np.flatnonzero(plan.folded.change != Change.NONE).astype(np.uint32)
        failpoint.hit("before_place")
        plan.placed = self._place(plan, changed)

    def _find(self, plan: Plan) -> Chains:
        batch = plan.batch
        failpoint.hit("before_route")
        fingerprint0, fingerprint1 = np.empty(len(batch), np.uint64), np.empty(len(batch), np.uint64)
        self._backend.launch(
            "route",
            len(batch),
            keys=batch.keys,
            key_offsets=plan.key_offsets,
            key_lengths=batch.key_lengths,
            hash_key0=self._hash_key0,
            hash_key1=self._hash_key1,
            fingerprint0=fingerprint0,
            fingerprint1=fingerprint1,
        )
        failpoint.hit("before_order")
        order, chain_of, start, last_write = self._backend.order(fingerprint0, fingerprint1, batch.ops)
        count = len(start) - 1
        words = [np.empty(count, np.uint64) for _ in range(5)]
        block = np.empty(count, np.uint32)
        chains = Chains(order, chain_of, start, last_write, words[0], words[1], block, *words[2:])
        failpoint.hit("before_find")
        self._backend.launch(
            "find",
            count,
            order=order,
            chain_start=start,
            fingerprint0=fingerprint0,
            fingerprint1=fingerprint1,
            index=self.index.address,
            buckets=self._buckets,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            block=chains.block,
            slot=chains.slot,
            old_reference=chains.old_reference,
            old_meta=chains.old_meta,
        )
        return chains

    def _fold(self, plan: Plan) -> Folded:
        n, chains = len(plan.batch), plan.chains
        folded = Folded(
            status=np.empty(n, np.uint8),
            versions=np.empty(n, np.uint64),
            source_reference=np.empty(n, np.uint64),
            source_op=np.empty(n, np.uint32),
            change=np.empty(len(chains), np.uint8),
            final_op=np.empty(len(chains), np.uint32),
        )
        self._backend.launch(
            "fold",
            n,
            order=chains.order,
            chain_of=chains.chain_of,
            chain_start=chains.start,
            last_write=chains.last_write,
            ops=plan.batch.ops,
            slot=chains.slot,
            old_reference=chains.old_reference,
            old_meta=chains.old_meta,
            first_sequence=plan.first_sequence,
            status=folded.status,
            versions=folded.versions,
            source_reference=folded.source_reference,
            source_op=folded.source_op,
            change=folded.change,
            final_op=folded.final_op,
        )
        return folded

    def _measure(self, plan: Plan) -> tuple[U32, U32]:
        """Return the GETs and the length of each one's value, after checking the records they come from."""
        batch = plan.batch
        get_op = np.flatnonzero(batch.ops == Op.GET).astype(np.uint32)
        lengths = np.empty(len(get_op), np.uint32)
        self._backend.launch(
            "measure",
            len(get_op),
            get_op=get_op,
            source_reference=plan.folded.source_reference,
            source_op=plan.folded.source_op,
            value_lengths=plan.value_lengths,
            keys=batch.keys,
            key_offsets=plan.key_offsets,
            key_lengths=batch.key_lengths,
            heap=self._heap.address,
            heap_bytes=self._heap.bytes,
            table_id=self.entry.id,
            status=plan.folded.status,
            versions=plan.folded.versions,
            length=lengths,
        )
        if int(lengths.sum(dtype=np.uint64)) > self._reply_bytes_max:
            self._check_replies(batch, get_op, lengths)
        return get_op, lengths

    def _check_replies(self, batch: Batch, get_op: U32, lengths: U32) -> None:
        reply_bytes = reply_bytes_by_request(batch, get_op, lengths)
        limit = self._reply_bytes_max
        too_large = np.flatnonzero(reply_bytes > limit).tolist()
        if too_large:
            raise DoesNotFitError(
                {
                    request: InvalidArgumentError(
                        f"its GETs read {reply_bytes[request]:,} bytes of values, the limit is {limit:,} "
                        "(reply_bytes_max): split it",
                        field="ops",
                    )
                    for request in too_large
                }
            )

    def _place(self, plan: Plan, changed: U32) -> Placed:
        chains = plan.chains
        moved_to = np.full(len(changed), NO_SLOT, np.uint64)
        is_new = chains.slot[changed] == NO_SLOT
        if not is_new.any():
            return Placed(changed, chains.slot, moved_to)
        block = chains.block[changed]
        sequence = np.arange(len(changed), dtype=np.uint32)
        slot = self._run_place(chains, changed, block, sequence, moved_to)
        if (slot[changed] != NO_SLOT).all():
            return Placed(changed, slot, moved_to)

        # Not all found room in sorted order. In arrival order it is clear which requests are too much.
        first_set = first_set_of_chain(plan.batch, chains.order, chains.chain_of, len(chains))
        arrival = first_set[changed]
        sequence = np.lexsort((arrival, block)).astype(np.uint32)
        slot = self._run_place(chains, changed, block, sequence, moved_to)
        failed = slot[changed] == NO_SLOT
        if not failed.any():
            return Placed(changed, slot, moved_to)
        refused = Placement(block, arrival, is_new, failed).refused(plan.batch)
        raise DoesNotFitError(dict.fromkeys(refused, self._index_full()))

    def _index_full(self) -> NoSpaceError:
        return NoSpaceError(
            "index",
            f"no way left for a new key in its two buckets ({self.records:,} records in {self.entry.slots:,} slots "
            f"of table {self.entry.name!r}): delete keys, or create a store with a larger --index-bytes and copy "
            "the data",
        )

    def _run_place(self, chains: Chains, changed: U32, block: U32, sequence: U32, moved_to: U64) -> U64:
        slot = chains.slot.copy()
        starts = np.flatnonzero(block[1:] != block[:-1]) + 1
        block_first = np.concatenate([[0], starts, [len(changed)]]).astype(np.uint32)
        blocks = len(block_first) - 1
        self._backend.launch(
            "place",
            blocks,
            group=1 + len(changed) // blocks,
            block_first=block_first,
            sequence=sequence,
            changed_chain=changed,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            index=self.index.address,
            buckets=self._buckets,
            slot=slot,
            moved_to=moved_to,
        )
        return slot

    def kept_records(self, plan: Plan) -> U32:
        """Return the SETs whose records are kept, in arrival order: the last one of each key that stays."""
        final_op = plan.folded.final_op[plan.placed.chain]
        kept = np.zeros(len(plan.batch), np.bool_)
        kept[final_op[plan.folded.change[plan.placed.chain] == Change.PUT]] = True
        return np.flatnonzero(kept).astype(np.uint32)

    def stage(self, plan: Plan) -> None:
        """Work out the new contents of every slot that changes."""
        chains, placed = plan.chains, plan.placed
        m = len(placed.chain)
        moved = np.flatnonzero(placed.moved_to != NO_SLOT)
        changed_slot = np.empty(m + len(moved), np.uint64)
        contents = np.empty((m + len(moved), 4), np.uint64)
        self._backend.launch(
            "stage",
            m,
            changed_chain=placed.chain,
            change=plan.folded.change,
            final_op=plan.folded.final_op,
            slot=placed.slot,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            reference=plan.reference,
            first_sequence=plan.first_sequence,
            changed_slot=changed_slot,
            contents=contents,
        )
        self._backend.launch(
            "stage_moved",
            len(moved),
            vacated=changed_slot[moved],
            moved_to=placed.moved_to[moved],
            index=self.index.address,
            changed_slot=changed_slot[m:],
            contents=contents[m:],
        )
        plan.changes = Changes(changed_slot, contents)

    def log(self, plan: Plan, epoch: int, log_address: int, digest: U64, first: int, last: int) -> None:
        """Store the undo entries `first` to `last - 1` of this table's run, which begins at `log_address`."""
        self._backend.launch(
            "log_undo",
            last - first,
            changed_slot=plan.changes.slot[first:last],
            index=self.index.address,
            epoch=epoch,
            first=first,
            log=log_address,
            digest=digest[first:last],
        )

    def apply(self, plan: Plan, first: int, last: int) -> None:
        """Store the slots `first` to `last - 1` of a plan in place."""
        self._backend.launch(
            "apply",
            last - first,
            changed_slot=plan.changes.slot[first:last],
            contents=plan.changes.contents[first:last],
            index=self.index.address,
        )

    def committed(self, plan: Plan) -> U64:
        """Take a committed plan into account; return the references that no slot holds any more."""
        chain = plan.placed.chain
        put = plan.folded.change[chain] == Change.PUT
        old = plan.chains.slot[chain] != NO_SLOT
        self.records += int((put & ~old).sum()) - int((~put).sum())
        removed: U64 = plan.chains.old_reference[chain[old]]
        return removed

    def result(self, plan: Plan) -> RequestResult:
        """Return the results of a plan, with the values of its GETs."""
        offsets = offsets_of(plan.get_lengths)
        total = int(plan.get_lengths.sum(dtype=np.uint64))
        values: U8 = np.empty(total, np.uint8)
        self._backend.launch(
            "gather",
            len(plan.get_op) if total else 0,
            get_op=plan.get_op,
            source_reference=plan.folded.source_reference,
            source_op=plan.folded.source_op,
            values=plan.batch.values,
            value_offsets=plan.value_offsets,
            heap=self._heap.address,
            length=plan.get_lengths,
            offset=offsets,
            out=values,
        )
        return RequestResult(plan.folded.status, plan.folded.versions, plan.get_lengths, values)


def reply_bytes_by_request(batch: Batch, get_op: U32, lengths: U32) -> NDArray[np.int64]:
    """Return the bytes of values that each request reads."""
    owner = request_of_op(batch)[get_op]
    return np.bincount(owner, weights=lengths, minlength=len(batch.request_ops)).astype(np.int64)
