"""Room for an index that is to grow, made beside the batches: space of its file, then pages of its mapping.

Both take a while for each MiB, and keep whoever writes to the same file waiting. So they are done in pieces, with a
pause after each one that is as long as the piece took, unless a batch waits for the end.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path

from gpkvs.config import MIB
from gpkvs.media.directory import EXTENDED_AT_ONCE, extend_file, sync_path
from gpkvs.media.image import Image
from gpkvs.pm.region import Region
from gpkvs.process.fatal import stop_process

_DIRECT_BYTES = MIB  # so much is reserved between two batches; more in the background
_PIECE_BYTES = MIB  # of a mapping
# Reserved at once where no batch waits for it. After each piece the thread waits for Python's lock, up to 5 ms beside
# batches: with a MiB each, a file of 4 GiB took longer than batches that fill an index of 2.
_UNPACED_BYTES = 64 * MIB


class _Helper:
    """Work of a thread, or of the caller if the system gives no thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_awaited = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, *, in_background: bool) -> None:
        """Begin; return when all is done, unless it is done in the background."""
        if in_background:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            with suppress(RuntimeError):  # the system gives no thread
                self._thread.start()
                return
            self._thread = None
        self._is_awaited.set()
        self._run()

    @abstractmethod
    def _run(self) -> None:
        """Do it."""

    def _pause(self, seconds: float) -> None:
        self._is_awaited.wait(seconds)

    def join(self) -> None:
        """Return when it is over, without pauses from now on."""
        self._is_awaited.set()
        if self._thread:
            self._thread.join()


class Reservation(_Helper):
    """Space for a file that is to be longer.

    Parameters
    ----------
    path
        The file.
    size
        Bytes that it is to have.

    Attributes
    ----------
    error
        Why the system refused.
    is_over
        Whether it is there, durably, or refused.
    seconds
        That it took, once it is over.
    """

    def __init__(self, path: Path, size: int) -> None:
        super().__init__("gpkvs-reserve")
        self.path = path
        self.size = size
        self.error: OSError | None = None
        self.is_over = False
        self.seconds = 0.0
        self._piece = EXTENDED_AT_ONCE

    def begin(self, *, is_awaited: bool, is_paced: bool = True) -> None:
        """Reserve it: at once, or in the background where it takes long and nobody waits for it."""
        if not is_paced:
            self._piece = _UNPACED_BYTES
            self._is_awaited.set()
        self.start(in_background=not is_awaited and self.size > 2 * _DIRECT_BYTES)

    def _run(self) -> None:
        began = time.perf_counter()
        try:
            extend_file(self.path, self.size // 2, self.size, self._go_on, self._piece)
        except OSError as error:
            self.error = error
        except MemoryError:
            self.error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(self.path))
        else:
            try:
                sync_path(self.path)
            except OSError as error:  # a second try might seem to succeed
                stop_process("the file of a growing table could not be synced", error)
        self.seconds = time.perf_counter() - began
        self.is_over = True

    def _go_on(self, seconds: float, _: int) -> bool:
        self._pause(seconds)
        return False


class Pages(_Helper):
    """Pages of the upper half of a mapping: a step of growth that touches them first would take twice as long.

    Only of what is in memory. Pages of a disk's file would be written twice: now, and with the slots.

    Parameters
    ----------
    region
        Of an index, mapped for twice the blocks. It is not mapped anew before `end`.
    """

    def __init__(self, region: Region | Image) -> None:
        super().__init__("gpkvs-pages")
        self.region = region
        self._is_ending = False

    def begin(self) -> None:
        """Touch them in the background."""
        if self.region.is_memory and self.region.bytes > 2 * _DIRECT_BYTES:
            self.start(in_background=True)

    def _run(self) -> None:
        at, first = self.region.bytes, self.region.bytes // 2
        while at > first and not self._is_ending:  # the last blocks move first
            began, at = time.perf_counter(), max(at - _PIECE_BYTES, first)
            if not self.region.touch(at, min(_PIECE_BYTES, self.region.bytes - at)):
                return
            self._pause(time.perf_counter() - began)

    def end(self) -> None:
        """Return when no page is touched any more."""
        self._is_ending = True
        self.join()
