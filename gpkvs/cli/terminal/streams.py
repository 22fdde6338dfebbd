"""The standard streams of a command: no encoding makes them fail, and a command whose output is lost does not go on."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputError(BaseException):
    """Standard output cannot be written.

    It derives from BaseException, as KeyboardInterrupt does: no handler on the way may take it for a failure of the
    work that the command was doing.

    Parameters
    ----------
    error
        What the system said.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror}")
        self.errno = error.errno


def open_streams() -> None:
    """Put streams that a command can rely on in the place of Python's.

    Standard output raises `OutputError` where it cannot be written. Standard error drops what it cannot write: nobody
    is left to tell. Both escape characters that their encoding does not have. Bytes go to ``sys.stdout.buffer`` as they
    are.
    """
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        _occupy(descriptor, mode)
    sys.stdout = _text(_Output(1), sys.stdout)
    sys.stderr = _text(_Errors(2), sys.stderr, line_buffering=True)


def _occupy(descriptor: int, mode: int) -> None:
    """Open the null device as a stream that is closed, or the next file to be opened would be the stream.

    Standard output gets it for reading: a write fails then, as into a closed stream.
    """
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, mode)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)
        os.set_inheritable(descriptor, True)


def _text(raw: io.FileIO, before: TextIO | None, *, line_buffering: bool = False) -> io.TextIOWrapper:
    """Return a stream of text with the encoding of Python's own; a stream that was closed has none."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before else "utf-8",
        errors="backslashreplace",
        line_buffering=line_buffering or raw.isatty(),
    )


class _Output(io.FileIO):
    """Standard output. After a write has failed it drops the rest: the command says something on its way out."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._is_lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self._is_lost:
            try:
                return super().write(data)
            except OSError as error:
                self._is_lost = True
                raise OutputError(error) from error
        return memoryview(data).nbytes


class _Errors(io.FileIO):
    """Standard error."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes
