"""What a store will take that holds so many records: from the formulas by which it lays them out and grows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from gpkvs.columns.index_size import index_bytes_of
from gpkvs.config import JOURNAL_BYTES_USUAL, LOG_BYTES_MAX, MIB, Sizes
from gpkvs.engine.commit.journal_growth import grown_journal_bytes
from gpkvs.engine.commit.log_growth import grown_log_bytes
from gpkvs.engine.space.heap_growth import IN_MEMORY, ON_DISK, prefers_growth
from gpkvs.engine.state.heap import charge_of, charged_units_max, longest_units, record_units
from gpkvs.engine.tables.growth import PREPARE_LOAD, PREPARE_LOAD_IN_MEMORY
from gpkvs.errors import InvalidArgumentError
from gpkvs.media.directory import (
    HEAP_SEGMENTS_MAX,
    HEAP_STEP_BYTES,
    checked_sizes,
    journal_segment_bytes_for,
    round_up,
    segment_bytes_for,
    short_segment_bytes,
)
from gpkvs.media.files import log_bytes_for, log_words_for
from gpkvs.media.journal import Ring
from gpkvs.media.layout import (
    BLOB_WORDS_BYTES,
    FORMAT_4,
    HEAP_RECORD_BYTES,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    UNIT_BYTES,
    blob_pages,
    slot_layout_of,
)

INDEX_BYTES_ASIDE: Final = 4 * MIB
"""Of the default table's index, beside a table of another layout."""
REST_BYTES: Final = 100 << 10
"""The root, catalogues and the like: below that."""
PROCESS_BYTES: Final = 34 * MIB
"""Of a server without clients, its own. Measured (docs/sizing.md)."""
LIBRARY_BYTES: Final = 23 * MIB
"""Of files that a server maps, which processes share. Measured as well."""
_MARK_BYTES: Final = 16  # for each page of an index that is held in memory
_FRAME_BUFFERS: Final = 4
_OVERWRITTEN_BLOBS: Final = 1.15  # of the disk, while blobs are overwritten


@dataclass(frozen=True)
class Load:
    """What a store is to hold, and how.

    Attributes
    ----------
    is_expiring
        Whether its keys expire.
    transaction_ops
        Keys that the largest transaction changes.
    is_in_memory
        Whether its files are memory.
    """

    records: int
    key_bytes: int
    value_bytes: int
    layout: str
    store_format: int
    has_journal: bool
    is_expiring: bool
    transaction_ops: int
    is_in_memory: bool


class Part(NamedTuple):
    """What one part of a store takes.

    Attributes
    ----------
    disk_bytes
        Of its files.
    memory_bytes
        Of the process, which the kernel cannot take back.
    cache_bytes
        Of the page cache, if all of it is in use; the kernel takes it back when it needs memory.
    more_bytes
        Of disk, while records are overwritten.
    """

    name: str
    disk_bytes: int = 0
    memory_bytes: int = 0
    cache_bytes: int = 0
    more_bytes: int = 0


@dataclass(frozen=True)
class Estimate:
    """What a store will take.

    Attributes
    ----------
    index_bytes
        To be asked for, so that the index holds all records before it grows.
    record_bytes
        Of one record in the heap; 0: it has none.
    heap_off_by_bytes
        A heap grows before it is full, more or less early: it may be so much larger or smaller, which is a step of its
        growth, and what one transaction brings before anybody looks again.
    """

    load: Load
    parts: tuple[Part, ...]
    index_bytes: int
    record_bytes: int
    heap_off_by_bytes: int


def estimate(load: Load) -> Estimate:
    """Return what a new store takes as soon as the records are in it, with the index that it is advised to have.

    Raises
    ------
    InvalidArgumentError
        If there can be no such store.
    """
    load = replace(load, transaction_ops=min(load.transaction_ops, load.records))
    index_bytes = index_bytes_of(load.records, load.layout)
    is_default = load.layout == "bytes"
    sizes = _sizes(load, index_bytes if is_default else INDEX_BYTES_ASIDE)
    all_index_bytes = index_bytes if is_default else index_bytes + INDEX_BYTES_ASIDE
    log = _journal(load, sizes, all_index_bytes) if load.has_journal else _undo_log(load, sizes)
    heap, record_bytes, off_by_bytes = _heap(load, sizes)
    parts = (_index(load, index_bytes, all_index_bytes), heap, *_blobs(load, sizes), log, Part("all else", REST_BYTES))
    process = Part("process", 0, PROCESS_BYTES, LIBRARY_BYTES)
    return Estimate(load, (*parts, process), index_bytes, record_bytes, off_by_bytes)


def _sizes(load: Load, index_bytes: int) -> Sizes:
    sizes = Sizes(index_bytes=index_bytes)
    if load.is_in_memory:
        sizes = replace(sizes, heap_bytes_max=HEAP_SEGMENTS_MAX * short_segment_bytes(load.store_format))
    return checked_sizes(sizes)


def _heap_segment_bytes(load: Load, sizes: Sizes) -> int:
    return segment_bytes_for(sizes.heap_bytes_max, is_in_memory=load.is_in_memory, store_format=load.store_format)


