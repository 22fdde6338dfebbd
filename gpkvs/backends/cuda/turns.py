"""Several GPUs, driven by one thread in turns: while one call waits for its GPU, the next call goes on.

With a thread for each GPU, these threads would be in each other's way: each call of CUDA gives Python's lock away and
asks for it again, and to be woken takes longer than most calls. Two GPUs took twice the time of one that way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from cupy.cuda import runtime
from greenlet import getcurrent, greenlet

from gpkvs.backends.base import Result


class Turns:
    """Makes one call for each GPU, in turns.

    Parameters
    ----------
    numbers
        Of the GPUs, as CUDA counts them.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._main: greenlet | None = None  # while calls are made

    def run(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Make the calls, one for each GPU; return what they return.

        If some fail, the first one's error is raised when all have ended.
        """
        if len(calls) == 1:
            return [calls[0]()]
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}

        def make(at: int, call: Callable[[], Result]) -> None:
            try:
                results[at] = call()
            except BaseException as error:  # noqa: BLE001 - the others go on to their ends
                errors[at] = error

        waiting = deque((number, greenlet(partial(make, at, call))) for at, (number, call) in self._numbered(calls))
        self._main = getcurrent()
        try:
            while waiting:
                number, call = waiting.popleft()
                runtime.setDevice(number)
                call.switch()
                if not call.dead:
                    waiting.append((number, call))
        finally:  # an interrupt may come between two turns
            self._main = None
            runtime.setDevice(self._numbers[0])
        if errors:
            raise errors[min(errors)]
        return [results[at] for at in range(len(calls))]

    def _numbered(self, calls: Sequence[Callable[[], Result]]) -> enumerate[tuple[int, Callable[[], Result]]]:
        return enumerate(zip(self._numbers, calls, strict=True))

    @property
    def are_on(self) -> bool:
        """Whether calls are made in turns now."""
        return self._main is not None

    def next(self) -> None:
        """Let the other calls go on; return when it is this one's turn again."""
        if self._main is not None:
            self._main.switch()
