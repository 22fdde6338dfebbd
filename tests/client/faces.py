"""A store, a blocking client and an asynchronous one, each as something blocking: one test is for all three."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpkvs
from gpkvs.client import AsyncClient, Client, async_face, async_rows
from tests.conftest import SMALL, assert_clean

_numbers = itertools.count()
FACES = ("store", "client", "async")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        """Wait for what runs in the loop."""

        async def waited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(waited(), self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Blocking:
    """An asynchronous object whose methods wait for their results."""

    def __init__(self, awaited: Any, loop: Loop) -> None:
        self._awaited, self._loop = awaited, loop

    def __repr__(self) -> str:
        return repr(self._awaited)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._awaited, name)
        if not callable(member):
            return member

        def call(*arguments: Any, **named: Any) -> Any:
            if name == "transact":
                arguments = (self._work(arguments[0]), *arguments[1:])

            async def called() -> Any:
                result = member(*arguments, **named)
                if name == "batch" and (arguments or "operations" in named):
                    return await result
                return await result if inspect.isawaitable(result) and name != "batch" else result

            result = self._loop.run(called())
            is_async = type(result).__module__ in (async_face.__name__, async_rows.__name__) or inspect.isasyncgen(
                result
            )
            return Blocking(result, self._loop) if is_async else result

        return call

    def _work(self, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a blocking function as one that a transaction awaits, run in a thread."""

        async def run(transaction: Any) -> Any:
            return await asyncio.to_thread(work, Blocking(transaction, self._loop))

        return run

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return self._loop.run(self._awaited.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        return Blocking(self._loop.run(self._awaited.__aenter__()), self._loop)

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self._awaited.__aexit__(*error))


@contextmanager
def opened(kind: str, folder: Path, serve: Callable[[], Any]) -> Iterator[Any]:
    """Open one of the three."""
    if kind == "store":
        with gpkvs.open(folder / "embedded", **SMALL) as store:
            yield store
        assert_clean(folder / "embedded")
        return
    table = f"table-{next(_numbers)}"
    target = serve().target
    with Client(target) as client:
        client.create_table(table, index_bytes=1 << 16)
    if kind == "client":
        with Client(target, table=table) as client:
            yield client
        return
    loop = Loop()

    async def connect() -> AsyncClient:
        return AsyncClient(target, table=table)

    try:
        with Blocking(loop.run(connect()), loop) as client:
            yield client
    finally:
        loop.close()
