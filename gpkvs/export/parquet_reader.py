"""Reads a Parquet file, of gpkvs or of anybody, as the records of a table. It needs the extra ``parquet``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64
from gpkvs.columns.arrow import bounds_of, bytes_of, bytes_of_rows, holds_bytes, layout_of_rows, rows_type
from gpkvs.columns.row_layout import KEY_BYTES, row_layout_of
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.export.columns import Columns, Numbers, rows_as_columns
from gpkvs.export.file_format import ExportError
from gpkvs.export.parquet import METADATA, pyarrow_parquet
from gpkvs.media.layout import BYTES_LAYOUT, U64_LAYOUT
from gpkvs.text import counted, no_such

_READ_ROWS_MAX = 1 << 16
_READ_BYTES = 4 << 20  # so much is read at once, as far as the file tells beforehand
_REPEATED_BYTES_MAX = 64 << 20  # so much may become at once of values that the file has once

# Arrow would read all of a row group before it gives the first row.
_OPTIONS = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
_UNITS_IN_A_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_USUAL_EXPIRES = "expires"


class ColumnNames(NamedTuple):
    """Which columns of a file are the records.

    Parameters
    ----------
    key, value
        Their names.
    expires
        The name of the column that says when records expire. None: `expires`, if there is one.
    """

    key: str = "key"
    value: str = "value"
    expires: str | None = None


class ParquetReader:
    """A Parquet file with a column of keys and one of values.

    Parameters
    ----------
    file
        The file. Its last bytes say where everything is, so that a file that was cut is known by them.
    names
        Which columns these are.

    Attributes
    ----------
    layout
        Of the table that the records fit: with whole numbers ``u64``, with bytes or text ``bytes``, with whole numbers
        as keys and lists of a fixed size as values one of rows.
    table
        The table that gpkvs made the file of; empty if it did not.
    records, damaged
        How many are in the file, and how many gpkvs left out since they failed their checks.

    Raises
    ------
    ExportError
        If it is none, or the columns are not there, or are of types that no table has.
    """

    def __init__(self, file: Path, names: ColumnNames = ColumnNames()) -> None:  # noqa: B008 - it never changes
        self.file = file
        self._names = names
        self._pa, pq = pyarrow_parquet()
        try:
            self._parquet = pq.ParquetFile(file, **_OPTIONS)
        except (self._pa.ArrowException, OSError) as error:
            raise ExportError(f"{file}: it is no whole Parquet file: {error}") from error
        self._schema = self._parquet.schema_arrow
        described = json.loads((self._schema.metadata or {}).get(METADATA, b"{}"))
        self.layout = self._layout(described.get("layout", ""))
        self._rows = row_layout_of(self.layout)
        self._expires = self._expiry_name()
        self.table: str = described.get("table", "")
        self.damaged: int = described.get("damaged", 0)
        self.records: int = self._parquet.metadata.num_rows

    def _layout(self, described: str) -> str:
        key, value = self._names.key, self._names.value
        kinds = [self._type_of(name) for name in (key, value)]
        if key == value:
            raise ExportError(f"{self.file}: key and value are the same column, {key!r}")
        if all(map(self._pa.types.is_integer, kinds)):
            return U64_LAYOUT.name
        if all(map(holds_bytes, kinds)):
            return BYTES_LAYOUT.name
        if self._pa.types.is_integer(kinds[0]) and (rows := layout_of_rows(kinds[1])):
            own = row_layout_of(described)  # gpkvs alone writes bits of bfloat16, as uint16
            return own.name if own and rows_type(own) == rows_type(rows) else rows.name
        raise ExportError(
            f"{self.file}: its columns {key!r} and {value!r} have the types {kinds[0]} and {kinds[1]}: both must be "
            "bytes or text (layout bytes), or both whole numbers (layout u64), or whole numbers and lists of a fixed "
            "size of numbers (layouts of rows)"
        )

    def _type_of(self, name: str) -> Any:
        found = self._schema.get_all_field_indices(name)
        if not found:
            said = no_such("column", name, self._schema.names)
            raise ExportError(f"{self.file}: {said}. --key and --value say which they are: one each, not several")
        if len(found) > 1:
            raise ExportError(f"{self.file}: it has the column {name!r} {len(found)} times")
        return self._schema.field(found[0]).type

    def _expiry_name(self) -> str | None:
        """Return the name of the column of expiries, if records may have some."""
        name = self._names.expires
        if self.layout == U64_LAYOUT.name:
            if name is not None:
                raise ExportError(f"{self.file}: its records are of the layout u64, and those do not expire: --expires")
            return None
        if name is None and _USUAL_EXPIRES not in self._schema.names:
            return None
        name = name or _USUAL_EXPIRES
        kind = self._type_of(name)
        if not self._pa.types.is_timestamp(kind) and not self._pa.types.is_integer(kind):
            raise ExportError(
                f"{self.file}: column {name!r} has the type {kind}: when a record expires is a timestamp, or a whole "
                "number of milliseconds since 1970"
            )
        return name

    def check(self, limits: Limits | None = None, on_progress: Callable[[int], None] = lambda _records: None) -> None:
        """Read all of it, before anything of it is used.

        Parameters
        ----------
        limits
            What the server takes; None: it does not tell.
        on_progress
            Told how many records more were checked.

        Raises
        ------
        ExportError
            If it is damaged, or a key, a value or an expiry is missing or is none.
        """
        if self.layout == U64_LAYOUT.name:
            for keys, _ in self.numbers():
                on_progress(len(keys))
            return
        begin = 0
        if self._rows and limits is not None:
            with self._refusals():
                self._rows.check(limits)
        for columns in self.columns():
            if limits is not None and not self._rows:
                self._require(columns.key_lengths, begin, "key", limits.key_bytes_min, limits.key_bytes_max)
                self._require(columns.value_lengths, begin, "value", limits.value_bytes_min, limits.value_bytes_max)
            begin += len(columns.key_lengths)
            on_progress(len(columns.key_lengths))

    def _require(self, lengths: U32, begin: int, noun: str, low: int, high: int) -> None:
        wrong = np.flatnonzero((lengths < low) | (lengths > high))
        if len(wrong):
            row = int(wrong[0])
            raise ExportError(
                f"{self.file}: the {noun} of record {begin + row + 1:,} has {counted(int(lengths[row]), 'byte')}, the "
                f"server takes {low:,} to {high:,}"
            )

    def numbers(self) -> Iterator[Numbers]:
        """Yield the records of a table of numbers, some at a time; errors as `check`."""
        with self._refusals():
            for keys, values in self._batches([self._names.key, self._names.value]):
                yield self._whole_numbers(keys), self._whole_numbers(values)

    def columns(self) -> Iterator[Columns]:
        """Yield the records of a table of bytes, or of rows, some at a time; errors as `check`."""
        names = [self._names.key, self._names.value]
        with self._refusals():
            for key, value, *expiry in self._batches(names if self._expires is None else [*names, self._expires]):
                expiries = self._expiries(expiry[0]) if expiry else None
                if self._rows:
                    yield rows_as_columns(self._rows, self._whole_numbers(key), bytes_of_rows(value), expiries)
                    continue
                yield Columns(
                    *self._bytes_of(key, self._names.key), *self._bytes_of(value, self._names.value), expiries
                )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Say whose errors these are, if they are Arrow's."""
        try:
            yield
        except (self._pa.ArrowException, OSError) as error:
            raise ExportError(f"{self.file}: it is damaged, or has numbers that do not fit: {error}") from error
        except InvalidArgumentError as error:
            raise ExportError(f"{self.file}: {error}") from error

    def _batches(self, names: list[str]) -> Iterator[list[Any]]:
        """Yield the columns of some rows at a time."""
        for group in range(self._parquet.metadata.num_row_groups):
            if not self._parquet.metadata.row_group(group).num_rows:
                continue
            rows = self._rows_at_once(group, names)
            for batch in self._parquet.iter_batches(rows, row_groups=[group], columns=names):
                yield [batch.column(name) for name in names]

    def _rows_at_once(self, number: int, names: list[str]) -> int:
        """Return how many rows of a row group to read at once, so that they take little memory."""
        if self._rows:  # each takes as much, and of each number Arrow notes as much again as a short one has
            numbers = math.prod(self._rows.shape)
            return min(max(_READ_BYTES // (KEY_BYTES + self._rows.row_bytes + 4 * numbers), 1), _READ_ROWS_MAX)
        group = self._parquet.metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema in names]
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        rows: int = group.num_rows * _READ_BYTES // max(size, 1)
        if self.layout == BYTES_LAYOUT.name:
            repeated = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]
            longest = sum(self._longest_repeated(number, name) for name in repeated)
            rows = min(rows, _REPEATED_BYTES_MAX // max(longest, 1))
        return min(max(rows, 1), _READ_ROWS_MAX)

    @cached_property
    def _dictionaries(self) -> Any:
        """The file again, which gives the values that it has once as they lie there; it cannot if they are lists."""
        _, pq = pyarrow_parquet()
        return pq.ParquetFile(self.file, read_dictionary=[self._names.key, self._names.value], **_OPTIONS)

    def _longest_repeated(self, number: int, name: str) -> int:
        """Return how long the longest value is that a row group has once, and any number of its rows may have."""
        column = next(self._dictionaries.iter_batches(1, row_groups=[number], columns=[name])).column(name)
        kind = column.type
        if self._pa.types.is_dictionary(kind):
            lengths = np.diff(bounds_of(column.dictionary.cast(self._pa.large_binary())))
            return int(lengths.max(initial=0))
        return int(kind.byte_width) if self._pa.types.is_fixed_size_binary(kind) else 0

    def _whole_numbers(self, column: Any) -> NDArray[np.uint64]:
        if column.null_count:
            raise ExportError(f"{self.file}: numbers are missing in it")
        numbers: NDArray[np.uint64] = column.cast(self._pa.uint64()).to_numpy()
        return numbers

    def _bytes_of(self, column: Any, name: str) -> tuple[U8, U32]:
        """Return a column of any of these types as gpkvs has it."""
        column = column.cast(self._pa.large_binary())
        if column.null_count:
            raise ExportError(f"{self.file}: column {name!r} has no value in {counted(column.null_count, 'record')}")
        data, lengths = bytes_of(column)
        return data, lengths.astype(np.uint32)

    def _expiries(self, column: Any) -> U64:
        """Return when records expire, in milliseconds since 1970, 0: never."""
        is_time = self._pa.types.is_timestamp(column.type)
        is_given = column.is_valid().to_numpy(zero_copy_only=False)
        times: NDArray[np.int64] = column.cast(self._pa.int64()).fill_null(0).to_numpy()
        if not is_time:
            if times.min() < 0:
                raise ExportError(f"{self.file}: column {self._expires!r} has negative numbers")
            return times.astype(np.uint64)
        units = _UNITS_IN_A_SECOND[column.type.unit]
        # Seconds fit: a Parquet file has them as milliseconds.
        milliseconds = times * 1000 if units == 1 else times // (units // 1000)
        # What expired in 1970 or before has expired: 0 would be never.
        return np.where(is_given, np.maximum(milliseconds, 1), 0).astype(np.uint64)
