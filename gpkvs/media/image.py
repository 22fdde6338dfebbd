"""The image of an index in memory, and its checkpoint in a file.

Batches store to the image. Each 4 KiB page of it has a mark, the epoch of the last batch that stored to the page. Marks
only rise. The file gets a page after the batches that it shows are durable in the journal (W2). A page is dirty while
its mark is above what was copied.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.media.data_file import DataFile
from gpkvs.media.layout import PAGE_BYTES
from gpkvs.native import library
from gpkvs.pm.mapping import (
    grow_mapping,
    map_memory,
    map_memory_into_room,
    reserve_room,
    room_of,
    take_room,
    touch_pages,
)
from gpkvs.process.fatal import whole_or_stop

_READ_BYTES = 8 << 20


class Image:
    """An index in memory; for kernels it is what `gpkvs.pm.region.Region` is in other stores.

    Parameters
    ----------
    path
        The file of its checkpoint.
    size
        Bytes of the index; by default all that the file has.

    Attributes
    ----------
    marks : (pages,) uint64
        The epoch of the last batch that stored to each page.
    copied : (pages,) uint64
        Up to which epoch the file has each page.

    Raises
    ------
    MemoryError
        If it does not fit.
    """

    is_paged = False
    is_memory = True
    takes_gpu_stores = True  # it is ordinary memory
    needs_ddio_off = False

    def __init__(self, path: Path, *, write: bool, size: int | None = None) -> None:
        self.path = path
        self._file = DataFile(path, write=write, keeps_both=False)
        try:
            self.bytes = os.fstat(self._file.file).st_size if size is None else size
            self._view: NDArray[np.uint8] | None = map_memory(self.bytes)
            self.marks = np.zeros(self.bytes // PAGE_BYTES, np.uint64)
            self.copied = np.zeros(self.bytes // PAGE_BYTES, np.uint64)
        except BaseException:
            self._file.close()
            raise
        self.address = int(self._view.ctypes.data)
        self._mapped_bytes = self.bytes  # with what is mapped ahead
        self._closing = threading.Lock()
        self._is_syncing = False

    def reserve(self, room: int) -> None:
        """See `Region.reserve`."""
        assert self._view is not None
        if room > room_of(self._view):
            with suppress(OSError):
                self._view = reserve_room(self._view, room)
                self.address = int(self._view.ctypes.data)

    def map_ahead(self, size: int) -> bool:
        """See `Region.map_ahead`; memory that is mapped is not taken before it is touched."""
        assert self._view is not None
        if size > room_of(self._view):
            return False
        if size > self._mapped_bytes:
            map_memory_into_room(self._view, self._mapped_bytes, size)
            self._mapped_bytes = size
        return True

    def grow(self, size: int) -> None:
        """Make the image longer; its file is that long already. The columns of marks are others then.

        The address may change, unless `map_ahead` says it stays.

        No batch runs meanwhile, and the caller holds `StoreFiles.changing`, so no checkpoint looks at it.

        Raises
        ------
        OSError, MemoryError
            If there is no memory for it; the image is as it was.
        """
        assert self._view is not None
        assert size >= self.bytes
        more = np.zeros(size // PAGE_BYTES - len(self.marks), np.uint64)
        marks, copied = np.concatenate((self.marks, more)), np.concatenate((self.copied, more))
        with whole_or_stop("a growing index could not be mapped", OSError, MemoryError):
            self._view = take_room(self._view, size) if self.map_ahead(size) else grow_mapping(self._view, size)
            self.address = int(self._view.ctypes.data)
            self.bytes, self.marks, self.copied = size, marks, copied
            self._mapped_bytes = max(size, self._mapped_bytes)

    def touch(self, offset: int, count: int) -> bool:
        """Have pages in memory that stores will come to; see `gpkvs.pm.region.Region.touch`."""
        view = self._view
        return view is not None and touch_pages(view, offset, count)

    def load(self) -> None:
        """Read the checkpoint, past the page cache, and only where the file has data."""
        assert self._view is not None
        for first, last in self.extents():
            for at in range(first, last, _READ_BYTES):
                self._file.read_pages(self._view[at : min(at + _READ_BYTES, last)], at)

    def read_parts(self) -> Iterator[NDArray[np.uint8]]:
        """Read the checkpoint, whatever the image holds by now, in parts; each takes the place of the one before."""
        memory = map_memory(min(_READ_BYTES, self.bytes))
        for first, last in self.extents():
            for at in range(first, last, _READ_BYTES):
                part = memory[: min(_READ_BYTES, last - at)]
                self._file.read_pages(part, at)
                yield part

    def extents(self) -> Iterator[tuple[int, int]]:
        """Find where the file has data, in whole pages: space that was only reserved reads as zeros."""
        at = 0
        while at < self.bytes:
            try:
                data = os.lseek(self._file.file, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return
            hole = os.lseek(self._file.file, data, os.SEEK_HOLE)
            first, at = data // PAGE_BYTES * PAGE_BYTES, min(-(-hole // PAGE_BYTES) * PAGE_BYTES, self.bytes)
            yield first, at

    @property
    def is_direct(self) -> bool:
        """Whether pages are written past the page cache."""
        return self._file.is_direct

    @property
    def dirty_pages(self) -> int:
        """Pages that changed since they were last copied; from any thread, also while the image grows."""
        marks, copied = self.marks, self.copied
        pages = min(len(marks), len(copied))
        return int(np.count_nonzero(marks[:pages] > copied[:pages]))

    def copy_pages(
        self, first: int, ended: int, numbers: NDArray[np.uint64], out: NDArray[np.uint8]
    ) -> tuple[int, int]:
        """Copy dirty pages for the file.

        Parameters
        ----------
        first
            The page to begin with.
        ended
            The newest epoch whose slots are all stored.
        numbers : (n,) uint64
            Gets the pages' numbers.
        out : (n * 4096,) uint8
            Gets the pages.

        Returns
        -------
        tuple of int
            How many were copied, and the page to go on with.
        """
        following = ctypes.c_uint64(first)
        count = library.gpkvs_copy_pages(
            self.address,
            self.marks.ctypes.data,
            self.copied.ctypes.data,
            ended,
            len(self.marks),
            ctypes.byref(following),
            len(numbers),
            numbers.ctypes.data,
            out.ctypes.data,
        )
        return int(count), following.value

    def write_pages(self, numbers: NDArray[np.uint64], pages: NDArray[np.uint8]) -> None:
        """Write pages to the file; neighbours at once.

        Raises
        ------
        OSError
            If they cannot be written, or the file was truncated: a write behind its end would hide that.
        """
        if os.fstat(self._file.file).st_size < self.bytes:
            raise OSError(errno.EIO, "the file was truncated", str(self.path))
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - np.uint64(2)) != 1)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=True):
            at, data = int(numbers[start]) * PAGE_BYTES, pages[start * PAGE_BYTES : stop * PAGE_BYTES]
            while len(data):
                written = os.pwrite(self._file.direct, data.data, at)
                at, data = at + written, data[written:]

    def write_all(self) -> None:
        """Write every page that is not zero: the first checkpoint of a table."""
        assert self._view is not None
        pages = self._view.reshape(-1, PAGE_BYTES)
        for first in range(0, len(pages), _READ_BYTES // PAGE_BYTES):
            part = pages[first : first + _READ_BYTES // PAGE_BYTES]
            used = np.flatnonzero(part.any(axis=1))
            if len(used):
                copies = map_memory(len(used) * PAGE_BYTES)
                copies.reshape(-1, PAGE_BYTES)[:] = part[used]
                self.write_pages((used + first).astype(np.uint64), copies)
        self.sync()

    def sync(self) -> None:
        """Make durable what was written, unless the image is closed; it may be closed meanwhile.

        Raises
        ------
        OSError
            If the flush failed; it must not be tried again.
        """
        with self._closing:
            if self.is_closed:
                return
            self._is_syncing = True
        try:
            os.fdatasync(self._file.file)
        finally:
            with self._closing:
                self._is_syncing = False
                if self.is_closed:
                    self._file.close()

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset`."""
        assert self._view is not None
        return self._view[offset : offset + count].tobytes()

    def words(self, offset: int, count: int) -> NDArray[np.uint64]:
        """Return a read-only view of `count` words from byte `offset`."""
        assert self._view is not None
        view = self._view[offset : offset + 8 * count].view(np.uint64)
        view.flags.writeable = False
        return view

    def prefetch(self, offset: int, count: int) -> None:
        """Do nothing: it is memory."""

    def persist(self) -> None:
        """Do nothing: the journal makes batches durable."""

    def persist_unlogged(self) -> None:
        """Do nothing, as `persist`."""

    def fsync(self) -> None:
        """Make durable what earlier lives wrote to the file."""
        self._file.sync()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._view is None

    def close(self) -> None:
        """Give the memory back; if a caller still holds a view, it goes when the view does."""
        with self._closing:
            self._view = None
            if not self._is_syncing:
                self._file.close()
