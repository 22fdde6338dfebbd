"""The locks of keys: a lock is there while somebody holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

Name = tuple[int, bytes]
"""A table's id, and a key."""


class _Lock(asyncio.Lock):
    """A lock that knows how many callers hold it or wait for it."""

    users = 0


class KeyLocks:
    """The locks of the keys of all tables."""

    def __init__(self) -> None:
        self._locks: dict[Name, _Lock] = {}

    def __len__(self) -> int:
        """Return how many locks there are."""
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, names: Sequence[Name]) -> AsyncIterator[None]:
        """Hold some locks.

        Parameters
        ----------
        names
            Sorted, so that no two callers wait for each other.
        """
        used: list[Name] = []  # the last one may not be held yet
        held = 0
        try:
            for name in names:
                lock = self._locks.get(name)
                if lock is None:
                    lock = self._locks[name] = _Lock()
                lock.users += 1
                used.append(name)
                await lock.acquire()
                held += 1
            yield
        finally:
            for number, name in enumerate(used):
                self._leave(name, is_held=number < held)

    def _leave(self, name: Name, *, is_held: bool) -> None:
        lock = self._locks[name]
        lock.users -= 1
        if is_held:
            lock.release()
        if not lock.users:
            del self._locks[name]
