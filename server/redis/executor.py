"""Runs commands: reads their keys, runs them over these, and stores what they wrote in one guarded request.

    keys -> read (one request) -> overlay -> commands, in order -> guards and final writes (one request) -> replies

If another writer was faster, a guard fails, nothing is stored, and the commands run again over what is there now. Those
that run here do not get in each other's way: each holds the locks of its keys.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from gpkvs.errors import ConflictError
from gpkvs.server.gate import Gate
from gpkvs.server.memory import Account
from gpkvs.server.redis.columns import found_by, read_of, write_of
from gpkvs.server.redis.command import Command, Words
from gpkvs.server.redis.overlay import Overlay, Record, UnreadError, is_key
from gpkvs.server.redis.reply import Error, Reply
from gpkvs.store import OpenTable

# So often commands run again before the client is told.
_ATTEMPTS_MAX = 100


class Step(NamedTuple):
    """A command with its words; their number is right."""

    command: Command
    words: Words


class WatchedError(Exception):
    """A watched key has changed."""


class Executor:
    """Runs the commands of all connections.

    Parameters
    ----------
    gate
        Leads to the store.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._locks: dict[tuple[int, bytes], asyncio.Lock] = {}
        self._holders: Counter[tuple[int, bytes]] = Counter()

    def table(self, name: str) -> OpenTable:
        """Return a table; raises UnknownTableError if there is none of that name."""
        return self._gate.serving().store.open_table(name)

    async def run(
        self, steps: Sequence[Step], watched: dict[bytes, int], table: OpenTable, account: Account
    ) -> list[Reply]:
        """Run commands as one transaction; return their replies when all is durable.

        A command that fails changes nothing; the others are executed all the same.

        Parameters
        ----------
        steps
            They work on the overlay of their keys.
        watched
            The versions that keys must have.
        table
            Where the keys are.
        account
            Of the connection.

        Raises
        ------
        Error
            If the keys change all the time.
        WatchedError
            If a watched key has changed: nothing was done.
        GpkvsError
            If the engine refuses.
        """
        named = [key for step in steps for key in step.command.keys.of(step.words)]
        keys = [key for key in dict.fromkeys((*watched, *named)) if is_key(key, table.limits)]
        if not watched:
            try:
                replies = await self._attempt(steps, None, table, account)
            except UnreadError:
                pass
            else:
                assert replies is not None, "nothing was read, so nothing is guarded"
                return replies
        locked = keys if any(step.command.writes for step in steps) else []
        async with self._hold(locked, table):
            for _ in range(_ATTEMPTS_MAX):
                found = await self.read(keys, table, account)
                if any(found[key].version != version for key, version in watched.items()):
                    raise WatchedError
                replies = await self._attempt(steps, found, table, account)
                if replies is not None:
                    return replies
        raise Error(f"TRYAGAIN the keys have changed {_ATTEMPTS_MAX} times while the command ran: try again")

    async def _attempt(
        self, steps: Sequence[Step], found: dict[bytes, Record] | None, table: OpenTable, account: Account
    ) -> list[Reply] | None:
        """Run commands over what was found, and store what they wrote; None if that is not what is there any more."""
        serving = self._gate.serving()
        overlay = Overlay(found, serving.now_ms(), table.limits)
        replies = [_reply(step, overlay) for step in steps]
        if overlay.written:
            request = write_of(found or {}, overlay.written, table)
            try:
                await serving.batcher.submit(request, account)
            except ConflictError:
                return None
        return replies

    async def read(self, keys: Sequence[bytes], table: OpenTable, account: Account) -> dict[bytes, Record]:
        """Return what keys hold, all as of one moment."""
        if not keys:
            return {}
        return found_by(await self._gate.serving().batcher.submit(read_of(keys, table), account), keys)

    @asynccontextmanager
    async def _hold(self, keys: Collection[bytes], table: OpenTable) -> AsyncIterator[None]:
        """Hold the locks of keys, in one order for all."""
        names = sorted((table.id, key) for key in keys)
        held = []
        self._holders.update(names)
        try:
            for name in names:
                lock = self._locks.setdefault(name, asyncio.Lock())
                await lock.acquire()
                held.append(lock)
            yield
        finally:
            for lock in held:
                lock.release()
            self._holders.subtract(names)
            for name in names:
                if not self._holders[name]:
                    del self._holders[name], self._locks[name]


def _reply(step: Step, overlay: Overlay) -> Reply:
    """Run a command; what it wrote does not count if it fails."""
    before = dict(overlay.written)
    try:
        assert step.command.run is not None
        return step.command.run(overlay, step.words)
    except Error as error:
        overlay.written = before
        return error
