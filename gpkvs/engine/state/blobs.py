"""The blobs of a store: values too long for the heap, in pages of a file of their own (``kernels/space/blobs.hpp``).

A plan takes pages for the values that it stores, and a commit frees those of the values that go. Here the file grows,
and an opening finds which pages are in use: those of the blobs that records name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U64
from gpkvs.engine.state.blob_space import BlobSpace
from gpkvs.errors import NoSpaceError
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import (
    BLOCK_BYTES,
    PAGE_BYTES,
    reference_length,
    reference_offset,
)
from gpkvs.media.slot_kinds import names_blob
from gpkvs.native import blobs_is_mapped, blobs_map, blobs_unmap, library

# The file has addresses for more than blobs may have of the disk, since holes lie between them: up to 16 times as
# much, and twice as much where that is above 4 TiB. Who reads a blob that is lent looks there, so the file may
# not move.
_ROOM, _ROOM_BYTES = (2, 16), 4 << 40


def blobs_of(files: StoreFiles, backend: Backend, index: Index, block: int) -> U64:
    """Return the references of the blobs that a block of an index has.

    Those of damaged records are not among them.
    """
    words = index.region.words(block * BLOCK_BYTES, BLOCK_BYTES // 8)
    slot = np.flatnonzero(names_blob(words[3::4])).astype(np.uint64)
    found = np.zeros(len(slot), np.uint64)
    key0, key1 = files.root.hash_keys
    backend.host.launch(
        "find_blobs",
        len(slot),
        index=index,
        slot=slot + np.uint64(block * index.layout.block_slots),
        heap=files.heap.address,
        heap_bytes=files.heap.bytes,
        record_format=files.root.store_format,
        table_id=index.entry.id,
        hash_key0=key0,
        hash_key1=key1,
        blob=found,
    )
    named: U64 = found[found != 0]
    return named


class Blobs:
    """The blobs of an open store.

    Parameters
    ----------
    files
        Of the store.
    references
        Of all blobs that records name.

    Attributes
    ----------
    address
        Where native code finds them.
    settle
        Has what waits for a durable frame become free (`Committer.release_waiting`).
    refusal
        Why the file could not grow, when it was last asked to.
    stays
        Whether the file stays where it is in memory when it grows: values may come in pieces.
    """

    def __init__(self, files: StoreFiles, references: U64) -> None:
        assert files.blobs
        self._files = files
        self._region = files.blobs
        self.settle: Callable[[], object] = _nothing_waits
        self.refusal: NoSpaceError | None = None
        self._space = BlobSpace(
            files.blobs.file,
            files.blobs.path,
            reference_offset(references),
            reference_length(references),
            self._settle,
            self._lengthen,
            is_in_memory=files.root_region.is_volatile,
        )
        self.address: int = library.gpkvs_blobs_new(self._space.pages.address, not files.root_region.is_volatile) or 0
        if not self.address:
            raise MemoryError("blobs")
        weakref.finalize(self, library.gpkvs_blobs_delete, self.address).atexit = False
        least, most = (times * self._bytes_max for times in _ROOM)
        self.stays = self._region.reserve(max(least, min(most, _ROOM_BYTES)))
        self._map()
        if self.stays:
            library.gpkvs_blobs_stay(self.address)

    @property
    def _bytes_max(self) -> int:
        """How much of the disk they may have."""
        root = self._files.root
        return max(root.heap_bytes_max, root.heap_bytes_own)

    def _settle(self) -> None:
        self.settle()

    def _map(self) -> None:
        """Tell native code where the file is mapped."""
        region, writes = self._region, int(self._files.root.has_journal)
        blobs_map(self.address, region.address, region.bytes // PAGE_BYTES, region.file, writes)

    def _lengthen(self, pages: int) -> None:
        """Map the file, which has so many pages now, before any of the new ones is given to a blob.

        Raises
        ------
        NoSpaceError
            If the system does not map them.
        """
        if pages * PAGE_BYTES <= self._region.bytes:
            return
        if self.stays and pages * PAGE_BYTES > self._region.room:
            raise NoSpaceError(
                "heap",
                f"{self._region.path} has so many holes that it finds no more addresses: close the store, and open it "
                "again, or delete large values",
            )
        blobs_unmap(self.address)  # whatever comes between, no batch uses an address that is not there any more
        try:
            self._region.grow(pages * PAGE_BYTES)
        except OSError as error:
            raise NoSpaceError(
                "memory",
                f"{self._region.path} cannot be mapped: {error.strerror}: raise the limit on memory (ulimit -v, "
                "MemoryMax)",
            ) from error
        finally:
            self._map()

    @property
    def is_any(self) -> bool:
        """Whether there is one."""
        counts = self._space.pages.counts
        return bool(counts.live or counts.taken)

    @property
    def live_bytes(self) -> int:
        """What all of them take."""
        return self._space.live_bytes

    @property
    def present_bytes(self) -> int:
        """What the file has of the disk."""
        return self._space.present_bytes

    def make_room(self, *, is_again: bool = False) -> bool:
        """Have the pages that the last plan lacked, between two batches; return whether there are some now.

        `is_again` is that of `BlobSpace.make_room`.

        Raises
        ------
        OSError, MemoryError
            If the system refuses for another reason than want of space.
        """
        if not blobs_is_mapped(self.address):  # an interrupt came while it was mapped anew
            self._map()
            return True
        self.refusal = None
        try:
            lacking = library.gpkvs_blobs_lacking_pages(self.address)
            self._space.make_room(lacking, self._bytes_max, is_again=is_again)
        except NoSpaceError as refusal:
            self.refusal = refusal
            return False
        return True

    def tidy(self, begun: int, is_durable: Callable[[int], bool]) -> None:
        """Give a part of the space back that is more than is kept, as `BlobSpace.tidy` says."""
        self._space.tidy(begun, is_durable)

    def free_later(self, epoch: int, references: U64) -> None:
        """Free blobs of a dropped table once a durable frame covers an epoch (W6); 0: at once."""
        library.gpkvs_blobs_free(self.address, epoch, address_of(references), len(references))

    def release_covered(self, epoch: int) -> None:
        """Free what waited for the epochs up to one."""
        library.gpkvs_blobs_release(self.address, epoch)


def _nothing_waits() -> None:
    """With an undo log, what is freed is free at once."""
