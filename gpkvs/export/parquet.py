"""The other form of an export: a Parquet file, for analysis. It needs the extra ``parquet``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gpkvs.batch import U8, U32, U64
from gpkvs.export.file_format import ExportError
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

    A table of numbers has the columns ``key`` and ``value``, one of bytes ``version`` and ``expires``, too. The memory
    that this takes does not depend on the size of the table.
    """
    pa, pq = pyarrow_parquet()
    reader = PieceReader(pieces)
    header = reader.header
    described = {"table": header.table, "layout": header.layout, "gpkvs": header.gpkvs, "damaged": reader.end.damaged}
    fields = _number_fields(pa) if header.is_u64 else _byte_fields(pa)
    schema = pa.schema(fields, metadata={METADATA: json.dumps(described).encode()})
    arrays_of = _number_arrays if header.is_u64 else _byte_arrays
    # Keys and versions are different in each record: a dictionary of them would be the column again. One of long values
    # takes several times their memory.
    others = ("key", "version") if reader.record_bytes < _DICTIONARY_RECORD_BYTES else ("key", "version", "value")
    dictionaries = [field.name for field in fields if field.name not in others]
    options = {
        "use_dictionary": dictionaries,
        "write_batch_size": min(max(_PAGE_BYTES // max(reader.record_bytes, 1), 1), _PAGE_ROWS_STEP),
        "write_page_checksum": True,
    }
    with pq.ParquetWriter(parquet, schema, **options) as writer:
        for group in _groups(reader.pieces()):
            batches = [pa.record_batch(arrays_of(pa, piece), schema=schema) for piece in group]
            table = pa.Table.from_batches(batches, schema)
            writer.write_table(table, row_group_size=table.num_rows)


def _groups(pieces: Iterator[ScanPiece]) -> Iterator[list[ScanPiece]]:
    """Yield the pieces that make a row group each."""
    group: list[ScanPiece] = []
    rows, size = 0, 0
    for piece in pieces:
        piece_size = len(piece.keys) + len(piece.values)
        if group and (rows + len(piece) > _GROUP_ROWS or size + piece_size > _GROUP_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(piece)
        rows += len(piece)
        size += piece_size
    if group:
        yield group


def _number_fields(pa: Any) -> list[Any]:
    return [pa.field(name, pa.uint64(), nullable=False) for name in ("key", "value")]


def _number_arrays(pa: Any, piece: ScanPiece) -> list[Any]:
    keys, values = piece.numbers()
    return [pa.array(keys), pa.array(values)]


def _byte_fields(pa: Any) -> list[Any]:
    return [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("version", pa.uint64(), nullable=False),
        pa.field("expires", pa.timestamp("ms", "UTC")),
    ]


def _byte_arrays(pa: Any, piece: ScanPiece) -> list[Any]:
    return [
        _binary_array(pa, piece.keys, piece.key_lengths),
        _binary_array(pa, piece.values, piece.value_lengths),
        pa.array(piece.versions),
        _expiry_array(pa, piece.expiries, len(piece)),
    ]


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
