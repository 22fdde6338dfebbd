"""The asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast
from weakref import WeakSet

import grpc
from grpc_health.v1 import health_pb2_grpc

from gpkvs.batch import U8, U64, Batch, Op, RequestResult
from gpkvs.changes import Position
from gpkvs.client.async_face import AsyncKeyValues, AsyncTable
from gpkvs.client.codec import decode
from gpkvs.client.errors import ClientClosedError, ServerError
from gpkvs.client.following import AsyncFollowing
from gpkvs.client.gather import GatherConfig, Gatherer
from gpkvs.client.operations import (
    NUMBERS,
    check_table,
    message_of,
    message_of_columns,
    numbers_max,
    request_bounds,
    ttls_of,
)
from gpkvs.client.pipeline import AsyncPipeline
from gpkvs.client.ready import QUESTION, ReadyWait
from gpkvs.client.request_id import Metadata, current_request_id, named_metadata
from gpkvs.client.retry import Failure, RetryPolicy, classify_error, closed_in_flight, seconds_left
from gpkvs.client.scan import ScanProgress, pieces_async
from gpkvs.client.several import RequestGatherer
from gpkvs.client.tables import create_request, found_table, table_info
from gpkvs.client.watch import WatchProgress, watch_request
from gpkvs.columns.buffers import RequestBounds, placed_of
from gpkvs.config import DEFAULT_TABLE, Limits, ServerConfig
from gpkvs.credentials import Access, TlsCredentials
from gpkvs.errors import ForkedError, InvalidArgumentError, TableExistsError, UnknownTableError
from gpkvs.info import TableInfo
from gpkvs.operations import Bytes, OperationList, Options, ResultLists, as_bytes
from gpkvs.process.fork import Origin
from gpkvs.process.own_timeout import OWN_TIMEOUT, OwnTimeout, Timeout
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from gpkvs.scan import ScanPiece

DEFAULT_TARGET = ServerConfig.listen
Returned = TypeVar("Returned", RequestResult, ResultLists)

CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),  # checked before, with a clearer error
    ("grpc.max_receive_message_length", -1),  # the server bounds its responses
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted server is found again soon
    ("grpc.max_reconnect_backoff_ms", 1000),
    # While a call runs, gRPC asks a silent connection whether it is still there: a response may never come.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # also of gRPC's own pings, for which keepalive waits
    ("grpc.http2.max_pings_without_data", 0),  # as many as it takes
)


_CLIENTS: Final[WeakSet[AsyncClient]] = WeakSet()
"""All clients: after a fork the child has those of its parent."""


def _aio_metadata(metadata: Metadata | None) -> grpc.aio.Metadata | None:
    return grpc.aio.Metadata(*metadata) if metadata else None


class AsyncClient(AsyncKeyValues):
    """A client of a gpkvs server, for asyncio.

    One connection serves any number of concurrent callers. Calls that run at the same time are gathered into
    messages, so many concurrent awaits are the way to be fast. Concurrent calls are in no order among each other:
    where order matters, await one before the next, or put both into a `batch`.

    Parameters
    ----------
    target
        The server's address, HOST:PORT.
    timeout
        Seconds until a call fails with `DeadlineError` (or `OutcomeUnknownError`, if it is a write that was
        sent); None waits for ever. Each call can set its own.
    table
        The table's name; "" is the default one.
    retry
        How often and how far apart calls are repeated, where that is safe; by default for about 2 s, however long
        the timeout is.
    gather
        How much goes into one message.
    limits, message_bytes_max
        The server's limits, if they are not the defaults; the client checks them before it sends anything.
    credentials
        `TlsCredentials`, or those of gRPC; None: the connection is plain.
    token
        Of a user, as `gpkvs user token` prints it; it goes along with every call. A client keeps the one that it was
        made with: for a new one, make a new client.
    user, password
        Instead of a token.
    insecure_secrets
        Send a token or password over a plain connection to another machine: everybody on the way may read it.

    Notes
    -----
    Create it where an event loop runs, and use it in that loop only.

    After a fork the client belongs to the parent: in the child `close` does nothing, and all other methods raise
    `ForkedError`. A new `AsyncClient` in the child raises it too: gRPC has one thread for all of asyncio, and a fork
    does not copy threads. Start such processes with the method "spawn" of `multiprocessing`.

    The client repeats by itself only what is safe to repeat: reads, and writes that were never sent or that the
    server did not execute, as it says. Any other write whose response is lost raises `OutcomeUnknownError`.

    Examples
    --------
    >>> import asyncio
    >>> from gpkvs.client import AsyncClient
    >>> async def main():
    ...     async with AsyncClient("127.0.0.1:7171") as client:
    ...         await client.set(b"answer", b"42")
    ...         print(await client.get(b"answer"))
    ...         values = await asyncio.gather(*(client.get(b"%d" % i) for i in range(1000)))  # few messages
    ...         async with client.batch() as batch:  # all of it is durable, or none
    ...             batch.set(b"from", b"90")
    ...             batch.set(b"to", b"110")
    >>> asyncio.run(main())  # doctest: +SKIP
    b'42'
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = 10.0,
        table: str = "",
        retry: RetryPolicy | None = None,
        gather: GatherConfig | None = None,
        limits: Limits | None = None,
        message_bytes_max: int = ServerConfig.message_bytes_max,
        credentials: TlsCredentials | grpc.ChannelCredentials | None = None,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        insecure_secrets: bool = False,
    ) -> None:
        check_table(table)
        access = Access(credentials, token, user, password, insecure_secrets)
        self._origin = Origin("the client")
        if any(not client._origin.is_here for client in _CLIENTS):
            raise ForkedError(
                "an AsyncClient was open when this process was forked, and gRPC's asyncio does not survive that: start "
                'the process with the method "spawn" of multiprocessing, or use Client'
            )
        self.target = target
        _CLIENTS.add(self)
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout
        self._table = table
        self._retry = retry or RetryPolicy()
        self._limits = self._known_limits = limits or Limits()
        self._message_bytes_max = message_bytes_max
        self._channel = access.channel(target, CHANNEL_OPTIONS, grpc.aio)
        self._access_metadata = access.metadata
        self._unnamed_metadata = _aio_metadata(access.metadata)  # made for each call, else
        self._stub = kv_pb2_grpc.KVStub(self._channel)
        self._admin = admin_pb2_grpc.AdminStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._gather = gather or GatherConfig()
        self._gatherers: dict[tuple[str, bool, str], Gatherer] = {}
        self._request_gatherers: dict[tuple[str, bool, str], RequestGatherer] = {}
        self._gatherer = self._new_gatherer(table, is_of_numbers=False, name="")
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<gpkvs client of {self.target}, table {self._table or DEFAULT_TABLE!r}, {state}>"

    async def close(self, grace_s: float = 1.0) -> None:
        """Close the connection.

        Parameters
        ----------
        grace_s
            Seconds to wait for calls that were sent; calls that were not are refused at once.

        Notes
        -----
        Cancelling it closes the connection at once.
        """
        if not self._is_closed and self._origin.is_here:
            self._is_closed = True
            gatherers: tuple[Gatherer | RequestGatherer, ...] = (
                *self._gatherers.values(),
                *self._request_gatherers.values(),
            )
            try:
                await asyncio.gather(*(gatherer.close(grace_s) for gatherer in gatherers))
            finally:
                await asyncio.shield(self._channel.close())  # nobody closes a closed client again

    def table(self, name: str) -> AsyncTable:
        """Return one table, with the same methods for keys as the client; nobody asks whether it is there."""
        self._require_open()
        check_table(name)
        return AsyncTable(self, name)

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
        deadline = self._deadline(timeout)
        if table is None and not is_of_numbers and not current_request_id():
            gatherer = self._gatherer
        else:
            gatherer = self._gatherer_of(self._table if table is None else table, is_of_numbers=is_of_numbers)
        return gatherer.submit(op, key, value, deadline, options)

    def _gatherer_of(self, table: str, *, is_of_numbers: bool = False) -> Gatherer:
        """Return what gathers the calls on a table, those with ints apart: a message has one table, of one layout.

        It has one id, too: calls that have one are gathered with those of the same.
        """
        name = current_request_id()
        found = self._gatherers.get((table, is_of_numbers, name))
        return found or self._new_gatherer(table, is_of_numbers=is_of_numbers, name=name)

    def _new_gatherer(self, table: str, *, is_of_numbers: bool, name: str) -> Gatherer:
        check_table(table)
        kind = table, is_of_numbers, name
        made = self._gatherers[kind] = Gatherer(
            self._send_alone,
            self.target,
            table,
            self._gather,
            self._retry,
            is_of_numbers=is_of_numbers,
            over=partial(self._gatherers.pop, kind, None) if name else None,
        )
        return made

    async def _execute(self, operations: OperationList, table: str | None, timeout: Timeout) -> ResultLists:
        name = self._table if table is None else table
        deadline = self._deadline(timeout)
        gatherer = self._request_gatherer_of(name, is_of_numbers=operations.is_of_numbers)

        def send() -> Awaitable[ResultLists | Failure]:
            return gatherer.submit(operations, deadline) or self._send_operations(operations, name, deadline)

        outcome = await send()
        if isinstance(outcome, Failure):
            return await self._repeat(outcome, send, deadline, changes=operations.changes)
        return outcome

    def _request_gatherer_of(self, table: str, *, is_of_numbers: bool) -> RequestGatherer:
        """Return what gathers small requests on a table, those with ints and those of each id apart."""
        name = current_request_id()
        kind = table, is_of_numbers, name
        if kind not in self._request_gatherers:
            check_table(table)
            self._request_gatherers[kind] = RequestGatherer(
                self._send_once,
                self.target,
                table,
                self._limits,
                self._message_bytes_max,
                is_of_numbers=is_of_numbers,
                over=partial(self._request_gatherers.pop, kind, None) if name else None,
            )
        return self._request_gatherers[kind]

    def _metadata(self) -> grpc.aio.Metadata | None:
        """Return that of a call that begins now."""
        if not current_request_id():
            return self._unnamed_metadata
        return _aio_metadata(named_metadata(self._access_metadata))

    async def _send_operations(self, operations: OperationList, table: str, deadline: float) -> ResultLists | Failure:
        """Send a request that is too large to share a message, once."""
        message = message_of(operations, table, self._limits, self._message_bytes_max)
        outcome = await self._send_alone(message, deadline)
        return outcome if isinstance(outcome, Failure) else ResultLists.of(outcome)

    async def _read_into(
        self, operations: OperationList, buffers: list[U8], table: str | None, timeout: Timeout
    ) -> list[int | None]:
        name = self._table if table is None else table
        message = message_of(operations, name, self._limits, self._message_bytes_max)
        result = await self._execute_message(message, timeout, changes=False)
        return placed_of(result, operations.keys, buffers)

    def _request_bounds(self, table: str | None) -> RequestBounds:
        return request_bounds(self._limits, self._message_bytes_max)

    async def _commit_numbers(self, batch: Batch, table: str | None, timeout: Timeout) -> RequestResult:
        return await self._execute_columns(batch, None, table, timeout, NUMBERS)

    async def _commit_columns(
        self, batch: Batch, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        return await self._execute_columns(batch, ttls_of(batch, ttl), table, timeout, layout)

    def _numbers_max(self, table: str | None) -> int:
        return numbers_max(self._limits, self._message_bytes_max)

    async def execute(
        self,
        batch: Batch,
        *,
        ttls: U64 | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> RequestResult:
        """Execute columns as one atomic, durable request and return columns.

        Use it for bulk data: it makes no Python object per operation. Without `table` it takes the client's table.

        Parameters
        ----------
        batch
            The columns of one request.
        ttls : (n,) uint64
            Instead of `Batch.expiries`: milliseconds from the moment at which the server takes the request; 0: never.
        table, timeout
            As for all calls.

        Raises
        ------
        InvalidArgumentError
            If the columns do not add up or pass a limit, or hold more than one request.
        NoSpaceError, OutcomeUnknownError, NotExecutedError
            As for `set`, of the request as a whole.
        """
        return await self._execute_columns(batch, ttls, table, timeout)

    async def _execute_columns(
        self, batch: Batch, ttls: U64 | None, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        """Execute columns; `layout` is that of `message_of_columns`."""
        name = self._table if table is None else table
        message = message_of_columns(batch, ttls, name, self._limits, self._message_bytes_max, layout)
        return await self._execute_message(message, timeout, changes=batch.changes)

    async def _execute_message(self, message: kv_pb2.BatchRequest, timeout: Timeout, *, changes: bool) -> RequestResult:
        """Execute one request that shares its message with no other."""
        deadline = self._deadline(timeout)

        def send() -> Awaitable[RequestResult | Failure]:
            return self._send_alone(message, deadline)

        outcome = await send()
        if isinstance(outcome, Failure):
            return await self._repeat(outcome, send, deadline, changes=changes)
        return outcome

    def pipeline(self, *, table: str | None = None, in_flight_max: int = 32) -> AsyncPipeline:
        """Open a stream of columns: it sends requests without waiting for responses; use it in ``async with``.

        It is the fastest way to write and read: a few thousand operations a request, many requests in flight.

        Parameters
        ----------
        table
            The table of all its requests; by default the client's one.
        in_flight_max
            Requests without a response at the same time; a further one waits.

        Notes
        -----
        When it is closed and no response comes for the client's `timeout`, it gives up the requests without one.

        Raises
        ------
        InvalidArgumentError
            If `in_flight_max` is not positive, or no table can have that name.
        ClientClosedError
            If the client is closed.
        """
        self._require_open()
        if in_flight_max < 1:
            raise InvalidArgumentError(f"{in_flight_max}, at least 1 is needed", field="in_flight_max")
        name = self._table if table is None else table
        check_table(name)
        return AsyncPipeline(
            partial(self._stub.Pipeline, metadata=self._metadata()),
            self.target,
            name,
            in_flight_max,
            self._limits,
            self._message_bytes_max,
            self._timeout_s,
        )

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
        """Return all keys of a table as columns, in pieces and in no order that means anything.

        A key that is there throughout is in exactly one piece, through growth of the table and restarts of the server;
        one that comes or goes meanwhile is in one, or in none. If the connection breaks, the scan goes on behind the
        last piece by itself, within the retry policy. It fails if no piece comes in time.

        Parameters
        ----------
        prefix
            Only keys that begin with it.
        cursor
            Of a piece (`ScanPiece.cursor`): go on behind it.
        keys_only
            Whether to leave out the values.
        limit
            Of keys, in all.
        table
            By default the client's one.
        timeout
            Seconds to wait for the next piece.

        Raises
        ------
        InvalidArgumentError
            If the cursor is none of this table, or a table of numbers is to be looked through by prefix.
        NotExecutedError
            If no response came: its subclasses say why.
        """
        self._require_open()
        name = self._table if table is None else table
        check_table(name)
        timeout_s = self._timeout_s if isinstance(timeout, OwnTimeout) else timeout
        of_client = (timeout_s, self._retry, self.target, self._require_open)
        progress = ScanProgress(name, prefix, cursor, limit, *of_client, keys_only=keys_only)
        return pieces_async(partial(self._stub.Scan, metadata=self._metadata()), progress, asyncio.sleep)

    async def count(self, prefix: Bytes = b"", *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many keys a table has, or how many begin with a prefix: for that all keys are read.

        Without a prefix, keys that have expired count until they are swept.
        """
        name = self._table if table is None else table
        check_table(name)
        request = kv_pb2.CountRequest(table=name, prefix=as_bytes("prefix", prefix))
        response = await self._call(self._stub.Count, request, timeout, is_write=False)
        return cast(int, response.count)

    async def follow(
        self,
        since: Position | None = None,
        *,
        table: str | None = None,
        all_tables: bool = False,
        prefix: bytes = b"",
    ) -> AsyncFollowing:
        """Follow what changes on the server, as columns, from now on or behind a position; as `Client.follow`."""
        self._require_open()
        request = watch_request(since, self._table if table is None else table, prefix, all_tables=all_tables)
        progress = WatchProgress(request, self._timeout_s, self._retry, self.target, self._require_open)
        return await AsyncFollowing(partial(self._watch, self._metadata()), progress).begin()

    def _watch(self, metadata: grpc.aio.Metadata | None, request: kv_pb2.WatchRequest, *, timeout: float | None) -> Any:
        """Open the stream of a watch."""
        try:
            return self._stub.Watch(request, timeout=timeout, metadata=metadata)
        except grpc.aio.UsageError as error:
            raise self._closed_meanwhile(error).error from error

    async def _follow(self, since: Position | None, prefix: bytes, table: str | None) -> AsyncFollowing:
        return await self.follow(since, table=table, prefix=prefix)

    async def create_table(
        self,
        name: str,
        *,
        layout: str = "bytes",
        index_bytes: int = 0,
        records: int | None = None,
        index_bytes_max: int = 0,
        exist_ok: bool = False,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> TableInfo:
        """Make an empty table, durably when this returns.

        Parameters
        ----------
        name
            1 to 64 of ``a-z 0-9 _ . -``.
        layout
            ``bytes`` (any keys and values) or ``u64`` (8-byte keys and values, without versions).
        index_bytes
            Size of its index: 32 for each slot of ``bytes``, 16 of ``u64``; 0 takes the server's default. It grows.
        records
            Instead: the records that it is expected to hold. It holds them before it grows.
        index_bytes_max
            Size to which its index may grow, for good; 0: no limit but the server's, which holds in any case.
        exist_ok
            Return the table of this name if there is one, whatever its sizes; its layout must be the same.

        Raises
        ------
        TableExistsError
            If there is one of that name; with `exist_ok`, if its layout is another one.
        InvalidArgumentError, NoSpaceError, OutcomeUnknownError, NotExecutedError
            As for `set`.
        """
        request = create_request(name, layout, index_bytes, records, index_bytes_max)
        try:
            return table_info((await self._call(self._admin.CreateTable, request, timeout, is_write=True)).table)
        except TableExistsError as error:
            if not exist_ok:
                raise
            return found_table(await self.list_tables(timeout=timeout), name, layout, error)

    async def list_tables(self, *, timeout: Timeout = OWN_TIMEOUT) -> list[TableInfo]:
        """Describe all tables; raises NotExecutedError if no response came."""
        response = await self._call(self._admin.ListTables, admin_pb2.ListTablesRequest(), timeout, is_write=False)
        return [table_info(table) for table in response.tables]

    async def info(self, *, timeout: Timeout = OWN_TIMEOUT) -> admin_pb2.InfoResponse:
        """Return the server's description of itself and its store, as the message of the wire.

        Most fields have the names of those of `gpkvs.info.StoreInfo`, which an embedded store returns. Others are the
        limits (`key_bytes_max`, not ``limits.key_bytes_max``), the last recovery (`last_recovery`), what the heap has
        given back (`heap_given_back_bytes`) and what the process wrote (`process_written_bytes`). `path` is `str`.

        Raises
        ------
        NotExecutedError
            If no response came: its subclasses say why.
        """
        request = admin_pb2.InfoRequest()
        return cast(admin_pb2.InfoResponse, await self._call(self._admin.Info, request, timeout, is_write=False))

    async def drop_table(self, name: str, *, missing_ok: bool = False, timeout: Timeout = OWN_TIMEOUT) -> None:
        """Remove a table with all it holds, durably when this returns.

        Raises
        ------
        UnknownTableError
            If there is none of that name, and `missing_ok` is false.
        InvalidArgumentError, OutcomeUnknownError, NotExecutedError
            As for `set`.
        """
        check_table(name)
        try:
            await self._call(self._admin.DropTable, admin_pb2.DropTableRequest(name=name), timeout, is_write=True)
        except UnknownTableError:
            if not missing_ok:
                raise

    async def _call(self, method: Any, request: Any, timeout: Timeout, *, is_write: bool) -> Any:
        """Call a method that is no batch, once."""
        deadline = self._deadline(timeout)
        try:
            timeout_s = None if deadline == inf else deadline - self._loop.time()
            return await method(request, timeout=timeout_s, metadata=self._metadata())
        except grpc.RpcError as error:
            failure = classify_error(error, self.target)
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            failure = self._closed_meanwhile(error)
        raise failure.raised(is_write=is_write)

    def _closed_meanwhile(self, error: BaseException) -> Failure:
        """Say what it means that another task has closed the client; raise the error again if that is not the cause."""
        if not self._is_closed:
            raise error
        if isinstance(error, grpc.aio.UsageError):  # the channel was closed before the call
            return Failure(ClientClosedError("the client is closed"), executed=False, transient=False)
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
        return closed_in_flight()

    async def _repeat(
        self,
        failure: Failure,
        send: Callable[[], Awaitable[Returned | Failure]],
        deadline: float,
        *,
        changes: bool,
    ) -> Returned:
        """Send a request that has failed once again, whole, where that is safe and may help."""
        attempt = 1
        while True:
            delay_s = self._retry.delay_s(attempt)
            is_late = attempt >= self._retry.attempts_max or self._loop.time() + delay_s >= deadline
            if is_late or not failure.may_repeat(is_write=changes):
                raise failure.raised(is_write=changes)
            await asyncio.sleep(delay_s)
            self._require_open()
            attempt += 1
            outcome = await send()
            if not isinstance(outcome, Failure):
                return outcome
            failure = outcome

    async def wait_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until the server's health service says that it serves.

        It says so to everybody: a wrong token or password is found out by the first other call.

        Parameters
        ----------
        timeout
            Seconds; None waits for ever. 0 asks once, and waits for the response for a second at most.

        Raises
        ------
        UnavailableError
            If it does not say so in time; the text ends with the last thing that the client heard.
        """
        self._require_open()
        waiting = ReadyWait(self.target, timeout)
        while True:
            try:
                heard = await self._health.Check(QUESTION, timeout=waiting.question_s)
            except grpc.RpcError as error:
                heard = error
            except (asyncio.CancelledError, grpc.aio.UsageError) as error:
                raise self._closed_meanwhile(error).error from error
            if waiting.is_over(heard):
                return
            await asyncio.sleep(waiting.pause_s())

    def _require_here(self) -> None:
        self._origin.require()

    def _require_open(self) -> None:
        self._origin.require()
        if self._is_closed:
            raise ClientClosedError("the client is closed")

    def _deadline(self, timeout: Timeout) -> float:
        self._require_open()
        timeout_s = self._timeout_s if isinstance(timeout, OwnTimeout) else timeout
        return self._loop.time() + seconds_left(timeout_s, self.target)

    async def _send_alone(self, message: kv_pb2.BatchRequest, deadline: float) -> RequestResult | Failure:
        """Send a message that is one request, once."""
        response = await self._send_once(message, deadline)
        if isinstance(response, Failure):
            return response
        try:
            return decode(response, message.ops)
        except ServerError as error:
            return Failure(error, executed=True, transient=False)

    async def _send_once(self, message: kv_pb2.BatchRequest, deadline: float) -> kv_pb2.BatchResponse | Failure:
        """Send a message, once."""
        timeout_s = None if deadline == inf else max(deadline - self._loop.time(), 0.0)
        try:
            response: kv_pb2.BatchResponse = await self._stub.Batch(
                message, timeout=timeout_s, metadata=self._metadata()
            )
        except grpc.RpcError as error:
            return classify_error(error, self.target)
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            return self._closed_meanwhile(error)
        return response
