"""`gpkvs copy`: every key of a store that no process has open, in a new store, with its version.

The steps: survey the old store, which finds what is damaged in its indexes and whether all of it fits; write the new
store, block by block; read it back and compare; give it its root. Until the last step there is no new store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import U64
from gpkvs.columns.row_layout import row_bytes_of
from gpkvs.config import DEFAULT_TABLE, MIB, CommitName, FormatName, Sizes
from gpkvs.engine.space.recount import recount
from gpkvs.engine.state.heap import SegmentCounts, charge_of, charged_units_max, longest_units
from gpkvs.engine.tables.schema import check_index_bytes
from gpkvs.errors import InvalidArgumentError, NoSpaceError, StoreError, UnknownTableError
from gpkvs.media.catalog import Catalog, TableEntry
from gpkvs.media.directory import (
    HEAP_STEP_BYTES,
    Progress,
    StoreKind,
    access_errors,
    checked_sizes,
    first_root,
    make_directory,
    record_bytes_max,
    round_up,
    segment_bytes_for,
)
from gpkvs.media.files import blob_file
from gpkvs.media.layout import (
    BLOCK_BYTES,
    EXPIRES,
    FORMAT_3,
    FORMAT_4,
    KEY_BYTES_MAX,
    LONGEST_RECORD_UNITS,
    UNIT_BYTES,
    CommitKind,
    reference_length,
)
from gpkvs.media.slot_kinds import with_kinds
from gpkvs.media.store_lock import StoreLock, lock_store
from gpkvs.native import audits
from gpkvs.pm.domain import find_domain
from gpkvs.process import failpoint
from gpkvs.recovery.copy.image import FullError, Image
from gpkvs.recovery.copy.placement import PLACEMENT
from gpkvs.recovery.copy.records import (
    copied_runs,
    copy_blobs,
    digest_numbers,
    digest_records,
    in_heap_order,
    new_units,
    pack,
    prefetch_records,
    references,
)
from gpkvs.recovery.copy.source import Rows, Source, open_source
from gpkvs.recovery.copy.writer import StoreWriter, require_no_store
from gpkvs.recovery.startup.memory import require_memory
from gpkvs.recovery.startup.opening import choose_commit, format_of
from gpkvs.recovery.startup.salvage import audit
from gpkvs.text import no_such, quoted

_BLOCKS_AT_ONCE = 256
_REFERENCE, _META = 2, 3  # words of a slot
_LOAD_SUGGESTED = 0.65
_HEAP_LOAD_SUGGESTED = 0.7


@dataclass(frozen=True)
class CopySizes:
    """Sizes of the new store; what is not given is as in the old one."""

    index_bytes: int | None = None  # of the default table
    heap_bytes: int | None = None  # alone: also the largest size
    heap_bytes_max: int | None = None
    log_bytes: int | None = None
    journal_bytes: int | None = None
    table_index_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CopiedTable:
    """What was copied of one table."""

    name: str
    layout: str
    keys: int
    index_bytes: int
    digest: int  # of all that the old store has in it, in any order


@dataclass(frozen=True)
class CopyReport:
    """What was copied."""

    old: Path
    new: Path
    old_format: str  # for people
    recovery: str  # of the old store, in memory
    tables: tuple[CopiedTable, ...]
    keys: int
    record_bytes: int
    seconds: float


@dataclass
class _Contents:
    """What a table holds: a count, the bytes of its records, and a digest that is the same in any order."""

    keys: int = 0
    units: int = 0
    digest: int = 0

    def add(self, keys: int, units: int, digest: int) -> None:
        """Count some more keys."""
        self.keys += keys
        self.units += units
        self.digest = (self.digest + digest) % (1 << 64)


def copy_store(
    old: Path,
    new: Path,
    sizes: CopySizes,
    on_progress: Progress,
    *,
    commit: CommitName = "auto",
    store_format: FormatName = "auto",
) -> CopyReport:
    """Copy a store into a new one, which has the same tables, keys and versions, and an id of its own.

    Parameters
    ----------
    old
        The store's directory. No byte in it is changed: a batch in progress is rolled back in memory.
    new
        A directory that is empty or not there yet. It holds a store when this returns, and none if this raises.
    sizes
        Of the new store.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.
    commit
        How the batches of the new store become durable; ``auto`` as for any new store there.
    store_format
        Of the new store; ``auto``: as any new store has it.

    Raises
    ------
    StoreLockedError, StoreMissingError, StoreAccessError, FormatError, UnsafeStoreError, CorruptStoreError
        If the old store cannot be read, or is damaged.
    InvalidArgumentError, NoSpaceError
        If a size is wrong, or too small.
    StoreError
        If the new directory cannot be used, or what was read back is not what was written.
    """
    begin = time.perf_counter()
    with access_errors(old), ExitStack() as undo:
        undo.callback(lock_store(old, shared=True).release)
        _require_apart(old, new)
        require_no_store(new)
        backend = CpuBackend()
        undo.callback(backend.close)
        source = undo.enter_context(open_source(old, backend))
        catalog = _new_catalog(source, sizes)
        new_sizes = _new_sizes(source, catalog, sizes)
        copy = _Copy(source, backend, catalog, new_sizes, format_of(store_format), on_progress)
        copy.survey(is_heap_chosen=sizes.heap_bytes is not None or sizes.heap_bytes_max is not None)
        with access_errors(new):
            _write_new(copy, new, source, commit)
        on_progress("copied", 1.0)
        return copy.report(old, new, time.perf_counter() - begin)


def _require_apart(old: Path, new: Path) -> None:
    old, new = old.resolve(), new.resolve()
    if new == old or old in new.parents or (new.exists() and new.samefile(old)):
        raise InvalidArgumentError(f"{new} is the old store or lies in it: name another directory", field="NEW")


def _new_catalog(source: Source, sizes: CopySizes) -> Catalog:
    """Return the tables with the blocks that they will have; ids and names stay."""
    catalog = source.files.catalog
    wanted = dict(sizes.table_index_bytes)
    if sizes.index_bytes is not None:
        wanted.setdefault(DEFAULT_TABLE, sizes.index_bytes)
    names = [table.name for table in catalog.tables]
    for name, size in wanted.items():
        if name not in names:
            raise UnknownTableError(no_such("table", name, names), field="table_index_bytes")
        check_index_bytes(size)
    sizes_of = {
        table: round_up(wanted.get(table.name, _grown_bytes(source, table)), BLOCK_BYTES) for table in catalog.tables
    }
    return Catalog(
        tuple(
            replace(
                table,
                generation=0,
                blocks=size // BLOCK_BYTES,
                index_bytes_max=table.index_bytes_max and max(table.index_bytes_max, size),
            )
            for table, size in sizes_of.items()
        ),
        catalog.next_table_id,
    )


def _grown_bytes(source: Source, table: TableEntry) -> int:
    """Return the size of an index, or the one that it grows to."""
    return table.blocks * BLOCK_BYTES * (2 if source.files.indexes[table.id].is_growing else 1)


def _new_sizes(source: Source, catalog: Catalog, sizes: CopySizes) -> Sizes:
    root = source.files.root
    heap_bytes, heap_bytes_max = sizes.heap_bytes, sizes.heap_bytes_max
    if heap_bytes is None and heap_bytes_max is None:
        # A heap that grows begins as small as its records let it.
        is_fixed = root.heap_bytes_own >= root.heap_bytes_max
        heap_bytes, heap_bytes_max = (root.heap_bytes_own, None) if is_fixed else (None, root.heap_bytes_max)
    return checked_sizes(
        Sizes(
            index_bytes=sum(table.blocks for table in catalog.tables) * BLOCK_BYTES,
            heap_bytes=heap_bytes or 0,
            heap_bytes_max=heap_bytes_max or 0,
            # A store has one of these two; where the new one has the other, it is as in any new store.
            log_bytes=root.log_bytes or Sizes.log_bytes if sizes.log_bytes is None else sizes.log_bytes,
            journal_bytes=root.journal_bytes_all if sizes.journal_bytes is None else sizes.journal_bytes,
        )
    )


def _write_new(copy: _Copy, new: Path, source: Source, commit: CommitName) -> None:
    """Make the new store; whatever fails, nothing of it stays."""
    was_there = new.exists()
    make_directory(new)
    lock = StoreLock(new)
    try:
        require_no_store(new)  # nobody else can make one from here on
        lock.sign()
        kind = choose_commit(commit, find_domain(new, "auto"))
        if kind is CommitKind.JOURNAL:  # what was written is read back, like an opening does
            require_memory(sum(entry.blocks for entry in copy.catalog.tables) * BLOCK_BYTES)
        root = first_root(copy.sizes, copy.catalog, StoreKind(kind, copy.new_format), source.files.root.hash_key)
        root = replace(root, flags=source.files.root.flags & EXPIRES)
        writer = StoreWriter(new, root, copy.catalog)
        try:
            copy.on_progress("reserving space", 0.15)
            writer.reserve()
            heap_end = copy.write(writer)
            copy.verify(new, writer.make_durable(source.current, heap_end))
            writer.publish()
        except BaseException:
            writer.discard()
            raise
    except BaseException:
        (new / "LOCK").unlink(missing_ok=True)
        if not was_there:
            new.rmdir()
        raise
    finally:
        lock.release()


class _Copy:
    """One copy on its way.

    Parameters
    ----------
    source
        The old store.
    backend
        Runs the kernels.
    catalog, sizes
        Of the new store.
    new_format
        Of the new store.
    on_progress
        Called with the name of a step and the share of the work done.
    """

    def __init__(
        self,
        source: Source,
        backend: CpuBackend,
        catalog: Catalog,
        sizes: Sizes,
        new_format: int,
        on_progress: Progress,
    ) -> None:
        self.new_format = new_format
        self._source = source
        self._backend = backend
        self.catalog = catalog
        self.sizes = sizes
        self.on_progress = on_progress
        self._segment_units = segment_bytes_for(sizes.heap_bytes_max) // UNIT_BYTES
        longest = record_bytes_max(self._segment_units * UNIT_BYTES, sizes.heap_bytes_max)
        self._record_units_max = longest // UNIT_BYTES
        self._contents = {table.id: _Contents() for table in catalog.tables}
        self._blocks = sum(table.blocks for table in catalog.tables)

    def _windows(self, entry: TableEntry) -> Iterator[tuple[int, int, Rows]]:
        """Yield the first and last + 1 of some blocks of a new table, and the rows that go there.

        Rows come in the order of their fingerprints, so a part of the old index fills a part of the new one.
        """
        old = self._source.files.table(entry.id)
        step = max(1, min(_BLOCKS_AT_ONCE, _BLOCKS_AT_ONCE * entry.blocks // old.blocks))
        for first in range(0, entry.blocks, step):
            last = min(first + step, entry.blocks)
            old_first, old_last = first * old.blocks // entry.blocks, -(-last * old.blocks // entry.blocks)
            rows = self._source.rows(old, old_first, old_last)
            block = PLACEMENT.block(rows.fingerprint0, entry)
            yield first, last, rows.take((block >= first) & (block < last))

    def _each_window(self, step: str, begin: float, end: float) -> Iterator[tuple[TableEntry, int, int, Rows]]:
        """Yield the windows of all tables, and report progress."""
        done = 0
        for entry in self.catalog.tables:
            for first, last, rows in self._windows(entry):
                self.on_progress(f"{step} table {entry.name}", begin + (end - begin) * done / self._blocks)
                yield entry, first, last, rows
                done += last - first

    def survey(self, *, is_heap_chosen: bool) -> None:
        """Count what there is, before anything is written.

        Parameters
        ----------
        is_heap_chosen
            Whether the size of the heap is not that of the old one.

        Raises
        ------
        CorruptStoreError
            If an index of the old store is damaged.
        NoSpaceError
            If it is known already that the new sizes are too small.
        """
        heap_end, live_units, charged, longest = 0, 0, 0, 0
        keys = dict.fromkeys(self._contents, 0)
        for entry, _, _, rows in self._each_window("surveying", 0.0, 0.15):
            keys[entry.id] += len(rows)
            if keys[entry.id] > entry.slots:
                raise self._index_full(entry)
            if entry.slot_layout.has_records and len(rows):
                units = self._new_units(entry, in_heap_order(rows.words[:, _REFERENCE]))
                longest = max(longest, int(units.max()))
                if longest <= self._record_units_max:
                    _, heap_end = pack(units, heap_end, self._segment_units)
                live_units += int(units.sum(dtype=np.uint64))
                charged += int(charge_of(units, self._segment_units).sum(dtype=np.uint64))
        heap_bytes = round_up(heap_end * UNIT_BYTES, HEAP_STEP_BYTES)
        if longest > self._record_units_max or heap_bytes > self.sizes.heap_bytes_max:
            raise self._heap_full(max(heap_end, live_units), longest)
        # A heap that somebody chose shall take writes, too; one as large as the old one takes what the old one took.
        if is_heap_chosen and charged > self._charged_max(self.sizes.heap_bytes_max):
            raise self._heap_full(charged, longest)
        self.sizes = replace(self.sizes, heap_bytes=max(self.sizes.heap_bytes, heap_bytes))

    def _new_units(self, entry: TableEntry, reference: U64) -> U64:
        """Return what records, in heap order, take in the new store.

        Raises
        ------
        InvalidArgumentError
            If its format has no place for a key or a value.
        """
        key_bytes_max = KEY_BYTES_MAX[self.new_format]
        units = new_units(self._backend, self._source.files, entry, reference, self.new_format)
        if not units.all():
            raise InvalidArgumentError(
                f"table {quoted(entry.name)} has a key of more than {key_bytes_max:,} bytes, for which a store of "
                f"format {self.new_format} has no place: delete it, or copy with --format {FORMAT_3}",
                field="format",
            )
        longest = int(units.max())
        if self.new_format == FORMAT_3 and longest > LONGEST_RECORD_UNITS:
            raise InvalidArgumentError(
                f"table {quoted(entry.name)} has a record of {longest * UNIT_BYTES:,} bytes, format {FORMAT_3} takes "
                f"up to {LONGEST_RECORD_UNITS * UNIT_BYTES:,}: delete it, or copy with --format {FORMAT_4}",
                field="format",
            )
        return units

    def _index_full(self, entry: TableEntry) -> NoSpaceError:
        old = self._source.files.table(entry.id)
        keys = sum(len(self._source.rows(old, *blocks)) for blocks in _parts(old))
        slots = max(int(keys / _LOAD_SUGGESTED), entry.slots * 5 // 4)
        mib = -(-slots * entry.slot_layout.slot_bytes // MIB)
        option = "--index-bytes " if entry.name == DEFAULT_TABLE else f"--table-index-bytes {entry.name}="
        return NoSpaceError(
            "index",
            f"table {quoted(entry.name)} holds {keys:,} keys, and an index of {entry.blocks * BLOCK_BYTES:,} bytes has "
            f"{entry.slots:,} slots, which cannot take all of them: use {option}{mib}MiB or more",
        )

    def _charged_max(self, heap_bytes: int) -> int:
        """Return the units that a heap of a size takes with any write."""
        segment_units = segment_bytes_for(heap_bytes) // UNIT_BYTES
        return charged_units_max(heap_bytes // UNIT_BYTES, segment_units, longest_units(self.new_format))

    def _heap_full(self, units: int, longest: int) -> NoSpaceError:
        # A record may take a sixteenth of the heap, rounded down to a power of two.
        needed = max(int(units * UNIT_BYTES / _HEAP_LOAD_SUGGESTED), 16 << (longest * UNIT_BYTES - 1).bit_length())
        while units > self._charged_max(needed):
            needed += needed // 8
        return NoSpaceError(
            "heap",
            f"the records take {units * UNIT_BYTES:,} bytes in segments of {self._segment_units * UNIT_BYTES:,}, the "
            f"longest one {longest * UNIT_BYTES:,}; a heap of {self.sizes.heap_bytes_max:,} bytes cannot take them: "
            f"use --heap-bytes-max {-(-needed // MIB)}MiB or more",
        )

    def write(self, writer: StoreWriter) -> int:
        """Write all tables and records; return the unit of the heap after the last record.

        Raises
        ------
        CorruptStoreError
            If a record of the old store is damaged.
        NoSpaceError
            If a table is too small.
        """
        heap_end = 0
        for entry, first, last, rows in self._each_window("copying", 0.15, 0.8):
            failpoint.hit("mid_copy")
            if not len(rows) and entry.slot_layout.has_records:
                continue
            image, place = self._placed(entry, first, last, rows)
            self._audit(entry, image, rows)
            if entry.slot_layout.has_records:
                order = np.argsort(rows.words[:, _REFERENCE])
                places, has_blob, heap_end = self._write_records(writer, entry, rows.words[order, _REFERENCE], heap_end)
                image.words[place[order], _REFERENCE] = places
                image.words[place[order], _META] = with_kinds(rows.words[order, _META], has_blob)
            else:
                digest = digest_numbers(self._backend, rows.words, entry.id)
                self._contents[entry.id].add(len(rows), 0, digest)
            writer.write_blocks(entry, first, image.words)
        return heap_end

    def _placed(self, entry: TableEntry, first: int, last: int, rows: Rows) -> tuple[Image, NDArray[np.int64]]:
        """Return blocks of the new index with their keys, and the place of each.

        Whether keys find ways depends on their order. Those of a nearly full index, which once came in another one, may
        find none: they stay where they are.
        """
        hash_keys = self._source.files.root.hash_keys
        image = Image(self._backend, entry, hash_keys, first, last)
        try:
            return image, image.place(rows)
        except FullError:
            if not self._source.has_places_of(entry):
                raise self._index_full(entry) from None
        image = Image(self._backend, entry, hash_keys, first, last)
        return image, image.keep(rows)

    def _audit(self, entry: TableEntry, image: Image, rows: Rows) -> None:
        """Check each slot, and its record in the old heap, before they are written."""
        source = self._source
        of_records = {
            "heap": source.files.heap.address,
            "heap_bytes": source.files.heap.bytes,
            "segment_units": source.files.segment_units,
            "table_id": entry.id,
            "next_sequence": source.current.next_sequence,
            "may_expire": int(source.files.root.may_expire),
            "row_bytes": row_bytes_of(entry.layout),
            "record_format": source.files.root.store_format,
            **blob_file(source.files),
        }
        if entry.slot_layout.has_records:
            prefetch_records(source.files, in_heap_order(rows.words[:, _REFERENCE]))
        wrong = image.audit(**(of_records if entry.slot_layout.has_records else {}))
        if wrong is not None:
            row, invariant = wrong
            source.refuse(source.files.table(entry.id), int(rows.slot[row]), audits()[invariant])

    def _write_records(
        self, writer: StoreWriter, entry: TableEntry, reference: U64, heap_end: int
    ) -> tuple[U64, NDArray[np.bool_], int]:
        """Copy the records of a window, in heap order.

        Returns
        -------
        Where each is now, whether it has a blob, and the new end of the heap.
        """
        files, units = self._source.files, self._new_units(entry, reference)
        offset, heap_end = pack(units, heap_end, self._segment_units)
        places = references(offset, units)
        blobs = copy_blobs(self._backend, files, reference, self.new_format, writer)
        for at, run in copied_runs(
            self._backend, files, reference, places, self._segment_units, self.new_format, blobs
        ):
            writer.write_records(at, run)
        digest = digest_records(self._backend, files, reference)
        self._contents[entry.id].add(len(units), int(units.sum(dtype=np.uint64)), digest)
        return places, blobs[:, 0] != 0, heap_end

    def verify(self, new: Path, root_file: str) -> None:
        """Read the new store back: every slot and record is audited, and each table holds what was read before.

        Raises
        ------
        StoreError
            If anything is different.
        """
        with open_source(new, self._backend, root_file=root_file) as written:
            done = 0
            for entry in self.catalog.tables:
                self.on_progress(f"verifying table {entry.name}", 0.8 + 0.2 * done / self._blocks)
                done += entry.blocks
                wanted, found = self._contents[entry.id], _audited_contents(self._backend, written, entry)
                counts = SegmentCounts.of(written.files.segments)
                counted = recount(written.files, self._backend, written.files.indexes[entry.id], counts)
                if found != wanted or counted.records != wanted.keys or int(counts.live.sum()) != wanted.units:
                    raise StoreError(
                        f"table {quoted(entry.name)} was read back from {new} with {found.keys:,} keys, and is not "
                        f"what was written ({wanted.keys:,} keys): check the disk; nothing was kept"
                    )

    def report(self, old: Path, new: Path, seconds: float) -> CopyReport:
        """Say what was copied."""
        contents = self._contents
        return CopyReport(
            old=old,
            new=new,
            old_format=self._source.format_text,
            recovery=self._source.recovery,
            tables=tuple(
                CopiedTable(
                    table.name,
                    table.layout,
                    contents[table.id].keys,
                    table.blocks * BLOCK_BYTES,
                    contents[table.id].digest,
                )
                for table in self.catalog.tables
            ),
            keys=sum(content.keys for content in contents.values()),
            record_bytes=sum(content.units for content in contents.values()) * UNIT_BYTES,
            seconds=seconds,
        )


def _parts(entry: TableEntry) -> Iterator[tuple[int, int]]:
    """Yield the first and last + 1 of some blocks of a table at a time."""
    for first in range(0, entry.blocks, _BLOCKS_AT_ONCE):
        yield first, min(first + _BLOCKS_AT_ONCE, entry.blocks)


def digests_of_numbers(path: Path) -> dict[str, int]:
    """Return the digest of each table of numbers of a store that no process uses: their slots have no checksum.

    Raises
    ------
    CorruptStoreError
        If the store is damaged.
    """
    with ExitStack() as undo:
        undo.callback(lock_store(path, shared=True).release)
        backend = CpuBackend()
        undo.callback(backend.close)
        source = undo.enter_context(open_source(path, backend))
        tables = [entry for entry in source.files.catalog.tables if not entry.slot_layout.has_records]
        return {entry.name: _digest_of_numbers(backend, source, entry) for entry in tables}


def _digest_of_numbers(backend: CpuBackend, source: Source, entry: TableEntry) -> int:
    contents = _Contents()
    for first, last in _parts(entry):  # where the table grows, `rows` knows where its blocks are
        rows = source.rows(entry, first, last)
        contents.add(len(rows), 0, digest_numbers(backend, rows.words, entry.id))
    return contents.digest


def _audited_contents(backend: CpuBackend, source: Source, entry: TableEntry) -> _Contents:
    """Audit every slot and record of a table; return what it holds."""
    contents = _Contents()
    for first, last in _parts(entry):
        rows = source.rows(entry, first, last)
        reference = in_heap_order(rows.words[:, _REFERENCE]) if entry.slot_layout.has_records else rows.slot[:0]
        prefetch_records(source.files, reference)
        broken = audit(source.files, backend, entry, source.current.next_sequence, blocks=(first, last))
        if broken.any():
            slot = int(broken.argmax())
            source.refuse(entry, first * entry.slot_layout.block_slots + slot, audits()[int(broken[slot])])
        if entry.slot_layout.has_records:
            units = int(reference_length(reference).sum(dtype=np.uint64))
            contents.add(len(rows), units, digest_records(backend, source.files, reference))
        else:
            contents.add(len(rows), 0, digest_numbers(backend, rows.words, entry.id))
    return contents
