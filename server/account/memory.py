"""One account of the memory that clients make the server take, bounded by `memory_bytes_max`.

The door keeps it, for itself and for Python. It counts by connection, by kind and in all:

- ``calls``: each open call, with what the door holds for it;
- ``requests``: each request, from its receipt to the end of its transaction;
- ``answers``: each response, from the moment it is planned until the door has sent it, or the call has ended;
- ``batch``: the working memory of the transactions in progress.

A connection may hold as much as it leaves free: one alone gets half, several share it, and a connection that holds
little always finds room. The server refuses a request beyond this before it is executed, and where it can before it is
received. How many bytes the GETs of a request bring is known only when they were executed: the room of one
transaction's values is kept free for that (`gpkvs.server.account.bounds`).
"""

from __future__ import annotations

from typing import Literal, Protocol

from gpkvs.errors import NoSpaceError
from gpkvs.server.account.bounds import CALL_BYTES
from gpkvs.server.call_types import CallContext

Kind = Literal["calls", "requests", "answers", "batch"]
KINDS: tuple[Kind, ...] = ("calls", "requests", "answers", "batch")

# Of what clients may take, one part in so many is the door's alone.
_LAST_PART = 8

# What a room takes without counting it, and in which steps it counts.
_ROOM_FREE_BYTES, _ROOM_STEP_BYTES = 16 << 10, 64 << 10

# A message that is being sent is there twice: the bytes that were given to the door, and its copy of them.
_SENT_COPIES = 2


class DoorAccount(Protocol):
    """What the door counts, for itself and for Python (``door/base/account.hpp``)."""

    def clients_bytes(self) -> int:
        """Return what clients hold in all: all kinds but the batch."""

    def charge(self, connection: int, kind: Kind, size: int) -> None:
        """Count what Python holds for a connection; less, if the size is negative."""


class Memory:
    """What the clients of one server take, as Python's handlers see it.

    Parameters
    ----------
    door
        Counts all of it.
    clients_bytes_max
        How much open calls, requests and responses may take together. The working memory of a batch comes on top.
    """

    def __init__(self, door: DoorAccount, clients_bytes_max: int) -> None:
        self.door = door
        self._python_bytes_max = clients_bytes_max - clients_bytes_max // _LAST_PART
        self._connections: dict[str, Connection] = {}

    @property
    def free_bytes(self) -> int:
        """What clients may still take of Python; less than nothing if they hold more than they may."""
        return self._python_bytes_max - self.door.clients_bytes()

    def open(self, context: CallContext) -> Account:
        """Open the account of a call; it is closed when the call has ended, however it ends."""
        account = Account(self.connection(context.peer(), context.connection))
        context.add_done_callback(account.close)
        return account

    def connection(self, peer: str, number: int) -> Connection:
        """Return what a connection holds in Python, by its name as gRPC writes it, and its id in the door."""
        found = self._connections.get(peer)
        if found is None or found.id != number:  # an earlier one may have had the same name, and still end
            found = self._connections[peer] = Connection(self, peer, number)
        return found

    def has_requests(self, peer: str) -> bool:
        """Return whether requests of a connection wait for the end of their transaction."""
        found = self._connections.get(peer)
        return found is not None and found.requests > 0

    def forget(self, connection: Connection, peer: str) -> None:
        """Keep no account of a connection that holds nothing; another one may have its name by now."""
        if self._connections.get(peer) is connection:
            del self._connections[peer]


class Connection:
    """What one connection holds in Python; the door knows the rest.

    Parameters
    ----------
    memory
        The account of the server.
    peer
        Its name, as gRPC writes it.
    number
        Its id in the door.
    """

    __slots__ = ("_memory", "_peer", "bytes", "id", "requests")

    def __init__(self, memory: Memory, peer: str, number: int) -> None:
        self._memory = memory
        self._peer = peer
        self.id = number
        self.bytes = 0
        self.requests = 0  # that handlers have made, and whose answers have not come

    def change(self, kind: Kind, size: int) -> None:
        """Count more, or less."""
        self.bytes += size
        if not self.bytes:
            self._memory.forget(self, self._peer)
        if size:
            self._memory.door.charge(self.id, kind, size)

    def refusal(self, size: int = 0) -> NoSpaceError | None:
        """Return why the connection may not hold this much more; None if it may."""
        memory = self._memory
        free = memory.free_bytes
        if self.bytes + size > free - size:
            return NoSpaceError(
                "memory",
                f"this connection holds {self.bytes:,} bytes and asks for {size:,}, {max(free, 0):,} are free for all "
                "(--memory-max): read the responses that wait, then try again",
            )
        return None


