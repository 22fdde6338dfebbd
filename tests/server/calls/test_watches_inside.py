"""What all watches of a server share: whoever waits is woken, and whoever ends leaves nothing.

A second of silence never ends here: who is not woken waits for ever.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.changes import Changes, Position
from gpkvs.config import MIB
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.access.caller import ANYONE
from gpkvs.server.account.bounds import CALL_BYTES
from gpkvs.server.account.memory import Account
from gpkvs.server.calls import watch
from gpkvs.server.calls.watch import Watches
from gpkvs.server.gate import Gate, NotServingError, Serving
from gpkvs.server.signs.exporter import Metrics
from gpkvs.watch import Selection
from tests.conftest import SMALL
from tests.server.counted import Counted

SECONDS_MAX = 30
Responses = AsyncGenerator[kv_pb2.WatchResponse, None]


@pytest.fixture
def pick() -> random.Random:
    seed = int(os.environ.get("GPKVS_SEED", random.randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return random.Random(seed)


class Inside:
    """The watches of a store, without a door."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.gate = Gate()
        none: Any = None
        self.gate.open(Serving(store, none, 64 * MIB))
        self.counted = Counted()
        self.watches = Watches(self.gate, Metrics())
        object.__setattr__(self.gate.serving(), "queue", _Idle())

    async def begin(self, number: int = 0, **asked: Any) -> Responses:
        """Begin a watch, each over a connection of its own."""
        account = Account(self.counted.connection(f"ipv4:1.1.1.1:{number}"))
        responses = self.watches.watch(kv_pb2.WatchRequest(**asked), ANYONE, account)
        assert not (await anext(responses)).entries
        return responses

    async def wait_waiting(self, count: int) -> None:
        while len(self.watches._waiting) < count:  # noqa: ASYNC110 - threads read before
            await asyncio.sleep(0)

    @property
    def is_over(self) -> bool:
        """Whether nobody follows, and nothing is left of whoever has."""
        watches = self.watches
        followers = self.store._engine.changes._followers
        return not (watches._waiting or watches._in_store or watches._open or followers)

    async def wait_over(self) -> None:
        while not self.is_over:  # noqa: ASYNC110 - threads end it
            await asyncio.sleep(0.01)


class _Idle:
    requests = 0


@asynccontextmanager
async def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Inside]:
    monkeypatch.setattr(watch, "_SILENT_SECONDS", 3600.0)
    with gpkvs.open(folder / "store", **SMALL) as store:
        yield Inside(store)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SECONDS_MAX))


async def keys(responses: Responses) -> list[bytes]:
    return [entry.keys for entry in (await anext(responses)).entries]


def test_whoever_waits_is_woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: random.Random) -> None:
    async def work() -> None:
        async with inside(tmp_path, monkeypatch) as place:
            begun = [await place.begin(number) for number in range(12)]
            for round_ in range(10):
                waiting = [asyncio.create_task(keys(responses)) for responses in begun]
                await place.wait_waiting(len(begun))
                gone = pick.randrange(len(begun))  # it may be the one that waits in the store
                ended = waiting.pop(gone)
                ended.cancel()
                await asyncio.wait([ended])
                begun.pop(gone)
                key = b"%d" % round_
                await asyncio.to_thread(place.store.set, key, b"")
                assert await asyncio.gather(*waiting) == [[key]] * len(begun)
            for responses in begun:
                await responses.aclose()
            await place.wait_over()

    run(work())


class Store:
    """A store whose followers may begin behind what is not durable yet, and wait as long as a test wants."""

    def __init__(self) -> None:
        self.durable = 0
        self.newest = 0
        self.changed = threading.Condition()

    def tell(self, durable: int) -> None:
        with self.changed:
            self.durable = durable
            self.changed.notify_all()

    def selection(self, table: str, prefix: bytes) -> Selection:
        return Selection(table or "t", prefix)

    def follow(self, since: Position | None, *, keep_seconds: float) -> Store.Following:
        assert (since, keep_seconds) == (None, watch.KEEP_SECONDS)
        return Store.Following(self)

    class Following:
        def __init__(self, store: Store) -> None:
            self._store = store
            self._is_late = False
            self.position = Position(1, store.newest)

        def read(self, bytes_max: int, timeout: float) -> list[Changes]:
            with self._store.changed:
                self._store.changed.wait_for(
                    lambda: self._is_late or self._store.durable > self.position.number, timeout
                )
                if self._store.durable <= self.position.number:
                    return []
                self.position = Position(1, self.position.number + 1)
                return [_entry(self.position.number)]

        def end_wait(self) -> None:
            """Find that the time of a wait is over."""
            with self._store.changed:
                self._is_late = True
                self._store.changed.notify_all()

        def close(self) -> None:
            pass


