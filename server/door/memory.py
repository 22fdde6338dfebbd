"""What clients make Python take: counted in the door's account, by connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpkvs.server.account.memory import KINDS, Account, Connection, Kind, Memory
from gpkvs.server.door.library import Library

_LAST_PART = 8


class DoorMemory(Memory):
    """The door's account, as Python's handlers see it.

    Parameters
    ----------
    library
        The door.
    clients_bytes_max
        How much open calls, requests and responses may take together, the door's own among them.
    """

    def __init__(self, library: Library, clients_bytes_max: int) -> None:
        super().__init__(clients_bytes_max)
        self.library = library

    @property
    def free_bytes(self) -> int:
        """What clients may still take of Python; the last part is the door's (``door/base/account.hpp``)."""
        return self.clients_bytes_max - self.clients_bytes_max // _LAST_PART - self.library.clients_bytes()

    def open(self, context: Any) -> Account:
        """Open the account of a call; it is closed when the call has ended, however it ends."""
        peer = context.peer()
        if peer not in self._connections:
            self._connections[peer] = _DoorConnection(self, peer, context.connection)
        return super().open(context)


class Totals(Mapping[Kind, int]):
    """What is counted in all, by kind."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def __getitem__(self, kind: Kind) -> int:
        return self._library.held_bytes(kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(KINDS)

    def __len__(self) -> int:
        return len(KINDS)


class _DoorConnection(Connection):
    """What one connection holds in Python; the door knows the rest.

    Parameters
    ----------
    connection
        Its id.
    """

    __slots__ = ("_library",)

    def __init__(self, memory: DoorMemory, peer: str, connection: int) -> None:
        super().__init__(memory, peer)
        self._library = memory.library
        self.id = connection

    def change(self, kind: Kind, size: int) -> None:
        """Count more, or less."""
        super().change(kind, size)
        if size:
            self._library.charge(self.id, kind, size)
