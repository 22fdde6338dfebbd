"""Answers that wait to be read, counted: a client that does not read must not take the server's memory.

An answer counts from the end of its transaction until gRPC has handed it to the network, or its call has ended. While
a connection holds more than what is free, its requests that read are refused before they are executed: a slow reader
alone gets half of `answer_bytes_max`, and several share it; writes, whose answers are small, go on. How much a request
reads is known only when it was executed, so the bound may be passed by the answers of one transaction
(`batch_reply_bytes_max`).
"""

from __future__ import annotations

import grpc

from gpkvs.errors import NoSpaceError

# A call beside the bytes of its answer: its tasks, its context and gRPC's own state (measured: about 25 KB).
_CALL_BYTES = 24 << 10


class Outbox:
    """The answers of one server that wait to be read.

    Parameters
    ----------
    bytes_max
        How much they may take together; the answers of one transaction may come on top.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._by_peer: dict[str, int] = {}

    def account(self, context: grpc.aio.ServicerContext) -> Account:
        """Open the account of one call; it is closed when the call has ended, however it ends."""
        account = Account(self, context.peer())
        context.add_done_callback(account.close)
        return account

    def held_bytes(self, peer: str) -> int:
        """Return how much waits to be read by a connection."""
        return self._by_peer.get(peer, 0)

    def change(self, peer: str, size: int) -> None:
        """Count more, or less, for a connection."""
        self.bytes += size
        held = self.held_bytes(peer) + size
        if held:
            self._by_peer[peer] = held
        else:
            self._by_peer.pop(peer, None)


class Account:
    """The answers of one call that wait to be read.

    Parameters
    ----------
    outbox
        Where they are counted.
    peer
        The connection, as gRPC names it.
    """

    __slots__ = ("_bytes", "_is_closed", "_outbox", "_peer")

    def __init__(self, outbox: Outbox, peer: str) -> None:
        self._outbox = outbox
        self._peer = peer
        self._bytes = 0
        self._is_closed = False

    def refusal(self) -> NoSpaceError | None:
        """Return why no further request of this connection may be executed, if so."""
        outbox = self._outbox
        held, free = outbox.held_bytes(self._peer), outbox.bytes_max - outbox.bytes
        if held <= free:
            return None
        return NoSpaceError(
            "answers",
            f"{held:,} bytes wait to be read on this connection, {max(free, 0):,} are free (answer_bytes_max): read "
            "first, then try again",
        )

    def add(self, size: int) -> None:
        """Count an answer."""
        self._change(_CALL_BYTES + size)

    def sent(self, size: int) -> None:
        """Count an answer no longer: it is on its way."""
        self._change(-_CALL_BYTES - size)

    def close(self, _context: object = None) -> None:
        """Count nothing any more: the call has ended."""
        self._change(-self._bytes)
        self._is_closed = True

    def _change(self, size: int) -> None:
        if not self._is_closed:
            self._bytes += size
            self._outbox.change(self._peer, size)
