"""The other form of an export of a table of numbers: a Parquet file, for analysis. It needs the extra ``parquet``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.export.file_format import ExportError, Header
from gpkvs.export.reader import ExportReader

_MAGIC = b"PAR1"
_METADATA = b"gpkvs"
_GROUP_ROWS = 1 << 20
_READ_ROWS = 1 << 16

Numbers = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Keys and values."""


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


def require_parquet(header: Header) -> None:
    """Check that a table can become a Parquet file here, before it is scanned.

    Raises
    ------
    ExportError
        If it is no table of numbers, or pyarrow is missing.
    """
    if not header.is_u64:
        raise ExportError(
            f"table {header.table!r} has the layout {header.layout}: only tables of the layout u64 can be Parquet. "
            "Without --format parquet the export is msgpack, and docs/export.md shows how to read it"
        )
    pyarrow_parquet()


def convert(export: Path, parquet: Path) -> None:
    """Write the records of a finished export to a Parquet file, with the columns ``key`` and ``value``."""
    pa, pq = pyarrow_parquet()
    reader = ExportReader(export)
    described = json.dumps({**asdict(reader.header), "prefix": "", "damaged": reader.end.damaged})
    columns = [pa.field(name, pa.uint64(), nullable=False) for name in ("key", "value")]
    schema = pa.schema(columns, metadata={_METADATA: described.encode()})
    with pq.ParquetWriter(parquet, schema, write_page_checksum=True) as writer:
        for keys, values in _groups(reader):
            writer.write_table(pa.table([pa.array(keys), pa.array(values)], schema=schema))


def _groups(reader: ExportReader) -> Iterator[Numbers]:
    """Yield the records as columns that are worth a row group each."""
    waiting: list[Any] = []
    count = 0
    for records in reader.chunks():
        waiting.append(np.array(records, np.uint64).reshape(-1, 3))
        count += len(records)
        if count >= _GROUP_ROWS:
            yield _columns(waiting)
            waiting, count = [], 0
    if count:
        yield _columns(waiting)


def _columns(rows: list[NDArray[np.uint64]]) -> Numbers:
    joined = np.concatenate(rows)
    return np.ascontiguousarray(joined[:, 0]), np.ascontiguousarray(joined[:, 1])


class ParquetReader:
    """A Parquet file with the columns ``key`` and ``value``; of gpkvs, or of anybody.

    Parameters
    ----------
    file
        The file. Its last bytes say where everything is, so that a file that was cut is known by them.

    Raises
    ------
    ExportError
        If it is none, or the columns are not there, or are no whole numbers.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._pa, pq = pyarrow_parquet()
        try:
            self._parquet = pq.ParquetFile(file, page_checksum_verification=True)
        except (self._pa.ArrowException, OSError) as error:
            raise ExportError(f"{file}: it is no whole Parquet file: {error}") from error
        schema = self._parquet.schema_arrow
        for name in ("key", "value"):
            if schema.get_field_index(name) < 0 or not self._pa.types.is_integer(schema.field(name).type):
                raise ExportError(f"{file}: it needs columns `key` and `value` of whole numbers, it has {schema.names}")
        described = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))
        self.table: str = described.get("table", "")
        self.damaged: int = described.get("damaged", 0)
        self.records: int = self._parquet.metadata.num_rows

    def check(self) -> None:
        """Read all of it, before anything of it is used.

        Raises
        ------
        ExportError
            If it is damaged, or a number is missing, negative, or larger than 64 bits.
        """
        for _ in self.chunks():
            pass

    def chunks(self) -> Iterator[Numbers]:
        """Yield the records, some at a time; errors as `check`."""
        try:
            for batch in self._parquet.iter_batches(_READ_ROWS, columns=["key", "value"]):
                yield self._numbers(batch.column("key")), self._numbers(batch.column("value"))
        except (self._pa.ArrowException, OSError) as error:
            raise ExportError(f"{self.file}: it is damaged, or has numbers that do not fit: {error}") from error

    def _numbers(self, column: Any) -> NDArray[np.uint64]:
        if column.null_count:
            raise ExportError(f"{self.file}: numbers are missing in it")
        numbers: NDArray[np.uint64] = column.cast(self._pa.uint64()).to_numpy()
        return numbers


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
