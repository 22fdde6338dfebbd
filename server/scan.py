"""Scans of a table: pieces are read by a thread of their own, and sent as fast as the client takes them.

    steps (thread) -> message -> sent, while the thread reads the next piece

A call is never more than one piece ahead of its client. One thread reads for all calls. A step holds the store. While
batches run, steps are small, a piece has several of them, and between two of them the thread leaves the store to the
batches for some times as long.

When the server stops, a scan ends with UNAVAILABLE behind a whole piece: the cursor of that piece goes on elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial

from gpkvs.errors import NoSpaceError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.scan import PIECE_BYTES_MAX, PIECE_KEYS_MAX, ScanPiece, join_pieces
from gpkvs.server.access.caller import Caller
from gpkvs.server.access.rights import require_read, require_scan
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate, Serving
from gpkvs.server.memory import Account
from gpkvs.server.running_call import running
from gpkvs.server.threads import Made, PausingThread

# A piece takes so little of a message that one long record more fits.
_PIECE_SHARE = 4
# What a key takes beside itself and its value: two lengths, version, expiry.
_BYTES_PER_KEY = 24
# So long a client hears nothing, if no key begins with its prefix; then it gets a piece that is empty.
_SILENT_SECONDS = 1.0
# What is left to batches between two steps, in times of what a step takes. And so many steps a piece has at most: other
# calls wait for the thread meanwhile.
_PAUSE, _STEPS_MAX = 3.0, 16


class Scans:
    """What all calls of `Scan` and `Count` share.

    Parameters
    ----------
    gate
        Says whether the server still serves.
    metrics
        Counts pieces and keys.
    """

    def __init__(self, gate: Gate, metrics: Metrics) -> None:
        self._gate = gate
        self._metrics = metrics
        self._thread = PausingThread("scan", _PAUSE)

    async def scan(
        self, message: kv_pb2.ScanRequest, caller: Caller, account: Account
    ) -> AsyncGenerator[kv_pb2.ScanResponse, None]:
        """Return the responses of a scan, as long as the caller may read the table.

        Raises
        ------
        InvalidArgumentError
            If the request is wrong.
        NotServingError
            If the server stops.
        NoSpaceError
            If there is no memory for a piece; it says which record is too long.
        LoginError, RightsError
            If the caller may no longer read the table.
        """
        serving = self._gate.serving()
        bytes_max = min(PIECE_BYTES_MAX, serving.message_bytes_max // _PIECE_SHARE)
        planned = bytes_max + _BYTES_PER_KEY * PIECE_KEYS_MAX
        left = message.limit or float("inf")
        account.admit(planned)
        reading = self._read(serving, message, message.cursor, left, bytes_max)
        try:
            told = time.monotonic()
            while True:
                piece = await reading
                require_scan(caller, message.table)
                left -= len(piece)
                is_last = not piece.cursor or left <= 0
                serving = self._gate.serving()
                if not is_last:
                    reading = self._read(serving, message, piece.cursor, left, bytes_max)
                if len(piece) or piece.damaged or is_last or time.monotonic() - told > _SILENT_SECONDS:
                    more = max(bytes_of(piece) - planned, 0)  # a record may be longer than a piece
                    if more:
                        _admit(account, more, piece)
                    response = encode_piece(piece)
                    del piece
                    yield response
                    account.change_responses(-more)
                    told = time.monotonic()
                if is_last:
                    return
        finally:
            reading.cancel()
            account.change_responses(-planned)

    async def count(self, message: kv_pb2.CountRequest, caller: Caller) -> int:
        """Return how many keys a table has, or how many begin with a prefix.

        Raises
        ------
        LoginError, RightsError
            If the caller may no longer read the table.
        """
        serving = self._gate.serving()
        if not message.prefix:
            store = serving.store
            return await self._run(lambda: store.records(message.table))
        asked = kv_pb2.ScanRequest(table=message.table, prefix=message.prefix, keys_only=True)
        count, cursor = 0, b""
        while True:
            piece = await self._read(self._gate.serving(), asked, cursor, float("inf"), PIECE_BYTES_MAX)
            require_read(caller, message.table)
            count += len(piece)
            cursor = piece.cursor
            if not cursor:
                return count

    def _read(
        self, serving: Serving, message: kv_pb2.ScanRequest, cursor: bytes, left: float, bytes_max: int
    ) -> asyncio.Future[ScanPiece]:
        """Have the thread read a piece."""
        keys_max = bytes_max // _BYTES_PER_KEY

        call, asked_ns = running.get(), time.monotonic_ns()
        if call:
            call.asked(serving.store.open_table(message.table).id, 0, 0)
            call.takes_key(message.prefix)

        def step(cursor: bytes, keys_max: int, bytes_max: int) -> ScanPiece:
            return serving.store.scan_step(
                message.table,
                cursor,
                message.prefix,
                keys_only=message.keys_only,
                keys_max=keys_max,
                bytes_max=bytes_max,
            )

        def read() -> ScanPiece:
            pieces, read_ns = self._steps(serving, step, cursor, int(min(PIECE_KEYS_MAX, keys_max, left)), bytes_max)
            piece = join_pieces(pieces)
            self._metrics.piece_scanned(len(piece), piece.damaged, read_ns / 1e9)
            if call:
                waited_ns = time.monotonic_ns() - asked_ns - read_ns
                call.was_scanned(waited_ns, read_ns, len(piece), len(piece.keys) + len(piece.values))
            return piece

        return self._run(read)

    def _steps(
        self,
        serving: Serving,
        step: Callable[[bytes, int, int], ScanPiece],
        cursor: bytes,
        keys_left: int,
        bytes_left: int,
    ) -> tuple[list[ScanPiece], int]:
        """Return what a few steps bring, and how long they took: as many steps as fit if they bring equally much."""
        pieces: list[ScanPiece] = []
        read_ns = 0
        while True:
            self._thread.pause(serving.store.is_in_use)
            began_ns = time.monotonic_ns()
            piece = self._thread.step(partial(step, cursor, keys_left, bytes_left))
            read_ns += time.monotonic_ns() - began_ns
            pieces.append(piece)
            cursor, brought = piece.cursor, len(piece.keys) + len(piece.values)
            keys_left -= len(piece)
            bytes_left -= brought
            has_room = keys_left >= max(len(piece), 1) and bytes_left >= max(brought, 1)
            if not cursor or not has_room or len(pieces) == _STEPS_MAX:
                return pieces, read_ns

    def _run(self, job: Callable[[], Made]) -> asyncio.Future[Made]:
        """Run a job in the thread."""
        result = asyncio.wrap_future(self._thread.submit(job))
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # a call that ends asks for neither
        return result


def bytes_of(piece: ScanPiece) -> int:
    """Return what a piece takes in a message, about."""
    return len(piece.keys) + len(piece.values) + _BYTES_PER_KEY * len(piece)


def _admit(account: Account, more: int, piece: ScanPiece) -> None:
    """Count what a piece takes more than was planned.

    Raises
    ------
    NoSpaceError
        If the connection may not hold it.
    """
    try:
        account.admit(more)
    except NoSpaceError:
        raise NoSpaceError(
            "memory",
            f"the next record has {len(piece.values):,} bytes, and this connection may not hold so much more "
            "(--memory-max): scan keys only and get the value, or try again",
        ) from None


def encode_piece(piece: ScanPiece) -> kv_pb2.ScanResponse:
    """Put a piece into a message."""
    return kv_pb2.ScanResponse(
        keys=piece.keys.tobytes(),
        key_lengths=piece.key_lengths.astype("<u4", copy=False).tobytes(),
        values=piece.values.tobytes(),
        value_lengths=piece.value_lengths.astype("<u4", copy=False).tobytes(),
        versions=piece.versions.astype("<u8", copy=False).tobytes(),
        expiries=piece.expiries.astype("<u8", copy=False).tobytes(),
        cursor=piece.cursor,
        damaged=piece.damaged,
        layout=piece.layout,
    )
