"""What a store, a client and the handles of their tables can do with keys: one face, the same methods everywhere.

`gpkvs.client.async_face` has the same for asyncio.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U64, Batch, Op, RequestResult
from gpkvs.changes import Position
from gpkvs.columns.buffers import Buffer, KeyBuffers, RequestBounds
from gpkvs.columns.byte_strings import ArrowColumn, ByteStrings, byte_strings_of, column_given
from gpkvs.columns.numbers import (
    check_values,
    column_of,
    deletes_of,
    deltas_of,
    found_of,
    gets_of,
    increments_of,
    joined,
    joined_found,
    pairs_of,
    parts_of,
    require_no_ttl,
    sets_of,
    values_of,
)
from gpkvs.columns.row_layout import RowLayout, require_row_layout
from gpkvs.columns.string_requests import StringRequests
from gpkvs.config import Limits
from gpkvs.errors import CorruptRecordError, GpkvsError, InvalidArgumentError
from gpkvs.operations import (
    Bytes,
    Key,
    Operation,
    OperationList,
    Result,
    Ttl,
    Whole,
    as_bytes,
    as_given,
    is_whole,
    key_as_bytes,
    ttl_ms,
)
from gpkvs.process.own_timeout import OWN_TIMEOUT, Timeout
from gpkvs.rows import GpuArrays, Rows
from gpkvs.scan import Scan, ScanPiece
from gpkvs.text import quoted
from gpkvs.transaction import ATTEMPTS, Transaction, transact

if TYPE_CHECKING:
    from gpkvs.watch import Follows, Watch

Default = TypeVar("Default")
Returned = TypeVar("Returned")

Numbers = Any
"""Numbers as a list or an array: of NumPy, or of a library whose arrays speak DLPack."""
WholeNumbers: TypeAlias = NDArray[np.uint64] | NDArray[np.int64] | list[int]
"""Numbers as type checkers know them."""
Strings: TypeAlias = (
    Sequence[Bytes] | NDArray[np.bytes_] | NDArray[np.void] | NDArray[np.uint8] | ByteStrings | ArrowColumn
)
"""Many byte strings (`gpkvs.columns.byte_strings.column_given`)."""


class Face(ABC):
    """What the blocking face and the asynchronous one share: nothing here waits."""

    _known_limits: Limits | None = None  # of keys and values, where they are known before the table is

    @abstractmethod
    def _require_open(self) -> None:
        """Refuse to go on where it was closed."""

    def _require_timeout(self, timeout: Timeout) -> None:  # noqa: B027 - a client takes any
        """Refuse a timeout where nothing is waited for; for calls that may end without a request."""

    def _operations(self) -> OperationList:
        """Return an empty request."""
        self._require_open()
        return OperationList((), self._known_limits)

    def _keys_of(self, keys: Any, table: str | None) -> Any:
        """Return a column of keys: `ByteStrings`, or what is to be taken for numbers."""
        return column_given("keys", keys)

    def _damaged(self, table: str | None, error: CorruptRecordError) -> CorruptRecordError:
        """Return an error of a damaged record with what is known here of where it is."""
        return error

    def _column(self, name: str, numbers: Numbers) -> NDArray[Any]:
        """Return numbers without sign as a contiguous array."""
        return column_of(name, numbers)

    @abstractmethod
    def _numbers_max(self, table: str | None) -> int:
        """Return how many numbers one request may have."""

    @abstractmethod
    def _request_bounds(self, table: str | None) -> RequestBounds:
        """Return how much goes into one request of several."""

    def _parts(self, keys: U64, table: str | None, timeout: Timeout, *, atomic: bool) -> list[slice]:
        """Return how numbers are cut into requests."""
        self._require_open()
        self._require_timeout(timeout)
        return parts_of(len(keys), self._numbers_max(table), atomic=atomic)

    def _values_found(self, result: RequestResult) -> tuple[U64, NDArray[np.bool_]]:
        check_values(result)
        return values_of(result, found_of(result))

    def _require_rows(self, layout: str, table: str | None) -> None:  # noqa: B027 - a client does not know
        """Refuse a table of another layout, where it is known."""


class KeyValues(Face):
    """Keys and their values; the base of `Store`, `Client` and the handles of their tables.

    Keys and values are `bytes`; `bytearray`, `memoryview` and contiguous arrays of uint8 are taken alike. What a method
    writes is durable when it returns. Each method takes `table`, the name of another table than this one's own. Those
    of a client take `timeout` too: seconds until the call fails, None to wait for ever. A store in this process waits
    for no network: its methods have the parameter too, since the face is one, and raise TypeError if it is given.

    In a table of the layout u64, keys and values are whole numbers from 0 to 2**64 - 1. A key that is given as an int
    has an int as its value, also when it is read. A table of another layout refuses such a key. Both may be given as 8
    bytes instead, little-endian: then the value is read as bytes.

    One cannot iterate over it, and it has no length: `scan` reads all keys, `count` counts them.
    """

    __iter__ = None  # else Python would try `self[0]`

    _puts_values = False  # whether it puts values where a batch says (`Batch.into`)
    _gpu_rows: GpuArrays | None = None  # what takes arrays of a GPU

    @abstractmethod
    def _commit(self, operations: OperationList, table: str | None, timeout: Timeout) -> list[Result]:
        """Execute a request that is not empty."""

    @abstractmethod
    def _commit_numbers(self, batch: Batch, table: str | None, timeout: Timeout) -> RequestResult:
        """Execute a request of numbers, whose columns are right."""

    @abstractmethod
    def _commit_columns(
        self, batch: Batch, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        """Execute a request of byte strings.

        `ttl`: after how many milliseconds keys of SETs expire, 0: never. `layout`: that of the table; empty: any.
        """

    @abstractmethod
    def _read_into(
        self, operations: OperationList, buffers: list[U8], table: str | None, timeout: Timeout
    ) -> list[int | None]:
        """Execute a request of GETs whose values go into buffers (`gpkvs.columns.buffers.placed_of`)."""

    def _one(self, operations: OperationList, table: str | None, timeout: Timeout) -> Any:
        """Execute a request of one operation."""
        (result,) = self._commit(operations, table, timeout)
        if isinstance(result, GpkvsError):
            raise result
        return result

    @overload
    def get(self, key: Bytes, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> bytes | None: ...

    @overload
    def get(
        self, key: Bytes, default: Default, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> bytes | Default: ...

    @overload
    def get(self, key: Whole, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int | None: ...

    @overload
    def get(
        self, key: Whole, default: Default, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> int | Default: ...

    def get(
        self,
        key: Key,
        default: Default | None = None,
        *,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> bytes | int | Default | None:
        """Return the value of a key, or `default` if it is not there.

        Raises
        ------
        InvalidArgumentError
            If the key is empty or over the limit.
            Or if the key is an int, and the table's layout is not u64.
        CorruptRecordError
            If its record is damaged.
        """
        operations = self._operations()
        operations.get(key)
        value: bytes | int | None = self._one(operations, table, timeout)
        return default if value is None else value

    @overload
    def get_with_version(
        self, key: Bytes, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[bytes, int] | None: ...

    @overload
    def get_with_version(
        self, key: Whole, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[int, int] | None: ...

    def get_with_version(
        self, key: Key, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[bytes | int, int] | None:
        """Return the value of a key and its version, or None if it is not there; errors as `get`.

        The version is what `if_version` asks for. A table of the layout u64 has no versions: there it is the number.
        """
        pair = self._pairs([key], table, timeout)[0]
        return None if pair is None else (as_given(key, pair[0]), pair[1])

    def _pairs(self, keys: Iterable[Key], table: str | None, timeout: Timeout) -> list[tuple[bytes, int] | None]:
        """Return value and version of each key."""
        operations = self._operations()
        for key in keys:
            operations.get(key)
        self._commit(operations, table, timeout)
        return operations.pairs()

    @overload
    def get_all(
        self, keys: Iterable[Bytes], *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> dict[bytes, bytes]: ...

    @overload
    def get_all(
        self, keys: Iterable[Whole], *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> dict[int, int]: ...

    def get_all(
        self, keys: Iterable[Key], *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> dict[Any, Any]:
        """Return the values of those keys that are there, all as of one moment; errors as `get`."""
        operations = self._operations()
        for key in keys:
            operations.get(key)
        if not len(operations):
            self._require_timeout(timeout)
            return {}
        values = self._commit(operations, table, timeout)
        pairs = zip(operations.given_keys, values, strict=True)
        return {key: value for key, value in pairs if value is not None}

    def exists(self, key: Key, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> bool:
        """Return whether a key is there, without its value; errors as `get`."""
        operations = self._operations()
        operations.exists(key)
        is_there: bool = self._one(operations, table, timeout)
        return is_there

    @overload
    def set(
        self,
        key: Bytes,
        value: Bytes,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int: ...

    @overload
    def set(
        self,
        key: Whole,
        value: Whole,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int: ...

    def set(
        self,
        key: Key,
        value: Any,
        *,
        ttl: Ttl = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int:
        """Store a value, durably when this returns; return its version.

        Parameters
        ----------
        key, value
            Bytes, or in a table of the layout u64 two ints.
        ttl
            Seconds until the key expires, or a `timedelta`; None: it stays, whatever was set before.
        if_absent, if_present, if_version
            At most one: store it only if the key is not there, is there, or has this version (`get_with_version`).

        Raises
        ------
        ConditionFailedError
            If the condition does not hold; nothing was stored.
        InvalidArgumentError
            If key, value or ttl is out of the limits.
        NoSpaceError
            If it does not fit; nothing was stored.
        """
        operations = self._operations()
        operations.set(key, value, ttl=ttl, if_absent=if_absent, if_present=if_present, if_version=if_version)
        version: int = self._one(operations, table, timeout)
        return version

    def delete(
        self,
        key: Key,
        *,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> bool:
        """Remove a key, durably when this returns; return whether it was there.

        Parameters
        ----------
        key
            Bytes, or an int.
        if_version
            Remove it only if it has this version.

        Raises
        ------
        ConditionFailedError
            If the key has another version; it is still there.
        """
        operations = self._operations()
        operations.delete(key, if_version=if_version)
        was_there: bool = self._one(operations, table, timeout)
        return was_there

    def incr(
        self,
        key: Key,
        delta: int = 1,
        *,
        ttl: Ttl = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int:
        """Add to the number that a key holds, and return the sum.

        Parameters
        ----------
        key
            Its value is a number as text, such as ``b"-42"``; in a table of numbers it is the number. 0 if it is not
            there.
        delta
            A signed number of 64 bits; negative ones subtract.
        ttl
            When a new key expires; one that is there keeps what it has.

        Raises
        ------
        NotANumberError, NumberOverflowError
            If the value is no number, or the sum takes more than 64 bits; the key is as it was.
        """
        operations = self._operations()
        operations.incr(key, delta, ttl=ttl)
        total: int = self._one(operations, table, timeout)
        return total

    def append(
        self,
        key: Bytes,
        value: Bytes,
        *,
        ttl: Ttl = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int:
        """Add bytes to the end of a key's value; return its new version.

        A missing key is made, and `ttl` is for such a new one. Raises InvalidArgumentError if the value would be longer
        than the limit; the key is as it was then.
        """
        operations = self._operations()
        operations.append(key, value, ttl=ttl)
        version: int = self._one(operations, table, timeout)
        return version

    def expire(self, key: Key, ttl: Ttl, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> bool:
        """Have a key expire after `ttl` seconds, or never (None); return whether it is there."""
        operations = self._operations()
        operations.expire(key, ttl)
        is_there: bool = self._one(operations, table, timeout)
        return is_there

    def ttl(self, key: Key, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> float | None:
        """Return the seconds until a key expires; `math.inf`: it does not, None: it is not there.

        The key expires by the clock of the machine with the store; the seconds are counted with this machine's clock.
        """
        operations = self._operations()
        operations.ttl(key)
        seconds: float | None = self._one(operations, table, timeout)
        return seconds

    @overload
    def batch(self, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> SyncBatch: ...

    @overload
    def batch(
        self, operations: Iterable[Operation], *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> list[Result]: ...

    def batch(
        self,
        operations: Iterable[Operation] | None = None,
        *,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> list[Result] | SyncBatch:
        """Execute operations as one atomic, durable request.

        There are two ways to use it. With `operations` it returns a result for each of them. A block
        ``with db.batch() as batch:`` fills it; the end of the block executes it, unless the block raises, and leaves
        the results in ``batch.results``.

        Parameters
        ----------
        operations
            ``(Op.GET, key)``, ``(Op.SET, key, value)``, ``(Op.DELETE, key)``, ``(Op.EXISTS, key)``, ``(Op.INCREMENT,
            key, number)``, ``(Op.APPEND, key, value)``, ``(Op.CHECK, key, version)`` (None: it must not be there),
            ``(Op.EXPIRE, key, seconds)`` (None: never), ``(Op.EXPIRY, key)``. A block has more: conditions and ttl.

        Returns
        -------
        list
            A GET's value or None, a SET's version; `OperationList.results` names all. An operation that was not done,
            since its condition failed or its key holds no number, has the error in its place.

        Raises
        ------
        ConflictError
            If a CHECK failed; nothing was done.
        """
        self._require_open()
        self._require_timeout(timeout)
        if operations is None:
            return SyncBatch(self, table, timeout)
        request = OperationList(operations, self._known_limits)
        return self._commit(request, table, timeout) if len(request) else []

    @overload
    def scan(
        self,
        prefix: Bytes = b"",
        *,
        keys_only: Literal[False] = False,
        limit: int | None = None,
        cursor: bytes | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Scan[tuple[bytes, bytes]]: ...

    @overload
    def scan(
        self,
        prefix: Bytes = b"",
        *,
        keys_only: Literal[True],
        limit: int | None = None,
        cursor: bytes | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Scan[bytes]: ...

    def scan(
        self,
        prefix: Bytes = b"",
        *,
        keys_only: bool = False,
        limit: int | None = None,
        cursor: bytes | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Scan[Any]:
        """Return an iterator over the keys of a table with their values, in no order that means anything.

        A key that is there throughout comes exactly once, through growth of the table and restarts; one that comes or
        goes meanwhile comes once, or not at all.

        Keys and values are bytes, also in a table of numbers: `scan_pieces` brings those as numbers
        (`ScanPiece.numbers`).

        Parameters
        ----------
        prefix
            Only keys that begin with it. The whole table is looked through all the same.
        keys_only
            Return keys alone, without reading their values.
        limit
            So many keys; one more where two have the same fingerprint, since a cursor does not fit between them.
        cursor
            Of a scan before (`Scan.cursor`): go on there.
        timeout
            Seconds to wait for the next piece.

        Raises
        ------
        InvalidArgumentError
            If the cursor is none of this table, or a table of numbers is to be looked through by prefix.
        CorruptRecordError
            After the last key, if records were left out since they fail their checks.
        """
        begin = cursor or b""
        pieces = self.scan_pieces(
            as_bytes("prefix", prefix), cursor=begin, keys_only=keys_only, limit=limit, table=table, timeout=timeout
        )
        return Scan(pieces, begin, keys_only=keys_only)

    @abstractmethod
    def scan_pieces(
        self,
        prefix: bytes = b"",
        *,
        cursor: bytes = b"",
        keys_only: bool = False,
        limit: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Iterator[ScanPiece]:
        """Return what `scan` does as columns, in pieces: many times as fast."""

    @abstractmethod
    def count(self, prefix: Bytes = b"", *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many keys a table has, or how many begin with a prefix: for that all keys are read.

        Without a prefix, keys that have expired count until they are swept.
        """

    def watch(self, prefix: Bytes = b"", *, since: Position | str | None = None, table: str | None = None) -> Watch:
        """Return an iterator over what changes in a table from now on, in the order in which it was executed.

        Each change is durable when it comes. It comes at least once: where a client lost its connection, or goes on at
        a position, a transaction may come again, whole. A watch waits for the next change for as long as it takes, so
        it has no timeout, and nobody who writes waits for it.

        Parameters
        ----------
        prefix
            Only keys that begin with it; not of a table of numbers.
        since
            A position (`Change.position`, `Watch.position`, or its text): go on behind it. It counts as long as the
            store stays open.

        Raises
        ------
        ChangesLostError
            Here or later, if what comes next is not held any more, or the store was opened again since: read all anew
            (`scan`), then watch from there.
        InvalidArgumentError
            If the prefix or the position cannot be used.

        Examples
        --------
        >>> with store.watch(b"user:") as changes:
        ...     store.set(b"user:1", b"Ada")
        ...     print(next(changes).value)
        1
        b'Ada'
        """
        self._require_open()
        where = Position.parse(since) if isinstance(since, str) else since
        from gpkvs.watch import Watch  # noqa: PLC0415 - few programs watch, and a server does so elsewhere

        return Watch(self._follow(where, as_bytes("prefix", prefix), table))

    @abstractmethod
    def _follow(self, since: Position | None, prefix: bytes, table: str | None) -> Follows:
        """Follow what changes in a table."""

    def transaction(self, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> TransactionBlock:
        """Return an optimistic transaction for one ``with`` block.

        The end of the block commits it: one request checks that nothing that was read has changed, and writes. If a
        block raises, nothing is written.

        Raises
        ------
        ConflictError
            At the end of the block, if somebody else was faster; nothing was written.

        Examples
        --------
        >>> with store.transaction() as t:
        ...     balance = int(t.get(b"a", b"100"))
        ...     t.set(b"a", b"%d" % (balance - 10))
        """
        self._require_open()
        self._require_timeout(timeout)
        return TransactionBlock(Transaction(self, table, timeout))

    def transact(
        self,
        work: Callable[[Transaction], Returned],
        *,
        attempts: int = ATTEMPTS,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Returned:
        """Run a function as an optimistic transaction, again if somebody else was faster; return what it returns.

        Parameters
        ----------
        work
            Called with a `Transaction`; it may be called several times, so it should do nothing but read and write
            through it.
        attempts
            After so many the `ConflictError` is raised. The pauses between them are random, and grow up to a second.

        Raises
        ------
        ConflictError
            If somebody else was faster each time; nothing was written.
        OutcomeUnknownError
            By a client whose commit was sent and got no response: it is not tried again.

        Notes
        -----
        An exception of `work` is raised, and nothing is written. But if something it has read has changed meanwhile,
        its reads may not fit together, and it runs again instead.
        """
        self._require_timeout(timeout)
        return transact(lambda: Transaction(self, table, timeout), work, attempts)

    @overload
    def __getitem__(self, key: Bytes) -> bytes: ...

    @overload
    def __getitem__(self, key: Whole) -> int: ...

    def __getitem__(self, key: Any) -> bytes | int:
        value: bytes | int | None = self.get(key)
        if value is None:
            raise _missing(key)
        return value

    @overload
    def __setitem__(self, key: Bytes, value: Bytes) -> None: ...

    @overload
    def __setitem__(self, key: Whole, value: Whole) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key):
            raise _missing(key)

    def __contains__(self, key: Key) -> bool:
        return self.exists(key)

    def set_many(
        self,
        keys: Numbers | Strings,
        values: Numbers | Strings,
        *,
        ttl: Ttl = None,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> None:
        """Store many values, as one atomic, durable request; the last of equal keys wins.

        Parameters
        ----------
        keys, values
            Byte strings: lists of bytes; arrays of NumPy of the type ``S``, or of uint8 with two dimensions (a row a
            string); arrays that speak Arrow (pyarrow, polars), of binary or text; `ByteStrings`. What lies in one
            piece of memory is not copied, and no object is made of each.

            Or numbers, for a table of the layout u64: (n,) uint64. Contiguous arrays of uint64 are not copied. Other
            whole numbers are converted, if they are not negative: lists, signed arrays, strided ones. A store with
            the backend cuda takes arrays on the GPU: of CuPy, or of any library that speaks DLPack (PyTorch, also as
            int64), which then do not cross the link.

            Empty ones are no request: nothing is done, and the results are empty. Nobody may change arrays until the
            call returns: they are read more than once, and a change can spoil the table.
        ttl
            Seconds until the keys expire, or a `timedelta`; None: they stay. A table of numbers has no room for an
            expiry: there any is refused, here and in `set`.
        atomic
            False: more than fits one request goes in several, one after the other. An error then leaves those before
            it stored.

        Raises
        ------
        InvalidArgumentError
            If the table is one of another layout, it is one of numbers and there is a ttl, or the columns do not fit
            together, or are too much for one request.
        NoSpaceError
            If they do not fit; none was stored.

        Examples
        --------
        >>> store.set_many([b"a", b"b"], [b"one", b"two"], ttl=60)
        >>> store.get_many([b"a", b"x", b"b"])
        (<ByteStrings of 3: [b'one', None, b'two']>, array([ True, False,  True]))
        """
        column = self._keys_of(keys, table)
        if isinstance(column, ByteStrings):
            theirs = byte_strings_of("values", values)
            self._run_strings(Op.SET, column, theirs, table, timeout, atomic=atomic, ttl=ttl_ms(ttl))
            return
        numbers, held = self._column("keys", column), self._column("values", values)
        require_no_ttl(ttl, numbers)
        pairs_of(numbers, held)  # they must be as many, also where they are cut
        for part in self._parts(numbers, table, timeout, atomic=atomic):
            self._commit_numbers(sets_of(numbers[part], held[part]), table, timeout)

    def _run_strings(
        self,
        op: Op,
        keys: ByteStrings,
        values: ByteStrings | None,
        table: str | None,
        timeout: Timeout,
        *,
        atomic: bool,
        ttl: int = 0,
    ) -> StringRequests:
        """Execute one kind of operation on many keys of bytes."""
        self._require_open()
        requests = StringRequests(op, keys, values, self._request_bounds(table), atomic=atomic)
        self._run_requests(requests, ttl, table, timeout)
        return requests

    def _run_requests(
        self, requests: StringRequests, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> None:
        """Execute requests, one after the other."""
        self._require_timeout(timeout)
        while batch := requests.next():
            try:
                requests.took(self._commit_columns(batch, ttl, table, timeout, layout))
            except InvalidArgumentError as error:
                requests.refused(error)
            except CorruptRecordError as error:
                raise self._damaged(table, error) from None

    @overload
    def get_many(  # type: ignore[overload-overlap] # no array of numbers speaks Arrow
        self,
        keys: WholeNumbers,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[U64, NDArray[np.bool_]]: ...

    @overload
    def get_many(
        self,
        keys: Strings,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[ByteStrings, NDArray[np.bool_]]: ...

    @overload
    def get_many(
        self,
        keys: Numbers,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[Any, NDArray[np.bool_]]: ...

    def get_many(
        self,
        keys: Any,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Any:
        """Read many values; parameters and errors as `set_many`.

        Returns
        -------
        values : ByteStrings, or (n,) uint64
            None where there is none; of numbers 0, and on the GPU, if the keys are there.
        found : (n,) bool
            Which keys are there.

        Raises
        ------
        CorruptRecordError
            If a record is damaged.
        """
        column = self._keys_of(keys, table)
        if isinstance(column, ByteStrings):
            read = self._run_strings(Op.GET, column, None, table, timeout, atomic=atomic)
            return read.values(), read.found()
        keys = self._column("keys", column)
        results = []
        for part in self._parts(keys, table, timeout, atomic=atomic):
            results.append(self._get_numbers(keys[part], table, timeout))
        return joined(results, keys)

    def _get_numbers(self, keys: U64, table: str | None, timeout: Timeout) -> tuple[U64, NDArray[np.bool_]]:
        """Read numbers by one request."""
        return self._values_found(self._commit_numbers(gets_of(keys), table, timeout))

    def delete_many(
        self,
        keys: Numbers | Strings,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> NDArray[np.bool_]:
        """Remove many keys; return which of them were there; parameters and errors as `set_many`."""
        column = self._keys_of(keys, table)
        if isinstance(column, ByteStrings):
            return self._run_strings(Op.DELETE, column, None, table, timeout, atomic=atomic).found()
        numbers = self._column("keys", column)
        found = [
            found_of(self._commit_numbers(deletes_of(numbers[part]), table, timeout))
            for part in self._parts(numbers, table, timeout, atomic=atomic)
        ]
        return joined_found(found)

    def incr_many(
        self,
        keys: Numbers,
        deltas: Numbers = 1,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Add to many numbers of a u64 table; further parameters and errors as `set_many`.

        Parameters
        ----------
        keys : (n,) uint64
            A missing one counts as 0. Equal ones add one after the other.
        deltas : (n,) int64, or int
            What to add to each; one number is for all.

        Returns
        -------
        sums : (n,) int64
            What each key holds then; as uint64 a negative one is 2**64 more. 0 where nothing was added.
        done : (n,) bool
            False where the sum is no signed number of 64 bits: nothing was added there.
        """
        keys = self._column("keys", keys)
        deltas = deltas_of(deltas, len(keys))
        results = []
        for part in self._parts(keys, table, timeout, atomic=atomic):
            batch = increments_of(keys[part], deltas[part])
            results.append(self._values_found(self._commit_numbers(batch, table, timeout)))
        sums, done = joined(results, keys)
        return sums.view(np.int64), done

    def rows(self, layout: str, *, table: str | None = None) -> Rows:
        """Return the rows of a table as arrays: its keys are numbers, its values arrays of one type and shape.

        Parameters
        ----------
        layout
            That of the table: the type of the elements and the shape of a row, such as ``float32[128]``. The types are
            float16, float32, float64, bfloat16, and int and uint of 8 to 64 bits. A table of another layout is
            refused: by a store here, by a server with the first request.

        Raises
        ------
        InvalidArgumentError
            If it is no layout of rows, or that of the table is another one.

        Examples
        --------
        >>> _ = store.create_table("items", layout="float32[3]")
        >>> items = store.rows("float32[3]", table="items")
        >>> items.set([7, 8], np.ones((2, 3), np.float32))
        >>> items.get([8, 9])
        (array([[1., 1., 1.],
               [0., 0., 0.]], dtype=float32), array([ True, False]))
        """
        self._require_open()
        of_rows = require_row_layout(layout)
        self._require_rows(layout, table)
        return Rows(self, of_rows, table)

    def _read_rows(
        self, layout: RowLayout, keys: Any, out: Any, default: Any, table: str | None
    ) -> tuple[Any, NDArray[np.bool_]]:
        """Read rows as `Rows.get` does, with arrays of a GPU; only who has `_gpu_rows` is asked."""
        raise NotImplementedError

    def _keep_rows(
        self, layout: RowLayout, keys: U64, rows: U8, stored: NDArray[np.bool_], versions: U64, table: str | None
    ) -> None:
        """Have a GPU keep rows that were stored; only who has `_gpu_rows` is asked."""
        raise NotImplementedError

    @overload
    def get_into(
        self,
        keys: Bytes,
        buffers: Buffer,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int | None: ...

    @overload
    def get_into(
        self,
        keys: Iterable[Bytes],
        buffers: Iterable[Buffer],
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> list[int | None]: ...

    def get_into(
        self,
        keys: Bytes | Iterable[Bytes],
        buffers: Buffer,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Any:
        """Read values into memory of the caller's; return how many bytes each has, None for a key that is not there.

        A store in this process copies a value once, out of its heap. A client copies it out of the response.

        Parameters
        ----------
        keys
            Several, or one: then there is one buffer and one result.
        buffers
            Writable memory for each value, which may be longer than the value: arrays of NumPy, `bytearray`,
            `memoryview`, `mmap`, arrays that speak DLPack (PyTorch). It is the host's, contiguous, and no two overlap.
            Nobody else uses it meanwhile.
        atomic
            False: what is too much for one request goes in several, one after the other, which are not as of one
            moment. An error then leaves the buffers of those before it filled.

        Returns
        -------
        int or None, or a list of them
            What is behind the value in its buffer has not changed.

        Raises
        ------
        InvalidArgumentError
            If a buffer cannot be used, or is shorter than its value, or all is too much for one request; no buffer has
            changed.
        CorruptRecordError
            If a record is damaged; no buffer has changed.

        Examples
        --------
        >>> block = np.empty(3, np.float32)
        >>> store.set_from(b"block", np.arange(3, dtype=np.float32))
        1
        >>> store.get_into(b"block", block), block
        (12, array([0., 1., 2.], dtype=float32))
        """
        self._require_open()
        self._require_timeout(timeout)
        memory = KeyBuffers(keys, buffers, writable=True)
        sizes: list[int | None] = []
        for request, into in memory.gets(self._request_bounds(table), atomic=atomic):
            sizes += self._read_into(request, into, table, timeout)
        return memory.told(sizes)

    @overload
    def set_from(
        self,
        keys: Bytes,
        buffers: Buffer,
        *,
        ttl: Ttl = None,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int: ...

    @overload
    def set_from(
        self,
        keys: Iterable[Bytes],
        buffers: Iterable[Buffer],
        *,
        ttl: Ttl = None,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> list[int]: ...

    def set_from(
        self,
        keys: Bytes | Iterable[Bytes],
        buffers: Buffer,
        *,
        ttl: Ttl = None,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Any:
        """Store values out of memory of the caller's, durably when this returns; return their versions.

        A store in this process stores a lone value of 64 KiB or more without a copy, and copies others once.

        Parameters
        ----------
        keys
            Several, or one: then there is one buffer and one version. The last of equal keys wins.
        buffers
            The memory of each value, all of it: what `get_into` takes, and read-only memory too. Nobody changes it
            meanwhile.
        ttl
            Seconds until the keys expire, or a `timedelta`; None: they stay.
        atomic
            False: what is too much for one request goes in several, one after the other. An error then leaves those
            before it stored.

        Raises
        ------
        InvalidArgumentError
            If a buffer cannot be used, or something is out of the limits; nothing was stored.
        NoSpaceError
            If they do not fit; nothing was stored.
        """
        self._require_open()
        self._require_timeout(timeout)
        memory = KeyBuffers(keys, buffers, writable=False)
        versions: list[Any] = []
        for request in memory.sets(self._request_bounds(table), ttl, atomic=atomic):
            versions += self._commit(request, table, timeout)
        return memory.told(versions)


def _missing(key: Key) -> KeyError:
    return KeyError(int(key) if is_whole(key) else key_as_bytes(key))


class SyncBatch(OperationList):
    """Operations that are executed as one atomic, durable request; made by `KeyValues.batch`."""

    def __init__(self, db: KeyValues, table: str | None, timeout: Timeout) -> None:
        super().__init__((), db._known_limits)
        self._db, self._table, self._timeout = db, table, timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and len(self):
            self._db._commit(self, self._table, self._timeout)


class TransactionBlock:
    """A ``with`` block that is one transaction; made by `KeyValues.transaction`."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def __enter__(self) -> Transaction:
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._transaction.commit()
        else:
            self._transaction.close()


class TableHandle(KeyValues):
    """One table of a store or a client, with all methods for keys; made by ``table(name)``.

    It shares the connection, and needs no closing.

    Attributes
    ----------
    name
        Of the table.
    """

    def __init__(self, db: KeyValues, name: str) -> None:
        self._db = db
        self.name = name
        self._known_limits = db._known_limits
        self._puts_values, self._gpu_rows = db._puts_values, db._gpu_rows

    def __repr__(self) -> str:
        return f"<table {quoted(self.name)} of {self._db!r}>"

    def _require_open(self) -> None:
        self._db._require_open()

    def _require_timeout(self, timeout: Timeout) -> None:
        self._db._require_timeout(timeout)

    def _commit(self, operations: OperationList, table: str | None, timeout: Timeout) -> list[Result]:
        return self._db._commit(operations, self.name if table is None else table, timeout)

    def _commit_numbers(self, batch: Batch, table: str | None, timeout: Timeout) -> RequestResult:
        return self._db._commit_numbers(batch, self.name if table is None else table, timeout)

    def _commit_columns(
        self, batch: Batch, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        return self._db._commit_columns(batch, ttl, self.name if table is None else table, timeout, layout)

    def _require_rows(self, layout: str, table: str | None) -> None:
        self._db._require_rows(layout, self.name if table is None else table)

    def _read_rows(
        self, layout: RowLayout, keys: Any, out: Any, default: Any, table: str | None
    ) -> tuple[Any, NDArray[np.bool_]]:
        return self._db._read_rows(layout, keys, out, default, self.name if table is None else table)

    def _keep_rows(
        self, layout: RowLayout, keys: U64, rows: U8, stored: NDArray[np.bool_], versions: U64, table: str | None
    ) -> None:
        self._db._keep_rows(layout, keys, rows, stored, versions, self.name if table is None else table)

    def _keys_of(self, keys: Any, table: str | None) -> Any:
        return self._db._keys_of(keys, self.name if table is None else table)

    def _damaged(self, table: str | None, error: CorruptRecordError) -> CorruptRecordError:
        return self._db._damaged(self.name if table is None else table, error)

    def _numbers_max(self, table: str | None) -> int:
        return self._db._numbers_max(self.name if table is None else table)

    def _read_into(
        self, operations: OperationList, buffers: list[U8], table: str | None, timeout: Timeout
    ) -> list[int | None]:
        return self._db._read_into(operations, buffers, self.name if table is None else table, timeout)

    def _request_bounds(self, table: str | None) -> RequestBounds:
        return self._db._request_bounds(self.name if table is None else table)

    def scan_pieces(
        self,
        prefix: bytes = b"",
        *,
        cursor: bytes = b"",
        keys_only: bool = False,
        limit: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Iterator[ScanPiece]:
        """Return what `scan` does as columns, in pieces: many times as fast."""
        name = self.name if table is None else table
        return self._db.scan_pieces(
            prefix, cursor=cursor, keys_only=keys_only, limit=limit, table=name, timeout=timeout
        )

    def count(self, prefix: Bytes = b"", *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many keys the table has, or how many begin with a prefix; as `KeyValues.count`."""
        return self._db.count(prefix, table=self.name if table is None else table, timeout=timeout)

    def _follow(self, since: Position | None, prefix: bytes, table: str | None) -> Follows:
        return self._db._follow(since, prefix, self.name if table is None else table)

    def _column(self, name: str, numbers: Numbers) -> NDArray[Any]:
        return self._db._column(name, numbers)

    def _values_found(self, result: RequestResult) -> tuple[U64, NDArray[np.bool_]]:
        return self._db._values_found(result)

    def _get_numbers(self, keys: U64, table: str | None, timeout: Timeout) -> tuple[U64, NDArray[np.bool_]]:
        return self._db._get_numbers(keys, self.name if table is None else table, timeout)
