"""The other form of an export: a Parquet file, for analysis. It needs the extra ``parquet``."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gpkvs.batch import U8, U32, U64
from gpkvs.columns.arrow import rows_array, rows_type
from gpkvs.columns.row_layout import RowLayout
from gpkvs.export.file_format import ExportError, Header
from gpkvs.export.pieces import PieceReader
from gpkvs.scan import ScanPiece

METADATA = b"gpkvs"
"""The key of what a file of gpkvs says about itself: JSON, in the metadata of its schema."""

_MAGIC = b"PAR1"

# A row group is made, and by most programs read, as a whole. One record may be longer.
_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 64 << 20

# Between so many records Arrow asks whether a page is full, which has 1 MiB then. Who reads one holds it as a whole.
_PAGE_BYTES = 1 << 20
_PAGE_ROWS_STEP = 1024

# Of rows.
_PAGE_NUMBERS_STEP = 1 << 14
_NUMBER_BYTES_LEAST = 4
_SHORT_BYTES_MAX = 2

_DICTIONARY_RECORD_BYTES = 4096

_EXPIRY_MS_MAX = (1 << 63) - 1  # a timestamp has a sign; later is as good as never, and stays different from it


def pyarrow_parquet() -> tuple[Any, ModuleType]:
    """Import pyarrow.

    Raises
    ------
    ExportError
        If it is not installed; the message says how to install it.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError as error:
        raise ExportError(f"Parquet needs pyarrow ({error}): run pip install 'gpkvs[parquet]'") from error
    return pa, pq


def is_parquet(file: Path) -> bool:
    """Whether a file begins as Parquet files do.

    Raises
    ------
    ExportError
        If it cannot be read.
    """
    try:
        with file.open("rb") as opened:
            return opened.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise ExportError(f"{file}: {error.strerror}") from error


def convert(pieces: Path, parquet: Path) -> None:
    """Write the pieces of a finished scan to a Parquet file.

    A table of numbers has the columns ``key`` and ``value``, another one ``version`` and ``expires``, too. The memory
    that this takes does not depend on the size of the table.
    """
    pa, pq = pyarrow_parquet()
    reader = PieceReader(pieces)
    header = reader.header
    described = {"table": header.table, "layout": header.layout, "gpkvs": header.gpkvs, "damaged": reader.end.damaged}
    form = _form_of(pa, header)
    schema = pa.schema(form.fields, metadata={METADATA: json.dumps(described).encode()})
    options = {
        "use_dictionary": form.dictionaries(reader.record_bytes),
        "write_batch_size": form.page_step(reader.record_bytes),
        "write_page_checksum": True,
    }
    with pq.ParquetWriter(parquet, schema, **options) as writer:
        for group in _groups(reader.pieces(), form.value_weight):
            batches = [pa.record_batch(form.arrays(piece), schema=schema) for piece in group]
            table = pa.Table.from_batches(batches, schema)
            writer.write_table(table, row_group_size=table.num_rows)


def _form_of(pa: Any, header: Header) -> _Form:
    if header.is_u64:
        return _Numbers(pa)
    return _Rows(pa, header.rows) if header.rows else _Bytes(pa)


