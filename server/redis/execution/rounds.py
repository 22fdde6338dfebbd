"""Commands of several connections that wait at the same time run as one transaction: one read and one write for all.

The first command of a table runs by itself, at once. Those that come meanwhile wait, and are a *round* when it is done;
those that come during a round are the next one. A round runs in a task of its own: a client that goes takes nothing
away from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from gpkvs.errors import InvalidArgumentError, NoSpaceError
from gpkvs.server.account.memory import Account, Room
from gpkvs.server.calls.request_queue import ConnectionGoneError
from gpkvs.server.redis.execution.command import Step
from gpkvs.server.redis.protocol.reply import Error, Reply, held_bytes
from gpkvs.store import OpenTable

_STEPS_MAX = 64
# With more words, or longer ones, a command runs by itself: it would have the others wait.
_WORDS_MAX, _WORD_BYTES_MAX = 8, 4096

RunAlone = Callable[[Step, OpenTable, Room], Awaitable[Reply]]
RunRound = Callable[[Sequence[Step], OpenTable, Account], Awaitable[list[Reply]]]


class _Waiting(NamedTuple):
    step: Step
    account: Account
    replied: asyncio.Future[Reply]


class _AloneError(Exception):
    """A command must run by itself."""


class Rounds:
    """Runs lone commands, together where several wait.

    Parameters
    ----------
    run_alone
        Runs a command on a table; counts what it makes.
    run_round
        Runs several as one transaction; counts what they make in the account of one of them.
    """

    def __init__(self, run_alone: RunAlone, run_round: RunRound) -> None:
        self._run_alone = run_alone
        self._run_together = run_round
        self._waiting: dict[int, list[_Waiting]] = {}  # by table; one without a list is idle
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, step: Step, table: OpenTable, room: Room) -> Reply:
        """Run a command; return its reply when all is durable. Raises what `run_alone` raises."""
        if len(step.words) > _WORDS_MAX or max(map(len, step.words)) > _WORD_BYTES_MAX:
            return await self._run_alone(step, table, room)
        waiting = self._waiting.get(table.id)
        if waiting is None:
            self._waiting[table.id] = []
            try:
                return await self._run_alone(step, table, room)
            finally:
                self._go_on(table)
        replied = asyncio.get_running_loop().create_future()
        waiting.append(_Waiting(step, room.account, replied))
        try:
            reply = await replied
        except _AloneError:
            return await self._run_alone(step, table, room)
        room.take_made(held_bytes(reply))  # the round had room for all its replies
        return reply

    def _go_on(self, table: OpenTable) -> None:
        """Begin a round if commands wait; else the table is idle."""
        if not self._waiting[table.id]:
            del self._waiting[table.id]
            return
        task = asyncio.get_running_loop().create_task(self._round(table))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _round(self, table: OpenTable) -> None:
        waiting = self._waiting[table.id]
        taken = [one for one in waiting[:_STEPS_MAX] if not one.replied.done()]
        del waiting[:_STEPS_MAX]
        try:
            if taken:
                await self._run_round(taken, table)
        finally:
            self._go_on(table)

    async def _run_round(self, taken: Sequence[_Waiting], table: OpenTable) -> None:
        try:
            replies = await self._run_together([one.step for one in taken], table, taken[0].account)
        except (Error, InvalidArgumentError, NoSpaceError, ConnectionGoneError):
            # Nothing was stored: one of them may be wrong or gone, or all of them too much.
            _fail(taken, _AloneError())
        except Exception as error:  # noqa: BLE001 - each of them hears of it
            _fail(taken, error)
        except BaseException:
            for one in taken:
                one.replied.cancel()
            raise
        else:
            for one, reply in zip(taken, replies, strict=True):
                if not one.replied.done():
                    one.replied.set_result(reply)


def _fail(taken: Sequence[_Waiting], error: Exception) -> None:
    for one in taken:
        if not one.replied.done():
            one.replied.set_exception(error)
