"""Operations that look before they act become plain ones: SETs, DELETEs, GETs and EXISTSs, which planners know.

Conditions, checks, increments, appends and operations on expiries depend on what the operations before them leave, of
other keys too: a check that fails takes its whole request back. So one serial pass goes through a batch in arrival
order (``kernels/resolve.hpp``). A batch without them does not come here.

What a planner refuses takes part in nothing. Then the pass runs again, without the requests that were refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Backend
from gpkvs.backends.cpu.workspace import Workspace
from gpkvs.batch import (
    RETURNS_VALUE,
    SETRANGE,
    U8,
    U32,
    U64,
    Batch,
    BatchPart,
    BatchResult,
    Op,
    RequestResult,
    Status,
    constant,
    is_constant,
)
from gpkvs.engine.capacity import makes_too_much, needs_records, request_of_op, table_gone
from gpkvs.engine.host_find import Found, find_keys
from gpkvs.engine.meter import Meter
from gpkvs.engine.plan import offsets_of
from gpkvs.engine.planner import ExpiredKeysError, Planned
from gpkvs.engine.table import Table
from gpkvs.errors import ConflictError, GpkvsError, memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import NO_OP

_AS_PLANNED = 255  # `AS_PLANNED` in kernels/resolve.hpp
_RESOLVED_COUNT = 3  # of it


class PlanPlain(Protocol):
    """Plans a batch of plain operations."""

    def __call__(self, batch: Batch, *, is_located: bool) -> Planned: ...  # noqa: D102 - above


class Resolver:
    """Plans batches with operations that look first.

    Parameters
    ----------
    backend, files, tables
        Of the store; the host's threads resolve.
    locate
        Finds all keys of a batch for the native planner as well (`NativePlanner.locate`); None: it does not take it.
    value_bytes_max
        Of the longest value that may be stored.
    made_bytes_max
        Of the values that a transaction may make of others.
    meter
        Told what it took.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        locate: Callable[[Batch], dict[str, NDArray[Any]] | None],
        value_bytes_max: int,
        made_bytes_max: int,
        meter: Meter,
    ) -> None:
        self._backend = backend
        self._files = files
        self._tables = tables
        self._locate = locate
        self._value_bytes_max = value_bytes_max
        self._made_bytes_max = made_bytes_max
        self._meter = meter
        self._kept = Workspace()  # the next batch overwrites it: results are copies
        self._plain: Batch | None = None  # of the last batch: its write set has the addresses of these columns

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept for the columns of the next batch."""
        return self._kept.kept_bytes

    def plan(self, batch: Batch, first_sequence: int, now: int, plan: PlanPlain) -> Planned:
        """Plan the longest run of requests from the first on that fits one transaction.

        Parameters
        ----------
        batch, first_sequence, now
            As for `Planner.plan`.
        plan
            Plans a batch of plain operations, of which no key has expired; told whether `locate` has just found its
            keys.

        Raises
        ------
        ExpiredKeysError
            As there.
        """
        requests = len(batch.request_ops)
        rejected: dict[int, GpkvsError] = {}
        while True:
            admitted = np.arange(len(batch.request_ops)) < requests
            admitted[list(rejected)] = False
            if not admitted.any():
                return Planned(BatchResult(None, rejected, requests), None)
            numbers = np.flatnonzero(admitted)
            with memory_refused():
                part = batch if admitted.all() else batch.take(admitted)
                resolved, fitting, refused = self._resolve(part, first_sequence, now)
            if resolved:
                self._plain = resolved.plain
                planned = plan(self._plain, is_located=resolved.is_located)
                fitting, refused = planned.result.requests, planned.result.rejected
                if not refused and fitting == len(numbers):
                    rejected.update({int(numbers[n]): reason for n, reason in resolved.conflicts(part).items()})
                    with memory_refused():
                        done = _restored_part(planned.result, numbers, part, resolved)
                    return Planned(BatchResult(done, rejected, requests), planned.write_set)
            rejected.update({int(numbers[number]): reason for number, reason in refused.items()})
            if fitting < len(numbers):
                requests = int(numbers[fitting])
                rejected = {number: reason for number, reason in rejected.items() if number < requests}

    def _resolve(
        self, batch: Batch, first_sequence: int, now: int
    ) -> tuple[_Resolved | None, int, dict[int, GpkvsError]]:
        """Resolve a batch.

        Returns
        -------
        _Resolved or None
            None: not all of it can be done at once.
        int
            How many requests, from the first on, to try.
        dict of int to GpkvsError
            Requests that can never be done.
        """
        requests = len(batch.request_ops)
        if refused := self._unfit(batch):
            return None, requests, refused
        self._backend.host.begin()
        self._kept.recycle()
        located = self._locate(batch)
        table = self._tables[batch.table]
        columns = _Columns(self._backend, self._kept, batch, table.index.has_records, located, self._made_bytes_max)
        if located is None:
            found = find_keys(self._backend, table, batch)
        else:
            found = Found(*(located[name] for name in Found._fields))
        if now and table.index.has_records:
            self._require_present(found, now)
        value_bytes, made_bytes = self._decide(batch, columns, found, first_sequence)
        if made_bytes > self._made_bytes_max:
            return (None, *self._too_much(requests))
        values = np.empty(value_bytes, np.uint8)
        self._launch("make_values", 1, **columns.common, out=values)
        self._meter.lap("resolve")
        plain = Batch(
            columns.plain_ops,
            batch.keys,
            batch.key_lengths,
            values,
            columns.lengths[columns.plain_ops == Op.SET.value],
            batch.request_ops,
            batch.table,
            expiries=columns.plain_expiries if columns.plain_expiries.any() else None,
        )
        resolved = _Resolved(plain, located is not None, columns.status, columns.numbers, columns.failed_check)
        return resolved, requests, {}

    def _unfit(self, batch: Batch) -> dict[int, GpkvsError]:
        """Refuse requests that no state of their table could fit."""
        table = self._tables.get(batch.table)
        if table is None:
            return dict.fromkeys(range(len(batch.request_ops)), table_gone())
        if table.index.has_records:
            return {}
        needs = (batch.ops == Op.APPEND.value) | (batch.ops >= Op.EXPIRE.value)
        if batch.expiries is not None:
            needs |= batch.gives_expiry
        unfit = np.unique(request_of_op(batch)[needs]).tolist()
        return dict.fromkeys(unfit, needs_records())

    def refuses_expiries(self, batch: Batch) -> bool:
        """Whether a batch gives expiries to keys of a table that has none: then it must be planned here."""
        if batch.expiries is None or not batch.gives_expiry.any():
            return False
        table = self._tables.get(batch.table)
        return table is not None and not table.index.has_records

    def _too_much(self, requests: int) -> tuple[int, dict[int, GpkvsError]]:
        """Have fewer requests done at once, or refuse the one that makes too much by itself."""
        if requests > 1:
            return requests // 2, {}
        return 1, {0: makes_too_much(self._made_bytes_max)}

    def _require_present(self, found: Found, now: int) -> None:
        """Raise `ExpiredKeysError` if some key of a table with records looks expired."""
        met = np.zeros(1, np.uint64)
        heap = self._files.heap
        self._launch(
            "meet_expired",
            len(found.old_word),
            reference=found.old_word,
            meta=found.old_meta,
            heap=heap.address,
            heap_bytes=heap.bytes,
            now=now,
            met=met,
        )
        if met[0]:
            raise ExpiredKeysError

    def _launch(self, kernel: str, items: int, /, **arguments: Argument) -> None:
        self._backend.host.launch(kernel, items, keys_per_item=1, **arguments)

    def _decide(self, batch: Batch, columns: _Columns, found: Found, first_sequence: int) -> tuple[int, int]:
        """Run the serial pass; return the bytes of all values to write out, and of those that are made of others."""
        chain, slot, old_word, old_meta = found
        columns.common.update(chain=chain, old_word=old_word, heap=self._files.heap.address)
        resolved = np.zeros(_RESOLVED_COUNT, np.uint64)
        self._launch(
            "resolve",
            1,
            **columns.common,
            requests=len(batch.request_ops),
            request_ops=np.ascontiguousarray(batch.request_ops),
            table_id=batch.table,
            refused=0,
            conditions=columns.conditions,
            expected=columns.expected,
            expiries=columns.expiries,
            plain_expiries=columns.plain_expiries,
            versions=np.arange(first_sequence, first_sequence + len(batch), dtype=np.uint64),
            keys=columns.keys,
            key_offsets=columns.key_offsets,
            key_lengths=columns.key_lengths,
            slot=slot,
            old_meta=old_meta,
            heap_bytes=self._files.heap.bytes,
            value_bytes_max=self._value_bytes_max,
            made_bytes=columns.made_bytes,
            work_bytes_max=self._made_bytes_max,
            writer=np.full(len(slot), NO_OP, np.uint32),
            verdict=np.zeros(len(slot), np.uint8),
            status=columns.status,
            failed_check=columns.failed_check,
            resolved=resolved,
        )
        return int(resolved[0]), int(resolved[1])


def _restored_part(
    planned: BatchResult, numbers: NDArray[np.int64], batch: Batch, resolved: _Resolved
) -> BatchPart | None:
    """Return the results of the plain operations of all requests as those of the operations that were asked for.

    Parameters
    ----------
    planned
        Of the plain batch.
    numbers
        Of the requests.
    batch
        What was asked for.
    resolved
        What it became.
    """
    is_done = resolved.failed_check == NO_OP
    if planned.part is None or not is_done.any():
        return None
    result, asked, sums = planned.part.result, resolved.status, resolved.numbers
    of_numbers = is_constant(result.versions)
    if not is_done.all():
        ops = np.repeat(is_done, batch.request_ops)
        result = RequestResult(result.status[ops], result.versions[ops], result.value_lengths, result.values)
        batch, asked, sums = batch.take(is_done), asked[ops], sums[ops]
    result = _restored_result(result, asked, sums, is_of_numbers=of_numbers)
    return BatchPart(numbers[is_done], batch, _with_sums(batch, sums, result))


def _restored_result(result: RequestResult, asked: U8, numbers: U64, *, is_of_numbers: bool) -> RequestResult:
    """Return a result with what operations found that did not do what they were asked."""
    status = np.where(asked == _AS_PLANNED, result.status, asked)
    versions = result.versions
    has_failed = asked == Status.CONDITION_FAILED.value
    has_numbers = is_of_numbers and bool(has_failed.any())  # such a table has no versions, and tells numbers instead
    if is_of_numbers:
        versions = np.where(has_failed, numbers, np.uint64(0)) if has_numbers else constant(np.uint64(0), len(asked))
    return RequestResult(status, versions, result.value_lengths, result.values, has_numbers)


class _Columns:
    """The columns of a batch on the host, written out, and those of what becomes of it."""

    def __init__(
        self,
        backend: Backend,
        kept: Workspace,
        batch: Batch,
        has_records: bool,
        located: dict[str, NDArray[Any]] | None,
        made_bytes_max: int,
    ) -> None:
        n = len(batch)
        written = located or _written_out(batch)
        self.keys: U8 = backend.download(batch.keys)
        self.key_lengths: U32 = written["key_lengths"]
        self.key_offsets: U64 = written["key_offsets"]
        self.conditions = np.zeros(n, np.uint8) if batch.conditions is None else batch.conditions
        self.expected = np.zeros(n, np.uint64) if batch.expected is None else batch.expected
        self.expiries = np.zeros(n, np.uint64) if batch.expiries is None else batch.expiries
        self.plain_expiries = np.zeros(n, np.uint64)
        self.plain_ops, self.status, is_seen = (kept.take(n, np.uint8) for _ in range(3))
        base, self.lengths = (kept.take(n, np.uint32) for _ in range(2))
        self.numbers: U64 = kept.take(n, np.uint64)
        self.failed_check = np.empty(len(batch.request_ops), np.uint32)
        # What nobody writes takes no memory.
        made: U8 = np.empty(made_bytes_max if (batch.ops >= SETRANGE).any() else 0, np.uint8)
        self.made_bytes = len(made)
        self.common: dict[str, Argument] = {
            "n": n,
            "ops": written["ops"],
            "values": backend.download(batch.values),
            "value_offsets": written["value_offsets"],
            "value_lengths": written["value_lengths"],
            "has_records": has_records,
            "plain_ops": self.plain_ops,
            "is_seen": is_seen,
            "base": base,
            "lengths": self.lengths,
            "numbers": self.numbers,
            "made": made,
        }


def _written_out(batch: Batch) -> dict[str, NDArray[Any]]:
    """Return what `NativePlanner.locate` writes out of a batch."""
    key_lengths = np.ascontiguousarray(batch.key_lengths)
    value_lengths = np.zeros(len(batch), np.uint32)
    value_lengths[batch.has_value] = batch.value_lengths
    return {
        "ops": np.ascontiguousarray(batch.ops),
        "key_lengths": key_lengths,
        "key_offsets": offsets_of(key_lengths),
        "value_lengths": value_lengths,
        "value_offsets": offsets_of(value_lengths),
    }


@dataclass(frozen=True)
class _Resolved:
    """A batch as plain operations.

    Attributes
    ----------
    plain
        What planners get: as many operations, in the same order.
    is_located
        Whether the native planner found its keys.
    status : (n,) uint8
        Of those that did not do what they were asked; else `_AS_PLANNED`.
    numbers : (n,) uint64
        What each INCREMENT left, or EXPIRY found, and what a failed condition found in a table of numbers.
    failed_check : (r,) uint32
        The first check of each request that failed, or NO_OP.
    """

    plain: Batch
    is_located: bool
    status: U8
    numbers: U64
    failed_check: U32

    def conflicts(self, batch: Batch) -> dict[int, GpkvsError]:
        """Return why requests were not done."""
        failed = np.flatnonzero(self.failed_check != NO_OP)
        first = (np.cumsum(batch.request_ops) - batch.request_ops)[failed]
        conflicts: dict[int, GpkvsError] = {}
        for request, begin, op in zip(failed.tolist(), first.tolist(), self.failed_check[failed].tolist(), strict=True):
            is_there = self.status[op] == Status.CONDITION_FAILED.value
            conflicts[request] = ConflictError(op - begin, int(self.numbers[op]) if is_there else None)
        return conflicts


def _with_sums(part: Batch, numbers: U64, result: RequestResult) -> RequestResult:
    """Add the number that each INCREMENT left, or EXPIRY found, to the values that are returned: 8 bytes."""
    returns_number = RETURNS_VALUE[part.ops] & (part.ops != Op.GET.value)
    if not returns_number.any():
        return result
    if not len(result.value_lengths):  # no GETs: in each operation's place its own
        done = result.status[returns_number] == Status.OK.value
        sums = numbers[returns_number][done].view(np.uint8)
        return replace(result, value_lengths=np.where(done, np.uint32(8), np.uint32(0)), values=sums)
    returns = returns_number | (part.ops == Op.GET.value)
    lengths = np.zeros(len(part), np.uint32)
    lengths[part.ops == Op.GET.value] = result.value_lengths
    done = returns_number & (result.status == Status.OK.value)
    lengths[done] = 8
    from_gets = np.repeat(~done, lengths)
    values = np.empty(len(from_gets), np.uint8)
    values[from_gets] = result.values
    values[~from_gets] = numbers[done].view(np.uint8)
    return replace(result, value_lengths=lengths[returns], values=values)
