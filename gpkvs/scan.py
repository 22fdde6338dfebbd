"""What a scan of a table returns, of a store or a server: pieces, each with the cursor that goes on behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64
from gpkvs.columns.arrow import pyarrow, rows_array
from gpkvs.columns.byte_strings import ByteStrings
from gpkvs.columns.row_layout import require_row_layout, row_layout_of
from gpkvs.errors import CorruptRecordError, InvalidArgumentError

LIMIT_MAX = (1 << 64) - 1
"""Of a scan: keys, in all."""

Item = TypeVar("Item")

PIECE_KEYS_MAX = 16_384
PIECE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class ScanPiece:
    """The keys of a part of a table, as columns.

    Parameters
    ----------
    keys, key_lengths : uint8, (n,) uint32
        All keys, one after the other, and how long each is.
    values, value_lengths : uint8, (n,) uint32
        The same of the values; both empty if the scan is of keys only.
    versions : (n,) uint64
        Empty where the table has none (layout ``u64``).
    expiries : (n,) uint64
        When each key expires, in milliseconds since 1970, 0: never. Empty where none of them expires.
    damaged
        How many records of this part fail their checks; they are not in the columns.
    cursor
        Goes on behind this part; empty: there is nothing behind it.
    layout
        Of the table; empty if an older server did not say it.
    """

    keys: U8
    key_lengths: U32
    values: U8
    value_lengths: U32
    versions: U64
    expiries: U64
    damaged: int
    cursor: bytes
    layout: str = ""

    def __len__(self) -> int:
        return len(self.key_lengths)

    def key_list(self) -> list[bytes]:
        """Return the keys as Python objects."""
        return cut_column(self.keys, self.key_lengths)

    def value_list(self) -> list[bytes]:
        """Return the values as Python objects; empty if the scan is of keys only."""
        return cut_column(self.values, self.value_lengths)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Return each key with its value; the scan must not be of keys only."""
        return zip(self.key_list(), self.value_list(), strict=True)

    def numbers(self) -> tuple[U64, U64]:
        """Return the keys and values of a table of the layout u64 as numbers; no values if the scan is of keys only.

        Raises
        ------
        InvalidArgumentError
            If they are of a table whose keys and values are bytes.

        Examples
        --------
        >>> for piece in counters.scan_pieces():
        ...     keys, values = piece.numbers()
        """
        if not self._is_of_numbers:
            raise InvalidArgumentError(
                f"these are of a table of the layout {self.layout or 'bytes'}, not u64: take key_list, value_list or "
                "pairs; of rows take rows",
                field="table",
            )
        return self.keys.view("<u8"), self.values.view("<u8")

    @property
    def _is_of_numbers(self) -> bool:
        return self.layout == "u64" or (not self.layout and not len(self.versions))

    def rows(self) -> tuple[U64, NDArray[Any]]:
        """Return the keys and rows of a table of rows; no rows if the scan is of keys only.

        Returns
        -------
        keys : (n,) uint64
        rows : (n, ...)
            Of the table's type and shape; bfloat16 as its bits, uint16.

        Raises
        ------
        InvalidArgumentError
            If they are of a table of another layout.
        """
        of_rows = require_row_layout(self.layout)
        return self.keys.view("<u8"), of_rows.array_of(self.values)

    def to_arrow(self) -> Any:
        """Return a record batch of pyarrow: ``key``, ``value``, and of bytes also ``version`` and ``expires``.

        Keys and values are large_binary, of the layout u64 they are uint64; of a layout of rows keys are uint64, and
        values lists of a fixed size. ``expires`` is a timestamp in milliseconds, null: never. Without ``value`` if the
        scan is of keys only.

        Raises
        ------
        InvalidArgumentError
            If pyarrow is not installed.

        Examples
        --------
        >>> pyarrow.Table.from_batches(piece.to_arrow() for piece in store.scan_pieces())
        """
        pa, of_rows = pyarrow(), row_layout_of(self.layout)
        columns: dict[str, Any]
        if self._is_of_numbers:
            keys, values = self.numbers()
            columns = {"key": pa.array(keys), "value": pa.array(values)}
        elif of_rows:
            columns = {"key": pa.array(self.keys.view("<u8")), "value": rows_array(of_rows, self.values)}
        else:
            columns = {
                "key": ByteStrings(self.keys, self.key_lengths).to_arrow(),
                "value": ByteStrings(self.values, self.value_lengths).to_arrow(),
            }
        if not self._is_of_numbers:
            expiries = (self.expiries if len(self.expiries) else np.zeros(len(self), np.uint64)).view(np.int64)
            columns["version"] = pa.array(self.versions)
            columns["expires"] = pa.array(expiries, pa.timestamp("ms", "UTC"), mask=expiries == 0)
        if len(self) and not len(self.value_lengths):
            del columns["value"]
        return pa.record_batch(columns)

    def expiry_list(self) -> list[int]:
        """Return when each key expires, in milliseconds since 1970, 0: never."""
        return self.expiries.tolist() if len(self.expiries) else [0] * len(self)