def _groups(pieces: Iterator[ScanPiece], value_weight: int) -> Iterator[list[ScanPiece]]:
    """Yield the pieces that make a row group each; values take so many times their bytes while they are written."""
    group: list[ScanPiece] = []
    rows, size = 0, 0
    for piece in pieces:
        piece_size = len(piece.keys) + value_weight * len(piece.values)
        if group and (rows + len(piece) > _GROUP_ROWS or size + piece_size > _GROUP_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(piece)
        rows += len(piece)
        size += piece_size
    if group:
        yield group


class _Form(ABC):
    """The columns of a kind of table.

    Attributes
    ----------
    fields
        Their names and types.
    value_weight
        Values take so many times their bytes while they are written.
    """

    value_weight = 1

    def __init__(self, fields: list[Any]) -> None:
        self.fields = fields

    def dictionaries(self, record_bytes: int) -> list[str]:
        """Return the columns with a dictionary, if records are so long.

        Keys and versions are different in each record: a dictionary of them would be the column again. One of long
        values takes several times their memory.
        """
        wanted = ("value", "expires") if record_bytes < _DICTIONARY_RECORD_BYTES else ("expires",)
        return [field.name for field in self.fields if field.name in wanted]

    def page_step(self, record_bytes: int) -> int:
        """Return how many records come between two looks at the size of a page."""
        return min(max(_PAGE_BYTES // max(record_bytes, 1), 1), _PAGE_ROWS_STEP)

    @abstractmethod
    def arrays(self, piece: ScanPiece) -> list[Any]:
        """Return the columns of a piece."""


class _Bytes(_Form):
    def __init__(self, pa: Any) -> None:
        binary = [pa.field(name, pa.binary(), nullable=False) for name in ("key", "value")]
        super().__init__([*binary, *_version_fields(pa)])
        self._pa = pa

    def arrays(self, piece: ScanPiece) -> list[Any]:
        pa = self._pa
        return [
            _binary_array(pa, piece.keys, piece.key_lengths),
            _binary_array(pa, piece.values, piece.value_lengths),
            *_version_arrays(pa, piece),
        ]


class _Numbers(_Form):
    def __init__(self, pa: Any) -> None:
        super().__init__([pa.field(name, pa.uint64(), nullable=False) for name in ("key", "value")])
        self._pa = pa

    def arrays(self, piece: ScanPiece) -> list[Any]:
        return [self._pa.array(numbers) for numbers in piece.numbers()]


class _Rows(_Form):
    def __init__(self, pa: Any, layout: RowLayout) -> None:
        key = pa.field("key", pa.uint64(), nullable=False)
        super().__init__([key, pa.field("value", rows_type(layout), nullable=False), *_version_fields(pa)])
        self._pa, self._layout = pa, layout
        # Of each number Arrow notes to which row it belongs, and that it is there: 4 bytes.
        self.value_weight = max(_NUMBER_BYTES_LEAST // layout.dtype.itemsize, 1)

    def dictionaries(self, record_bytes: int) -> list[str]:
        """Return the columns with a dictionary: of short numbers, since Parquet has each in 4 bytes without one."""
        is_short = self._layout.dtype.kind in "iu" and self._layout.dtype.itemsize <= _SHORT_BYTES_MAX
        return ["expires", ".".join(("value", *("list.element" for _ in self._layout.shape)))][: 1 + is_short]

    def page_step(self, record_bytes: int) -> int:
        """Return how many numbers come between two looks at the size of a page: Arrow counts them, and not rows."""
        return _PAGE_NUMBERS_STEP

    def arrays(self, piece: ScanPiece) -> list[Any]:
        keys, _ = piece.rows()
        rows = rows_array(self._layout, piece.values)
        return [self._pa.array(keys), rows, *_version_arrays(self._pa, piece)]


def _version_fields(pa: Any) -> list[Any]:
    return [pa.field("version", pa.uint64(), nullable=False), pa.field("expires", pa.timestamp("ms", "UTC"))]


def _version_arrays(pa: Any, piece: ScanPiece) -> list[Any]:
    return [pa.array(piece.versions), _expiry_array(pa, piece.expiries, len(piece))]


def _binary_array(pa: Any, data: U8, lengths: U32) -> Any:
    """Return a column as Arrow has it, in the same memory. A piece has far less than the 2 GiB that one may have."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _expiry_array(pa: Any, expiries: U64, count: int) -> Any:
    kind = pa.timestamp("ms", "UTC")
    if not len(expiries):
        return pa.nulls(count, kind)
    times = np.minimum(expiries, np.uint64(_EXPIRY_MS_MAX)).view(np.int64)
    return pa.array(times, kind, mask=expiries == 0)
