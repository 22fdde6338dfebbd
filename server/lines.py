"""Requests that wait: a line for each connection, whose order is kept; connections take turns.

One connection may send requests that take seconds, such as GETs of many large values. In one queue everybody else would
wait behind them; so each connection gives a few requests at a turn, and the batch after one that was cut begins with
those that were behind the cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

# What a connection may give at a turn; a batch that has room for more goes round again.
TURN_REQUESTS = 64
TURN_BYTES = 256 << 10

Item = TypeVar("Item")


class Lines(Generic[Item]):
    """Lines of requests.

    Parameters
    ----------
    connection_of
        Returns the name of the connection that an item came over.
    bytes_of
        Returns the size of an item.
    """

    def __init__(self, connection_of: Callable[[Item], str], bytes_of: Callable[[Item], int]) -> None:
        self._connection_of = connection_of
        self._bytes_of = bytes_of
        self._lines: dict[str, deque[Item]] = {}  # in the order of their turns; none is empty
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, item: Item) -> None:
        """Put an item at the end of its connection's line."""
        name = self._connection_of(item)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = deque()
        line.append(item)
        self._count += 1

    def take(self) -> Iterator[Item]:
        """Take items, turn by turn; the one that the caller does not want goes back with `put_back`."""
        while self._lines:
            name, line = next(iter(self._lines.items()))
            left = TURN_BYTES
            for _ in range(TURN_REQUESTS):
                item = line.popleft()
                self._count -= 1
                left -= self._bytes_of(item)
                if not line:
                    del self._lines[name]
                yield item
                if not line or left <= 0:
                    break
            if name in self._lines and self._lines[name] is line:
                self._lines[name] = self._lines.pop(name)  # behind the others

    def put_back(self, items: list[Item], done: Item | None = None) -> None:
        """Return items to the front of their lines, in the order in which they were taken; their turns come first.

        Parameters
        ----------
        items
            What was taken and not executed.
        done
            The last item that was: its connection had its turn, so the next one is after all others.
        """
        first: dict[str, deque[Item]] = {}
        for item in items:
            first.setdefault(self._connection_of(item), deque()).append(item)
        for name, line in first.items():
            line.extend(self._lines.pop(name, ()))
        self._count += len(items)
        self._lines = first | self._lines
        if done is not None and (name := self._connection_of(done)) in self._lines:
            self._lines[name] = self._lines.pop(name)

    def clear(self) -> list[Item]:
        """Take everything."""
        items = [item for line in self._lines.values() for item in line]
        self._lines.clear()
        self._count = 0
        return items
