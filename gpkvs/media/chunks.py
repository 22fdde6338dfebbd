"""The chunks of an undo log that a GPU stored: what recovery finds of them.

Of a batch that a GPU planned, the flag says ACTIVE before its log is there. Its entries are stored in chunks, and no
slot of a chunk before the chunk's marker is durable (``kernels/commit/chunks.hpp``). So after a crash the chunks with a
marker are undone, and of the others nothing was stored. Each processor marks its chunks in order.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64
from gpkvs.errors import CorruptStoreError
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import (
    CHUNK_MARKER_BYTES,
    CHUNK_MARKERS,
    CHUNK_MARKERS_OFFSET,
    DESCRIPTOR_OFFSETS,
    KEY_CHANGES,
    LOG_ENTRIES_OFFSET,
    STRIPE_ENTRIES,
    ChunkMarker,
    LogRun,
)


def find_chunks(files: StoreFiles, epoch: int, run: LogRun) -> list[ChunkMarker]:
    """Return the marked chunks of a batch in progress.

    Raises
    ------
    CorruptStoreError
        If a marker is missing before another one, or says what cannot be.
    """
    found = [marker for place in range(CHUNK_MARKERS) if (marker := _marker(files, place, epoch))]
    found.sort(key=lambda marker: (marker.processor, marker.number))
    for processor, markers in groupby(found, key=lambda marker: marker.processor):
        numbers = [marker.number for marker in markers]
        if numbers != list(range(len(numbers))):
            what = f"the marker of a chunk before chunk {numbers[-1]} of processor {processor} is damaged"
            raise corrupt_log(files, what, CHUNK_MARKERS_OFFSET)
    for marker in found:
        if not _belongs(marker, run):
            raise corrupt_log(files, f"the marker of a chunk cannot be: {marker}", CHUNK_MARKERS_OFFSET)
    return found


def _marker(files: StoreFiles, place: int, epoch: int) -> ChunkMarker | None:
    for page in DESCRIPTOR_OFFSETS:
        offset = page + CHUNK_MARKERS_OFFSET + place * CHUNK_MARKER_BYTES
        marker = ChunkMarker.unpack(files.log.read(offset, CHUNK_MARKER_BYTES))
        if marker and marker.epoch == epoch:
            return marker
    return None


def _belongs(marker: ChunkMarker, run: LogRun) -> bool:
    of_run = run.first_word, run.table_id, run.generation
    return marker[-len(of_run) :] == of_run and marker.entries > 0 and marker.first + marker.entries <= run.count


def corrupt_log(files: StoreFiles, what: str, offset: int) -> CorruptStoreError:
    """Return the error for an undo log that is wrong, with the place, before anything of it was undone."""
    return CorruptStoreError(
        "undo-log",
        f"{what}. Nothing was undone; restore the directory from a backup",
        path=files.log.path,
        offset=offset,
    )


def forget_chunks(files: StoreFiles) -> None:
    """Store zeros over all markers, before their epochs are given again; durable with the log."""
    for page in DESCRIPTOR_OFFSETS:
        files.log.store(page + CHUNK_MARKERS_OFFSET, bytes(CHUNK_MARKERS * CHUNK_MARKER_BYTES))


class ChunkEntries(NamedTuple):
    """The entries of a chunk, as columns.

    Attributes
    ----------
    slot : (n,) uint64
        Which slots.
    words : (n, words of a slot) uint64
        What these were; those of the key only with `has_key`.
    has_key : (n,) bool
        Where the slot got another key: without, its key's words are what they were.
    """

    slot: U64
    words: U64
    has_key: NDArray[np.bool_]


def read_chunk(files: StoreFiles, run: LogRun, marker: ChunkMarker, key_words: int) -> ChunkEntries:
    """Return the entries of a verified chunk."""
    words, end = run.entry_bytes // 8, marker.first + marker.entries
    first_stripe, stripes = marker.first // STRIPE_ENTRIES, -(-end // STRIPE_ENTRIES)
    stripe_words = words * STRIPE_ENTRIES
    begin = LOG_ENTRIES_OFFSET + 8 * (run.first_word + first_stripe * stripe_words)
    striped = files.log.words(begin, (stripes - first_stripe) * stripe_words)
    entries = striped.reshape(-1, words, STRIPE_ENTRIES).transpose(0, 2, 1).reshape(-1, words)
    entries = entries[marker.first % STRIPE_ENTRIES :][: marker.entries]
    named, slot_words = entries[:, 0], np.roll(entries[:, 1:], key_words, axis=1)
    return ChunkEntries(named & np.uint64(KEY_CHANGES - 1), slot_words, named >= np.uint64(KEY_CHANGES))
