"""What the asynchronous client and the handles of its tables can do with keys: `gpkvs.face` for asyncio."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U64, Batch, Op, RequestResult
from gpkvs.changes import Position
from gpkvs.client.async_rows import AsyncRows
from gpkvs.client.following import AsyncFollowing
from gpkvs.columns.buffers import Buffer, KeyBuffers, RequestBounds
from gpkvs.columns.byte_strings import ByteStrings, byte_strings_of
from gpkvs.columns.numbers import (
    deletes_of,
    deltas_of,
    found_of,
    gets_of,
    increments_of,
    joined,
    joined_found,
    pairs_of,
    require_no_ttl,
    sets_of,
)
from gpkvs.columns.row_layout import require_row_layout
from gpkvs.columns.string_requests import StringRequests
from gpkvs.config import DEFAULT_TABLE, Limits
from gpkvs.errors import ConflictError, CorruptRecordError, GpkvsError, InvalidArgumentError
from gpkvs.face import Face, Numbers, Strings, WholeNumbers
from gpkvs.operations import (
    Bytes,
    Key,
    Operation,
    OperationList,
    Options,
    Result,
    ResultLists,
    Ttl,
    Whole,
    as_bytes,
    as_given,
    is_whole,
    key_as_bytes,
    seconds_left,
    ttl_ms,
)
from gpkvs.process.own_timeout import OWN_TIMEOUT, Timeout
from gpkvs.request_checks import check_key_bytes, check_value_bytes
from gpkvs.scan import Item, ScanItems, ScanPiece
from gpkvs.text import quoted
from gpkvs.transaction import (
    ATTEMPTS,
    TransactionState,
    check_attempts,
    delay_s,
    suppress_but_conflicts,
)
from gpkvs.watch import POSITION_SECONDS, READ_BYTES, Change, WatchItems

Default = TypeVar("Default")
Returned = TypeVar("Returned")


class AsyncKeyValues(Face):
    """Keys and their values; the base of `AsyncClient` and the handles of its tables.

    All is as in `gpkvs.face.KeyValues`, whose methods say what each one does, with ``await``: there are no ``db[key]``
    and no ``key in db``. Calls of single operations that run at the same time are gathered into messages, and so
    are small requests that only read, or that commit transactions.
    """

    _known_limits: Limits

    @abstractmethod
    def _submit(
        self,
        op: Op,
        key: bytes,
        value: bytes,
        options: Options | None,
        table: str | None,
        timeout: Timeout,
        *,
        is_of_numbers: bool = False,
    ) -> Awaitable[Any]:
        """Execute one checked operation, together with those of other calls.

        With `is_of_numbers` the key was given as an int: a table of another layout than u64 is refused.
        """

    @abstractmethod
    def _execute(
        self, operations: OperationList, table: str | None, timeout: Timeout
    ) -> Coroutine[Any, Any, ResultLists]:
        """Execute a request that is not empty."""

    async def _commit(self, operations: OperationList, table: str | None, timeout: Timeout) -> list[Result]:
        """Execute a request that is not empty, and return what became of its operations."""
        return operations.take(await self._execute(operations, table, timeout))

    @abstractmethod
    async def _commit_numbers(self, batch: Batch, table: str | None, timeout: Timeout) -> RequestResult:
        """Execute a request of numbers, whose columns are right."""

    @abstractmethod
    async def _commit_columns(
        self, batch: Batch, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        """Execute a request of byte strings.

        `ttl`: after how many milliseconds keys of SETs expire, 0: never. `layout`: that of the table; empty: any.
        """

    @abstractmethod
    async def _read_into(
        self, operations: OperationList, buffers: list[U8], table: str | None, timeout: Timeout
    ) -> list[int | None]:
        """Execute a request of GETs whose values go into buffers (`gpkvs.columns.buffers.placed_of`)."""

    @abstractmethod
    def _require_here(self) -> None:
        """Refuse to go on in the child of a fork."""

    def _on_key(self, op: Op, key: Key, table: str | None, timeout: Timeout) -> Awaitable[Any]:
        """Execute an operation that has a key and nothing else."""
        if type(key) is not bytes:
            is_of_numbers, key = is_whole(key), key_as_bytes(key)
            check_key_bytes(len(key), self._known_limits)
            return self._submit(op, key, b"", None, table, timeout, is_of_numbers=is_of_numbers)
        check_key_bytes(len(key), self._known_limits)
        return self._submit(op, key, b"", None, table, timeout)

    async def _one(self, operations: OperationList, table: str | None, timeout: Timeout) -> Any:
        """Execute one operation, together with those of other calls."""
        op, value, options = operations.only
        numbers = operations.is_of_numbers
        return await self._submit(Op(op), operations.keys[0], value, options, table, timeout, is_of_numbers=numbers)

    @overload
    async def get(self, key: Bytes, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> bytes | None: ...

    @overload
    async def get(
        self, key: Bytes, default: Default, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> bytes | Default: ...

    @overload
    async def get(self, key: Whole, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int | None: ...

    @overload
    async def get(
        self, key: Whole, default: Default, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> int | Default: ...

    async def get(
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
        CorruptRecordError
            If the record fails its checksum.
        NotExecutedError
            If no response came: its subclasses say why.
        """
        value: bytes | None = await self._on_key(Op.GET, key, table, timeout)
        if value is None:
            return default
        return value if type(key) is bytes else as_given(key, value)

    @overload
    async def get_with_version(
        self, key: Bytes, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[bytes, int] | None: ...

    @overload
    async def get_with_version(
        self, key: Whole, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[int, int] | None: ...

    async def get_with_version(
        self, key: Key, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> tuple[bytes | int, int] | None:
        """Return the value of a key and its version, or None if it is not there; as `KeyValues.get_with_version`."""
        pair = (await self._pairs([key], table, timeout))[0]
        return None if pair is None else (as_given(key, pair[0]), pair[1])

    async def _pairs(self, keys: Iterable[Key], table: str | None, timeout: Timeout) -> list[tuple[bytes, int] | None]:
        """Return value and version of each key."""
        operations = self._operations()
        for key in keys:
            operations.get(key)
        results = await self._execute(operations, table, timeout)
        results.require_sound()
        return results.pairs()

    @overload
    async def get_all(
        self, keys: Iterable[Bytes], *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> dict[bytes, bytes]: ...

    @overload
    async def get_all(
        self, keys: Iterable[Whole], *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> dict[int, int]: ...

    async def get_all(
        self, keys: Iterable[Key], *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> dict[Any, Any]:
        """Return the values of those keys that are there, all as of one moment; errors as `get`."""
        operations = self._operations()
        for key in keys:
            operations.get(key)
        if not len(operations):
            self._require_timeout(timeout)
            return {}
        values = await self._commit(operations, table, timeout)
        pairs = zip(operations.given_keys, values, strict=True)
        return {key: value for key, value in pairs if value is not None}

    async def exists(self, key: Key, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> bool:
        """Return whether a key is there, without its value; errors as `get`."""
        return cast(bool, await self._on_key(Op.EXISTS, key, table, timeout))

    @overload
    async def set(
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
    async def set(
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

    async def set(
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
            If the store is full.
        OutcomeUnknownError
            If it was sent and the response was lost: it may have been executed, or not.
        NotExecutedError
            If it was not executed: its subclasses say why.
        """
        is_plain = ttl is None and not if_absent and not if_present and if_version is None
        if is_plain and type(key) is bytes:
            value = as_bytes("value", value)
            check_key_bytes(len(key), self._known_limits)
            check_value_bytes(len(value), self._known_limits)
            return cast(int, await self._submit(Op.SET, key, value, None, table, timeout))
        operations = self._operations()
        operations.set(key, value, ttl=ttl, if_absent=if_absent, if_present=if_present, if_version=if_version)
        return cast(int, await self._one(operations, table, timeout))

    async def delete(
        self,
        key: Key,
        *,
        if_version: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> bool:
        """Remove a key, durably, and return whether it was there; with `if_version` only if it has this version.

        Raises
        ------
        ConditionFailedError
            If the key does not have the version.
        InvalidArgumentError, OutcomeUnknownError, NotExecutedError
            As for `set`.
        """
        if if_version is None:
            return cast(bool, await self._on_key(Op.DELETE, key, table, timeout))
        operations = self._operations()
        operations.delete(key, if_version=if_version)
        return cast(bool, await self._one(operations, table, timeout))

    async def incr(
        self,
        key: Key,
        delta: int = 1,
        *,
        ttl: Ttl = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int:
        """Add to the number that a key holds, and return the sum; as `KeyValues.incr`.

        Raises
        ------
        NotANumberError, NumberOverflowError
            If the value is no number, or the sum takes more than 64 bits; the key is as it was.
        InvalidArgumentError, NoSpaceError, OutcomeUnknownError, NotExecutedError
            As for `set`.
        """
        operations = self._operations()
        operations.incr(key, delta, ttl=ttl)
        total: int = await self._one(operations, table, timeout)
        return total

    async def append(
        self,
        key: Bytes,
        value: Bytes,
        *,
        ttl: Ttl = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int:
        """Add bytes to the end of a key's value; return its new version; as `KeyValues.append`, errors as `set`."""
        operations = self._operations()
        operations.append(key, value, ttl=ttl)
        version: int = await self._one(operations, table, timeout)
        return version

    async def expire(self, key: Key, ttl: Ttl, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> bool:
        """Have a key expire after `ttl` seconds, or never (None); return whether it is there; errors as `set`."""
        operations = self._operations()
        operations.expire(key, ttl)
        is_there: bool = await self._one(operations, table, timeout)
        return is_there

    async def ttl(self, key: Key, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> float | None:
        """Return the seconds until a key expires; `math.inf`: it does not, None: it is not there; errors as `get`."""
        return seconds_left(await self._on_key(Op.EXPIRY, key, table, timeout))

    def batch(
        self, operations: Iterable[Operation] = (), *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT
    ) -> AsyncBatch:
        """Return operations that are executed as one atomic, durable request.

        There are two ways to use it. ``await client.batch(operations)`` returns the results. A block
        ``async with client.batch() as batch:`` fills it; the end of the block sends it, unless the block raises, and
        leaves the results in ``batch.results``.

        Parameters
        ----------
        operations
            ``(Op.GET, key)``, ``(Op.SET, key, value)``: as `KeyValues.batch`, which has results and errors too.
        """
        self._require_here()
        return AsyncBatch(self, operations, table, timeout)

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
    ) -> AsyncScan[tuple[bytes, bytes]]: ...

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
    ) -> AsyncScan[bytes]: ...

    def scan(
        self,
        prefix: Bytes = b"",
        *,
        keys_only: bool = False,
        limit: int | None = None,
        cursor: bytes | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> AsyncScan[Any]:
        """Return an asynchronous iterator over the keys of a table with their values; as `KeyValues.scan`."""
        begin = cursor or b""
        pieces = self.scan_pieces(
            as_bytes("prefix", prefix), cursor=begin, keys_only=keys_only, limit=limit, table=table, timeout=timeout
        )
        return AsyncScan(pieces, begin, keys_only=keys_only)

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
    ) -> AsyncIterator[ScanPiece]:
        """Return what `scan` does as columns, in pieces: many times as fast."""

    @abstractmethod
    async def count(self, prefix: Bytes = b"", *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many keys a table has, or how many begin with a prefix; as `KeyValues.count`."""

    def watch(
        self, prefix: Bytes = b"", *, since: Position | str | None = None, table: str | None = None
    ) -> AsyncWatch:
        """Return an iterator over what changes in a table; as `KeyValues.watch`.

        It begins with its first step, or with its ``async with`` block.
        """
        self._require_open()
        where = Position.parse(since) if isinstance(since, str) else since
        return AsyncWatch(partial(self._follow, where, as_bytes("prefix", prefix), table))

    @abstractmethod
    async def _follow(self, since: Position | None, prefix: bytes, table: str | None) -> AsyncFollowing:
        """Follow what changes in a table."""

    def transaction(self, *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> AsyncTransactionBlock:
        """Return an optimistic transaction for one ``async with`` block; as `KeyValues.transaction`."""
        self._require_open()
        self._require_timeout(timeout)
        return AsyncTransactionBlock(AsyncTransaction(self, table, timeout))

    async def transact(
        self,
        work: Callable[[AsyncTransaction], Awaitable[Returned]],
        *,
        attempts: int = ATTEMPTS,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Returned:
        """Run an async function as an optimistic transaction, again if somebody else was faster.

        As `KeyValues.transact`, and it returns what the function returns.

        Examples
        --------
        >>> async def move(t):
        ...     balance = int(await t.get(b"a"))
        ...     t.set(b"a", b"%d" % (balance - 10))
        >>> await client.transact(move)  # doctest: +SKIP
        """
        check_attempts(attempts)
        for attempt in range(1, attempts + 1):
            began = time.perf_counter()
            try:
                return await AsyncTransaction(self, table, timeout).run(work)
            except ConflictError:
                if attempt == attempts:
                    raise
            await asyncio.sleep(delay_s(attempt, time.perf_counter() - began))
        raise AssertionError

    async def set_many(
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
            Byte strings: lists of bytes, arrays of NumPy of the type ``S`` or of uint8 with two dimensions, arrays that
            speak Arrow, `ByteStrings`. Or, for a table of the layout u64, whole numbers that are not negative: (n,)
            uint64, lists, signed arrays. Empty ones are no request: nothing is sent, and the results are empty.
        ttl
            Seconds until the keys expire, or a `timedelta`; None: they stay. A table of numbers has no room for an
            expiry: there any is refused, here and in `set`.
        table
            By default the client's one.
        atomic
            False: more than fits one request goes in several, one after the other. An error then leaves those before
            it stored.

        Raises
        ------
        InvalidArgumentError
            If they are neither, or too much for one request, or the table's layout is another one, or has no room for
            the ttl.
        NoSpaceError, OutcomeUnknownError, NotExecutedError
            As for `set`.
        """
        column = self._keys_of(keys, table)
        if isinstance(column, ByteStrings):
            theirs = byte_strings_of("values", values)
            await self._run_strings(Op.SET, column, theirs, table, timeout, atomic=atomic, ttl=ttl_ms(ttl))
            return
        numbers, held = self._column("keys", column), self._column("values", values)
        require_no_ttl(ttl, numbers)
        pairs_of(numbers, held)  # they must be as many, also where they are cut
        for part in self._parts(numbers, table, timeout, atomic=atomic):
            await self._commit_numbers(sets_of(numbers[part], held[part]), table, timeout)

    async def _run_strings(
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
        await self._run_requests(requests, ttl, table, timeout)
        return requests

    async def _run_requests(
        self, requests: StringRequests, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> None:
        """Execute requests, one after the other."""
        self._require_timeout(timeout)
        while batch := requests.next():
            try:
                requests.took(await self._commit_columns(batch, ttl, table, timeout, layout))
            except InvalidArgumentError as error:
                requests.refused(error)
            except CorruptRecordError as error:
                raise self._damaged(table, error) from None

    def rows(self, layout: str, *, table: str | None = None) -> AsyncRows:
        """Return the rows of a table as arrays; as `KeyValues.rows`, and a server refuses a table of another layout."""
        self._require_open()
        of_rows = require_row_layout(layout)
        self._require_rows(layout, table)
        return AsyncRows(self, of_rows, table)

    @overload
    async def get_many(  # type: ignore[overload-overlap] # no array of numbers speaks Arrow
        self,
        keys: WholeNumbers,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[U64, NDArray[np.bool_]]: ...

    @overload
    async def get_many(
        self,
        keys: Strings,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[ByteStrings, NDArray[np.bool_]]: ...

    @overload
    async def get_many(
        self,
        keys: Numbers,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[Any, NDArray[np.bool_]]: ...

    async def get_many(
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
            None where there is none; of numbers 0. Not to be written to.
        found : (n,) bool
            Which keys are there.
        """
        column = self._keys_of(keys, table)
        if isinstance(column, ByteStrings):
            read = await self._run_strings(Op.GET, column, None, table, timeout, atomic=atomic)
            return read.values(), read.found()
        keys = self._column("keys", column)
        results = []
        for part in self._parts(keys, table, timeout, atomic=atomic):
            results.append(await self._get_numbers(keys[part], table, timeout))
        return joined(results, keys)

    async def _get_numbers(self, keys: U64, table: str | None, timeout: Timeout) -> tuple[U64, NDArray[np.bool_]]:
        """Read numbers by one request."""
        return self._values_found(await self._commit_numbers(gets_of(keys), table, timeout))

    async def delete_many(
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
            return (await self._run_strings(Op.DELETE, column, None, table, timeout, atomic=atomic)).found()
        numbers = self._column("keys", column)
        found = [
            found_of(await self._commit_numbers(deletes_of(numbers[part]), table, timeout))
            for part in self._parts(numbers, table, timeout, atomic=atomic)
        ]
        return joined_found(found)

    async def incr_many(
        self,
        keys: Numbers,
        deltas: Numbers = 1,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Add to many numbers of a u64 table; return the sums, and where it was done; as `KeyValues.incr_many`."""
        keys = self._column("keys", keys)
        deltas = deltas_of(deltas, len(keys))
        results = []
        for part in self._parts(keys, table, timeout, atomic=atomic):
            batch = increments_of(keys[part], deltas[part])
            results.append(self._values_found(await self._commit_numbers(batch, table, timeout)))
        sums, done = joined(results, keys)
        return sums.view(np.int64), done

    @overload
    async def get_into(
        self,
        keys: Bytes,
        buffers: Buffer,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> int | None: ...

    @overload
    async def get_into(
        self,
        keys: Iterable[Bytes],
        buffers: Iterable[Buffer],
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> list[int | None]: ...

    async def get_into(
        self,
        keys: Bytes | Iterable[Bytes],
        buffers: Buffer,
        *,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Any:
        """Read values into memory of the caller's; return how many bytes each has, None for a key that is not there.

        As `KeyValues.get_into`. Nobody else uses the buffers until it returns or is cancelled; then they may have
        changed or not.
        """
        self._require_open()
        self._require_timeout(timeout)
        memory = KeyBuffers(keys, buffers, writable=True)
        sizes: list[int | None] = []
        for request, into in memory.gets(self._request_bounds(table), atomic=atomic):
            sizes += await self._read_into(request, into, table, timeout)
        return memory.told(sizes)

    @overload
    async def set_from(
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
    async def set_from(
        self,
        keys: Iterable[Bytes],
        buffers: Iterable[Buffer],
        *,
        ttl: Ttl = None,
        table: str | None = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> list[int]: ...

    async def set_from(
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

        As `KeyValues.set_from`; errors as `set`.
        """
        self._require_open()
        self._require_timeout(timeout)
        memory = KeyBuffers(keys, buffers, writable=False)
        versions: list[Any] = []
        for request in memory.sets(self._request_bounds(table), ttl, atomic=atomic):
            versions += await self._commit(request, table, timeout)
        return memory.told(versions)


class AsyncTable(AsyncKeyValues):
    """One table of an `AsyncClient`, with all methods for keys; made by `AsyncClient.table`.

    It shares the connection, and needs no closing.

    Attributes
    ----------
    name
        Of the table.
    """

    def __init__(self, db: AsyncKeyValues, name: str) -> None:
        self._db = db
        self.name = name
        self._known_limits = db._known_limits

    def __repr__(self) -> str:
        return f"<table {quoted(self.name or DEFAULT_TABLE)} of {self._db!r}>"

    def _require_open(self) -> None:
        self._db._require_open()

    def _require_here(self) -> None:
        self._db._require_here()

    def _submit(
        self,
        op: Op,
        key: bytes,
        value: bytes,
        options: Options | None,
        table: str | None,
        timeout: Timeout,
        *,
        is_of_numbers: bool = False,
    ) -> Awaitable[Any]:
        name = self.name if table is None else table
        return self._db._submit(op, key, value, options, name, timeout, is_of_numbers=is_of_numbers)

    def _execute(
        self, operations: OperationList, table: str | None, timeout: Timeout
    ) -> Coroutine[Any, Any, ResultLists]:
        return self._db._execute(operations, self.name if table is None else table, timeout)

    async def _commit_numbers(self, batch: Batch, table: str | None, timeout: Timeout) -> RequestResult:
        return await self._db._commit_numbers(batch, self.name if table is None else table, timeout)

    def scan_pieces(
        self,
        prefix: bytes = b"",
        *,
        cursor: bytes = b"",
        keys_only: bool = False,
        limit: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> AsyncIterator[ScanPiece]:
        """Return what `scan` does as columns, in pieces: many times as fast."""
        name = self.name if table is None else table
        return self._db.scan_pieces(
            prefix, cursor=cursor, keys_only=keys_only, limit=limit, table=name, timeout=timeout
        )

    async def count(self, prefix: Bytes = b"", *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many keys the table has, or how many begin with a prefix; as `KeyValues.count`."""
        return await self._db.count(prefix, table=self.name if table is None else table, timeout=timeout)

    async def _follow(self, since: Position | None, prefix: bytes, table: str | None) -> AsyncFollowing:
        return await self._db._follow(since, prefix, self.name if table is None else table)

    async def _read_into(
        self, operations: OperationList, buffers: list[U8], table: str | None, timeout: Timeout
    ) -> list[int | None]:
        return await self._db._read_into(operations, buffers, self.name if table is None else table, timeout)

    def _request_bounds(self, table: str | None) -> RequestBounds:
        return self._db._request_bounds(self.name if table is None else table)

    async def _commit_columns(
        self, batch: Batch, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        return await self._db._commit_columns(batch, ttl, self.name if table is None else table, timeout, layout)

    def _numbers_max(self, table: str | None) -> int:
        return self._db._numbers_max(self.name if table is None else table)


class AsyncScan(ScanItems[Item], AsyncIterator[Item]):
    """The items of a scan: pairs of key and value, or keys; made by ``scan``. As `gpkvs.scan.Scan`."""

    def __init__(self, pieces: AsyncIterator[ScanPiece], cursor: bytes, *, keys_only: bool) -> None:
        super().__init__(cursor, keys_only=keys_only)
        self._pieces = pieces

    async def __anext__(self) -> Item:
        while True:
            for item in self._items:
                return item
            async for piece in self._pieces:
                self._begin(piece)
                break
            else:
                self._end()
                raise StopAsyncIteration


class AsyncWatch(WatchItems, AsyncIterator[Change]):
    """What changes, as it changes; made by ``watch``. As `gpkvs.watch.Watch`.

    Parameters
    ----------
    begin
        Begins to follow.
    """

    def __init__(self, begin: Callable[[], Awaitable[AsyncFollowing]]) -> None:
        super().__init__(Position(0, 0))
        self._begin = begin
        self._following: AsyncFollowing | None = None

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __anext__(self) -> Change:
        following = await self._begun()
        while True:
            change = self._next()
            if change is not None:
                return change
            try:
                self._take(await following.read(READ_BYTES, POSITION_SECONDS), following.position)
            except GpkvsError:
                self.position = following.position  # also behind what is not wanted
                raise

    async def close(self) -> None:
        """Watch no more."""
        if self._following is not None:
            await self._following.close()

    async def _begun(self) -> AsyncFollowing:
        if self._following is None:
            self._following = await self._begin()
            super().__init__(self._following.position)
        return self._following


class AsyncBatch(OperationList):
    """Operations that are executed as one atomic, durable request; made by `AsyncClient.batch`."""

    def __init__(
        self, db: AsyncKeyValues, operations: Iterable[Operation], table: str | None, timeout: Timeout
    ) -> None:
        super().__init__(operations, db._known_limits)
        self._db, self._table, self._timeout = db, table, timeout

    def __await__(self) -> Generator[Any, None, list[Result]]:
        return self._send().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._send()

    async def _send(self) -> list[Result]:
        self._db._require_open()
        return await self._db._commit(self, self._table, self._timeout) if len(self) else []


class AsyncTransaction(TransactionState):
    """One attempt of a transaction; made by ``transact`` and ``transaction`` of an `AsyncClient`.

    As `gpkvs.transaction.Transaction`; its reads are awaited, its writes are not.
    """

    def __init__(self, db: AsyncKeyValues, table: str | None, timeout: Timeout) -> None:
        super().__init__()
        self._db, self._table, self._timeout = db, table, timeout

    @overload
    async def get(self, key: Bytes) -> bytes | None: ...

    @overload
    async def get(self, key: Bytes, default: Default) -> bytes | Default: ...

    @overload
    async def get(self, key: Whole) -> int | None: ...

    @overload
    async def get(self, key: Whole, default: Default) -> int | Default: ...

    async def get(self, key: Key, default: Default | None = None) -> bytes | int | Default | None:
        """Return the value of a key, or `default` if it is not there."""
        return next(iter((await self._read_all([key])).values()), default)

    @overload
    async def get_all(self, keys: Iterable[Bytes]) -> dict[bytes, bytes]: ...

    @overload
    async def get_all(self, keys: Iterable[Whole]) -> dict[int, int]: ...

    async def get_all(self, keys: Iterable[Key]) -> dict[Any, Any]:
        """Return the values of those keys that are there; those that are new to the transaction in one request."""
        return await self._read_all(keys)

    async def _read_all(self, keys: Iterable[Key]) -> dict[Any, Any]:
        wanted = self._wanted(keys)
        if missing := self._missing(wanted):
            given = [wanted[key] for key in missing]
            self._remember(missing, await self._db._pairs(given, self._table, self._timeout))
        return self._values(wanted)

    async def commit(self) -> None:
        """Write, if nothing that was read has changed; raises ConflictError if it has."""
        await self._send(self._fill(self._db._operations()))

    async def require_unchanged(self) -> None:
        """Write nothing; raise ConflictError if something that was read has changed."""
        await self._send(self._fill_checks(self._db._operations()))

    async def _send(self, operations: OperationList) -> None:
        if not len(operations):
            return
        try:
            results = await self._db._execute(operations, self._table, self._timeout)
        except ConflictError as error:
            raise self._conflict(error) from None
        results.require_sound()

    async def run(self, work: Callable[[AsyncTransaction], Awaitable[Returned]]) -> Returned:
        """Run a function, and commit; if it raises, what it has read must still be there, else it is a conflict."""
        try:
            returned = await work(self)
        except GpkvsError:
            raise
        except Exception:
            with suppress_but_conflicts():
                await self.require_unchanged()
            raise
        await self.commit()
        return returned


class AsyncTransactionBlock:
    """An ``async with`` block that is one transaction; made by `AsyncClient.transaction`."""

    def __init__(self, transaction: AsyncTransaction) -> None:
        self._transaction = transaction

    async def __aenter__(self) -> AsyncTransaction:
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._transaction.commit()
        else:
            self._transaction.close()
