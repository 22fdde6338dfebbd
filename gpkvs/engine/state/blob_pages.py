"""The pages of the file ``blobs``: which are live, which wait, which are free (``kernels/space/blob_space.hpp``)."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U64
from gpkvs.native import (
    blob_pages_commit,
    blob_pages_count,
    blob_pages_fits,
    blob_pages_free_after,
    blob_pages_give_back,
    blob_pages_leave,
    blob_pages_newest,
    blob_pages_put,
    blob_pages_release,
    blob_pages_take,
    blob_pages_take_place,
    blob_pages_take_spare,
    library,
)

_NO_BLOB = (1 << 64) - 1


class Run(NamedTuple):
    """Pages side by side."""

    first: int
    pages: int


class PageCounts(NamedTuple):
    """How many pages are what, as native code has it.

    Attributes
    ----------
    file
        All: the sum of those that follow, but for the last.
    live, taken, waiting, read
        In use: of batches that have committed; of others; freed, by batches that no durable frame covers yet (W6);
        freed, and read by somebody who was lent them.
    present, absent
        Free, with and without space on the disk.
    out
        That are being reserved or punched.
    lost
        Free, and not used before the next opening.
    kept
        So many present and waiting ones are kept beside those in use.
    """

    file: int
    live: int
    taken: int
    waiting: int
    read: int
    present: int
    absent: int
    out: int
    lost: int
    kept: int


class BlobPages:
    """Takes and frees pages; native planners and committers do, too, and any thread may.

    Parameters
    ----------
    first, pages
        The live blobs, ascending.
    file_pages
        Of the file. All others of them are present.

    Attributes
    ----------
    address
        Where native code finds them.
    """

    def __init__(self, first: U64, pages: U64, file_pages: int) -> None:
        self.address: int = (
            library.gpkvs_blob_pages_new(address_of(first), address_of(pages), len(first), file_pages) or 0
        )
        if not self.address:
            raise MemoryError("blobs")
        weakref.finalize(self, library.gpkvs_blob_pages_delete, self.address).atexit = False

    def leave(self, first: U64, pages: U64) -> None:
        """Note that free pages of these parts of the file are absent.

        Raises
        ------
        MemoryError
            If there is none for it.
        """
        if not blob_pages_leave(self.address, address_of(first), address_of(pages), len(first)):
            raise MemoryError("blobs")

    def fits(self, pages: int) -> bool:
        """Whether `take` has a place."""
        return bool(blob_pages_fits(self.address, pages))

    def take(self, pages: int) -> int | None:
        """Return the first page of a place for a blob; None if no run of present pages fits."""
        first = int(blob_pages_take(self.address, pages))
        return None if first == _NO_BLOB else first

    def commit(self, pages: int) -> None:
        """Note that so many of the taken pages belong to a batch that commits."""
        blob_pages_commit(self.address, pages)

    def give_back(self, first: int, pages: int) -> None:
        """Free at once what was taken, and no batch has committed."""
        blob_pages_give_back(self.address, first, pages)

    def free_after(self, epoch: int, first: int, pages: int) -> None:
        """Free what was live when a frame covers an epoch, not older than any noted (W6); at once if that is 0."""
        blob_pages_free_after(self.address, epoch, first, pages)

    def release(self, epoch: int) -> bool:
        """Free what waits for the epochs up to one; return whether there was something."""
        return bool(blob_pages_release(self.address, epoch))

    @property
    def newest(self) -> int:
        """The newest epoch that pages wait for; 0 if none do."""
        return int(blob_pages_newest(self.address))

    def take_spare(self, wanted: int, step: int, most: int) -> Run | None:
        """Have out the last present pages, of one run, that are more than is kept if others are wanted.

        Parameters
        ----------
        wanted
            How many others.
        step, most
            A multiple of the first, no more than the second.
        """
        first = np.zeros(1, np.uint64)
        pages = int(blob_pages_take_spare(self.address, wanted, step, most, address_of(first)))
        return None if pages in (0, _NO_BLOB) else Run(int(first[0]), pages)

    def take_place(self, pages: int, ahead: int) -> tuple[Run, int]:
        """Have out the best place for a blob, of present and absent pages, or at the end of the file.

        Parameters
        ----------
        pages
            Of the blob.
        ahead
            At the end of the file there are so many more, as far as they are kept.

        Returns
        -------
        Run
            The place, which may end beyond the file.
        int
            How many of its pages are not present.

        Raises
        ------
        MemoryError
            If there is none for it.
        """
        place = np.zeros(2, np.uint64)
        at = address_of(place)
        count = int(blob_pages_take_place(self.address, pages, ahead, at, at + place.itemsize))
        if count == _NO_BLOB:
            raise MemoryError("blobs")
        first, missing = place.tolist()
        return Run(first, count), missing

    def put(self, run: Run, *, are_present: bool) -> None:
        """Free pages that were out; those beyond the end of the file make it longer."""
        blob_pages_put(self.address, *run, are_present)

    @property
    def counts(self) -> PageCounts:
        """What the pages of the file are."""
        counts = np.zeros(len(PageCounts._fields), np.uint64)
        blob_pages_count(self.address, address_of(counts))
        return PageCounts(*counts.tolist())
