"""One batch, one durable transaction: the phases of docs/design.md, section 4, in order.

    route -> order -> find -> fold -> place -> record -> log -> ACTIVE -> apply -> IDLE -> reply

Decisions are here, loops over keys are in the kernels. The transactional shape (undo log first, flag, in-place update,
flag) is that of gpKVS (GPM, ASPLOS '22, section 5.2 and figure 6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpkvs import failpoint
from gpkvs.admission import (
    CutError,
    DoesNotFitError,
    Placement,
    cut_to,
    first_set_of_chain,
    has_set,
    over_budget,
    request_of_op,
)
from gpkvs.backends.base import Backend
from gpkvs.batch import U8, U32, U64, Batch, BatchResult, Op, RequestResult
from gpkvs.config import Limits
from gpkvs.errors import GpkvsError, InvalidArgumentError, NoSpaceError
from gpkvs.fatal import stop_process
from gpkvs.files import StoreFiles
from gpkvs.heap import Heap, HeapFullError, Tail, record_units
from gpkvs.layout import BLOCK_BUCKETS, ENTRY_BYTES, NO_SLOT, Change, Descriptor, LogRun, RunKind
from gpkvs.transaction import Transaction


@dataclass(frozen=True)
class _Columns:
    """A batch with what the kernels need beside it."""

    batch: Batch
    key_offsets: U64
    value_offsets: U64  # of every operation; meaningful for SETs
    value_lengths: U32  # of every operation; 0 but for SETs
    first_sequence: int


@dataclass(frozen=True)
class _Chains:
    """All operations of one key are a chain; chains are sorted by block and bucket."""

    order: U32
    chain_of: U32
    start: U32
    last_write: U32
    fingerprint0: U64
    fingerprint1: U64
    block: U32
    slot: U64
    old_reference: U64
    old_meta: U64

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(frozen=True)
class _Folded:
    """What each operation sees (by operation) and what each chain leaves (by chain)."""

    status: U8
    versions: U64
    source_reference: U64
    source_op: U32
    change: U8
    final_op: U32


@dataclass(frozen=True)
class _Changes:
    """The slots that change. Chain columns first, displaced occupants behind them in `slot` and `contents`."""

    chain: U32
    slot: U64
    contents: U64  # (slots, 4)

    def __len__(self) -> int:
        return len(self.slot)


class Engine:
    """Runs batches against one table, one at a time.

    Parameters
    ----------
    backend
        Runs the kernels.
    files
        The mapped store.
    heap, transaction
        As recovery left them.
    limits
        Of a request.
    batch_reply_bytes_max
        Values that one transaction may read.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        heap: Heap,
        transaction: Transaction,
        limits: Limits,
        batch_reply_bytes_max: int,
        records: int,
    ) -> None:
        self._backend = backend
        self._files = files
        self.heap = heap
        self._transaction = transaction
        self._limits = limits
        self._batch_reply_bytes_max = max(batch_reply_bytes_max, limits.reply_bytes_max)
        self._table = files.table
        self._buckets = files.table.blocks * BLOCK_BUCKETS
        self._hash_key0, self._hash_key1 = files.root.hash_keys
        self.records = records

    @property
    def next_sequence(self) -> int:
        """The version that the next SET may get."""
        return self._transaction.current.next_sequence

    def execute(self, batch: Batch) -> BatchResult:
        """Run the longest run of requests from the first on that fits one transaction.

        Parameters
        ----------
        batch
            Valid columns (`Batch.validate`).

        Returns
        -------
        BatchResult
            Durable. Its `requests` says how many requests it covers; at least one.
        """
        requests = cut_to(batch, batch.request_ops, self._files.log_entries_max)
        admitted = np.arange(len(batch.request_ops)) < requests
        rejected: dict[int, GpkvsError] = {}
        while True:
            numbers = np.flatnonzero(admitted)
            part = batch if len(numbers) == len(admitted) else batch.take(admitted)
            try:
                whole = self._transact(part) if len(part) else _nothing()
            except DoesNotFitError as unfit:
                for number, reason in unfit.rejected.items():
                    rejected[int(numbers[number])] = reason
                    admitted[numbers[number]] = False
            except CutError as cut:
                requests = int(numbers[cut.requests])
                admitted[requests:] = False
                rejected = {number: reason for number, reason in rejected.items() if number < requests}
            else:
                return BatchResult(part, whole, rejected, requests)

    def _transact(self, batch: Batch) -> RequestResult:
        columns = self._columns(batch)
        chains = self._find(columns)
        failpoint.hit("before_fold")
        folded = self._fold(columns, chains)
        get_op, lengths = self._measure(columns, folded)
        if batch.has_writes:
            self._write(columns, chains, folded)
        # Results leave here, after the commit: an acknowledged write must survive, and no reader may see what a crash
        # could take back (I4).
        failpoint.hit("before_reply")
        return RequestResult(folded.status, folded.versions, lengths, self._gather(columns, folded, get_op, lengths))

    def _columns(self, batch: Batch) -> _Columns:
        value_lengths = np.zeros(len(batch), np.uint32)
        value_lengths[batch.ops == Op.SET] = batch.value_lengths
        return _Columns(batch, _offsets(batch.key_lengths), _offsets(value_lengths), value_lengths, self.next_sequence)

    def _find(self, columns: _Columns) -> _Chains:
        batch = columns.batch
        failpoint.hit("before_route")
        fingerprint0, fingerprint1 = np.empty(len(batch), np.uint64), np.empty(len(batch), np.uint64)
        self._backend.launch(
            "route",
            len(batch),
            keys=batch.keys,
            key_offsets=columns.key_offsets,
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
        chains = _Chains(order, chain_of, start, last_write, words[0], words[1], np.empty(count, np.uint32), *words[2:])
        failpoint.hit("before_find")
        self._backend.launch(
            "find",
            count,
            order=order,
            chain_start=start,
            fingerprint0=fingerprint0,
            fingerprint1=fingerprint1,
            index=self._files.index.address,
            buckets=self._buckets,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            block=chains.block,
            slot=chains.slot,
            old_reference=chains.old_reference,
            old_meta=chains.old_meta,
        )
        return chains

    def _fold(self, columns: _Columns, chains: _Chains) -> _Folded:
        n = len(columns.batch)
        folded = _Folded(
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
            ops=columns.batch.ops,
            slot=chains.slot,
            old_reference=chains.old_reference,
            old_meta=chains.old_meta,
            first_sequence=columns.first_sequence,
            status=folded.status,
            versions=folded.versions,
            source_reference=folded.source_reference,
            source_op=folded.source_op,
            change=folded.change,
            final_op=folded.final_op,
        )
        return folded

    def _measure(self, columns: _Columns, folded: _Folded) -> tuple[U32, U32]:
        """Return the GETs and the length of each one's value; refuse or put off what is too much to return."""
        batch = columns.batch
        get_op = np.flatnonzero(batch.ops == Op.GET).astype(np.uint32)
        lengths = np.empty(len(get_op), np.uint32)
        self._backend.launch(
            "measure",
            len(get_op),
            get_op=get_op,
            source_reference=folded.source_reference,
            source_op=folded.source_op,
            value_lengths=columns.value_lengths,
            keys=batch.keys,
            key_offsets=columns.key_offsets,
            key_lengths=batch.key_lengths,
            heap=self._files.heap.address,
            heap_bytes=self._files.heap.bytes,
            table_id=self._table.id,
            status=folded.status,
            versions=folded.versions,
            length=lengths,
        )
        if int(lengths.sum(dtype=np.uint64)) > self._limits.reply_bytes_max:
            self._check_replies(batch, get_op, lengths)
        return get_op, lengths

    def _check_replies(self, batch: Batch, get_op: U32, lengths: U32) -> None:
        reply_bytes = np.bincount(
            request_of_op(batch)[get_op], weights=lengths, minlength=len(batch.request_ops)
        ).astype(np.int64)
        limit = self._limits.reply_bytes_max
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
        requests = cut_to(batch, reply_bytes, self._batch_reply_bytes_max)
        if requests < len(reply_bytes):
            raise CutError(requests)

    def _gather(self, columns: _Columns, folded: _Folded, get_op: U32, lengths: U32) -> U8:
        offsets = _offsets(lengths)
        total = int(lengths.sum(dtype=np.uint64))
        values = np.empty(total, np.uint8)
        self._backend.launch(
            "gather",
            len(get_op) if total else 0,
            get_op=get_op,
            source_reference=folded.source_reference,
            source_op=folded.source_op,
            values=columns.batch.values,
            value_offsets=columns.value_offsets,
            heap=self._files.heap.address,
            length=lengths,
            offset=offsets,
            out=values,
        )
        return values

    def _write(self, columns: _Columns, chains: _Chains, folded: _Folded) -> None:
        batch = columns.batch
        changed = np.flatnonzero(folded.change != Change.NONE).astype(np.uint32)
        if len(changed) == 0 and not len(batch.value_lengths):
            return  # only DELETEs of keys that are not there: no slot changes, no version was given
        failpoint.hit("before_place")
        placed, moved_to = self._place(columns, chains, changed)
        put_op, reference, tail = self._allocate(columns, folded, changed)
        changes = self._stage(columns, chains, folded, changed, placed, moved_to, reference)
        self._check_log(batch, folded, changes)
        self._commit(columns, changes, put_op, reference, tail)
        put = folded.change[changed] == Change.PUT
        old = chains.slot[changed] != NO_SLOT
        self.heap.commit(tail, reference[put_op], chains.old_reference[changed[old]])
        self.records += int((put & ~old).sum()) - int((~put).sum())

    def _place(self, columns: _Columns, chains: _Chains, changed: U32) -> tuple[U64, U64]:
        """Return the slot of every chain and, for each changed one, where the occupant of its slot moves to."""
        moved_to = np.full(len(changed), NO_SLOT, np.uint64)
        is_new = chains.slot[changed] == NO_SLOT
        if not is_new.any():
            return chains.slot, moved_to
        block = chains.block[changed]
        sequence = np.arange(len(changed), dtype=np.uint32)
        slot = self._run_place(chains, changed, block, sequence, moved_to)
        if (slot[changed] != NO_SLOT).all():
            return slot, moved_to

        # Not all found room in sorted order. In arrival order it is clear which requests are too much.
        first_set = first_set_of_chain(columns.batch, chains.order, chains.chain_of, len(chains))
        arrival = first_set[changed]
        sequence = np.lexsort((arrival, block)).astype(np.uint32)
        slot = self._run_place(chains, changed, block, sequence, moved_to)
        failed = slot[changed] == NO_SLOT
        if not failed.any():
            return slot, moved_to
        refused = Placement(block, arrival, is_new, failed).refused(columns.batch)
        raise DoesNotFitError(dict.fromkeys(refused, self._index_full()))

    def _index_full(self) -> NoSpaceError:
        return NoSpaceError(
            "index",
            f"no way left for a new key in its two buckets ({self.records:,} records in {self._table.slots:,} slots "
            f"of table {self._table.name!r}): delete keys, or create a store with a larger --index-bytes and copy "
            "the data",
        )

    def _run_place(self, chains: _Chains, changed: U32, block: U32, sequence: U32, moved_to: U64) -> U64:
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
            index=self._files.index.address,
            buckets=self._buckets,
            slot=slot,
            moved_to=moved_to,
        )
        return slot

    def _allocate(self, columns: _Columns, folded: _Folded, changed: U32) -> tuple[U32, U64, Tail]:
        """Return the SETs whose records are kept (in arrival order), the reference of each operation, the new tail."""
        batch = columns.batch
        final_op = folded.final_op[changed]
        kept = np.zeros(len(batch), np.bool_)
        kept[final_op[folded.change[changed] == Change.PUT]] = True
        put_op = np.flatnonzero(kept).astype(np.uint32)
        units = record_units(batch.key_lengths[put_op], columns.value_lengths[put_op])
        try:
            references, tail = self.heap.allocate(units)
        except HeapFullError as full:
            owner = request_of_op(batch)[put_op]
            costs = np.bincount(owner, weights=units, minlength=len(batch.request_ops)).astype(np.int64)
            refused = over_budget(costs, self.heap.free_units, costs > 0) or [int(owner[full.record])]
            raise DoesNotFitError(dict.fromkeys(refused, self._heap_full())) from None
        reference = np.zeros(len(batch), np.uint64)
        reference[put_op] = references
        return put_op, reference, tail

    def _heap_full(self) -> NoSpaceError:
        return NoSpaceError(
            "heap",
            f"no free segment left for new records ({self.heap.live_bytes:,} of {self._files.heap.bytes:,} bytes are "
            "live; a segment is free again when nothing in it is live): delete keys, or create a store with a larger "
            "--heap-bytes and copy the data",
        )

    def _stage(
        self,
        columns: _Columns,
        chains: _Chains,
        folded: _Folded,
        changed: U32,
        placed: U64,
        moved_to: U64,
        reference: U64,
    ) -> _Changes:
        m = len(changed)
        moved = np.flatnonzero(moved_to != NO_SLOT)
        changed_slot = np.empty(m + len(moved), np.uint64)
        contents = np.empty((m + len(moved), 4), np.uint64)
        self._backend.launch(
            "stage",
            m,
            changed_chain=changed,
            change=folded.change,
            final_op=folded.final_op,
            slot=placed,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            reference=reference,
            first_sequence=columns.first_sequence,
            changed_slot=changed_slot,
            contents=contents,
        )
        self._backend.launch(
            "stage_moved",
            len(moved),
            vacated=changed_slot[moved],
            moved_to=moved_to[moved],
            index=self._files.index.address,
            changed_slot=changed_slot[m:],
            contents=contents[m:],
        )
        return _Changes(changed, changed_slot, contents)

    def _check_log(self, batch: Batch, folded: _Folded, changes: _Changes) -> None:
        """Refuse requests if displaced occupants make the batch larger than the log."""
        capacity = self._files.log_entries_max
        if len(changes) <= capacity:
            return
        owner = request_of_op(batch)[folded.final_op[changes.chain]]
        costs = np.bincount(owner, minlength=len(batch.request_ops)).astype(np.int64)
        spare = len(changes) - len(changes.chain)
        refused = over_budget(costs, capacity - spare, has_set(batch))
        reason = NoSpaceError(
            "log",
            f"{len(changes):,} slots change in one transaction, the log holds {capacity:,}: "
            "send smaller requests, or create a store with a larger --log-bytes",
        )
        raise DoesNotFitError(dict.fromkeys(refused, reason))

    def _commit(self, columns: _Columns, changes: _Changes, put_op: U32, reference: U64, tail: Tail) -> None:
        """Make the batch durable; an error on the way to the storage ends the process."""
        transaction = self._transaction
        epoch = transaction.next_epoch()
        try:
            failpoint.hit("before_record")
            self._store_records(columns, put_op, reference)
            failpoint.hit("before_log")
            digest = self._store_log(changes, epoch)
            descriptor = self._describe(columns, changes, epoch, digest, tail)
            failpoint.hit("before_descriptor")
            self._files.heap.persist()
            transaction.describe(descriptor)
            transaction.activate(epoch)
            failpoint.hit("before_apply")
            self._split("mid_apply", len(changes), lambda first, last: self._apply(changes, first, last))
            failpoint.hit("before_apply_persist")
            self._files.index.persist()
            transaction.commit(descriptor)
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process("a transaction could not be completed", error)

    def _describe(self, columns: _Columns, changes: _Changes, epoch: int, digest: int, tail: Tail) -> Descriptor:
        current = self._transaction.current
        run = LogRun(RunKind.UNDO, self._table.id, self._table.generation, ENTRY_BYTES, 0, len(changes))
        return Descriptor(
            epoch=epoch,
            runs=(run,),
            tail_segment=tail.segment,
            tail_bytes=tail.units * 16,
            first_sequence=columns.first_sequence,
            next_sequence=columns.first_sequence + len(columns.batch),
            time_horizon_ms=current.time_horizon_ms,
            applied_sequence=current.applied_sequence,
            log_digest=digest,
        )

    def _store_records(self, columns: _Columns, put_op: U32, reference: U64) -> None:
        batch = columns.batch

        def store(first: int, last: int) -> None:
            self._backend.launch(
                "record",
                last - first,
                put_op=put_op[first:last],
                reference=reference,
                keys=batch.keys,
                key_offsets=columns.key_offsets,
                key_lengths=batch.key_lengths,
                values=batch.values,
                value_offsets=columns.value_offsets,
                value_lengths=columns.value_lengths,
                first_sequence=columns.first_sequence,
                table_id=self._table.id,
                heap=self._files.heap.address,
            )

        self._split("mid_record", len(put_op), store)

    def _store_log(self, changes: _Changes, epoch: int) -> int:
        """Store one undo entry for each changed slot; return the sum of their digests."""
        digest = np.empty(len(changes), np.uint64)

        def store(first: int, last: int) -> None:
            self._backend.launch(
                "log_undo",
                last - first,
                changed_slot=changes.slot[first:last],
                index=self._files.index.address,
                epoch=epoch,
                first=first,
                log=self._files.log_address,
                digest=digest[first:last],
            )

        self._split("mid_log", len(changes), store)
        return int(digest.sum(dtype=np.uint64))

    def _apply(self, changes: _Changes, first: int, last: int) -> None:
        self._backend.launch(
            "apply",
            last - first,
            changed_slot=changes.slot[first:last],
            contents=changes.contents[first:last],
            index=self._files.index.address,
        )

    @staticmethod
    def _split(point: str, items: int, run: Callable[[int, int], None]) -> None:
        """Run over all items at once; in two parts if a test dies between them."""
        if failpoint.armed(point):
            run(0, items // 2)
            failpoint.hit(point)
            run(items // 2, items)
        else:
            failpoint.hit(point)
            run(0, items)


def _offsets(lengths: U32) -> U64:
    """Return where each of the concatenated byte strings begins."""
    ends: NDArray[np.uint64] = np.cumsum(lengths, dtype=np.uint64)
    return ends - lengths


def _nothing() -> RequestResult:
    """Return the results of no operations."""
    return RequestResult(np.empty(0, np.uint8), np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint8))