def _index(load: Load, index_bytes: int, all_index_bytes: int) -> Part:
    """Return what indexes take; the file of one whose growth is prepared has room for twice as much."""
    prepare_load = PREPARE_LOAD_IN_MEMORY if load.is_in_memory else PREPARE_LOAD
    is_prepared = load.records > prepare_load * (index_bytes // slot_layout_of(load.layout).slot_bytes)
    disk_bytes = all_index_bytes + (index_bytes if is_prepared else 0)
    if load.has_journal:  # an image is held in memory, and its file is only written
        return Part("index", disk_bytes, index_bytes + index_bytes // PAGE_BYTES * _MARK_BYTES, 0)
    return Part("index", disk_bytes, 0, 0 if load.is_in_memory else index_bytes)


def _units(load: Load) -> int:
    """Return the units of a record in the heap."""
    if not slot_layout_of(load.layout).has_records:
        return 0
    if not 1 <= load.key_bytes < 1 << 32 or not 0 <= load.value_bytes < 1 << 32:
        raise InvalidArgumentError(f"{load.key_bytes:,} and {load.value_bytes:,} bytes are no key and value")
    keys, values = np.array([load.key_bytes], np.uint32), np.array([load.value_bytes], np.uint32)
    expiries = np.ones(1, np.uint64) if load.is_expiring else None
    if load.store_format == FORMAT_4 and expiries is None:
        expiries = np.zeros(1, np.uint64)
    (units,) = record_units(load.store_format, keys, values, expiries)
    if units > longest_units(load.store_format):
        raise InvalidArgumentError("format 3 has no records longer than 32 MiB: choose format 4", field="value")
    return int(units)


def _heap(load: Load, sizes: Sizes) -> tuple[Part, int, int]:
    """Return the heap, the bytes of a record in it, and by how much its size may be another one."""
    units = _units(load)
    if not units:
        return Part("heap", sizes.heap_bytes), 0, 0
    segment_bytes = _heap_segment_bytes(load, sizes)
    segment_units = segment_bytes // UNIT_BYTES
    pace, longest = IN_MEMORY if load.is_in_memory else ON_DISK, longest_units(load.store_format)
    live = load.records * units
    charged = load.records * int(charge_of(np.array([units], np.uint64), segment_units)[0])
    most = charged_units_max(sizes.heap_bytes_max // UNIT_BYTES, segment_units, longest)

    def grown(size: int, *, is_overwritten: bool) -> int:
        while size < sizes.heap_bytes_max:
            size_units = size // UNIT_BYTES
            charged_max = min(charged_units_max(size_units, segment_units, longest), most)
            free = 0 if is_overwritten else size_units - live
            left = pace.units_left(size, free, charged, charged_max)
            is_preferred = prefers_growth(charged, charged_max, -(-size_units // segment_units), segment_units)
            if live <= size_units and not (left < 0 and is_preferred):
                break
            size += round_up(pace.step_bytes(size), HEAP_STEP_BYTES)
        return size

    if charged > most:
        raise InvalidArgumentError(
            f"{load.records:,} records of {units * UNIT_BYTES:,} bytes, a heap has {sizes.heap_bytes_max:,} at most",
            field="records",
        )
    first = grown(sizes.heap_bytes, is_overwritten=False)
    later = grown(first, is_overwritten=True)
    cache_bytes = 0 if load.is_in_memory else live * UNIT_BYTES
    off_by_bytes = pace.step_bytes(first) + load.transaction_ops * units * UNIT_BYTES
    return Part("heap", first, 0, cache_bytes, later - first), units * UNIT_BYTES, off_by_bytes


def _blobs(load: Load, sizes: Sizes) -> tuple[Part, ...]:
    """Return what values take that are too long for the heap."""
    if load.store_format != FORMAT_4 or not slot_layout_of(load.layout).has_records:
        return ()
    is_long = RECORD_HEADER_BYTES + load.key_bytes + load.value_bytes > HEAP_RECORD_BYTES
    if not is_long or load.value_bytes <= BLOB_WORDS_BYTES:
        return (Part("large values", PAGE_BYTES),)
    size = load.records * blob_pages(load.value_bytes) * PAGE_BYTES
    if size > sizes.heap_bytes_max:
        raise InvalidArgumentError(
            f"{load.records:,} values of {load.value_bytes:,} bytes, the file of large values has "
            f"{sizes.heap_bytes_max:,} at most",
            field="records",
        )
    more = int((_OVERWRITTEN_BLOBS - 1) * size)
    return (Part("large values", size, 0, 0 if load.is_in_memory else size, more),)


def _undo_log(load: Load, sizes: Sizes) -> Part:
    size = sizes.log_bytes
    if log_bytes_for(load.transaction_ops) > size:
        size = grown_log_bytes(load.transaction_ops, size, LOG_BYTES_MAX)
    return Part("undo log", size, 0, 0 if load.is_in_memory else size)


def _journal(load: Load, sizes: Sizes, all_index_bytes: int) -> Part:
    size, segment_bytes = sizes.journal_bytes, journal_segment_bytes_for(sizes.journal_bytes)
    step = max(_heap_segment_bytes(load, sizes), segment_bytes)
    wanted = grown_journal_bytes(all_index_bytes // 2, size)
    size = max(size, round_up(wanted - size, step) + size if wanted else 0)
    ring = Ring.of_size(segment_bytes, size)
    words = log_words_for(load.transaction_ops)
    if words > ring.frame_words_max:
        more = round_up(max(ring.bytes_for(words), 2 * size) - size, step)
        size += min(more, max(JOURNAL_BYTES_USUAL - size, 0) // step * step)
    # Written past the page cache, or out of it soon. The frames keep buffers.
    entry_bytes = slot_layout_of(load.layout).entry_bytes
    return Part("journal", size, _FRAME_BUFFERS * load.transaction_ops * entry_bytes)
