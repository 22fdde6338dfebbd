"""Watches: a stream of what changes, and what to do when it breaks: it goes on behind the last whole entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import numpy as np
from grpc import StatusCode
from numpy.typing import NDArray

from gpkvs.changes import ChangeKind, Changes, MadeTable, Position
from gpkvs.client.codec import numbers_of
from gpkvs.client.errors import ServerError, UnavailableError
from gpkvs.client.operations import check_table
from gpkvs.client.retry import Failure, RetryPolicy, StreamAttempts, classify_error
from gpkvs.errors import ChangesLostError, InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2

_KINDS = bytes(ChangeKind)


class Arrival(NamedTuple):
    """What a response of a watch brings, and the position behind it."""

    entries: list[Changes]
    position: Position


class WatchProgress:
    """How far a watch has come.

    A stream has no deadline: the server says something each second, and gRPC finds out that a connection is dead.

    Parameters
    ----------
    message
        What to watch.
    timeout_s
        Seconds without a stream after which the watch fails; None waits for ever.
    retry
        How often and how far apart a stream is begun anew without more than a first response in between: a server may
        refuse behind that, each time.
    target
        The server's address, for errors.
    require_open
        Raises if the client is closed.
    """

    def __init__(
        self,
        message: kv_pb2.WatchRequest,
        timeout_s: float | None,
        retry: RetryPolicy,
        target: str,
        require_open: Callable[[], None],
    ) -> None:
        self._message = message
        self.timeout_s = timeout_s
        self.require_open = require_open
        self.target = target
        self._retry = retry
        self._attempts = StreamAttempts(retry, timeout_s)
        self._is_begun = False  # the first response of the stream is here

    def request(self) -> kv_pb2.WatchRequest:
        """Return the message of the next stream."""
        self.require_open()
        self._attempts.begin()
        self._is_begun = False
        return self._message

    def to_position(self) -> WatchProgress:
        """Return that of a watch of the same that only asks for the newest position."""
        message = kv_pb2.WatchRequest(only_position=True)
        message.MergeFrom(self._message)
        message.ClearField("since")
        return WatchProgress(message, self.timeout_s, self._retry, self.target, self.require_open)

    def take(self, response: kv_pb2.WatchResponse) -> Arrival:
        """Take note of a response; return what it brings.

        Raises
        ------
        ServerError
            If its columns do not fit each other.
        """
        arrival = decode_response(response)
        self._attempts.arrived(is_progress=self._is_begun)
        self._is_begun = True
        self._message.since = response.position
        return arrival

    def delay_s(self, error: grpc.RpcError) -> float:
        """Return the pause before the next stream, after one that failed.

        Raises
        ------
        GpkvsError
            If there is to be none.
        """
        return self._attempts.delay_s(watch_failure(error, self.target))

    def ended(self) -> ServerError:
        """Return the error of a stream that ended as if it had come to an end."""
        return ServerError(f"{self.target}: the watch ended without a word")


def watch_request(since: Position | None, table: str, prefix: bytes, *, all_tables: bool) -> kv_pb2.WatchRequest:
    """Return the message of a watch; an empty name of a table is the default one, all tables have none.

    Raises
    ------
    InvalidArgumentError
        If no table can have that name.
    """
    check_table(table)
    return kv_pb2.WatchRequest(
        table="" if all_tables else table,
        all_tables=all_tables,
        prefix=prefix,
        since="" if since is None else str(since),
    )


def watch_failure(error: grpc.RpcError, target: str) -> Failure:
    """Say what it means that a watch failed."""
    failure = classify_error(error, target)
    assert isinstance(error, grpc.Call | grpc.aio.AioRpcError)
    match error.code():
        case StatusCode.OUT_OF_RANGE:
            return _instead(failure, ChangesLostError(error.details()), transient=False)
        case StatusCode.CANCELLED:  # by the server: it stops, and the client took too long to read
            return _instead(failure, UnavailableError(f"{target}: the server ended the watch"), transient=True)
    return failure


def _instead(failure: Failure, error: ChangesLostError | UnavailableError, *, transient: bool) -> Failure:
    error.request_id = failure.error.request_id
    return Failure(error, executed=False, transient=transient)


def decode_response(response: kv_pb2.WatchResponse) -> Arrival:
    """Return what a response brings.

    Raises
    ------
    ServerError
        If its columns do not fit each other, or its position is none.
    """
    try:
        position = Position.parse(response.position)
    except InvalidArgumentError as error:
        raise ServerError(f"a response of a watch: {error}") from error
    return Arrival([_decode_entry(entry) for entry in response.entries], position)


def _decode_entry(entry: kv_pb2.WatchEntry) -> Changes:
    made = entry.made if entry.HasField("made") else None
    changes = Changes(
        number=entry.number,
        time_ms=entry.time_ms,
        table=entry.table_id,
        name=entry.table,
        kinds=np.frombuffer(entry.kinds, np.uint8),
        keys=np.frombuffer(entry.keys, np.uint8),
        key_lengths=numbers_of(entry.key_lengths, "<u4"),
        values=np.frombuffer(entry.values, np.uint8),
        value_lengths=numbers_of(entry.value_lengths, "<u4"),
        versions=numbers_of(entry.versions, "<u8"),
        expiries=numbers_of(entry.expiries, "<u8"),
        made=MadeTable(made.layout, made.index_bytes, made.index_bytes_max) if made else None,
        is_dropped=entry.dropped,
        is_whole=not entry.more,
    )
    n = len(changes)
    fits = (
        not entry.kinds.strip(_KINDS)
        and len(changes.key_lengths) == len(changes.value_lengths) == n
        and _fit(n, changes.versions, changes.expiries)
        and int(changes.key_lengths.sum(dtype=np.uint64)) == len(changes.keys)
        and int(changes.value_lengths.sum(dtype=np.uint64)) == len(changes.values)
    )
    if not fits:
        raise ServerError(f"an entry of {n:,} keys whose columns do not fit each other")
    return changes


def _fit(n: int, *columns: NDArray[Any]) -> bool:
    """Return whether each of these columns has a row for each key, or none."""
    return all(len(column) in (0, n) for column in columns)
