"""A queue that is fair to connections: it takes one request of each in turn.

No connection waits for all requests of another one. Requests of one connection stay in their order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from gpkvs.server.memory import Account, Connection


class Queued(Protocol):
    """A request that waits; its account knows its connection."""

    account: Account

    @property
    def operations(self) -> int:
        """How much work it is."""


Item = TypeVar("Item", bound=Queued)


class FairQueue(Generic[Item]):
    """Takes requests at its end, and gives them out in turn by connection."""

    def __init__(self) -> None:
        # The requests of each connection that has some here; the one whose turn it is stands first.
        self._turns: OrderedDict[Connection, deque[Item]] = OrderedDict()
        self._passed: list[tuple[Connection, deque[Item]]] = []
        self._count = 0
        self.operations = 0

    def __len__(self) -> int:
        return self._count

    def append(self, item: Item) -> None:
        """Queue a request."""
        self._turns.setdefault(item.account.connection, deque()).append(item)
        self._count += 1
        self.operations += item.operations

    @property
    def has_turn(self) -> bool:
        """Whether a connection has its turn: not if all that have requests here are passed by."""
        return bool(self._turns)

    def pass_by(self) -> None:
        """Leave the connection out whose turn it is, until `end_passing`."""
        self._passed.append(self._turns.popitem(last=False))

    def end_passing(self) -> None:
        """Have those that were passed by stand first again, in their order; nothing was queued meanwhile."""
        for connection, own in reversed(self._passed):
            self._turns[connection] = own
            self._turns.move_to_end(connection, last=False)
        self._passed.clear()

    def first(self) -> Item:
        """Return the request whose turn it is."""
        return next(iter(self._turns.values()))[0]

    def popleft(self) -> Item:
        """Take out the request whose turn it is."""
        connection, own = next(iter(self._turns.items()))
        item = own.popleft()
        self._count -= 1
        self.operations -= item.operations
        if own:
            self._turns.move_to_end(connection)
        else:
            del self._turns[connection]
        return item

    def put_back(self, items: Sequence[Item]) -> None:
        """Take back requests in the order in which they were taken out: they are the next again."""
        for item in reversed(items):
            connection = item.account.connection
            self._turns.setdefault(connection, deque()).appendleft(item)
            self._turns.move_to_end(connection, last=False)
            self._count += 1
            self.operations += item.operations
