"""Makes an export: under another name until it is whole, so that it may be interrupted at any moment.

    FILE.partial     the export as far as it came
    FILE.progress    how much of that is surely there, and the cursor that goes on behind it

`ExportWriter.save` syncs the first before it writes the second. The name FILE is given last: what has it is whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from gpkvs.export.file_format import END_BYTES, PIECES_FORMAT, End, ExportError, Header, encode_records
from gpkvs.export.parquet import convert, pyarrow_parquet
from gpkvs.export.pieces import encode_piece
from gpkvs.export.reader import read_chunks, read_head
from gpkvs.media.directory import sync_path, write_file
from gpkvs.scan import ScanPiece

_SAVE_SECONDS = 2.0  # between two saves: so much is scanned again, at most, after the end of the process


@dataclass(frozen=True)
class _State:
    """How far an export has come. It is replaced whole, so that an exception between two statements cannot tear it."""

    bytes: int
    crc32: int
    records: int
    damaged: int
    cursor: str  # in hexadecimal digits
    is_scanned: bool


class ExportWriter:
    """Writes an export.

    Parameters
    ----------
    file
        The name of the finished export.
    header
        Its first object.
    resume
        Whether to go on with what an interrupted export of the same records left, if it left anything.
    overwrite
        Whether to replace the file, and without `resume` what an interrupted export left.
    parquet
        Whether the finished export is a Parquet file. It is made at the end, of the pieces that were scanned.

    Raises
    ------
    ExportError
        If the file is there, or what an interrupted export left is, or is damaged, or of other records.
    """

    def __init__(
        self, file: Path, header: Header, *, resume: bool = False, overwrite: bool = False, parquet: bool = False
    ) -> None:
        self.file = file
        self._header = replace(header, format=PIECES_FORMAT) if parquet else header
        self._overwrite = overwrite
        self._parquet = parquet
        self._partial = file.with_name(file.name + ".partial")
        self._progress = file.with_name(file.name + ".progress")
        self._saved_at = time.monotonic()
        if parquet:
            pyarrow_parquet()
        with _refusals(file):
            self._require_free()
            self._descriptor = self._open()
            try:
                self._begin(resume=resume)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def cursor(self) -> bytes:
        """Goes on behind what is written."""
        return bytes.fromhex(self._state.cursor)

    @property
    def is_scanned(self) -> bool:
        """Whether all records are written."""
        return self._state.is_scanned

    @property
    def records(self) -> int:
        """How many are written."""
        return self._state.records

    @property
    def damaged(self) -> int:
        """How many are not, since they failed their checks."""
        return self._state.damaged

    def add(self, piece: ScanPiece) -> None:
        """Write a piece; sometimes save.

        Raises
        ------
        ExportError
            If it is of a table that was made anew meanwhile, of another layout; or it cannot be written.
        """
        with _refusals(self.file):
            if piece.layout not in ("", self._header.layout):
                raise ExportError(
                    f"the table has the layout {piece.layout} now, and had {self._header.layout}: it was made anew"
                )
            data = encode_piece(piece) if self._parquet else encode_records(piece, self._header)
            self._append(data, piece)
            if time.monotonic() - self._saved_at > _SAVE_SECONDS:
                self.save()

    def save(self) -> None:
        """Make what is written durable, so that another process can go on behind it."""
        state = self._state
        with _refusals(self.file):
            os.fsync(self._descriptor)
            write_file(self._progress, json.dumps(asdict(state)).encode())
        self._saved_at = time.monotonic()

    def finish(self) -> None:
        """Give the export its name; it is whole and durable when this returns.

        Raises
        ------
        ExportError
            If somebody has made a file of that name meanwhile.
        """
        assert self.is_scanned
        state = self._state
        self.save()
        with _refusals(self.file):
            self._write(End(state.records, state.damaged).encode(state.crc32), state.bytes)
            os.ftruncate(self._descriptor, state.bytes + END_BYTES)
            os.fsync(self._descriptor)
            made = self._partial
            if self._parquet:
                made = self.file.with_name(self.file.name + ".converting")
                made.touch(mode=0o600)
                convert(self._partial, made)
                sync_path(made)
            self._require_free()
            made.replace(self.file)
            sync_path(self.file.parent)
            self._partial.unlink(missing_ok=True)
            self._progress.unlink(missing_ok=True)
            sync_path(self.file.parent)

    def close(self) -> None:
        """Let go of the file; what is saved stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _require_free(self) -> None:
        if self.file.exists() and not self._overwrite:
            raise ExportError("it is there already: --overwrite replaces it")

    def _open(self) -> int:
        """Open the partial file; no two processes may write it at a time."""
        while True:
            descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_ino == _inode(self._partial):
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                raise ExportError("another process is writing this export") from None
            os.close(descriptor)  # another process has just finished, and given it its name

    def _begin(self, *, resume: bool) -> None:
        """Go on behind what is there, or write the header of a new export."""
        found = self._saved()
        if found and resume:
            self._check(found)
            self._state = found
            return
        if found and not self._overwrite:
            raise ExportError(
                f"an export of it was interrupted after {found.records:,} records: --resume goes on, "
                "--overwrite begins anew"
            )
        self._progress.unlink(missing_ok=True)  # before anything else is written that it would not fit
        sync_path(self.file.parent)
        head = self._header.encode()
        os.ftruncate(self._descriptor, 0)
        self._write(head, 0)
        self._state = _State(len(head), zlib.crc32(head), 0, 0, "", is_scanned=False)

    def _saved(self) -> _State | None:
        """Return what an interrupted export saved; None if there is nothing."""
        if not os.fstat(self._descriptor).st_size:  # the one before got its name, and no more time
            return None
        try:
            return _State(**json.loads(self._progress.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ExportError(f"{self._progress.name} is damaged: --overwrite without --resume begins anew") from error

    def _check(self, state: _State) -> None:
        """Check that what was saved is there, and of the same records."""
        crc32, length = 0, 0
        for chunk in read_chunks(self._partial, state.bytes):
            crc32, length = zlib.crc32(chunk, crc32), length + len(chunk)
        if (length, crc32) != (state.bytes, state.crc32):
            raise ExportError(f"{self._partial.name} is damaged: --overwrite without --resume begins anew")
        before, _ = read_head(self._partial)
        if before.format != self._header.format:
            raise ExportError("the interrupted export has another --format: --overwrite without --resume begins anew")
        if (before.table, before.layout, before.prefix) != (
            self._header.table,
            self._header.layout,
            self._header.prefix,
        ):
            raise ExportError(
                f"the interrupted export is of table {before.table!r} ({before.layout}), prefix {before.prefix!r}: "
                "--overwrite without --resume begins anew"
            )

    def _append(self, data: bytes | memoryview, piece: ScanPiece) -> None:
        state = self._state
        self._write(data, state.bytes)
        self._state = _State(
            state.bytes + len(data),
            zlib.crc32(data, state.crc32),
            state.records + len(piece),
            state.damaged + piece.damaged,
            piece.cursor.hex(),
            is_scanned=not piece.cursor,
        )

    def _write(self, data: bytes | memoryview, at: int) -> None:
        """Write at a place: whatever an interrupted write left there goes."""
        remaining = memoryview(data)
        while remaining:
            written = os.pwrite(self._descriptor, remaining, at)
            remaining, at = remaining[written:], at + written


@contextmanager
def _refusals(file: Path) -> Iterator[None]:
    """Name the file in errors, also in those of the operating system."""
    try:
        yield
    except ExportError as error:
        raise ExportError(f"{file}: {error}" if not str(error).startswith(f"{file}: ") else str(error)) from error
    except OSError as error:
        raise ExportError(f"{file}: {error.strerror}") from error


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1
