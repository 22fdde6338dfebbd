"""Keys that expire: the time that counts, their removal when a batch meets them, and the sweep that looks for the rest.

A key that has expired is removed by an ordinary transaction, and only then anybody is told that it is gone. So nothing
revives, whatever the clock does. Planners find out whether a batch meets such keys, and do nothing about them. The keys
are removed, and the batch is planned again.

Each transaction keeps its time, and an opening begins with no earlier one. So keys do not live longer because a clock
was set back, or says an earlier time when a machine has started again.

The sweep looks for keys that nobody asks for. A table's fingerprints are cut into equal ranges, which stay when the
table grows. Of each range it knows when the next key expires at the earliest, so most of an index is not read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from gpkvs.backends.base import Argument, Backend
from gpkvs.batch import U32, U64, Batch, Op, constant, offsets_of
from gpkvs.engine.seam.committer import Committer
from gpkvs.engine.seam.counted_time import Clocks, CountedTime
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.seam.write_set import WriteSet
from gpkvs.engine.state.table import Table
from gpkvs.errors import StoreError, memory_refused
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import BYTES_LAYOUT, EXPIRES
from gpkvs.process.fatal import stop_process

_log = logging.getLogger("gpkvs")

_NEVER: Final = (1 << 64) - 1  # no key of a range expires
_UNKNOWN: Final = 0  # when: the range must be looked at
_RANGES_MAX: Final = 4096  # of a table
# So long after its first key a range is swept: others expire meanwhile, and one look finds them all.
_SLACK_MS: Final = 1000
# A range that waits longer has the sweep take half of the time, not a tenth.
_LATE_MS: Final = 1000
_SHARE, _SHARE_LATE = 9, 1  # so many times as long as a step took, batches have for themselves
# The clock was set back if it is so far behind the time that counts; less need not be kept.
_BEHIND_MS: Final = 1000
# While it is, the time is kept so often where no transaction does it; at a closing, if it was not kept for so long.
_KEPT_MS: Final = 10_000
_KEPT_CLOSED_MS: Final = 1000
_LOOK_SECONDS: Final = 0.05  # between two looks, where nothing is due
# One step looks at so many blocks, and removes so many keys: batches wait for it.
_STEP_BLOCKS: Final = 32
_STEP_KEYS: Final = 3 * BYTES_LAYOUT.block_slots
_COUNT, _NEXT, _AT = range(3)  # `Found` in kernels/plan/expiry.hpp


class _Ranges:
    """Of one table: when a key of each range expires at the earliest, and where the sweep is.

    Attributes
    ----------
    earliest : (ranges,) uint64
        Milliseconds since 1970.
    """

    def __init__(self, earliest: int) -> None:
        self.earliest: U64 = np.full(1, earliest, np.uint64)
        self._next = 0  # the range to look at next, if it is due
        self._swept = -1  # the range that is being swept
        self._due = _NEVER  # when its first key expired
        self._blocks = 0  # of the table when that began
        self._found = np.zeros(3, np.uint64)

    def first_due(self, now: int) -> int:
        """Return when the first key expires that the sweep should have removed by now; `_NEVER` if there is none."""
        earliest = int(self.earliest.min())
        first = earliest if earliest + _SLACK_MS <= now else _NEVER
        return min(first, self._due) if self._swept >= 0 else first

    def begin(self, now: int, blocks: int) -> bool:
        """Begin with the next range that is due, or go on with one; return whether there is one."""
        if self._swept >= 0 and self._blocks == blocks:
            return True
        self.begin_again()  # the index has doubled meanwhile
        while len(self.earliest) < min(blocks, _RANGES_MAX):
            self.earliest = np.repeat(self.earliest, 2)
        due = np.flatnonzero(self.earliest <= np.uint64(max(now - _SLACK_MS, 0)))
        if not len(due):
            return False
        at = int(np.searchsorted(due, min(self._next, len(self.earliest))))
        self._swept, self._blocks = int(due[at % len(due)]), blocks
        self._next = self._swept + 1
        self._due = int(self.earliest[self._swept])
        self.earliest[self._swept] = _NEVER  # but for what batches add from here on, whether the sweep sees it or not
        first, _ = self._span
        self._found[:] = 0, _NEVER, first
        return True

    @property
    def _span(self) -> tuple[int, int]:
        """The blocks of the range that is swept, as the catalogue counts them: first and last + 1."""
        ranges = len(self.earliest)
        return self._swept * self._blocks // ranges, -(-(self._swept + 1) * self._blocks // ranges)

    def sweep(self, blocks_max: int, collect: Callable[[U64, int], None]) -> tuple[int, int]:
        """Look at the next blocks; return the range, and how many blocks that were.

        Parameters
        ----------
        blocks_max
            So many at most.
        collect
            Collects expired keys in the blocks from `found` on, to a last one.
        """
        swept, (_, end), before = self._swept, self._span, int(self._found[_AT])
        collect(self._found, min(end, before + blocks_max))
        after = int(self._found[_AT])
        if after == end:
            self.earliest[swept] = min(int(self.earliest[swept]), int(self._found[_NEXT]))
            self._swept = -1
        return swept, after - before

    def begin_again(self) -> None:
        """Sweep the range that is being swept from its beginning, if there is one."""
        if self._swept >= 0:
            self.look_again(self._swept)
            self._swept = -1

    def look_again(self, swept: int) -> None:
        """Take note that a range was not swept after all."""
        self.earliest[swept] = _UNKNOWN

    @property
    def is_empty(self) -> bool:
        """Whether no key expires."""
        return self._swept < 0 and bool((self.earliest == _NEVER).all())


class TableExpiry(NamedTuple):
    """How the keys of a table expire.

    Attributes
    ----------
    keys
        That have an expiry; those that have expired count until they are removed.
    removed
        Keys that were removed because they had expired, since the opening.
    due_seconds
        How long ago the first key expired that the sweep should have removed; 0: none waits, or nobody has looked yet.
    """

    keys: int
    removed: int
    due_seconds: float


class _Collected:
    """Records that have expired: their references and expiries."""

    def __init__(self, room: int) -> None:
        self.reference, self.expiry = np.empty((2, room), np.uint64)
        self.count = 0


class Expiry:
    """Removes keys that have expired.

    Parameters
    ----------
    backend, files, tables
        Of the store; the host's threads look for expired keys.
    meter
        Told which keys were removed, and how late.
    execute
        Runs a batch of DELETEs as a transaction.
    committer
        Keeps the time.
    clocks
        Say it.

    Attributes
    ----------
    time
        The time that counts.
    is_used
        Whether some key may expire. Where none does, batches pay nothing.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        meter: Meter,
        execute: Callable[[Batch], None],
        committer: Committer,
        clocks: Clocks,
    ) -> None:
        self._backend = backend
        self._files = files
        self._tables = tables
        self._meter = meter
        self._execute = execute
        self._committer = committer
        self.time = CountedTime(clocks)
        if (now_us := self.time.clocks.wall_us()) < 0:
            seconds = -now_us // 1_000_000
            raise StoreError(f"the clock says a time {seconds:,} seconds before 1970: set it, then open the store")
        self.time.begin_at(committer.kept_ms)  # what was gone then, or had less to live, is no younger now
        self._opened = self.time.now_ms()  # what expired while the store was closed could not be removed before
        self._turn = 0  # of the tables, whose is swept next
        self._look_at = 0.0
        # The tables that may have such keys. What they have at an opening is not known.
        self._ranges: dict[int, _Ranges] = {}
        if files.root.may_expire:
            with_records = (number for number, table in tables.items() if table.index.has_records)
            self._ranges = {number: _Ranges(_UNKNOWN) for number in with_records}
        self.is_used = bool(self._ranges)
        self._removed: dict[int, int] = {}  # by table

    def of_table(self, number: int) -> TableExpiry:
        """Return how the keys of a table expire; from any thread."""
        ranges, now = self._ranges.get(number), self.time.now_ms()
        first = ranges.first_due(now) if ranges else _NEVER
        waits = first not in (_NEVER, _UNKNOWN)
        table = self._tables.get(number)
        keys = table.held.expiring if table else 0  # it may have been dropped
        return TableExpiry(keys, self._removed.get(number, 0), max(now - first, 0) / 1000 if waits else 0.0)

    def expect(self, batch: Batch) -> None:
        """Take note of a batch that gives expiries, before it is planned: the root says that keys may expire.

        It says so even if no key gets one after all, since its condition fails or it is not there.
        """
        if not batch.gives_expiry.any():
            return
        table = self._tables.get(batch.table)
        if table and table.index.has_records and batch.table not in self._ranges:
            self._ranges[batch.table] = _Ranges(_NEVER)
        self.is_used = bool(self._ranges)
        if self.is_used and not self._files.root.may_expire:
            try:
                with self._files.changing:
                    self._files.roots.change(flags=self._files.root.flags | EXPIRES)
            except BaseException as error:  # noqa: BLE001 - either root may be durable now
                stop_process("the roots could not be written", error)

    def committed(self, write_set: WriteSet) -> None:
        """Take note of the expiries of a batch that is committed."""
        for writes in write_set.tables:
            ranges = self._ranges.get(writes.index.entry.id)
            if ranges is None:
                continue
            contents: Argument = writes.contents_address
            if writes.device:
                (columns,) = writes.device  # several processors plan tables of numbers alone
                contents = self._backend.download(columns.contents)
            self._backend.host.launch(
                "note_expiries",
                1,
                contents=contents,
                slots=writes.slots,
                heap=self._files.heap.address,
                heap_bytes=self._files.heap.bytes,
                record_format=self._files.root.store_format,
                ranges=len(ranges.earliest),
                earliest=ranges.earliest,
            )

    def earliest(self) -> Iterator[tuple[int, U64]]:
        """Yield the tables whose keys may expire, each with when a key of its ranges expires first, until a step."""
        return ((number, ranges.earliest) for number, ranges in self._ranges.items() if number in self._tables)

    def remove_of(self, batch: Batch, now: int) -> int:
        """Remove the keys of a batch that have expired; return how many.

        Damaged records stay: nobody knows whether they have expired.
        """
        table = self._tables.get(batch.table)
        if table is None or batch.table not in self._ranges:
            return 0
        with memory_refused():
            slot = np.unique(self._slots(table, batch))
            collected = _Collected(len(slot))
        found = np.array([0, _NEVER, 0], np.uint64)
        self._collect("collect_expired", table, collected, found, now, slot=slot, slots=len(slot))
        return self._remove(table, collected, now)

    def _slots(self, table: Table, batch: Batch) -> U64:
        """Return where the keys of a batch are; some are nowhere."""
        host, count = self._backend.host, len(batch)
        hash_key0, hash_key1 = table.index.hash_keys
        lengths = np.ascontiguousarray(batch.key_lengths)
        slot, word0, word1 = np.empty((3, count), np.uint64)
        words: dict[str, Argument] = {"fingerprint0": word0, "fingerprint1": word1}
        host.launch(
            "route_bytes",
            count,
            keys_per_item=1,
            keys=self._backend.download(batch.keys),
            key_offsets=offsets_of(lengths),
            key_lengths=lengths,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            **words,
        )
        geometry = table.index.geometry
        host.launch("slot_bytes", count, keys_per_item=1, **words, index=table.index, **geometry, slot=slot)
        return slot

    def remove_keys(self, table: Table, keys: list[bytes], now: int) -> int:
        """Remove those of some keys of a table that have expired; return how many. Damaged records stay."""
        count = len(keys)
        batch = Batch(
            constant(np.uint8(Op.EXISTS), count),
            np.frombuffer(b"".join(keys), np.uint8),
            np.array([len(key) for key in keys], np.uint32),
            np.empty(0, np.uint8),
            np.empty(0, np.uint32),
            table=table.entry.id,
        )
        return self.remove_of(batch, now)

    def _sweep_blocks(self, table: Table, collected: _Collected, now: int, found: U64, end: int) -> None:
        room, geometry = len(collected.reference), table.index.geometry
        found[_COUNT] = collected.count
        self._collect("sweep_expired", table, collected, found, now, **geometry, end=end, room=room)

    def _collect(
        self, kernel: str, table: Table, collected: _Collected, found: U64, now: int, **of_kernel: Argument
    ) -> None:
        hash_key0, hash_key1 = table.index.hash_keys
        self._backend.host.launch(
            kernel,
            1,
            keys_per_item=1,
            index=table.index,
            heap=self._files.heap.address,
            heap_bytes=self._files.heap.bytes,
            record_format=self._files.root.store_format,
            table_id=table.entry.id,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            now=now,
            reference=collected.reference,
            expiry=collected.expiry,
            found=found,
            **of_kernel,
        )
        collected.count = int(found[_COUNT])

    def _remove(self, table: Table, collected: _Collected, now: int) -> int:
        """Remove keys by DELETEs, whose slots have exactly these records; return how many."""
        step = min(_STEP_KEYS, self._files.log_entries_max)
        self._committer.take_time(now)
        for first in range(0, collected.count, step):
            last = min(first + step, collected.count)
            self._execute(self._deletes(table, collected.reference[first:last]))
            late = now - np.maximum(collected.expiry[first:last], np.uint64(self._opened)).astype(np.int64)
            self._meter.expired(late)
        number = table.entry.id
        self._removed[number] = self._removed.get(number, 0) + collected.count
        return collected.count

    def _deletes(self, table: Table, reference: U64) -> Batch:
        """Return DELETEs of the keys that some records have."""
        count, heap = len(reference), self._files.heap.address
        lengths: U32 = np.empty(count, np.uint32)
        offsets = np.zeros(count, np.uint64)
        of_records: dict[str, Argument] = {
            "reference": reference,
            "heap": heap,
            "record_format": self._files.root.store_format,
            "key_lengths": lengths,
        }
        launch = self._backend.host.launch
        launch("record_keys", count, keys_per_item=1, key_offsets=offsets, keys=0, **of_records)
        keys = np.empty(int(lengths.sum(dtype=np.uint64)), np.uint8)
        launch("record_keys", count, keys_per_item=1, **of_records, key_offsets=offsets_of(lengths), keys=keys)
        return Batch(
            constant(np.uint8(Op.DELETE), count),
            keys,
            lengths,
            np.empty(0, np.uint8),
            np.empty(0, np.uint32),
            table=table.entry.id,
        )

    def beside_batches(self) -> None:
        """Run a step of the sweep if it is due and batches have had their share of the time."""
        if (began := time.perf_counter()) < self._look_at:
            return
        now = self.time.now_ms()
        first_due = self._sweep(now)
        self._keep_time(_KEPT_MS)
        ended = time.perf_counter()
        if first_due == _NEVER:
            self._look_at = ended + _LOOK_SECONDS
            return
        is_late = _UNKNOWN < first_due < now - _SLACK_MS - _LATE_MS
        self._look_at = ended + (ended - began) * (_SHARE_LATE if is_late else _SHARE)

    def idle_step(self) -> bool:
        """Run a step of the sweep; return whether more is due."""
        self._keep_time(_KEPT_MS)
        return self._sweep(self.time.now_ms()) != _NEVER

    def before_closing(self) -> None:
        """Make the time durable if the next opening may not hear it from the clock."""
        self._keep_time(_KEPT_CLOSED_MS)

    def _keep_time(self, lag_ms: int) -> None:
        """Make the time durable, unless a transaction has kept one that is less than so much earlier."""
        if not self.is_used or self.time.behind_ms() < _BEHIND_MS:
            return
        now = self.time.now_ms()
        if now - self._committer.kept_ms < lag_ms:
            return
        try:
            self._committer.keep_time(now)
        except MemoryError as error:
            _log.warning("the time could not be kept: %r", error)

    def begin_time_anew(self) -> None:
        """Let the time be the clock's, durably, though it was later. Keys that expire keep their moment."""
        self.time.begin_at(0)
        self._opened = self.time.now_ms()
        if self.is_used or self._committer.kept_ms:
            self._committer.keep_time(self._opened)

    def _sweep(self, now: int) -> int:
        """Sweep ranges that are due; return when the first key expired that waits for the next step, or `_NEVER`."""
        dues = self._first_dues(now)
        if not dues:
            return _NEVER
        numbers = sorted(dues)
        number = next((number for number in numbers if number >= self._turn), numbers[0])
        self._turn = number + 1
        try:
            self._sweep_table(self._tables[number], self._ranges[number], now)
        except MemoryError as error:
            _log.warning("expired keys of table %d could not be removed: %r", number, error)
            return _NEVER
        if self._ranges[number].is_empty:
            del self._ranges[number]
        return min(self._first_dues(now).values(), default=_NEVER)

    def _first_dues(self, now: int) -> dict[int, int]:
        """Return when a key expired that waits for the sweep, by table; those of dropped tables are forgotten."""
        for number in [number for number in self._ranges if number not in self._tables]:
            self._removed.pop(number, None)
            del self._ranges[number]
        self.is_used = bool(self._ranges)
        dues = {number: ranges.first_due(now) for number, ranges in self._ranges.items()}
        return {number: due for number, due in dues.items() if due != _NEVER}

    def _sweep_table(self, table: Table, ranges: _Ranges, now: int) -> None:
        collected, blocks, swept = _Collected(_STEP_KEYS), 0, set()
        room = _STEP_KEYS - 2 * BYTES_LAYOUT.block_slots

        def collect(found: U64, end: int) -> None:
            self._sweep_blocks(table, collected, now, found, end)

        try:
            while blocks < _STEP_BLOCKS and collected.count <= room and ranges.begin(now, table.index.blocks):
                number, looked_at = ranges.sweep(_STEP_BLOCKS - blocks, collect)
                swept.add(number)
                blocks += looked_at
            self._remove(table, collected, now)
        except BaseException:
            for number in swept:
                ranges.look_again(number)
            ranges.begin_again()
            raise