class Account:
    """What one call holds: itself and its responses. The door counts its requests.

    Parameters
    ----------
    connection
        Over which the call came.
    """

    __slots__ = ("_is_closed", "_response_bytes", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._response_bytes = 0
        self._is_closed = False
        connection.change("calls", CALL_BYTES)

    def require_room(self, size: int = 0) -> None:
        """Refuse a request that would take this much more.

        Raises
        ------
        NoSpaceError
            If its connection may not hold it.
        """
        refusal = self.connection.refusal(size)
        if refusal is not None:
            raise refusal

    def admit(self, response_bytes: int) -> None:
        """Count a response that is planned.

        Raises
        ------
        NoSpaceError
            If there is no room for it.
        """
        self.require_room(_SENT_COPIES * response_bytes)
        self.change_responses(response_bytes)

    def change_responses(self, size: int) -> None:
        """Count a response's bytes; a negative size gives back what was planned too much, or was sent."""
        if not self._is_closed:
            self._response_bytes += _SENT_COPIES * size
            self.connection.change("answers", _SENT_COPIES * size)

    def forget_responses(self) -> None:
        """Count the call's responses no longer: the call goes on, and nobody needs them any more."""
        self.change_responses(-self._response_bytes // _SENT_COPIES)

    def close(self, _context: object = None) -> None:
        """Count the call and its responses no longer: it has ended."""
        if not self._is_closed:
            self._is_closed = True
            self.connection.change("answers", -self._response_bytes)
            self.connection.change("calls", -CALL_BYTES)


class Room:
    """What a connection makes Python hold beside its requests and responses, counted before it is made.

    The first bytes belong to the call itself (`CALL_BYTES`). The rest is counted in steps: each takes time.

    Parameters
    ----------
    account
        Of the connection.
    bytes_max
        It takes about this much at most; None: as much as the account allows.
    """

    __slots__ = ("_bytes_max", "_counted_bytes", "account", "bytes")

    def __init__(self, account: Account, bytes_max: int | None = None) -> None:
        self.account = account
        self.bytes = 0
        self._bytes_max = bytes_max
        self._counted_bytes = 0

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *exception: object) -> None:
        self.keep(0)

    def require(self, size: int) -> None:
        """Refuse what there is no room for, and count nothing.

        Raises
        ------
        NoSpaceError
            If there is no room for it.
        """
        more = self._uncounted_bytes(size)
        if more > 0:
            if self._bytes_max is not None and self.bytes + size > self._bytes_max:
                raise NoSpaceError("memory", f"more than {self._bytes_max:,} bytes in memory: ask for less at once")
            self.account.require_room(more)

    def take(self, size: int) -> None:
        """Count what is made next.

        Raises
        ------
        NoSpaceError
            If there is no room for it; nothing is counted then.
        """
        self.require(size)
        self.take_made(size)

    def take_made(self, size: int) -> None:
        """Count what is there already, and cannot be refused any more."""
        more = self._uncounted_bytes(size)
        if more > 0:
            self._count(more)
        self.bytes += size

    def keep(self, size: int) -> None:
        """Count no more than this any longer."""
        self.bytes = min(self.bytes, size)
        unused = -self._uncounted_bytes(0)
        if unused > 0:
            self._count(-unused)

    def _uncounted_bytes(self, more: int) -> int:
        """Return how much is to be counted before there is more, in whole steps; less than nothing if it is less."""
        outside = max(self.bytes + more - _ROOM_FREE_BYTES, 0)
        return -(-outside // _ROOM_STEP_BYTES) * _ROOM_STEP_BYTES - self._counted_bytes

    def _count(self, size: int) -> None:
        self._counted_bytes += size
        self.account.connection.change("requests", size)
