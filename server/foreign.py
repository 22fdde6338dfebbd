"""gRPC's own services, health and reflection: their messages pass the same checks as those of ours.

The services are made when somebody first calls one (`gpkvs.server.grpc_services`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from gpkvs.errors import InvalidArgumentError
from gpkvs.server.access.caller import ANYONE, Caller
from gpkvs.server.access.rights import CHECKS, check_of, open_to_all
from gpkvs.server.calls import CallContext, Details, Find, Handler, stream_stream, stream_unary
from gpkvs.server.door.context import AbortError
from gpkvs.server.interceptor import of_type
from gpkvs.server.memory import Account
from gpkvs.server.rpc import Doors, abort
from gpkvs.server.wire import require_message

if TYPE_CHECKING:
    from gpkvs.server.grpc_services import GrpcServices

GrpcHandler = Any  # grpc.RpcMethodHandler; grpc has no types

_PREFIX = "/grpc."


class Visit(NamedTuple):
    """Who makes a call, and what it holds."""

    caller: Caller
    account: Account


class ForeignServices:
    """Receives the messages of services that leave it to gRPC, which would count and bound none of them.

    Parameters
    ----------
    doors
        The checks that every call passes.
    names
        The services that health and reflection are about.
    helpers
        Threads that load what makes them; by default those of the loop.
    """

    def __init__(self, doors: Doors, names: Sequence[str], helpers: Executor | None = None) -> None:
        self._doors = doors
        self._names = names
        self._helpers = helpers
        self._is_serving = False
        self._services: GrpcServices | None = None
        self._making = asyncio.Lock()

    async def set_serving(self, is_serving: bool) -> None:
        """Say whether the server serves, to who asks for its health."""
        async with self._making:
            self._is_serving = is_serving
            if self._services:
                await self._services.set_serving(is_serving)

    async def intercept_service(self, continuation: Find, details: Details) -> Handler | None:
        """Return the method's handler, with its messages received here."""
        if not details.method.startswith(_PREFIX):
            return await continuation(details)
        method = details.method[1:].replace("/", ".")
        if method not in CHECKS:  # perhaps of a newer version of the package: nobody has said who may call it
            return None
        services = await self._made_services()
        handler = services.handler(details)
        if handler is None:
            return None
        if handler.unary_unary:
            run = of_type("unary", self._guarded(method, self._unary_unary, handler))
            return stream_unary(run, handler.response_serializer)
        if handler.unary_stream:
            run = of_type("server_stream", self._guarded(method, self._unary_stream, handler))
        else:
            run = self._guarded(method, self._stream_stream, handler)
        return stream_stream(run, handler.response_serializer)

    async def _made_services(self) -> GrpcServices:
        async with self._making:
            if not self._services:
                loaded = await asyncio.get_running_loop().run_in_executor(self._helpers, _load)
                services: GrpcServices = loaded.GrpcServices(self._names)
                await services.set_serving(self._is_serving)
                self._services = services
        return self._services

    def _guarded(
        self, method: str, run: Callable[[GrpcHandler, CallContext, Visit], Awaitable[Any]], handler: GrpcHandler
    ) -> Callable[[object, CallContext], Awaitable[Any]]:
        doors, is_open = self._doors, check_of(method) is open_to_all

        async def guarded(_requests: object, context: CallContext) -> Any:
            account = doors.memory.open(context)
            try:
                caller = ANYONE if is_open else await doors.logins.caller(context)
                account.require_room()
                return await run(handler, context, Visit(caller, account))
            except AbortError:  # the service said why
                raise
            except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
                await abort(context, error, method, doors.logins, doors.metrics)

        return guarded

    async def _unary_unary(self, handler: GrpcHandler, context: CallContext, visit: Visit) -> Any:
        return await handler.unary_unary(await self._request(handler, context, visit), context)

    async def _unary_stream(self, handler: GrpcHandler, context: CallContext, visit: Visit) -> None:
        responses = handler.unary_stream(await self._request(handler, context, visit), context)
        if isinstance(responses, Awaitable):  # it writes by itself
            await responses
            return
        async for response in responses:
            await context.write(response)

    async def _stream_stream(self, handler: GrpcHandler, context: CallContext, visit: Visit) -> None:
        async for response in handler.stream_stream(self._requests(handler, context, visit), context):
            await context.write(response)

    async def _request(self, handler: GrpcHandler, context: CallContext, visit: Visit) -> Any:
        data = await self._read(context, visit, is_stream=False)
        return _parse(handler, require_message(data))

    async def _read(self, context: CallContext, visit: Visit, *, is_stream: bool) -> object:
        """Receive a message, also while the server stops: a health check must be told so."""
        return await self._doors.receives.read(context, caller=visit.caller, is_stream=is_stream, outlives_stop=True)

    async def _requests(self, handler: GrpcHandler, context: CallContext, visit: Visit) -> AsyncIterator[Any]:
        while True:
            data = await self._read(context, visit, is_stream=True)
            if data is None:
                return
            yield _parse(handler, require_message(data))


def _load() -> ModuleType:
    from gpkvs.server import grpc_services  # noqa: PLC0415 - it loads grpcio, without which the server serves all else

    return grpc_services


def _parse(handler: GrpcHandler, data: bytes) -> Any:
    try:
        return handler.request_deserializer(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"these bytes are no request of this method: {error}") from None
