"""Runs commands: reads their keys, runs them over these, and stores what they wrote in one guarded request.

    keys -> read (one request) -> overlay -> commands, in order -> guards and final writes (one request) -> replies

If another writer was faster, a guard fails, nothing is stored, and the commands run again over what is there now. Those
that run here do not get in each other's way: each holds the locks of its keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gpkvs.batch import Status
from gpkvs.errors import ConflictError
from gpkvs.server.account.memory import Account, Room
from gpkvs.server.gate import Gate
from gpkvs.server.redis.execution.columns import found_by, read_of, supposing_of, write_of
from gpkvs.server.redis.execution.command import Step
from gpkvs.server.redis.execution.key_locks import KeyLocks
from gpkvs.server.redis.execution.overlay import ABSENT, Overlay, Record, UnreadError, is_key
from gpkvs.server.redis.execution.rounds import Rounds
from gpkvs.server.redis.protocol.reply import Error, Reply, held_bytes
from gpkvs.store import OpenTable

# So often commands run again before the client is told, and those of a round before each runs by itself.
_ATTEMPTS_MAX, _ROUND_ATTEMPTS_MAX = 100, 2
# So many commands run before others have their turn.
_STEPS_AT_ONCE = 64
# What a round may make: one that makes more is none, and each of its commands runs by itself.
_ROUND_BYTES_MAX = 4 << 20
# What a word takes that may be a key; what a key takes that is read, with the rows of its operations; and its lock.
_WORD_BYTES, _READ_BYTES, _LOCK_BYTES = 64, 768, 512
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
        self._locks = KeyLocks()
        self._rounds = Rounds(self._run_alone, self._run_round)

    def table(self, name: str) -> OpenTable:
        """Return a table; raises UnknownTableError if there is none of that name."""
        return self._gate.serving().store.open_table(name)

    async def run_lone(self, step: Step, table: OpenTable, room: Room) -> Reply:
        """Run a command, maybe together with others' that wait; raises what `run` raises."""
        return await self._rounds.run(step, table, room)

    async def _run_round(self, steps: Sequence[Step], table: OpenTable, account: Account) -> list[Reply]:
        with Room(account, _ROUND_BYTES_MAX) as room:
            return await self.run(steps, {}, table, room, _ROUND_ATTEMPTS_MAX)

    async def run(
        self,
        steps: Sequence[Step],
        watched: dict[bytes, int],
        table: OpenTable,
        room: Room,
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
        room
            Counts what is made; then it keeps the replies.
        attempts_max
            So often they run, while other writers are faster.

        Raises
        ------
        Error
            If the keys change all the time.
        WatchedError
            If a watched key has changed: nothing was done.
        GpkvsError
            If the engine refuses, or there is no room: nothing was done.
        """
        before = room.bytes
        replies: list[Reply] = []
        try:
            replies = await self._run(steps, watched, table, room, attempts_max)
        finally:
            room.keep(before + sum(map(held_bytes, replies)))
        return replies

    async def _run_alone(self, step: Step, table: OpenTable, room: Room) -> Reply:
        return (await self.run([step], {}, table, room))[0]

    async def _run(
        self, steps: Sequence[Step], watched: dict[bytes, int], table: OpenTable, room: Room, attempts_max: int
    ) -> list[Reply]:
        before = room.bytes
        if not watched:
            try:
                replies = await self._attempt(steps, None, table, room)
            except UnreadError:
                room.keep(before)
            else:
                assert replies is not None, "nothing was read, so nothing is guarded"
                return replies
        room.take(_WORD_BYTES * (len(watched) + sum(len(step.words) for step in steps)))
        named = dict.fromkeys(watched)
        for step in steps:
            named |= dict.fromkeys(step.command.keys.of(step.words))
        keys = [key for key in named if is_key(key, table.limits)]
        locked = keys if any(step.command.writes for step in steps) else []
        room.take(_LOCK_BYTES * len(locked))
        async with self._locks.hold([(table.id, key) for key in sorted(locked)]):
            before = room.bytes
            for _ in range(attempts_max):
                room.keep(before)  # without what the attempt before has made
                room.account.forget_responses()
                found = await self.read(keys, table, room)
                if any(found[key].version != version for key, version in watched.items()):
                    raise WatchedError
                replies = await self._attempt(steps, found, table, room)
                if replies is not None:
                    return replies
        raise Error(f"TRYAGAIN the keys have changed {attempts_max} times while the command ran: try again")

    async def _attempt(
        self, steps: Sequence[Step], found: dict[bytes, Record] | None, table: OpenTable, room: Room
    ) -> list[Reply] | None:
        """Run commands over what was found, and store what they wrote; None if that is not what is there any more."""
        serving = self._gate.serving()
        overlay = Overlay(found, serving.now_ms(), table.limits, room)
        replies = []
        for number, step in enumerate(steps, 1):
            reply = _reply(step, overlay)
            room.take(held_bytes(reply))
            replies.append(reply)
            if number % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if overlay.supposed:
            return await self._suppose(steps, replies, overlay, table, room)
        if overlay.written:
            _require_message(overlay, serving.message_bytes_max)
            request = write_of(found or {}, overlay.written, table)
            try:
                await serving.queue.submit(request, table.id, room.account)
            except ConflictError:
                return None
        return replies

    async def _suppose(
        self, steps: Sequence[Step], replies: list[Reply], overlay: Overlay, table: OpenTable, room: Room
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
        response = await self._gate.serving().queue.submit(request, table.id, room.account)
        if response.status[0] == Status.OK:
            return replies
        found = _FOUND.get(response.status[0])
        if found is None:
            raise UnreadError
        # So the condition has failed, and the command writes nothing.
        return [_reply(steps[0], Overlay(dict.fromkeys(overlay.supposed, found), overlay.now_ms, table.limits, room))]

    async def read(self, keys: Sequence[bytes], table: OpenTable, room: Room) -> dict[bytes, Record]:
        """Return what keys hold, all as of one moment; raises NoSpaceError if there is no room for it."""
        if not keys:
            return {}
        room.take(_READ_BYTES * len(keys))
        response = await self._gate.serving().queue.submit(read_of(keys, table), table.id, room.account)
        room.take(len(response.values))  # cut out of the response, which is counted too
        return found_by(response, keys)


def _require_message(overlay: Overlay, bytes_max: int) -> None:
    """Refuse to store more than a message may have: commands may write more than they bring."""
    size = sum(len(key) + len(record.value or b"") for key, record in overlay.written.items())
    if size > bytes_max:
        raise Error(
            f"ERR this writes {size:,} bytes, allowed are {bytes_max:,} (message_bytes_max): write less at once"
        )


def _reply(step: Step, overlay: Overlay) -> Reply:
    """Run a command; what it wrote does not count if it fails."""
    overlay.begin()
    try:
        assert step.command.run is not None
        return step.command.run(overlay, step.words)
    except Error as error:
        overlay.undo()
        return error
