"""Scans: a stream of pieces, and what to do when it breaks: it goes on behind the last piece that came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np

from gpkvs.client.codec import numbers_of
from gpkvs.client.errors import DeadlineError, ServerError
from gpkvs.client.retry import RetryPolicy, StreamAttempts, classify_error
from gpkvs.operations import number_of
from gpkvs.proto.v1 import kv_pb2
from gpkvs.scan import LIMIT_MAX, ScanPiece


class ScanProgress:
    """How far a scan has come.

    A stream has the client's timeout as its deadline. If it has brought a piece by then, the next stream goes on. So a
    scan may take any time, and fails only if no piece comes for as long as the timeout.

    Parameters
    ----------
    table, prefix, keys_only, limit, cursor
        What to scan; a limit of None is none.
    timeout_s
        Seconds without a piece after which the scan fails; None waits for ever.
    retry
        How often and how far apart a stream is begun anew without a piece in between.
    target
        The server's address, for errors.
    require_open
        Raises if the client is closed.

    Raises
    ------
    InvalidArgumentError
        If the limit is not positive.
    """

    def __init__(
        self,
        table: str,
        prefix: bytes,
        cursor: bytes,
        limit: int | None,
        timeout_s: float | None,
        retry: RetryPolicy,
        target: str,
        require_open: Callable[[], None],
        *,
        keys_only: bool,
    ) -> None:
        if limit is not None:
            limit = number_of("limit", limit, 1, LIMIT_MAX)
        self._message = kv_pb2.ScanRequest(
            table=table, prefix=prefix, cursor=cursor, keys_only=keys_only, limit=limit or 0
        )
        self.timeout_s = timeout_s
        self.require_open = require_open
        self._attempts = StreamAttempts(retry, timeout_s)
        self._target = target
        self._has_limit = limit is not None
        self.is_done = False

    def request(self) -> kv_pb2.ScanRequest:
        """Return the message of the next stream."""
        self.require_open()
        self._attempts.begin()
        return self._message

    def take(self, response: kv_pb2.ScanResponse) -> ScanPiece:
        """Take note of a response; return its piece.

        Raises
        ------
        ServerError
            If its columns do not fit each other.
        """
        piece = decode_piece(response, keys_only=self._message.keys_only)
        self._attempts.arrived()
        self._message.cursor = piece.cursor
        if self._has_limit:
            self._message.limit -= min(len(piece), self._message.limit)
        self.is_done = not piece.cursor or (self._has_limit and not self._message.limit)
        return piece

    def delay_s(self, error: grpc.RpcError) -> float:
        """Return the pause before the next stream, after one that failed.

        Raises
        ------
        GpkvsError
            If there is to be none.
        """
        failure = classify_error(error, self._target)
        if not self._attempts.count and isinstance(failure.error, DeadlineError):
            return 0.0  # it brought pieces, as long as it might
        return self._attempts.delay_s(failure)

    def end(self) -> None:
        """Take note that a stream ended in order.

        Raises
        ------
        ServerError
            If that was before the end of the scan.
        """
        if not self.is_done:
            raise ServerError(f"{self._target}: the scan ended before its last piece")


def pieces(open_stream: Callable[..., Any], progress: ScanProgress) -> Generator[ScanPiece, None, None]:
    """Scan with a blocking stub; `open_stream` is its method."""
    while not progress.is_done:
        stream = open_stream(progress.request(), timeout=progress.timeout_s)
        try:
            for response in stream:
                yield progress.take(response)
            progress.end()
        except grpc.RpcError as error:
            if not progress.is_done:
                progress.require_open()
                time.sleep(progress.delay_s(error))
        finally:
            stream.cancel()


async def pieces_async(
    open_stream: Callable[..., Any], progress: ScanProgress, sleep: Callable[[float], Any]
) -> AsyncGenerator[ScanPiece, None]:
    """Scan with a stub of ``grpc.aio``; `sleep` is that of the event loop's library."""
    while not progress.is_done:
        stream = open_stream(progress.request(), timeout=progress.timeout_s)
        try:
            async for response in stream:
                yield progress.take(response)
            progress.end()
        except grpc.RpcError as error:
            if not progress.is_done:
                progress.require_open()
                await sleep(progress.delay_s(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # nobody has cancelled it: its channel was closed
                progress.require_open()
            raise
        finally:
            with suppress(grpc.RpcError):
                stream.cancel()


def decode_piece(response: kv_pb2.ScanResponse, *, keys_only: bool) -> ScanPiece:
    """Return the columns of a response.

    Raises
    ------
    ServerError
        If they do not fit each other.
    """
    piece = ScanPiece(
        keys=np.frombuffer(response.keys, np.uint8),
        key_lengths=numbers_of(response.key_lengths, "<u4"),
        values=np.frombuffer(response.values, np.uint8),
        value_lengths=numbers_of(response.value_lengths, "<u4"),
        versions=numbers_of(response.versions, "<u8"),
        expiries=numbers_of(response.expiries, "<u8"),
        damaged=response.damaged,
        cursor=response.cursor,
        layout=response.layout,
    )
    n = len(piece)
    fits = (
        len(piece.value_lengths) == (0 if keys_only else n)
        and len(piece.versions) in (0, n)
        and len(piece.expiries) in (0, n)
        and int(piece.key_lengths.sum(dtype=np.uint64)) == len(piece.keys)
        and int(piece.value_lengths.sum(dtype=np.uint64)) == len(piece.values)
    )
    if not fits:
        raise ServerError(f"a piece of {n:,} keys whose columns do not fit each other")
    return piece
