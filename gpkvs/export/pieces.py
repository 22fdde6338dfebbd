"""What an export to Parquet writes until it is finished: the pieces of a scan, as they are.

    header         that of an export, with a format of its own
    piece ...      the sizes of six columns, in bytes, and the columns (`_COLUMNS`), in little-endian order
    end            that of an export

A Parquet file cannot go on after an interruption, and the other form of an export has no versions, and a Python object
for each key and value. Only `convert` of `gpkvs.export.parquet` reads this form.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np

from gpkvs.columns.row_layout import KEY_BYTES
from gpkvs.export.file_format import END_BYTES, ExportError
from gpkvs.export.reader import read_end, read_head
from gpkvs.scan import ScanPiece

# The widest first: each column begins where numbers of its width may lie.
_COLUMNS = (
    ("versions", "<u8"),
    ("expiries", "<u8"),
    ("key_lengths", "<u4"),
    ("value_lengths", "<u4"),
    ("keys", "u1"),
    ("values", "u1"),
)
_SIZES = struct.Struct("<6Q")


def encode_piece(piece: ScanPiece) -> bytes:
    """Return a piece as it is in the file: nothing if it has no records."""
    if not len(piece):
        return b""
    columns = [np.ascontiguousarray(getattr(piece, name), dtype) for name, dtype in _COLUMNS]
    return b"".join((_SIZES.pack(*(column.nbytes for column in columns)), *(column.data for column in columns)))


class PieceReader:
    """The pieces of a scan that has come to its end.

    Parameters
    ----------
    file
        What `encode_piece` wrote, between header and end.

    Raises
    ------
    ExportError
        If header or end are not there.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.header, self._begin = read_head(file)
        self.end = read_end(file)
        self._length = file.stat().st_size - END_BYTES

    @property
    def record_bytes(self) -> int:
        """How long a record is in the file, on average."""
        return (self._length - self._begin) // max(self.end.records, 1)

    def pieces(self) -> Iterator[ScanPiece]:
        """Yield the pieces. That all of them are right is known behind the last one.

        Raises
        ------
        ExportError
            If the file is damaged.
        """
        records, left = 0, self._length - self._begin
        with self.file.open("rb") as opened:
            crc32 = zlib.crc32(opened.read(self._begin))
            while left > 0:
                head = opened.read(min(_SIZES.size, left))
                if len(head) < _SIZES.size:
                    raise self._damaged()
                sizes = _SIZES.unpack(head)
                left -= _SIZES.size + sum(sizes)
                if left < 0:
                    raise self._damaged()
                data = opened.read(sum(sizes))
                crc32 = zlib.crc32(data, zlib.crc32(head, crc32))
                piece = self._piece(sizes, data)
                records += len(piece)
                yield piece
            if (records, opened.read()) != (self.end.records, self.end.encode(crc32)):
                raise self._damaged()

    def _piece(self, sizes: tuple[int, ...], data: bytes) -> ScanPiece:
        """Return a piece whose columns fit together: what follows trusts their lengths."""
        begins = accumulate(sizes, initial=0)
        try:
            columns = {
                name: np.frombuffer(data, dtype, size // np.dtype(dtype).itemsize, begin)
                for (name, dtype), size, begin in zip(
                    _COLUMNS, sizes, begins, strict=False
                )  # the last begin is the end
            }
        except ValueError:
            raise self._damaged() from None
        piece = ScanPiece(**columns, damaged=0, cursor=b"", layout=self.header.layout)
        count = len(piece)
        fits = (
            len(data) == sum(sizes)
            and len(piece.value_lengths) == count
            and len(piece.versions) in (0, count)
            and len(piece.expiries) in (0, count)
            and piece.key_lengths.sum(dtype=np.uint64) == len(piece.keys)
            and piece.value_lengths.sum(dtype=np.uint64) == len(piece.values)
        )
        if rows := self.header.rows:
            fits = fits and (len(piece.keys), len(piece.values)) == (KEY_BYTES * count, rows.row_bytes * count)
        if not fits:
            raise self._damaged()
        return piece

    def _damaged(self) -> ExportError:
        return ExportError(f"{self.file.name} is damaged: --overwrite without --resume begins anew")
