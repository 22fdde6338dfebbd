"""What was handed in, and will have a result when it is durable: `Store.submit` and its like."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from gpkvs.errors import GpkvsError

Result = TypeVar("Result")


class Submitted(Generic[Result]):
    """A request that a store executes while its caller goes on.

    Requests are executed in the order in which they were submitted. Who drops this object has the request executed all
    the same, and does not hear whether it is durable; `Store.close` waits for all of them. Arrays that were submitted
    belong to the store until `result` has returned: whoever changes them before may spoil the table.

    Parameters
    ----------
    require
        Refuses whoever may not ask: the child of a fork.
    is_durable
        Says whether `finish` returns at once.
    finish
        Waits until the request is durable; returns its result, or raises why it was refused.
    """

    def __init__(
        self, require: Callable[[], None], is_durable: Callable[[], bool], finish: Callable[[], Result]
    ) -> None:
        self._require = require
        self._is_durable = is_durable
        self._finish = finish
        self._mutex = threading.Lock()
        self._finished: tuple[Result] | None = None

    @classmethod
    def of(cls, result: Result) -> Submitted[Result]:
        """Return what has its result already."""
        return cls(_anyone, lambda: True, lambda: result)

    @classmethod
    def refused(cls, error: GpkvsError) -> Submitted[Result]:
        """Return a request that was refused."""

        def finish() -> Result:
            raise error

        return cls(_anyone, lambda: True, finish)

    def done(self) -> bool:
        """Whether `result` returns at once."""
        self._require()
        return self._is_durable()

    def result(self) -> Result:
        """Wait until the request is durable; return its result, each time the same.

        It may be called from any thread, also after the store was closed. Who is interrupted may call it again.

        Raises
        ------
        GpkvsError
            Why the request was refused: nothing of it was done. Those before and after it are not concerned.
        """
        self._require()  # before the lock, which another thread may have held at the fork
        with self._mutex:
            if self._finished is None:
                try:
                    self._finished = (self._finish(),)
                except GpkvsError as error:  # the same one each time: it would remember all who asked
                    raise error.with_traceback(None) from error.__cause__
            return self._finished[0]

    def __await__(self) -> Generator[Any, None, Result]:
        """Do the same for asyncio: another thread waits."""
        if self.done():
            return self.result()
        return (yield from asyncio.get_running_loop().run_in_executor(None, self.result).__await__())

    def __repr__(self) -> str:
        return f"<submitted, {'durable' if self._is_durable() else 'not durable yet'}>"


def _anyone() -> None:
    """Refuse nobody."""
