"""The changes that a backup reads while it scans. They wait in a file, since a scan may take longer than memory lasts.

An entry is one frame (`gpkvs.backup.frames`). The numbers of its body are little-endian: numbers and lengths (`_BODY`),
then versions, expiries, key lengths, value lengths, kinds, keys, values, the table's name and a new table's layout.

The file lives as long as the process that writes it. It is not made durable: whatever ends the backup, ends it too.
The segments of an archive hold the same frames (`gpkvs.archive.segment`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from gpkvs.backup.frames import HEAD, damaged, pack_frame, read_frame
from gpkvs.changes import Changes, MadeTable

ENTRY_MAGIC = b"GPKVSCHG"
# number, time, table, flags, keys, bytes of keys, of values, of the name, of the layout, index bytes, at most.
_BODY = struct.Struct("<QQIIQQQIIQQ")
_IS_WHOLE, _IS_DROPPED, _IS_MADE, _HAS_VERSIONS, _HAS_EXPIRIES = 1, 2, 4, 8, 16


class SpillWriter:
    """Appends changes to a new file.

    Parameters
    ----------
    path
        Of the file.

    Attributes
    ----------
    count
        Of the entries that are in it.

    Raises
    ------
    OSError
        If the operating system refuses, here and in `append`.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._crc = 0  # of the last frame
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def append(self, entries: Sequence[Changes]) -> None:
        """Write entries behind those before."""
        frames, self._crc = pack_entries(entries, self._crc)
        remaining = memoryview(frames)
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]
        self.count += len(entries)


def pack_entries(entries: Sequence[Changes], before: int) -> tuple[bytes, int]:
    """Return the frames of entries, behind one with the checksum `before`, and the checksum of the last one."""
    frames = []
    for entry in entries:
        frame, before = pack_frame(ENTRY_MAGIC, before, _body(entry))
        frames.append(frame)
    return b"".join(frames), before


def _body(entry: Changes) -> bytes:
    name = entry.name.encode()
    made = entry.made or MadeTable("", 0, 0)
    layout = made.layout.encode()
    flags = (
        _IS_WHOLE * entry.is_whole
        | _IS_DROPPED * entry.is_dropped
        | _IS_MADE * (entry.made is not None)
        | _HAS_VERSIONS * bool(len(entry.versions))
        | _HAS_EXPIRIES * bool(len(entry.expiries))
    )
    numbers = _BODY.pack(
        entry.number,
        entry.time_ms,
        entry.table,
        flags,
        len(entry),
        len(entry.keys),
        len(entry.values),
        len(name),
        len(layout),
        made.index_bytes,
        made.index_bytes_max,
    )
    columns = (
        entry.versions,
        entry.expiries,
        entry.key_lengths,
        entry.value_lengths,
        entry.kinds,
        entry.keys,
        entry.values,
    )
    return b"".join((numbers, *(column.tobytes() for column in columns), name, layout))


@dataclass
class _Columns:
    """Takes columns off a body, one after the other."""

    body: bytes
    at: int

    def take(self, dtype: str, count: int) -> Any:
        column = np.frombuffer(self.body, dtype, count, self.at)
        self.at += column.nbytes
        return column

    def text(self, length: int) -> str:
        self.at += length
        return self.body[self.at - length : self.at].decode()


def read_spill(path: Path, count: int) -> Iterator[Changes]:
    """Yield the first entries of a file, in their order.

    Raises
    ------
    StoreError
        If a frame is damaged, or the file ends before so many.
    """
    with path.open("rb") as file:
        at, before = 0, 0
        for _ in range(count):
            magic, body, before = read_frame(file, path, at, before)
            if magic != ENTRY_MAGIC:
                raise damaged(path, at)
            yield unpack_entry(body)
            at += HEAD.size + len(body)


def unpack_entry(body: bytes) -> Changes:
    """Return the entry of a frame."""
    number, time_ms, table, flags, n, keys, values, name, layout, index_bytes, index_bytes_max = _BODY.unpack_from(body)
    columns = _Columns(body, _BODY.size)
    versions = columns.take("<u8", n if flags & _HAS_VERSIONS else 0)
    expiries = columns.take("<u8", n if flags & _HAS_EXPIRIES else 0)
    key_lengths, value_lengths = columns.take("<u4", n), columns.take("<u4", n)
    return Changes(
        number=number,
        time_ms=time_ms,
        table=table,
        kinds=columns.take("u1", n),
        keys=columns.take("u1", keys),
        key_lengths=key_lengths,
        values=columns.take("u1", values),
        value_lengths=value_lengths,
        versions=versions,
        expiries=expiries,
        name=columns.text(name),
        made=MadeTable(columns.text(layout), index_bytes, index_bytes_max) if flags & _IS_MADE else None,
        is_dropped=bool(flags & _IS_DROPPED),
        is_whole=bool(flags & _IS_WHOLE),
    )
