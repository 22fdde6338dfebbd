"""Records one after the other in a new heap.

As in the heap of any store, a record lies in one segment; one that is longer than a segment has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import U8, U64
from gpkvs.config import MIB
from gpkvs.media.catalog import TableEntry
from gpkvs.media.directory import round_up
from gpkvs.media.files import StoreFiles, blob_file
from gpkvs.media.layout import (
    BLOB_WORDS_BYTES,
    FORMAT_3,
    KEY_BYTES_MAX,
    REFERENCE_LENGTH_BITS,
    UNIT_BYTES,
    reference_length,
    reference_offset,
)
from gpkvs.recovery.copy.writer import StoreWriter

_BLOB_WORDS = BLOB_WORDS_BYTES // 8
_WRITTEN_AT_ONCE = 8 * MIB
_GAP_READ = 64 << 10  # bytes between two records that are read with them rather than skipped


def pack(units: U64, begin: int, segment_units: int) -> tuple[U64, int]:
    """Give records their places, from the unit `begin` of the heap on.

    Parameters
    ----------
    units
        The length of each.

    Returns
    -------
    offset
        The first unit of each.
    end
        The unit after the last one.
    """
    offset, ends = np.empty(len(units), np.uint64), np.cumsum(units, dtype=np.uint64)
    at, first, done = begin, 0, 0
    while first < len(units):
        room = segment_units - at % segment_units
        last = int(np.searchsorted(ends, np.uint64(done + room), side="right"))
        offset[first:last] = ends[first:last] - units[first:last] + np.uint64(at) - np.uint64(done)
        if last == first:  # it does not fit what is left of the segment
            if room < segment_units:
                at += room
                continue
            offset[first] = at
            at += round_up(int(units[first]), segment_units)
            first, done = first + 1, int(ends[first])
            continue
        at += int(ends[last - 1]) - done
        first, done = last, int(ends[last - 1])
    return offset, at


def in_heap_order(reference: U64) -> U64:
    """Return references in the order in which their records lie: so they are read from the disk in one direction."""
    return np.sort(reference)  # the offset is in the upper bits


def prefetch_records(files: StoreFiles, reference: U64) -> None:
    """Begin to read records, which come in heap order."""
    if not len(reference):
        return
    begin = reference_offset(reference).astype(np.int64) * UNIT_BYTES
    end = begin + reference_length(reference).astype(np.int64) * UNIT_BYTES
    first = np.flatnonzero(np.diff(begin, prepend=-2 * _GAP_READ) > _GAP_READ)
    for start, stop in zip(begin[first].tolist(), np.maximum.reduceat(end, first).tolist(), strict=True):
        files.heap.prefetch(start, min(stop, files.heap.bytes) - start)


def digest_records(backend: CpuBackend, files: StoreFiles, reference: U64) -> int:
    """Return the sum of the digests of some records, which were checked."""
    digest = np.empty(len(reference), np.uint64)
    backend.launch(
        "digest_records",
        len(reference),
        reference=reference,
        heap=files.heap.address,
        record_format=files.root.store_format,
        **blob_file(files),
        digest=digest,
    )
    return int(digest.sum(dtype=np.uint64))


def digest_numbers(backend: CpuBackend, words: U64, table_id: int) -> int:
    """Return the sum of the digests of some slots of a u64 table."""
    digest = np.empty(len(words), np.uint64)
    backend.launch("digest_numbers", len(words), slots=np.ascontiguousarray(words), table_id=table_id, digest=digest)
    return int(digest.sum(dtype=np.uint64))


def new_units(backend: CpuBackend, files: StoreFiles, entry: TableEntry, reference: U64, new_format: int) -> U64:
    """Return what records, in heap order and not checked yet, take in a format; 0 if it has no place for the key."""
    if new_format == files.root.store_format == FORMAT_3:
        same: U64 = reference_length(reference)
        return same
    units = np.empty(len(reference), np.uint64)
    backend.launch(
        "converted_units",
        len(reference),
        reference=reference,
        heap=files.heap.address,
        heap_bytes=files.heap.bytes,
        record_format=files.root.store_format,
        new_format=new_format,
        table_id=entry.id,
        key_bytes_max=KEY_BYTES_MAX[new_format],
        units=units,
    )
    return units


def copy_blobs(backend: CpuBackend, files: StoreFiles, reference: U64, new_format: int, writer: StoreWriter) -> U64:
    """Write the blobs of records in a new format; return what each record says of its own, three words each."""
    value, value_bytes = np.zeros((2, len(reference)), np.uint64)
    said = np.zeros((len(reference), _BLOB_WORDS), np.uint64)
    if new_format == FORMAT_3:
        return said
    backend.launch(
        "blob_values",
        len(reference),
        reference=reference,
        heap=files.heap.address,
        record_format=files.root.store_format,
        **blob_file(files),
        new_format=new_format,
        value=value,
        value_bytes=value_bytes,
    )
    for number in np.flatnonzero(value_bytes).tolist():
        count = int(value_bytes[number])
        at, crc = writer.write_blob(int(value[number]), count)
        said[number] = at, count, crc
    return said


def copied_runs(
    backend: CpuBackend,
    files: StoreFiles,
    reference: U64,
    places: U64,
    segment_units: int,
    new_format: int,
    new_blobs: U64,
) -> Iterator[tuple[int, U8]]:
    """Copy records out of a heap in runs; yield where each run begins in the new one, in bytes, and its bytes.

    Parameters
    ----------
    reference
        Where the records are.
    places
        Where each will be, ascending.
    segment_units
        Of the new heap; a run lies in one segment, and is copied before the next one.
    new_format
        Of the new records.
    new_blobs
        What each says of its blob (`copy_blobs`).
    """
    offset = reference_offset(places)
    part = offset // np.uint64(min(segment_units, _WRITTEN_AT_ONCE // UNIT_BYTES))
    bounds = np.append(np.flatnonzero(np.diff(part, prepend=~part[:1])), len(offset)).tolist()
    for first, last in pairwise(bounds):
        begin = int(offset[first])
        end = int(offset[last - 1]) + int(reference_length(places[last - 1]))
        run: U8 = np.empty((end - begin) * UNIT_BYTES, np.uint8)
        backend.launch(
            "convert_records",
            last - first,
            reference=np.ascontiguousarray(reference[first:last]),
            heap=files.heap.address,
            record_format=files.root.store_format,
            **blob_file(files),
            new_format=new_format,
            new_blobs=np.ascontiguousarray(new_blobs[first:last]),
            offset=(offset[first:last] - np.uint64(begin)) * np.uint64(UNIT_BYTES),
            out=run,
        )
        yield begin * UNIT_BYTES, run


def references(offset: U64, units: U64) -> U64:
    """Join offsets and lengths."""
    joined: U64 = offset << np.uint64(REFERENCE_LENGTH_BITS) | units
    return joined
