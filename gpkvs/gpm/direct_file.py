"""A file of a disk, written and read past the page cache: at the disk's speed, while the next piece is copied."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpkvs.errors import NoSpaceError
from gpkvs.gpm.header import whole_pages
from gpkvs.gpm.helpers import Helpers
from gpkvs.pm.mapping import map_memory

_PIECE_BYTES: Final = 8 << 20
_THREADS: Final = 4


class DirectFile:
    """Reads and writes parts of a file that begin at whole pages; what is behind a part in its last page is free.

    Parameters
    ----------
    path
        The file; it is as long as it will be.
    writable
        Whether it is written, too.

    Raises
    ------
    OSError
        If it cannot be opened.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        access = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        try:
            self._file = os.open(path, access | os.O_DIRECT)
        except OSError:  # the file system has only the page cache
            self._file = os.open(path, access)
        self._helpers = Helpers(_THREADS, "gpkvs-disk")
        self._close = weakref.finalize(self, os.close, self._file)
        self._close.atexit = False  # a thread may still write then
        self._free: SimpleQueue[NDArray[np.uint8]] = SimpleQueue()
        for _ in range(_THREADS):
            self._free.put(map_memory(_PIECE_BYTES))

    def write(self, at: int, data: Iterator[tuple[int, memoryview]]) -> None:
        """Write memory to the file; it is durable after the next sync.

        Parameters
        ----------
        at
            Where the part begins that the offsets are of.
        data
            Pieces, each with its offset, a multiple of a page; all but the last one are whole pages.

        Raises
        ------
        NoSpaceError
            If the operating system could not write.
        """
        written: list[Future[None]] = []
        try:
            for offset, memory in data:
                for first in range(0, len(memory), _PIECE_BYTES):
                    piece = memory[first : first + _PIECE_BYTES]
                    buffer = self._free.get()
                    buffer[: len(piece)] = piece
                    written.append(self._helpers.begin(self._write_piece, buffer, len(piece), at + offset + first))
        finally:
            _wait_for(written)

    def _write_piece(self, buffer: NDArray[np.uint8], count: int, at: int) -> None:
        try:
            data = buffer.data[: whole_pages(count)]
            while data:
                done = os.pwrite(self._file, data, at)
                data, at = data[done:], at + done
        except OSError as error:
            raise NoSpaceError("disk", f"a checkpoint could not be written: {error.strerror}") from error
        finally:
            self._free.put(buffer)

    def read(self, at: int, into: memoryview) -> None:
        """Fill memory with a part of the file; raises `OSError` if the operating system could not read."""
        each = min(_PIECE_BYTES, whole_pages(-(-len(into) // _THREADS)))
        parts: list[Future[None]] = []
        try:
            for first in range(0, len(into), each or 1):
                parts.append(self._helpers.begin(self._read_piece, at + first, into[first : first + each]))
        finally:
            _wait_for(parts)

    def _read_piece(self, at: int, into: memoryview) -> None:
        if whole_pages(len(into)) == len(into) and _begins_at_page(into):
            self._fill(into, at)
            return
        buffer = self._free.get()
        try:
            self._fill(buffer.data[: whole_pages(len(into))], at)
            into[:] = buffer[: len(into)].data
        finally:
            self._free.put(buffer)

    def _fill(self, pages: memoryview, at: int) -> None:
        while pages:
            done = os.preadv(self._file, [pages], at)
            if not done:
                raise OSError(errno.EIO, "the file has become shorter")
            pages, at = pages[done:], at + done

    def close(self) -> None:
        """Let go of the file, when nobody reads or writes it."""
        self._helpers.close()
        self._close()


def _begins_at_page(memory: memoryview) -> bool:
    address = np.frombuffer(memory, np.uint8).ctypes.data
    return whole_pages(address) == address


def _wait_for(parts: list[Future[None]]) -> None:
    """Return when all parts are done; raise what the first of them raised, or an interruption that came meanwhile."""
    interrupted: BaseException | None = None
    for part in parts:
        while not part.done():
            try:
                part.exception()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C: nobody may read or write when this ends
                interrupted = interrupted or error
    if interrupted:
        raise interrupted
    for part in parts:
        part.result()
