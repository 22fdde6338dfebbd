"""Interrupts a coroutine at each of its suspensions in turn: what it cleans up must not depend on where it was.

A coroutine is interrupted in two ways: when it begins to wait, and when that for which it waits has come but the
coroutine has not heard of it.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

Run = Callable[[Coroutine[Any, Any, Any]], Awaitable[None]]
_SUSPENSIONS_MAX = 1000


async def interruptions() -> AsyncIterator[Run]:
    """Yield a function for each interruption; it runs a coroutine. The last one does not interrupt it any more."""
    for is_late in (False, True):
        for number in range(_SUSPENSIONS_MAX):
            was_reached = False

            async def run(coroutine: Coroutine[Any, Any, Any], number: int = number, is_late: bool = is_late) -> None:
                nonlocal was_reached

                def reached() -> None:
                    nonlocal was_reached
                    was_reached = True

                with suppress(asyncio.CancelledError):
                    await asyncio.create_task(_driven(_steps(coroutine, number, reached, is_late=is_late)))

            yield run
            if not was_reached:
                assert number, "nothing was interrupted"
                break
        else:
            raise AssertionError(f"it is suspended more than {_SUSPENSIONS_MAX} times")


async def _driven(steps: Awaitable[Any]) -> Any:
    return await steps


@types.coroutine
def _steps(
    coroutine: Coroutine[Any, Any, Any], number: int, reached: Callable[[], None], *, is_late: bool
) -> Generator[Any, None, Any]:
    """Run a coroutine, and cancel this task at its suspension of a number."""
    task = asyncio.current_task()
    assert task is not None
    error: BaseException | None = None
    suspensions = 0
    while True:
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        error = None
        if suspensions == number:
            reached()
            if is_late and awaited is not None:
                awaited.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        suspensions += 1
        try:
            yield awaited
        except BaseException as thrown:  # noqa: BLE001 - the coroutine gets it
            error = thrown
