"""Looking at calls that wait for their messages: it goes on whatever fails, and health is heard of during a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpkvs.errors import GpkvsError
from gpkvs.server.gate import NotServingError
from gpkvs.server.memory import Memory
from gpkvs.server.receive import Receives
from gpkvs.server.receiver import SlowRequestError


class Call:
    """A call whose message is there when the test says so."""

    def __init__(self) -> None:
        self.message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read(self) -> bytes:
        return await self.message


def asynchronous(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def make() -> tuple[Receives, Memory]:
    memory = Memory(1 << 30, turns=4)
    return Receives(memory, bytes_max=1 << 20, seconds_max=0.2), memory


@asynchronous
async def test_nothing_is_looked_at_after_the_end() -> None:
    """A look that found much free memory while the event loop ended left a traceback in the log."""
    receives, _ = make()
    looks: list[float] = []
    receives._look_once = looks.append  # type: ignore[method-assign]
    receives.close()
    await asyncio.sleep(1.3)
    assert looks == []


@asynchronous
async def test_a_look_that_fails_is_not_the_last() -> None:
    receives, memory = make()
    looks, real = 0, receives._look_once

    def fail_at_first(now: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise OSError("no descriptor is left")
        real(now)

    receives._look_once = fail_at_first  # type: ignore[method-assign]
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it logs the first failure
    with pytest.raises(SlowRequestError):
        await receives.read(Call(), memory.connection("a"), is_stream=False)  # type: ignore[arg-type]
    assert looks > 1


@asynchronous
async def test_after_a_stop_only_calls_that_outlive_it_receive() -> None:
    receives, memory = make()
    connection = memory.connection("a")
    calls = [Call(), Call()]
    waiting = [
        asyncio.create_task(receives.read(call, connection, is_stream=True, outlives_stop=outlives))  # type: ignore[arg-type]
        for call, outlives in zip(calls, (False, True), strict=True)
    ]
    await asyncio.sleep(0)
    stopping: GpkvsError = NotServingError("stopping")
    receives.stop(stopping)
    with pytest.raises(NotServingError):
        await waiting[0]
    calls[1].message.set_result(b"health")
    assert await waiting[1] == b"health"
    later = Call()
    later.message.set_result(b"health")
    assert await receives.read(later, connection, is_stream=False, outlives_stop=True) == b"health"  # type: ignore[arg-type]
    with pytest.raises(NotServingError):
        await receives.read(Call(), connection, is_stream=False)  # type: ignore[arg-type]
