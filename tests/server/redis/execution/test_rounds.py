"""Lone commands of several connections run together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpkvs.errors import GpkvsError, InvalidArgumentError, NoSpaceError
from gpkvs.server.account.memory import Account, Room
from gpkvs.server.redis.execution.command import COMMANDS, Step
from gpkvs.server.redis.execution.rounds import Rounds
from gpkvs.server.redis.protocol.reply import Error, Reply
from gpkvs.server.redis.service import Service  # noqa: F401 - registers the commands
from gpkvs.store import OpenTable
from tests.server.counted import Counted

ROOM = Room(Account(Counted().connection()))
TABLES = [cast(OpenTable, SimpleNamespace(id=number)) for number in range(2)]


class Engine:
    """Runs commands when it may, and fails as it is told."""

    def __init__(self) -> None:
        self.runs: list[list[bytes]] = []
        self.may_go_on = asyncio.Event()
        self.failing: Callable[[list[bytes]], Exception | None] = lambda _keys: None
        self.rounds = Rounds(self.run_alone, self.run)

    async def run_alone(self, step: Step, table: OpenTable, room: Room) -> Reply:
        return (await self.run([step], table, room.account))[0]

    async def run(self, steps: Sequence[Step], _table: OpenTable, _account: Account) -> list[Reply]:
        keys = [step.words[1] for step in steps]
        self.runs.append(keys)
        await self.may_go_on.wait()
        failure = self.failing(keys)
        if failure:
            raise failure
        return [key + b"!" for key in keys]

    def ask(self, key: bytes, table: int = 0) -> asyncio.Task[Reply]:
        step = Step(COMMANDS[b"incr"], [b"INCR", key])
        return asyncio.get_running_loop().create_task(self.rounds.run(step, TABLES[table], ROOM))

    async def replies_to(self, keys: list[bytes]) -> list[Reply | BaseException]:
        """Let all of them come before the first one goes on; return what each hears."""
        asked = [self.ask(key) for key in keys]
        await settle()
        self.may_go_on.set()
        return await asyncio.gather(*asked, return_exceptions=True)


def engine_test(test: Callable[[Engine], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in a loop."""

    def run() -> None:
        async def within() -> None:
            await asyncio.wait_for(test(Engine()), 20)

        asyncio.run(within())

    run.__name__ = test.__name__
    return run


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def keys(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@engine_test
async def test_those_that_come_meanwhile_are_a_round(engine: Engine) -> None:
    asked = [engine.ask(key) for key in keys(4)]
    other = engine.ask(b"other", table=1)
    await settle()
    assert engine.runs == [[b"0"], [b"other"]]
    engine.may_go_on.set()
    assert await asyncio.gather(*asked, other) == [key + b"!" for key in [*keys(4), b"other"]]
    assert engine.runs == [[b"0"], [b"other"], keys(3, 1)]
    assert await engine.ask(b"a") == b"a!"
    assert engine.runs[3:] == [[b"a"]]
    assert not engine.rounds._waiting


@engine_test
async def test_a_round_has_so_many_commands(engine: Engine) -> None:
    assert await engine.replies_to(keys(100)) == [key + b"!" for key in keys(100)]
    assert engine.runs == [[b"0"], keys(64, 1), keys(35, 65)]


@pytest.mark.parametrize(
    "failure", [Error("ERR wrong"), InvalidArgumentError("too many", field="ops"), NoSpaceError("memory", "full")]
)
def test_if_a_round_is_refused_each_runs_by_itself(failure: Exception) -> None:
    @engine_test
    async def test(engine: Engine) -> None:
        engine.failing = lambda keys: failure if b"2" in keys else None
        assert await engine.replies_to(keys(4)) == [b"0!", b"1!", failure, b"3!"]
        assert engine.runs == [[b"0"], keys(3, 1), [b"1"], [b"2"], [b"3"]]

    test()


@pytest.mark.parametrize("failure", [GpkvsError("nobody knows what was stored"), ZeroDivisionError()])
def test_if_a_round_fails_all_hear_of_it_and_nothing_runs_again(failure: Exception) -> None:
    @engine_test
    async def test(engine: Engine) -> None:
        engine.failing = lambda keys: failure if b"2" in keys else None
        assert await engine.replies_to(keys(4)) == [b"0!", failure, failure, failure]
        assert engine.runs == [[b"0"], keys(3, 1)]
        assert await engine.ask(b"next") == b"next!"

    test()


@engine_test
async def test_a_client_that_goes_takes_nothing_from_the_others(engine: Engine) -> None:
    asked = [engine.ask(key) for key in keys(4)]
    await settle()
    asked[1].cancel()  # it waits: it never runs
    await settle()
    asked[0].cancel()  # it runs, and the others' round begins
    await settle()
    assert engine.runs == [[b"0"], [b"2", b"3"]]
    asked[2].cancel()  # the first one of its round
    await settle()
    engine.may_go_on.set()
    assert await asked[3] == b"3!"
    assert not engine.rounds._waiting


@engine_test
async def test_what_takes_long_runs_by_itself(engine: Engine) -> None:
    first = engine.ask(b"first")
    await settle()
    long: list[list[bytes]] = [[b"APPEND", b"k", bytes(4097)], [b"MSETNX", *[b"k", b"v"] * 4]]
    for words in long:
        step = Step(COMMANDS[words[0].lower()], words)
        asyncio.get_running_loop().create_task(engine.rounds.run(step, TABLES[0], ROOM)).add_done_callback(_ignore)
    await settle()
    assert engine.runs == [[b"first"], [b"k"], [b"k"]]
    engine.may_go_on.set()
    assert await first == b"first!"


def _ignore(_task: asyncio.Task[Any]) -> None: ...
