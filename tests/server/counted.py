"""An account of memory as a door keeps one, without a door."""

from __future__ import annotations

from gpkvs.server.account.memory import KINDS, Connection, Kind, Memory


class Counted:
    """Counts what handlers hold.

    Parameters
    ----------
    clients_bytes_max
        How much there may be.

    Attributes
    ----------
    held
        By kind.
    memory
        As handlers see it.
    """

    def __init__(self, clients_bytes_max: int = 1 << 30) -> None:
        self.held: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self.memory = Memory(self, clients_bytes_max)

    def clients_bytes(self) -> int:
        """Return what is held in all: all kinds but the batch."""
        return sum(self.held.values()) - self.held["batch"]

    def charge(self, _connection: int, kind: Kind, size: int) -> None:
        """Count more, or less."""
        self.held[kind] += size

    def connection(self, peer: str = "peer") -> Connection:
        """Return what a connection holds."""
        return self.memory.connection(peer, 0)
