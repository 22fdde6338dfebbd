"""What a scan of a table returns, of a store or a server: pieces, each with the cursor that goes on behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np

from gpkvs.arrow import pyarrow
from gpkvs.batch import U8, U32, U64
from gpkvs.byte_strings import ByteStrings
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
    """

    keys: U8
    key_lengths: U32
    values: U8
    value_lengths: U32
    versions: U64
    expiries: U64
    damaged: int
    cursor: bytes

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
        if len(self.versions) or any((lengths != 8).any() for lengths in (self.key_lengths, self.value_lengths)):
            raise InvalidArgumentError(
                "these are of a table whose keys and values are bytes, not of the layout u64: take key_list, "
                "value_list or pairs",
                field="table",
            )
        return self.keys.view("<u8"), self.values.view("<u8")

    def to_arrow(self) -> Any:
        """Return a record batch of pyarrow: ``key``, ``value``, and of bytes also ``version`` and ``expires``.

        Keys and values are large_binary, of the layout u64 they are uint64; ``expires`` is a timestamp in
        milliseconds, null: never. Without ``value`` if the scan is of keys only. A piece that is empty does not know
        its layout: leave it out. A table without keys has no other piece, so name a schema where it may be one.

        Raises
        ------
        InvalidArgumentError
            If pyarrow is not installed.

        Examples
        --------
        >>> pyarrow.Table.from_batches(piece.to_arrow() for piece in store.scan_pieces() if len(piece))
        """
        pa = pyarrow()
        if not len(self.versions):
            keys, values = self.numbers()
            columns = {"key": pa.array(keys), "value": pa.array(values)}
        else:
            expiries = (self.expiries if len(self.expiries) else np.zeros(len(self), np.uint64)).view(np.int64)
            columns = {
                "key": ByteStrings(self.keys, self.key_lengths).to_arrow(),
                "value": ByteStrings(self.values, self.value_lengths).to_arrow(),
                "version": pa.array(self.versions),
                "expires": pa.array(expiries, pa.timestamp("ms", "UTC"), mask=expiries == 0),
            }
        if not len(self.value_lengths):
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
    )


def _expiries_of(piece: ScanPiece) -> U64:
    return piece.expiries if len(piece.expiries) else np.zeros(len(piece), np.uint64)


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
        if self._damaged:
            damaged, self._damaged = self._damaged, 0
            what = "record fails its check and was" if damaged == 1 else "records fail their checks and were"
            raise CorruptRecordError(f"{damaged:,} {what} left out of the scan: run `gpkvs check`")


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
