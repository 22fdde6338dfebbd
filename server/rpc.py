"""Make gRPC methods of coroutines that raise the errors of gpkvs: each error becomes a status."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.metadata import EXECUTED_KEY, FAILED_CHECK_KEY, FOUND_KEY, FULL_KEY, NOT_EXECUTED
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate
from gpkvs.server.interceptor import of_type
from gpkvs.server.memory import Account, Memory
from gpkvs.server.receive import Receives
from gpkvs.server.status import ErrorStatus, tell
from gpkvs.server.wire import require_message


class Call(NamedTuple):
    """What a method of one request is told of the call."""

    context: grpc.aio.ServicerContext
    account: Account
    message_bytes: int  # of the request as it came


Method = Callable[[Any, Call], Awaitable[Message]]
ServerStreamMethod = Callable[[Any, Call], AsyncGenerator[Message, None]]
StreamMethod = Callable[[grpc.aio.ServicerContext, Account], Awaitable[None]]


class Doors(NamedTuple):
    """What every call passes before its method runs."""

    gate: Gate
    memory: Memory
    receives: Receives
    metrics: Metrics


# A field of bytes takes 16 bytes when it is parsed, and a repeated one may take 2 in its message.
_PARSED_FACTORS = {"gpkvs.v1.MultiGetRequest": 9}
_NOT_EXECUTED = ((EXECUTED_KEY, NOT_EXECUTED),)


def add_service(server: grpc.aio.Server, service: ServiceDescriptor, servicer: object, doors: Doors) -> str:
    """Register an object that has a coroutine for each method of a service; return the service's full name.

    A method of one request takes it and the `Call`, and returns the response, or a generator of responses. A method of
    two streams takes the context and the call's account, reads and writes bytes there, and returns when it is done.
    """

    def handler(method: MethodDescriptor) -> Any:
        run = getattr(servicer, method.name)
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(_stream(run, doors))
        request_class = GetMessageClass(method.input_type)
        if method.server_streaming:
            responding = of_type("server_stream", _server_stream(run, request_class, doors))
            return grpc.stream_stream_rpc_method_handler(responding)
        # On the wire it is the same as unary. As unary, gRPC would hold the message until the call ends, and would
        # say nothing of a call whose message is still being received.
        return grpc.stream_unary_rpc_method_handler(of_type("unary", _unary(run, request_class, doors)))

    handlers = {method.name: handler(method) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    return str(service.full_name)


def _unary(
    method: Method, request_class: type[Message], doors: Doors
) -> Callable[[object, grpc.aio.ServicerContext], Awaitable[bytes]]:
    """Wrap a method: bytes in, bytes out, errors as statuses.

    Messages are parsed here: grpc would end a call with UNKNOWN if a client sent bytes that are no message.
    """
    gate, memory, _, metrics = doors

    async def run(context: grpc.aio.ServicerContext, account: Account) -> bytes:
        data = await _only_message(context, account, doors)
        with gate:
            account.require_room(_PARSED_FACTORS.get(request_class.DESCRIPTOR.full_name, 1) * len(data))
            running = method(_parse(request_class, data), Call(context, account, len(data)))
            del data  # the frame would hold it until the call ends
            response: bytes = (await running).SerializeToString()
            return response

    async def handler(_requests: object, context: grpc.aio.ServicerContext) -> bytes:
        account = memory.open(context)
        try:
            return await run(context, account)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await abort(context, error, method, metrics)
        raise AssertionError("abort always raises")

    return handler


def _server_stream(
    method: ServerStreamMethod, request_class: type[Message], doors: Doors
) -> Callable[[object, grpc.aio.ServicerContext], Awaitable[None]]:
    """Wrap a method of one request and many responses; a response is sent before the next one is asked for."""

    async def run(context: grpc.aio.ServicerContext, account: Account) -> None:
        data = await _only_message(context, account, doors)
        with doors.gate:
            responses = method(_parse(request_class, data), Call(context, account, len(data)))
            async with aclosing(responses):
                async for response in responses:
                    await context.write(response.SerializeToString())

    async def handler(_requests: object, context: grpc.aio.ServicerContext) -> None:
        account = doors.memory.open(context)
        try:
            await run(context, account)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await abort(context, error, method, doors.metrics)

    return handler


async def _only_message(context: grpc.aio.ServicerContext, account: Account, doors: Doors) -> bytes:
    """Receive the only message of a call, as bytes."""
    doors.gate.serving()
    account.require_room()
    return require_message(await doors.receives.read(context, account.connection, is_stream=False))


def _parse(request_class: type[Message], data: bytes) -> Message:
    try:
        return request_class.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"these bytes are no {request_class.DESCRIPTOR.full_name}: {error}") from error


def _stream(method: StreamMethod, doors: Doors) -> Callable[[object, grpc.aio.ServicerContext], Awaitable[None]]:
    """Wrap a method of streams: errors as statuses."""

    async def handler(_requests: object, context: grpc.aio.ServicerContext) -> None:
        account = doors.memory.open(context)
        try:
            account.require_room()
            with doors.gate:
                await method(context, account)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await abort(context, error, method, doors.metrics)

    return handler


async def abort(
    context: grpc.aio.ServicerContext, error: Exception, method: Callable[..., object], metrics: Metrics
) -> NoReturn:
    """End a call with the status of an error."""
    try:
        told = tell(error, method.__qualname__, metrics)
        await context.abort(told.code, told.text, _trailing(told))
    finally:
        # gRPC keeps the exception with which it aborts. That one keeps this error, whose frames hold the message.
        error.__traceback__ = error.__cause__ = error.__context__ = None
    raise AssertionError("abort always raises")


def _trailing(told: ErrorStatus) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of a call that failed."""
    trailing: tuple[tuple[str, str], ...] = _NOT_EXECUTED if told.is_refusal else ()
    if told.full:
        trailing += ((FULL_KEY, told.full),)
    if told.conflict:
        trailing += ((FAILED_CHECK_KEY, str(told.conflict.index)),)
        if told.conflict.found is not None:
            trailing += ((FOUND_KEY, str(told.conflict.found)),)
    return trailing
