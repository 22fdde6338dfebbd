"""Runs the handlers of gRPC's services for calls that the native door hands to Python."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from gpkvs.server.calls import Details, Find, Handler, Interceptor, Service, StatusCode
from gpkvs.server.door.context import AbortError, Context

Serve = Callable[[Context, str], Awaitable[None]]
"""Serves a call of this path."""

_log = logging.getLogger("gpkvs.server")


class Handlers:
    """All services of a server.

    Parameters
    ----------
    interceptors
        Each may exchange the handler of a method; the first one sees what the others made.
    """

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._services: list[Service] = []
        self._find: Find = self._registered
        for interceptor in reversed(interceptors):
            self._find = _intercepted(interceptor, self._find)
        self._running: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, services: Sequence[Service]) -> None:
        """Serve these too."""
        self._services.extend(services)

    def start(self, context: Context, path: str) -> asyncio.Task[None]:
        """Run the handler of a call in a task, which may be cancelled."""
        return self.run(self._serve, context, path)

    def run(self, serve: Serve, context: Context, path: str) -> asyncio.Task[None]:
        """Run what serves a call in such a task; what it raises becomes the call's status."""
        task = asyncio.get_running_loop().create_task(_run(serve, context, path))
        self._running.add(task)

        def ended(_: object) -> None:
            self._running.discard(task)
            context.end()

        task.add_done_callback(ended)
        return task

    async def stop(self, grace_seconds: float) -> None:
        """Let handlers end by themselves for a while, then cancel them."""
        if self._running:
            await asyncio.wait(self._running, timeout=grace_seconds)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _registered(self, details: Details) -> Handler | None:
        return next(filter(None, (service.service(details) for service in self._services)), None)

    async def _serve(self, context: Context, path: str) -> None:
        handler = await self._find(Details(path, context.invocation_metadata()))
        if handler is None:
            context.finish(StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        if handler.response_serializer is not None:
            context.serialize = handler.response_serializer
        # No other kinds: handlers read their messages themselves (`gpkvs.server.rpc`, `gpkvs.server.foreign`).
        if handler.stream_unary:
            context.respond(await handler.stream_unary(None, context))
        else:
            assert handler.stream_stream
            await handler.stream_stream(None, context)


async def _run(serve: Serve, context: Context, path: str) -> None:
    try:
        await serve(context, path)
        context.finish(StatusCode.OK)
    except AbortError:
        pass  # the handler said why
    except asyncio.CancelledError:
        context.finish(StatusCode.CANCELLED)
    except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
        _log.exception("%s failed", path)
        context.finish(StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")


def _intercepted(interceptor: Interceptor, find: Find) -> Find:
    return lambda details: interceptor.intercept_service(find, details)
