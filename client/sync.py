"""The blocking client, for scripts, shells and threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Self, cast

import grpc
from grpc_health.v1 import health_pb2_grpc

from gpkvs.batch import U8, U64, Batch, RequestResult
from gpkvs.changes import Position
from gpkvs.client.aio import CHANNEL_OPTIONS, DEFAULT_TARGET
from gpkvs.client.codec import decode
from gpkvs.client.errors import ClientClosedError, ServerError
from gpkvs.client.following import Following
from gpkvs.client.operations import (
    NUMBERS,
    check_table,
    message_of,
    message_of_columns,
    numbers_max,
    request_bounds,
    ttls_of,
)
from gpkvs.client.ready import QUESTION, ReadyWait
from gpkvs.client.request_id import Metadata, named_metadata
from gpkvs.client.retry import Failure, RetryPolicy, classify_error, closed_in_flight, seconds_left
from gpkvs.client.scan import ScanProgress, pieces
from gpkvs.client.tables import create_request, found_table, table_info
from gpkvs.client.watch import WatchProgress, watch_request
from gpkvs.columns.buffers import RequestBounds, placed_of
from gpkvs.config import DEFAULT_TABLE, Limits, ServerConfig
from gpkvs.credentials import Access, TlsCredentials
from gpkvs.errors import TableExistsError, UnknownTableError
from gpkvs.face import KeyValues, TableHandle
from gpkvs.info import TableInfo
from gpkvs.operations import Bytes, OperationList, Result, as_bytes
from gpkvs.process.fork import Origin
from gpkvs.process.own_timeout import OWN_TIMEOUT, OwnTimeout, Timeout
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from gpkvs.scan import ScanPiece


class Client(KeyValues):
    """A blocking client of a gpkvs server; any number of threads may share one.

    Every call is one request, so it suits a handful of operations at a time; `AsyncClient` gathers the calls of many
    callers. After a fork the client belongs to the parent: in the child `close` does nothing, and all other methods
    raise `ForkedError`.

    Parameters
    ----------
    target
        The server's address, HOST:PORT.
    timeout
        Seconds until a call fails, repeated attempts included; None waits for ever. Each call can set its own.
    table
        The table's name; "" is the default one.
    retry
        How often and how far apart calls are repeated, where that is safe; by default for about 2 s, however long
        the timeout is.
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

    Examples
    --------
    >>> from gpkvs.client import Client
    >>> with Client("127.0.0.1:7171") as client:  # doctest: +SKIP
    ...     client.set(b"answer", b"42")
    ...     print(client.get(b"answer"))
    b'42'
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = 10.0,
        table: str = "",
        retry: RetryPolicy | None = None,
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
        self.target = target
        self._origin = Origin("the client")
        self._timeout_s = timeout
        self._table = table
        self._retry = retry or RetryPolicy()
        self._limits = self._known_limits = limits or Limits()
        self._is_closed = False
        self._message_bytes_max = message_bytes_max
        self._channel = access.channel(target, CHANNEL_OPTIONS, grpc)
        self._access_metadata = access.metadata
        self._stub = kv_pb2_grpc.KVStub(self._channel)
        self._admin = admin_pb2_grpc.AdminStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)  # made now: on a closed channel gRPC crashes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<gpkvs client of {self.target}, table {self._table or DEFAULT_TABLE!r}, {state}>"

    def close(self) -> None:
        """Close the connection; in the child of a fork this does nothing."""
        if self._origin.is_here:
            self._is_closed = True
            self._channel.close()

    def table(self, name: str) -> TableHandle:
        """Return one table, with the same methods for keys as the client; nobody asks whether it is there."""
        self._require_open()
        check_table(name)
        return TableHandle(self, name)

    def execute(
        self,
        batch: Batch,
        *,
        ttls: U64 | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> RequestResult:
        """Execute columns as one atomic, durable request; as `AsyncClient.execute`."""
        return self._execute_columns(batch, ttls, table, timeout)

    def _execute_columns(
        self, batch: Batch, ttls: U64 | None, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        """Execute columns; `layout` is that of `message_of_columns`."""
        name = self._table if table is None else table
        message = message_of_columns(batch, ttls, name, self._limits, self._message_bytes_max, layout)
        return self._execute(message, changes=batch.changes, timeout=timeout)

    def _commit(self, operations: OperationList, table: str | None, timeout: Timeout) -> list[Result]:
        name = self._table if table is None else table
        message = message_of(operations, name, self._limits, self._message_bytes_max)
        return operations.take(self._execute(message, changes=operations.changes, timeout=timeout))

    def _read_into(
        self, operations: OperationList, buffers: list[U8], table: str | None, timeout: Timeout
    ) -> list[int | None]:
        name = self._table if table is None else table
        message = message_of(operations, name, self._limits, self._message_bytes_max)
        return placed_of(self._execute(message, changes=False, timeout=timeout), operations.keys, buffers)

    def _request_bounds(self, table: str | None) -> RequestBounds:
        return request_bounds(self._limits, self._message_bytes_max)

    def _commit_numbers(self, batch: Batch, table: str | None, timeout: Timeout) -> RequestResult:
        return self._execute_columns(batch, None, table, timeout, NUMBERS)

    def _commit_columns(
        self, batch: Batch, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        return self._execute_columns(batch, ttls_of(batch, ttl), table, timeout, layout)

    def _numbers_max(self, table: str | None) -> int:
        return numbers_max(self._limits, self._message_bytes_max)

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
        """Return all keys of a table as columns, in pieces; as `AsyncClient.scan_pieces`."""
        self._require_open()
        name = self._table if table is None else table
        check_table(name)
        timeout_s = self._timeout_s if isinstance(timeout, OwnTimeout) else timeout
        of_client = (timeout_s, self._retry, self.target, self._require_open)
        progress = ScanProgress(name, prefix, cursor, limit, *of_client, keys_only=keys_only)
        return pieces(partial(self._stub.Scan, metadata=named_metadata(self._access_metadata)), progress)

    def count(self, prefix: Bytes = b"", *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many keys a table has, or how many begin with a prefix: for that all keys are read.

        Without a prefix, keys that have expired count until they are swept.
        """
        name = self._table if table is None else table
        check_table(name)
        request = kv_pb2.CountRequest(table=name, prefix=as_bytes("prefix", prefix))
        response = self._call(self._stub.Count, request, timeout, is_write=False)
        return cast(int, response.count)

    def follow(
        self,
        since: Position | None = None,
        *,
        table: str | None = None,
        all_tables: bool = False,
        prefix: bytes = b"",
    ) -> Following:
        """Follow what changes on the server, as columns, from now on or behind a position.

        For changes one by one there is `watch`.

        Parameters
        ----------
        since
            A position: go on behind it; None: from now on.
        table
            The table's name; by default the client's one.
        all_tables
            Instead: all tables, and what tables are made and dropped. The user needs the right ``backup``.
        prefix
            Only keys that begin with it; not of a table of numbers, and not of all tables.

        Raises
        ------
        ChangesLostError
            If the server no longer holds what comes behind the position.
        InvalidArgumentError
            If the arguments do not fit together.
        NotExecutedError
            If no response came: its subclasses say why.
        """
        self._require_open()
        request = watch_request(since, self._table if table is None else table, prefix, all_tables=all_tables)
        progress = WatchProgress(request, self._timeout_s, self._retry, self.target, self._require_open)
        return Following(partial(self._watch, named_metadata(self._access_metadata)), progress)

    def _watch(self, metadata: Metadata | None, request: kv_pb2.WatchRequest, *, timeout: float | None) -> Any:
        """Open the stream of a watch."""
        with self._unless_closed():
            return self._stub.Watch(request, timeout=timeout, metadata=metadata)

    def _follow(self, since: Position | None, prefix: bytes, table: str | None) -> Following:
        return self.follow(since, table=table, prefix=prefix)

    def create_table(
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
        """Make an empty table, durably when this returns; as `AsyncClient.create_table`."""
        request = create_request(name, layout, index_bytes, records, index_bytes_max)
        try:
            return table_info(self._call(self._admin.CreateTable, request, timeout, is_write=True).table)
        except TableExistsError as error:
            if not exist_ok:
                raise
            return found_table(self.list_tables(timeout=timeout), name, layout, error)

    def list_tables(self, *, timeout: Timeout = OWN_TIMEOUT) -> list[TableInfo]:
        """Describe all tables; as `AsyncClient.list_tables`."""
        response = self._call(self._admin.ListTables, admin_pb2.ListTablesRequest(), timeout, is_write=False)
        return [table_info(table) for table in response.tables]

    def drop_table(self, name: str, *, missing_ok: bool = False, timeout: Timeout = OWN_TIMEOUT) -> None:
        """Remove a table with all it holds, durably when this returns; as `AsyncClient.drop_table`."""
        check_table(name)
        try:
            self._call(self._admin.DropTable, admin_pb2.DropTableRequest(name=name), timeout, is_write=True)
        except UnknownTableError:
            if not missing_ok:
                raise

    def info(self, *, timeout: Timeout = OWN_TIMEOUT) -> admin_pb2.InfoResponse:
        """Return the server's description of itself and its store, a message; as `AsyncClient.info`."""
        request = admin_pb2.InfoRequest()
        return cast(admin_pb2.InfoResponse, self._call(self._admin.Info, request, timeout, is_write=False))

    def wait_ready(self, timeout: float | None = 10.0) -> None:
        """Wait until the server's health service says that it serves; as `AsyncClient.wait_ready`."""
        self._require_open()
        waiting = ReadyWait(self.target, timeout)
        while True:
            try:
                with self._unless_closed():
                    heard = self._health.Check(QUESTION, timeout=waiting.question_s)
            except grpc.RpcError as error:
                heard = error
            if waiting.is_over(heard):
                return
            time.sleep(waiting.pause_s())

    def _require_open(self) -> None:
        self._origin.require()
        if self._is_closed:
            raise ClientClosedError("the client is closed")

    def _deadline(self, timeout: Timeout) -> float:
        self._require_open()
        timeout_s = self._timeout_s if isinstance(timeout, OwnTimeout) else timeout
        return time.monotonic() + seconds_left(timeout_s, self.target)

    def _call(self, method: Any, request: Any, timeout: Timeout, *, is_write: bool) -> Any:
        """Call a method that is no batch, once."""
        deadline = self._deadline(timeout)
        try:
            with self._unless_closed():
                return method(request, timeout=_left_s(deadline), metadata=named_metadata(self._access_metadata))
        except grpc.RpcError as error:
            failure = self._failure(error)
        raise failure.raised(is_write=is_write)

    def _execute(self, message: kv_pb2.BatchRequest, *, changes: bool, timeout: Timeout) -> RequestResult:
        deadline = self._deadline(timeout)
        attempt = 0
        while True:
            attempt += 1
            outcome = self._send(message, deadline)
            if isinstance(outcome, RequestResult):
                return outcome
            delay_s = self._retry.delay_s(attempt)
            is_late = attempt >= self._retry.attempts_max or time.monotonic() + delay_s >= deadline
            if is_late or not outcome.may_repeat(is_write=changes):
                raise outcome.raised(is_write=changes)
            time.sleep(delay_s)

    def _send(self, message: kv_pb2.BatchRequest, deadline: float) -> RequestResult | Failure:
        """Send one message, once."""
        try:
            with self._unless_closed():
                metadata = named_metadata(self._access_metadata)
                response = self._stub.Batch(message, timeout=_left_s(deadline), metadata=metadata)
            return decode(response, message.ops)
        except grpc.RpcError as error:
            return self._failure(error)
        except ServerError as error:
            return Failure(error, executed=True, transient=False)

    def _failure(self, error: grpc.RpcError) -> Failure:
        """Say what an error of gRPC means; another thread may have closed the client during the call."""
        is_cancelled = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.CANCELLED
        return closed_in_flight() if is_cancelled and self._is_closed else classify_error(error, self.target)

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Say in our words that another thread closed the client before this one's call began."""
        try:
            yield
        except ValueError as error:
            if not self._is_closed:
                raise
            raise ClientClosedError("the client is closed") from error


def _left_s(deadline: float) -> float | None:
    return None if deadline == inf else max(deadline - time.monotonic(), 0.0)
