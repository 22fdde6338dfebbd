"""A file of lines of a bounded size: what was in it is kept under the names FILE.1, FILE.2 and so on."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from gpkvs.media.directory import sync_path


class RotatedFile:
    """Appends lines; used in one thread.

    Parameters
    ----------
    path
        The file; if it is a link, the file that it leads to now. A link that comes later is refused.
    bytes_max
        A line that would make the file larger begins a new one.
    files_max
        So many are kept; the oldest goes.

    Raises
    ------
    OSError
        If the file cannot be opened. A failed method can be tried again.
    """

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        self._path = path.resolve()
        self._bytes_max = bytes_max
        self._kept = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, files_max))]
        self._file = -1
        self._unsynced = self._lost = 0  # lines
        self._open()

    @property
    def has_unsynced(self) -> bool:
        """Whether lines are not durable yet."""
        return self._unsynced > 0

    def take_lost(self) -> int:
        """Return how many lines were written that a failure kept from being durable; each is told once."""
        lost, self._lost = self._lost, 0
        return lost

    def append(self, line: bytes) -> None:
        """Write a line whole, or nothing of it."""
        if self._file < 0 or os.fstat(self._file).st_nlink == 0:
            self.reopen()
        size = os.fstat(self._file).st_size
        if size and size + len(line) > self._bytes_max:
            self._rotate()
            size = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            raise
        self._unsynced += 1

    def sync(self) -> None:
        """Make durable what was written."""
        unsynced, self._unsynced = self._unsynced, 0
        if not unsynced:
            return
        try:
            os.fsync(self._file)
        except OSError:
            self._lost += unsynced
            self.close()  # a second fsync of the same open file would not say that pages were lost
            raise

    def reopen(self) -> None:
        """Open the path again: the file may have been renamed or removed."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        # A pipe that nobody reads would hold up the opening for ever. The path leads through no link any more: one that
        # somebody has put there since would have the server write, with its rights, into a file of their choice.
        access = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            file = os.open(self._path, access, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise OSError(errno.ELOOP, "it has become a link") from error
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            if status.st_size and os.pread(file, 1, status.st_size - 1) != b"\n":
                os.write(file, b"\n")  # a crash cut the last line off
            sync_path(self._path.parent)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _rotate(self) -> None:
        """Begin a new file. After a crash or a failure on the way a name is left out, and the next try fills it."""
        self.sync()
        left_out = (place for place, path in enumerate(self._kept) if place and not path.exists())
        for place in range(next(left_out, len(self._kept) - 1), 0, -1):
            with suppress(FileNotFoundError):
                self._kept[place - 1].replace(self._kept[place])
        self.reopen()
