"""One table: the phases of a transaction that look at its index and decide, in volatile memory.

route -> order -> find -> fold -> measure, then for writes place -> stage. Nothing here stores to PM but `log` and
`apply`, which the engine calls when it is their turn. What depends on the layout is in `gpkvs.table_bytes` and
`gpkvs.table_u64`; each kernel of theirs exists once for each layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from gpkvs import failpoint
from gpkvs.admission import DoesNotFitError, request_of_op, sets_of_chains
from gpkvs.backends.base import Argument, Backend
from gpkvs.batch import U8, U32, U64, Batch, Op, RequestResult
from gpkvs.catalog import TableEntry
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from gpkvs.files import StoreFiles
from gpkvs.layout import NO_OP, NO_SLOT, Change
from gpkvs.metrics import Meter
from gpkvs.plan import Chains, Changes, Folded, Placed, Plan, offsets_of
from gpkvs.pm.region import Region


class Table(ABC):
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
    meter
        Told when a phase ends.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        entry: TableEntry,
        index: Region,
        reply_bytes_max: int,
        records: int,
        meter: Meter,
    ) -> None:
        self._backend = backend
        self._files = files
        self.entry = entry
        self.index = index
        self._layout = entry.slot_layout
        self._hash_key0, self._hash_key1 = files.root.hash_keys
        self._reply_bytes_max = reply_bytes_max
        self.records = records
        self._meter = meter

    def read(self, plan: Plan) -> None:
        """Find every key and fold its operations; PM is only read."""
        plan.chains = self._find(plan)
        failpoint.hit("before_fold")
        plan.folded = self._fold(plan)
        self._meter.lap("fold")
        plan.get_op, plan.get_lengths = self._measure(plan)
        self._meter.lap("measure")

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
        self._meter.lap("place")

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
        self._meter.lap("route")
        failpoint.hit("before_order")
        order, chain_of, start, last_write = self._backend.order(fingerprint0, fingerprint1, batch.ops)
        count = len(start) - 1
        words = [np.empty(count, np.uint64) for _ in range(5)]
        block = np.empty(count, np.uint32)
        chains = Chains(order, chain_of, start, last_write, words[0], words[1], block, *words[2:])
        self._meter.lap("order")
        failpoint.hit("before_find")
        self._launch_slots(
            "find",
            count,
            **self._find_arguments(plan),
            order=order,
            chain_start=start,
            fingerprint0=fingerprint0,
            fingerprint1=fingerprint1,
            index=self.index.address,
            buckets=self.entry.buckets,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            block=chains.block,
            slot=chains.slot,
            old_word=chains.old_word,
            old_meta=chains.old_meta,
        )
        self._meter.lap("find")
        return chains

    def _launch_slots(self, kernel: str, items: int, group: int = 1, /, **arguments: Argument) -> None:
        """Run the kernel of this table's layout."""
        self._backend.launch(f"{kernel}_{self._layout.name}", items, group=group, **arguments)

    def _fold(self, plan: Plan) -> Folded:
        n, chains = len(plan.batch), plan.chains
        folded = Folded(
            status=np.empty(n, np.uint8),
            versions=np.empty(n, np.uint64),
            source_word=np.empty(n, np.uint64),
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
            old_word=chains.old_word,
            old_meta=chains.old_meta,
            first_sequence=plan.first_sequence,
            status=folded.status,
            versions=folded.versions,
            source_word=folded.source_word,
            source_op=folded.source_op,
            change=folded.change,
            final_op=folded.final_op,
        )
        return folded

    def _measure(self, plan: Plan) -> tuple[U32, U32]:
        """Return the GETs and the length of each one's value."""
        get_op = np.flatnonzero(plan.batch.ops == Op.GET).astype(np.uint32)
        return get_op, self._lengths(plan, get_op)

    def check_replies(self, plan: Plan) -> None:
        """Refuse requests that would return too much.

        Raises
        ------
        DoesNotFitError
            With these requests.
        """
        limit = self._reply_bytes_max
        if int(plan.get_lengths.sum(dtype=np.uint64)) <= limit:
            return
        reply_bytes = reply_bytes_by_request(plan.batch, plan.get_op, plan.get_lengths)
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
        is_new = chains.slot[changed] == NO_SLOT
        if not is_new.any():
            return Placed(changed, chains.slot, np.full(len(changed), NO_SLOT, np.uint64))
        placed = self._run_place(chains, changed)
        if (placed.slot[changed] != NO_SLOT).all():
            return placed
        return self._admit(plan, changed, is_new)

    def _admit(self, plan: Plan, changed: U32, is_new: NDArray[np.bool_]) -> Placed:
        """Place in arrival order, where it is clear which requests are too much."""
        batch, chains = plan.batch, plan.chains
        change_of_chain = np.full(len(chains), NO_OP, np.uint32)
        change_of_chain[changed[is_new]] = np.flatnonzero(is_new)
        sets, set_chain = sets_of_chains(batch, chains)
        set_change = change_of_chain[set_chain]
        new = set_change != NO_OP
        sets, set_change = sets[new], set_change[new]
        blocks, change_block = np.unique(chains.block[changed], return_inverse=True)
        slot, moved_to = chains.slot.copy(), np.full(len(changed), NO_SLOT, np.uint64)
        refused = np.zeros(len(batch.request_ops), np.uint8)
        self._launch_slots(
            "admit",
            1,
            sets=len(sets),
            set_change=set_change,
            set_request=request_of_op(batch)[sets].astype(np.uint32),
            changes=len(changed),
            changed_chain=changed,
            change_block=change_block.astype(np.uint32),
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            index=self.index.address,
            buckets=self.entry.buckets,
            hash_key0=self._hash_key0,
            hash_key1=self._hash_key1,
            taken=np.zeros(len(blocks) * self._layout.block_buckets, np.uint8),
            pinned=np.zeros(len(blocks) * self._layout.block_buckets, np.uint8),
            placed=np.empty(len(sets), np.uint32),
            slot=slot,
            moved_to=moved_to,
            refused=refused,
        )
        if refused.any():
            raise DoesNotFitError(dict.fromkeys(np.flatnonzero(refused).tolist(), self._index_full()))
        return Placed(changed, slot, moved_to)

    def _index_full(self) -> NoSpaceError:
        return NoSpaceError(
            "index",
            f"no way left for a new key in its two buckets ({self.records:,} records in {self.entry.slots:,} slots "
            f"of table {self.entry.name!r}): delete keys, or create a store with a larger --index-bytes and copy "
            "the data",
        )

    def _run_place(self, chains: Chains, changed: U32) -> Placed:
        slot, moved_to = chains.slot.copy(), np.empty(len(changed), np.uint64)
        block = chains.block[changed]
        starts = np.flatnonzero(block[1:] != block[:-1]) + 1
        block_first = np.concatenate([[0], starts, [len(changed)]]).astype(np.uint32)
        blocks = len(block_first) - 1
        self._launch_slots(
            "place",
            blocks,
            1 + len(changed) // blocks,
            block_first=block_first,
            changed_chain=changed,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            index=self.index.address,
            buckets=self.entry.buckets,
            hash_key0=self._hash_key0,
            hash_key1=self._hash_key1,
            slot=slot,
            moved_to=moved_to,
        )
        return Placed(changed, slot, moved_to)

    def stage(self, plan: Plan) -> None:
        """Work out the new contents of every slot that changes."""
        placed = plan.placed
        m = len(placed.chain)
        moved = np.flatnonzero(placed.moved_to != NO_SLOT)
        changed_slot = np.empty(m + len(moved), np.uint64)
        contents = np.empty((m + len(moved), self._layout.slot_bytes // 8), np.uint64)
        self._launch_slots(
            "stage",
            m,
            **self._stage_arguments(plan),
            changed_chain=placed.chain,
            change=plan.folded.change,
            final_op=plan.folded.final_op,
            slot=placed.slot,
            changed_slot=changed_slot,
            contents=contents,
        )
        self._launch_slots(
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
        self._launch_slots(
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
        self._launch_slots(
            "apply",
            last - first,
            changed_slot=plan.changes.slot[first:last],
            contents=plan.changes.contents[first:last],
            index=self.index.address,
        )

    def freed(self, plan: Plan) -> U64:
        """Return the references that no slot will hold any more."""
        chain = plan.placed.chain
        return self._old_records(plan, chain[plan.chains.slot[chain] != NO_SLOT])

    def records_after(self, plan: Plan) -> int:
        """Return how many keys the table will have."""
        chain = plan.placed.chain
        put = plan.folded.change[chain] == Change.PUT
        old = plan.chains.slot[chain] != NO_SLOT
        return self.records + int((put & ~old).sum()) - int((~put).sum())

    def result(self, plan: Plan) -> RequestResult:
        """Return the results of a plan, with the values of its GETs."""
        total = int(plan.get_lengths.sum(dtype=np.uint64))
        values: U8 = np.empty(total, np.uint8)
        self._launch_slots(
            "gather",
            len(plan.get_op) if total else 0,
            **self._gather_arguments(),
            get_op=plan.get_op,
            source_word=plan.folded.source_word,
            source_op=plan.folded.source_op,
            values=plan.batch.values,
            value_offsets=plan.value_offsets,
            length=plan.get_lengths,
            offset=offsets_of(plan.get_lengths),
            out=values,
        )
        return RequestResult(plan.folded.status, plan.folded.versions, plan.get_lengths, values)

    @abstractmethod
    def _find_arguments(self, plan: Plan) -> dict[str, Argument]:
        """Return what the layout's `find` takes beside the rest."""

    @abstractmethod
    def _stage_arguments(self, plan: Plan) -> dict[str, Argument]:
        """Return what the layout's `stage` takes beside the rest."""

    @abstractmethod
    def _gather_arguments(self) -> dict[str, Argument]:
        """Return what the layout's `gather` takes beside the rest."""

    @abstractmethod
    def _lengths(self, plan: Plan, get_op: U32) -> U32:
        """Return the length of each GET's value, after checking where it comes from."""

    @abstractmethod
    def kept_records(self, plan: Plan) -> U32:
        """Return the SETs that need a record in the heap, in arrival order: the last one of each key that stays."""

    @abstractmethod
    def _old_records(self, plan: Plan, chain: U32) -> U64:
        """Return the records that the slots of chains held before."""


def reply_bytes_by_request(batch: Batch, get_op: U32, lengths: U32) -> NDArray[np.int64]:
    """Return the bytes of values that each request reads."""
    owner = request_of_op(batch)[get_op]
    return np.bincount(owner, weights=lengths, minlength=len(batch.request_ops)).astype(np.int64)
