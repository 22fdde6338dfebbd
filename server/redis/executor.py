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

from gpkvs.batch import Status
from gpkvs.errors import ConflictError
from gpkvs.server.gate import Gate
from gpkvs.server.memory import Account
from gpkvs.server.redis.columns import found_by, read_of, supposing_of, write_of
from gpkvs.server.redis.command import Step
from gpkvs.server.redis.overlay import ABSENT, Overlay, Record, UnreadError, is_key
from gpkvs.server.redis.reply import Error, Reply
from gpkvs.server.redis.rounds import Rounds
from gpkvs.store import OpenTable

# So often commands run again before the client is told, and those of a round before each runs by itself.
_ATTEMPTS_MAX, _ROUND_ATTEMPTS_MAX = 100, 2
# What a key holds whose condition has failed, as far as the command asks.
_FOUND: dict[int, Record] = {Status.CONDITION_FAILED: Record(b""), Status.NOT_FOUND: ABSENT}


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
        self._rounds = Rounds(self._run_unwatched)

    def table(self, name: str) -> OpenTable:
        """Return a table; raises UnknownTableError if there is none of that name."""
        return self._gate.serving().store.open_table(name)

    async def run_lone(self, step: Step, table: OpenTable, account: Account) -> Reply:
        """Run a command, maybe together with others' that wait; raises what `run` raises."""
        return await self._rounds.run(step, table, account)

    async def _run_unwatched(self, steps: Sequence[Step], table: OpenTable, account: Account) -> list[Reply]:
        attempts_max = _ATTEMPTS_MAX if len(steps) == 1 else _ROUND_ATTEMPTS_MAX
        return await self.run(steps, {}, table, account, attempts_max)

    async def run(
        self,
        steps: Sequence[Step],
        watched: dict[bytes, int],
        table: OpenTable,
        account: Account,
        attempts_max: int = _ATTEMPTS_MAX,
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
        attempts_max
            So often they run, while other writers are faster.

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
            for _ in range(attempts_max):
                account.forget_responses()  # of the attempt before
                found = await self.read(keys, table, account)
                if any(found[key].version != version for key, version in watched.items()):
                    raise WatchedError
                replies = await self._attempt(steps, found, table, account)
                if replies is not None:
                    return replies
        raise Error(f"TRYAGAIN the keys have changed {attempts_max} times while the command ran: try again")

    async def _attempt(
        self, steps: Sequence[Step], found: dict[bytes, Record] | None, table: OpenTable, account: Account
    ) -> list[Reply] | None:
        """Run commands over what was found, and store what they wrote; None if that is not what is there any more."""
        serving = self._gate.serving()
        overlay = Overlay(found, serving.now_ms(), table.limits)
        replies = [_reply(step, overlay) for step in steps]
        if overlay.supposed:
            return await self._suppose(steps, replies, overlay, table, account)
        if overlay.written:
            request = write_of(found or {}, overlay.written, table)
            try:
                await serving.batcher.submit(request, account)
            except ConflictError:
                return None
        return replies

    async def _suppose(
        self, steps: Sequence[Step], replies: list[Reply], overlay: Overlay, table: OpenTable, account: Account
    ) -> list[Reply]:
        """Store what a command wrote if the engine finds its key as was supposed; return its reply.

        Raises
        ------
        UnreadError
            If there is more to it.
        """
        if len(steps) > 1 or ABSENT in overlay.written.values():
            raise UnreadError
        if not overlay.written:
            return replies
        request = supposing_of(overlay.written, overlay.supposed, table)
        response = await self._gate.serving().batcher.submit(request, account)
        if response.status[0] == Status.OK:
            return replies
        found = _FOUND.get(response.status[0])
        if found is None:
            raise UnreadError
        # So the condition has failed, and the command writes nothing.
        return [_reply(steps[0], Overlay(dict.fromkeys(overlay.supposed, found), overlay.now_ms, table.limits))]

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
    overlay.begin()
    try:
        assert step.command.run is not None
        return step.command.run(overlay, step.words)
    except Error as error:
        overlay.undo()
        return error
