"""One batch, one durable transaction: the phases of docs/design.md, section 4, in order.

    route -> order -> find -> fold -> place -> record -> log -> ACTIVE -> apply -> IDLE -> reply

Decisions are here and in `gpkvs.table`, loops over keys are in the kernels. The transactional shape (undo log first,
flag, in-place update, flag) is that of gpKVS (GPM, ASPLOS '22, section 5.2 and figure 6).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpkvs import failpoint
from gpkvs.admission import CutError, DoesNotFitError, cut_to, has_set, over_budget, request_of_op
from gpkvs.backends.base import Backend
from gpkvs.batch import Batch, BatchResult, RequestResult
from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.fatal import stop_process
from gpkvs.files import StoreFiles
from gpkvs.heap import Heap, HeapFullError, Tail, record_units
from gpkvs.layout import ENTRY_BYTES, UNIT_BYTES, Descriptor, LogRun, RunKind
from gpkvs.plan import Plan
from gpkvs.table import Table, reply_bytes_by_request
from gpkvs.transaction import Transaction


class Engine:
    """Runs batches against a store, one at a time.

    Parameters
    ----------
    backend
        Runs the kernels.
    files
        The mapped store.
    table
        The default table.
    heap, transaction
        As recovery left them.
    batch_reply_bytes_max
        Values that one transaction may read; at least what one request may.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        table: Table,
        heap: Heap,
        transaction: Transaction,
        batch_reply_bytes_max: int,
    ) -> None:
        self._backend = backend
        self._files = files
        self.table = table
        self.heap = heap
        self._transaction = transaction
        self._batch_reply_bytes_max = batch_reply_bytes_max

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
        requests = cut_to(batch.request_ops, self._files.log_entries_max)
        admitted = np.arange(len(batch.request_ops)) < requests
        rejected: dict[int, GpkvsError] = {}
        while admitted.any():
            numbers = np.flatnonzero(admitted)
            part = batch if len(numbers) == len(admitted) else batch.take(admitted)
            try:
                plan = self._transact(part)
            except DoesNotFitError as unfit:
                for number, reason in unfit.rejected.items():
                    rejected[int(numbers[number])] = reason
                    admitted[numbers[number]] = False
            except CutError as cut:
                requests = int(numbers[cut.requests])
                admitted[requests:] = False
                rejected = {number: reason for number, reason in rejected.items() if number < requests}
            else:
                # Results leave here, after the commit: an acknowledged write must survive, and no reader may see what
                # a crash could take back (I4).
                failpoint.hit("before_reply")
                return BatchResult(part, self.table.result(plan), rejected, requests)
        return BatchResult(batch.take(admitted), RequestResult.empty(), rejected, requests)

    def _transact(self, batch: Batch) -> Plan:
        plan = Plan(batch, self.next_sequence)
        self.table.read(plan)
        self._check_replies(plan)
        if batch.has_writes:
            self.table.place(plan)
            # A version that a reply carries must never be given again: a SET counts even if its key is deleted after.
            if len(plan.placed.chain) or plan.has_sets:
                self._write(plan)
        return plan

    def _check_replies(self, plan: Plan) -> None:
        """Put off what is too much to hold in memory at once."""
        if int(plan.get_lengths.sum(dtype=np.uint64)) > self._batch_reply_bytes_max:
            reply_bytes = reply_bytes_by_request(plan.batch, plan.get_op, plan.get_lengths)
            raise CutError(cut_to(reply_bytes, self._batch_reply_bytes_max))

    def _write(self, plan: Plan) -> None:
        tail = self._allocate(plan)
        self.table.stage(plan)
        self._check_log(plan)
        self._commit(plan, tail)
        removed = self.table.committed(plan)
        self.heap.commit(tail, plan.reference[plan.put_op], removed)

    def _allocate(self, plan: Plan) -> Tail:
        """Find room in the heap for the records that are kept."""
        batch = plan.batch
        plan.put_op = self.table.kept_records(plan)
        units = record_units(batch.key_lengths[plan.put_op], plan.value_lengths[plan.put_op])
        try:
            references, tail = self.heap.allocate(units)
        except HeapFullError as full:
            owner = request_of_op(batch)[plan.put_op]
            costs = np.bincount(owner, weights=units, minlength=len(batch.request_ops)).astype(np.int64)
            refused = over_budget(costs, self.heap.free_units, costs > 0) or [int(owner[full.record])]
            raise DoesNotFitError(dict.fromkeys(refused, self._heap_full())) from None
        plan.reference = np.zeros(len(batch), np.uint64)
        plan.reference[plan.put_op] = references
        return tail

    def _heap_full(self) -> NoSpaceError:
        return NoSpaceError(
            "heap",
            f"no free segment left for new records ({self.heap.live_bytes:,} of {self._files.heap.bytes:,} bytes are "
            "live; a segment is free again when nothing in it is live): delete keys, or create a store with a larger "
            "--heap-bytes and copy the data",
        )

    def _check_log(self, plan: Plan) -> None:
        """Refuse requests if displaced occupants make the batch larger than the log."""
        batch, capacity, needed = plan.batch, self._files.log_entries_max, len(plan.changes)
        if needed <= capacity:
            return
        chain = plan.placed.chain
        owner = request_of_op(batch)[plan.folded.final_op[chain]]
        costs = np.bincount(owner, minlength=len(batch.request_ops)).astype(np.int64)
        displaced = needed - len(chain)
        refused = over_budget(costs, capacity - displaced, has_set(batch))
        reason = NoSpaceError(
            "log",
            f"{needed:,} slots change in one transaction, the log holds {capacity:,}: "
            "send smaller requests, or create a store with a larger --log-bytes",
        )
        raise DoesNotFitError(dict.fromkeys(refused, reason))

    def _commit(self, plan: Plan, tail: Tail) -> None:
        """Make the batch durable; an error on the way to the storage ends the process."""
        transaction = self._transaction
        epoch = transaction.next_epoch()
        slots = len(plan.changes)
        try:
            failpoint.hit("before_record")
            split("mid_record", len(plan.put_op), lambda first, last: self._store_records(plan, first, last))
            failpoint.hit("before_log")
            digest = np.empty(slots, np.uint64)
            log = self._files.log_address
            split("mid_log", slots, lambda first, last: self.table.log(plan, epoch, log, digest, first, last))
            failpoint.hit("before_descriptor")
            self._files.heap.persist()
            descriptor = self._describe(plan, epoch, int(digest.sum(dtype=np.uint64)), tail)
            transaction.describe(descriptor)
            transaction.activate(epoch)
            failpoint.hit("before_apply")
            split("mid_apply", slots, lambda first, last: self.table.apply(plan, first, last))
            failpoint.hit("before_apply_persist")
            self.table.index.persist()
            transaction.commit(descriptor)
        except BaseException as error:  # noqa: BLE001 - nothing may go on from here but recovery
            stop_process("a transaction could not be completed", error)

    def _store_records(self, plan: Plan, first: int, last: int) -> None:
        self._backend.launch(
            "record",
            last - first,
            put_op=plan.put_op[first:last],
            reference=plan.reference,
            keys=plan.batch.keys,
            key_offsets=plan.key_offsets,
            key_lengths=plan.batch.key_lengths,
            values=plan.batch.values,
            value_offsets=plan.value_offsets,
            value_lengths=plan.value_lengths,
            first_sequence=plan.first_sequence,
            table_id=self.table.entry.id,
            heap=self._files.heap.address,
        )

    def _describe(self, plan: Plan, epoch: int, digest: int, tail: Tail) -> Descriptor:
        entry, current = self.table.entry, self._transaction.current
        return Descriptor(
            epoch=epoch,
            runs=(LogRun(RunKind.UNDO, entry.id, entry.generation, ENTRY_BYTES, 0, len(plan.changes)),),
            tail_segment=tail.segment,
            tail_bytes=tail.units * UNIT_BYTES,
            first_sequence=plan.first_sequence,
            next_sequence=plan.first_sequence + len(plan.batch),
            time_horizon_ms=current.time_horizon_ms,
            applied_sequence=current.applied_sequence,
            log_digest=digest,
        )


def split(point: str, items: int, run: Callable[[int, int], None]) -> None:
    """Run over all items at once; in two parts if a test is going to die between them."""
    if failpoint.armed(point):
        run(0, items // 2)
        failpoint.hit(point)
        run(items // 2, items)
    else:
        failpoint.hit(point)
        run(0, items)