def _entry(number: int) -> Changes:
    key, one, none = np.array([number], np.uint8), np.array([1], np.uint32), np.array([], np.uint64)
    return Changes(number, 0, 0, "t", np.array([2], np.uint8), key, one, key[:0], one - one, none, none)


def test_another_one_waits_in_the_store_when_the_first_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SILENT_SECONDS", 3600.0)
    store: Any = Store()

    async def work() -> None:
        place = Inside(store)
        first = asyncio.create_task(keys(await place.begin(0)))
        await place.wait_waiting(1)
        in_store = place.watches._in_store
        assert in_store is not None
        second = asyncio.create_task(keys(await place.begin(1)))
        await place.wait_waiting(2)
        first.cancel()
        await asyncio.wait([first])
        of_first: Any = in_store.following._following
        in_store.silent_at = 0.0
        of_first.end_wait()
        while place.watches._in_store is in_store:  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(0.01)
        store.tell(1)
        assert await second == [bytes([1])]

    try:
        run(work())
    finally:
        store.tell(1000)  # no thread waits on


def test_whoever_stands_behind_the_one_in_the_store_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one began behind a transaction that was not durable, so the store wakes nobody for it."""
    monkeypatch.setattr(watch, "_SILENT_SECONDS", 3600.0)

    store: Any = Store()

    async def work() -> None:
        place = Inside(store)
        behind = await place.begin(0)
        store.newest = 1
        first = asyncio.create_task(keys(await place.begin(1)))
        await place.wait_waiting(1)
        second = asyncio.create_task(keys(behind))
        while place.watches._in_store is None or len(place.watches._waiting) < 2:  # noqa: ASYNC110 - a thread reads
            await asyncio.sleep(0)
        store.durable = 1  # the one in the store waits for the next
        assert await second == [bytes([1])]
        store.tell(2)
        assert await first == [bytes([2])]

    try:
        run(work())
    finally:
        store.tell(1000)  # no thread waits on


def test_whoever_ends_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with inside(tmp_path, monkeypatch) as place:
            waiting = []
            for number in range(8):
                responses = await place.begin(number)
                waiting.append(asyncio.create_task(keys(responses)))
            beginning = asyncio.create_task(place.begin(100))
            await asyncio.sleep(0)
            beginning.cancel()
            assert place.counted.held["answers"]
            assert place.watches._open == 9
            for task in waiting:
                task.cancel()
            await asyncio.wait([beginning, *waiting])
            # The one that waits in the store does so until there is something.
            await asyncio.to_thread(place.store.set, b"k", b"v")
            await place.wait_over()
            assert place.counted.held["answers"] == 0
            assert place.counted.held["calls"] == 9 * CALL_BYTES  # which end with the call

    run(work())


def test_a_stop_wakes_whoever_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with inside(tmp_path, monkeypatch) as place:
            waiting = [asyncio.create_task(keys(await place.begin(number))) for number in range(5)]
            await place.wait_waiting(len(waiting))
            place.gate.close()
            place.gate.end()
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, NotServingError)
            await asyncio.to_thread(place.store.close)
            await place.wait_over()

    run(work())


def test_changes_that_follow_each_other_closely_are_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a moment lasts until the test says so, what changes in it comes in one response."""
    monkeypatch.setattr(watch, "_TOGETHER_SECONDS", 3600.0)

    async def work() -> None:
        async with inside(tmp_path, monkeypatch) as place:
            pause, is_over = asyncio.sleep, asyncio.Event()

            async def sleep(seconds: float) -> None:
                if seconds > 0:
                    await is_over.wait()
                await pause(0)

            monkeypatch.setattr(asyncio, "sleep", sleep)
            responses = await place.begin()
            for number in range(2):
                key = b"%d" % number
                telling = asyncio.create_task(keys(responses))
                if number:
                    is_over.set()
                await asyncio.to_thread(place.store.set, key, b"")
                assert await telling == [key], "what comes alone is told at once"
                is_over.clear()
            telling = asyncio.create_task(keys(responses))
            for key in (b"a", b"b", b"c"):
                await asyncio.to_thread(place.store.set, key, b"")
            is_over.set()
            assert b"".join(await telling) == b"abc"
            await responses.aclose()
            await place.wait_over()

    run(work())


def test_who_is_behind_reads_on_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(watch, "_TOGETHER_SECONDS", 10.0 * SECONDS_MAX)
        monkeypatch.setattr(watch, "READ_BYTES", 1)
        async with inside(tmp_path, monkeypatch) as place:
            responses = await place.begin()
            told: list[bytes] = []
            for key in (b"a", b"b", b"c"):
                await asyncio.to_thread(place.store.set, key, b"")
            while len(b"".join(told)) < 3:
                told += await keys(responses)
            assert b"".join(told) == b"abc"
            await responses.aclose()
            await place.wait_over()

    run(work())