def join_pieces(pieces: Sequence[ScanPiece]) -> ScanPiece:
    """Return pieces that follow each other as one."""
    if len(pieces) == 1:
        return pieces[0]
    expire = any(len(piece.expiries) for piece in pieces)
    return ScanPiece(
        keys=np.concatenate([piece.keys for piece in pieces]),
        key_lengths=np.concatenate([piece.key_lengths for piece in pieces]),
        values=np.concatenate([piece.values for piece in pieces]),
        value_lengths=np.concatenate([piece.value_lengths for piece in pieces]),
        versions=np.concatenate([piece.versions for piece in pieces]),
        expiries=np.concatenate([_expiries_of(piece) for piece in pieces]) if expire else np.empty(0, np.uint64),
        damaged=sum(piece.damaged for piece in pieces),
        cursor=pieces[-1].cursor,
        layout=pieces[0].layout,
    )


def _expiries_of(piece: ScanPiece) -> U64:
    return piece.expiries if len(piece.expiries) else np.zeros(len(piece), np.uint64)


def require_none_damaged(records: int) -> None:
    """Raise `CorruptRecordError` at the end of a scan that left out so many records, if there are any."""
    if records:
        what = "record fails its check and was" if records == 1 else "records fail their checks and were"
        raise CorruptRecordError(f"{records:,} {what} left out of the scan: run `gpkvs check`")


class ScanItems(Generic[Item]):
    """How far a scan has come that returns one item at a time; the base of `Scan` and of that of asyncio.

    Attributes
    ----------
    cursor
        Where another scan goes on: behind the last piece that was read to its end. So some items may come again. None:
        at the beginning. Empty: nothing is left.
    """

    def __init__(self, cursor: bytes, *, keys_only: bool) -> None:
        self.cursor: bytes | None = cursor or None
        self._keys_only = keys_only
        self._items: Iterator[Item] = iter(())
        self._next_cursor = self.cursor
        self._damaged = 0

    def _begin(self, piece: ScanPiece) -> None:
        self.cursor, self._next_cursor = self._next_cursor, piece.cursor
        self._damaged += piece.damaged
        items: Iterator[Any] = iter(piece.key_list()) if self._keys_only else piece.pairs()
        self._items = cast(Iterator[Item], items)

    def _end(self) -> None:
        """Raise what could not be told before: sound keys come first."""
        self.cursor = self._next_cursor
        damaged, self._damaged = self._damaged, 0
        require_none_damaged(damaged)


class Scan(ScanItems[Item], Iterator[Item]):
    """The items of a scan: pairs of key and value, or keys; made by ``scan``.

    Raises
    ------
    CorruptRecordError
        After the last item, if records were left out since they fail their checks.
    """

    def __init__(self, pieces: Iterator[ScanPiece], cursor: bytes, *, keys_only: bool) -> None:
        super().__init__(cursor, keys_only=keys_only)
        self._pieces = pieces

    def __next__(self) -> Item:
        while True:
            for item in self._items:
                return item
            for piece in self._pieces:
                self._begin(piece)
                break
            else:
                self._end()
                raise StopIteration


def cut_column(column: U8, lengths: U32) -> list[bytes]:
    """Return the byte strings of a column as Python objects."""
    data = column.tobytes()
    if not len(lengths):
        return []
    size = int(lengths[0])
    if size and (lengths == size).all():
        return [data[at : at + size] for at in range(0, len(data), size)]
    ends = np.cumsum(lengths, dtype=np.uint64).tolist()
    return [data[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
