"""gRPC's own services, health and reflection: their messages pass the same checks as those of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from gpkvs.errors import InvalidArgumentError
from gpkvs.server.access.caller import ANYONE, Caller
from gpkvs.server.access.rights import CHECKS, check_of, open_to_all
from gpkvs.server.interceptor import of_type
from gpkvs.server.memory import Account
from gpkvs.server.rpc import Doors, abort
from gpkvs.server.wire import require_message

Handler = Any  # grpc.RpcMethodHandler; grpc has no types
Context = Any  # grpc.aio.ServicerContext


class Visit(NamedTuple):
    """Who makes a call, and what it holds."""

    caller: Caller
    account: Account


class ForeignServices(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Receives the messages of services that leave it to gRPC, which would count and bound none of them.

    Parameters
    ----------
    doors
        The checks that every call passes.
    """

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        """Return the method's handler, with its messages received here."""
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:  # ours take bytes
            return handler
        method = details.method[1:].replace("/", ".")
        if method not in CHECKS:  # a newer version of the package brought it, and nobody has said who may call it
            return None
        if handler.unary_unary:
            run = of_type("unary", self._guarded(method, self._unary_unary, handler))
            return grpc.stream_unary_rpc_method_handler(run, None, handler.response_serializer)
        if handler.unary_stream:
            run = of_type("server_stream", self._guarded(method, self._unary_stream, handler))
        else:
            run = self._guarded(method, self._stream_stream, handler)
        return grpc.stream_stream_rpc_method_handler(run, None, handler.response_serializer)

    def _guarded(
        self, method: str, run: Callable[[Handler, Context, Visit], Awaitable[Any]], handler: Handler
    ) -> Callable[[object, Context], Awaitable[Any]]:
        doors, is_open = self._doors, check_of(method) is open_to_all

        async def guarded(_requests: object, context: Context) -> Any:
            account = doors.memory.open(context)
            try:
                caller = ANYONE if is_open else await doors.logins.caller(context)
                account.require_room()
                return await run(handler, context, Visit(caller, account))
            except grpc.aio.AbortError:  # the service said why
                raise
            except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
                await abort(context, error, method, doors)

        return guarded

    async def _unary_unary(self, handler: Handler, context: Context, visit: Visit) -> Any:
        return await handler.unary_unary(await self._request(handler, context, visit), context)

    async def _unary_stream(self, handler: Handler, context: Context, visit: Visit) -> None:
        responses = handler.unary_stream(await self._request(handler, context, visit), context)
        if isinstance(responses, Awaitable):  # it writes by itself
            await responses
            return
        async for response in responses:
            await context.write(response)

    async def _stream_stream(self, handler: Handler, context: Context, visit: Visit) -> None:
        async for response in handler.stream_stream(self._requests(handler, context, visit), context):
            await context.write(response)

    async def _request(self, handler: Handler, context: Context, visit: Visit) -> Any:
        data = await self._read(context, visit, is_stream=False)
        return _parse(handler, require_message(data))

    async def _read(self, context: Context, visit: Visit, *, is_stream: bool) -> object:
        """Receive a message, also while the server stops: a health check must be told so."""
        return await self._doors.receives.read(
            context, visit.account.connection, caller=visit.caller, is_stream=is_stream, outlives_stop=True
        )

    async def _requests(self, handler: Handler, context: Context, visit: Visit) -> AsyncIterator[Any]:
        while True:
            data = await self._read(context, visit, is_stream=True)
            if data is grpc.aio.EOF:
                return
            yield _parse(handler, require_message(data))


def _parse(handler: Handler, data: bytes) -> Any:
    try:
        return handler.request_deserializer(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"these bytes are no request of this method: {error}") from None
