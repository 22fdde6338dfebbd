"""The file of a store with a journal: the journal's segments, then the heap."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.media.layout import PAGE_BYTES
from gpkvs.pm.mapping import map_memory


class DataFile:
    """The file, open for whole pages: past the page cache where the file system allows it.

    Parameters
    ----------
    path
        The file.
    write
        Whether it is written.
    keeps_both
        Whether both descriptors are needed; else there is one, past the page cache if that can be.

    Attributes
    ----------
    file
        The descriptor through the page cache.
    direct
        The descriptor past it; the same one where the file system has only that way.
    is_direct
        Whether there is a way past the page cache.
    """

    def __init__(self, path: Path, *, write: bool, keeps_both: bool = True) -> None:
        self.path = path
        access = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        self.file = os.open(path, access)
        self.direct = self.file
        # Some file systems refuse the flag when the file is opened, others the first read.
        with suppress(OSError):
            self.direct = os.open(path, access | os.O_DIRECT)
        if self.direct != self.file:
            try:
                os.preadv(self.direct, [map_memory(PAGE_BYTES).data], 0)
            except OSError:
                os.close(self.direct)
                self.direct = self.file
        self.is_direct = self.direct != self.file
        if self.is_direct and not keeps_both:
            os.close(self.file)
            self.file = self.direct

    def read_pages(self, into: NDArray[np.uint8], offset: int) -> None:
        """Read whole pages from the device, whatever the page cache says.

        Parameters
        ----------
        into : (n,) uint8
            Memory that begins at a page.
        offset
            Of the first byte in the file.

        Raises
        ------
        OSError
            If they cannot be read.
        """
        if not self.is_direct:  # what is in the page cache is clean by now: drop it
            os.posix_fadvise(self.file, offset, len(into), os.POSIX_FADV_DONTNEED)
        done = 0
        while done < len(into):
            count = os.preadv(self.direct, [into[done:].data], offset + done)
            if count == 0:
                raise OSError(0, "the file ends too early", str(self.path))
            done += count

    def forget_pages(self, offset: int, count: int) -> None:
        """Have the next look at some bytes read them from the device; they were synced."""
        os.posix_fadvise(self.file, offset, count, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Make durable what earlier lives wrote."""
        os.fsync(self.file)

    def close(self) -> None:
        """Close it."""
        os.close(self.file)
        if self.direct != self.file:
            os.close(self.direct)
