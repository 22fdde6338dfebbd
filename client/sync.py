"""The blocking client, for scripts, shells and threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from math import inf
from types import TracebackType
from typing import Any, Self, cast

import grpc
import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64, Batch, Op, RequestResult
from gpkvs.client.aio import CHANNEL_OPTIONS, DEFAULT_TARGET
from gpkvs.client.codec import decode, encode
from gpkvs.client.errors import ServerError
from gpkvs.client.operations import Operation, OperationList, Result, check_message_bytes, check_table, results_of
from gpkvs.client.retry import Failure, RetryPolicy, classify_error
from gpkvs.client.scan import ScanProgress, pieces
from gpkvs.client.tables import table_info
from gpkvs.config import Limits, ServerConfig
from gpkvs.fork import Origin
from gpkvs.info import TableInfo
from gpkvs.numbers import check_values, deletes_of, found_of, gets_of, sets_of, values_of
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from gpkvs.scan import ScanPiece


class Client:
    """A blocking client of a gpkvs server; any number of threads may share one.

    Every call is one request, so it suits a handful of operations at a time; `AsyncClient` gathers the calls of many
    callers. After a fork the client belongs to the parent: in the child `close` does nothing, and all other methods
    raise `ForkedError`.

    Parameters
    ----------
    target
        The server's address, HOST:PORT.
    timeout
        Seconds until a call fails, repeated attempts included; None waits for ever.
    table
        The table's name; "" is the default one.
    retry
        How often and how far apart calls are repeated, where that is safe.
    limits, message_bytes_max
        The server's limits, if they are not the defaults; the client checks them before it sends anything.

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
    ) -> None:
        check_table(table)
        self.target = target
        self._origin = Origin("the client")
        self._timeout_s = timeout
        self._table = table
        self._retry = retry or RetryPolicy()
        self._limits = limits or Limits()
        self._message_bytes_max = message_bytes_max
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._stub = kv_pb2_grpc.KVStub(self._channel)
        self._admin = admin_pb2_grpc.AdminStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; in the child of a fork this does nothing."""
        if self._origin.is_here:
            self._channel.close()

    def get(self, key: bytes) -> bytes | None:
        """Return a key's value, or None; errors as `AsyncClient.get`."""
        return cast(bytes | None, self.batch([(Op.GET, key)])[0])

    def set(self, key: bytes, value: bytes) -> int:
        """Write a key durably and return its new version; errors as `AsyncClient.set`."""
        return cast(int, self.batch([(Op.SET, key, value)])[0])

    def delete(self, key: bytes) -> bool:
        """Remove a key, durably, and return whether it was there; errors as `AsyncClient.set`."""
        return cast(bool, self.batch([(Op.DELETE, key)])[0])

    def batch(self, operations: Iterable[Operation]) -> list[Result]:
        """Execute operations as one atomic, durable request and return one result for each.

        Parameters
        ----------
        operations
            ``(Op.GET, key)``, ``(Op.SET, key, value)``, ``(Op.DELETE, key)``.

        Returns
        -------
        list
            A GET's value or None, a SET's version, whether a DELETE found its key; errors as
            `AsyncClient.set`.
        """
        self._origin.require()
        request = OperationList(operations, self._limits, self._message_bytes_max)
        if not len(request):
            return []
        message = request.message(self._table)
        return results_of(message.ops, self._execute(message, is_write=request.has_writes))

    def execute(self, batch: Batch, *, table: str | None = None) -> RequestResult:
        """Execute columns as one atomic, durable request; errors as `AsyncClient.execute`."""
        name = self._table if table is None else table
        check_table(name)
        batch.validate(self._limits)
        message = encode(batch, name)
        check_message_bytes(message.ByteSize(), self._message_bytes_max)
        return self._execute(message, is_write=batch.changes)

    def set_many(self, keys: U64, values: U64, *, table: str | None = None) -> None:
        """Store many numbers in a u64 table, as one atomic, durable request; as `AsyncClient.set_many`."""
        self.execute(sets_of(keys, values), table=table)

    def get_many(self, keys: U64, *, table: str | None = None) -> tuple[U64, NDArray[np.bool_]]:
        """Read many numbers of a u64 table: values, and which were found; as `AsyncClient.get_many`."""
        result = self.execute(gets_of(keys), table=table)
        check_values(result)
        return values_of(result, found_of(result))

    def delete_many(self, keys: U64, *, table: str | None = None) -> NDArray[np.bool_]:
        """Remove many keys of a u64 table; return which were there; as `AsyncClient.delete_many`."""
        return found_of(self.execute(deletes_of(keys), table=table))

    def scan_pieces(
        self,
        prefix: bytes = b"",
        *,
        cursor: bytes = b"",
        keys_only: bool = False,
        limit: int | None = None,
        table: str | None = None,
    ) -> Iterator[ScanPiece]:
        """Return all keys of a table as columns, in pieces; as `AsyncClient.scan_pieces`."""
        self._origin.require()
        name = self._table if table is None else table
        check_table(name)
        progress = ScanProgress(
            name, prefix, cursor, limit, self._timeout_s, self._retry, self.target, keys_only=keys_only
        )
        return pieces(self._stub.Scan, progress)

    def create_table(
        self, name: str, *, layout: str = "bytes", index_bytes: int = 0, index_bytes_max: int = 0
    ) -> TableInfo:
        """Make an empty table, durably when this returns; as `AsyncClient.create_table`."""
        check_table(name)
        request = admin_pb2.CreateTableRequest(
            name=name, layout=layout, index_bytes=index_bytes, index_bytes_max=index_bytes_max
        )
        return table_info(self._call(self._admin.CreateTable, request, is_write=True).table)

    def list_tables(self) -> list[TableInfo]:
        """Describe all tables; as `AsyncClient.list_tables`."""
        response = self._call(self._admin.ListTables, admin_pb2.ListTablesRequest(), is_write=False)
        return [table_info(table) for table in response.tables]

    def drop_table(self, name: str) -> None:
        """Remove a table with all it holds, durably when this returns; as `AsyncClient.drop_table`."""
        check_table(name)
        self._call(self._admin.DropTable, admin_pb2.DropTableRequest(name=name), is_write=True)

    def info(self) -> admin_pb2.InfoResponse:
        """Return the server's description of itself and its store.

        Raises
        ------
        NotExecutedError
            If no response came: its subclasses say why.
        """
        return cast(admin_pb2.InfoResponse, self._call(self._admin.Info, admin_pb2.InfoRequest(), is_write=False))

    def _call(self, method: Any, request: Any, *, is_write: bool) -> Any:
        """Call a method of the Admin service, once."""
        self._origin.require()
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            failure = classify_error(error, self.target)
        raise failure.raised(is_write=is_write)

    def _execute(self, message: kv_pb2.BatchRequest, *, is_write: bool) -> RequestResult:
        self._origin.require()
        deadline = inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        attempt = 0
        while True:
            attempt += 1
            outcome = self._send(message, deadline)
            if isinstance(outcome, RequestResult):
                return outcome
            delay_s = self._retry.delay_s(attempt)
            is_late = attempt >= self._retry.attempts_max or time.monotonic() + delay_s >= deadline
            if is_late or not outcome.may_repeat(is_write=is_write):
                raise outcome.raised(is_write=is_write)
            time.sleep(delay_s)

    def _send(self, message: kv_pb2.BatchRequest, deadline: float) -> RequestResult | Failure:
        """Send one message, once."""
        timeout_s = None if deadline == inf else max(deadline - time.monotonic(), 0.0)
        try:
            return decode(self._stub.Batch(message, timeout=timeout_s), message.ops)
        except grpc.RpcError as error:
            return classify_error(error, self.target)
        except ServerError as error:
            return Failure(error, executed=True, transient=False)
