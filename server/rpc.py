"""From a coroutine that raises gpkvs errors to a gRPC method that answers with status codes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, NoReturn

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from gpkvs.errors import GpkvsError, InvalidArgumentError, NoSpaceError
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate
from gpkvs.server.status import status_of, status_text

_log = logging.getLogger("gpkvs.server")


class Call(NamedTuple):
    """What a method of one request is told of the call."""

    context: grpc.aio.ServicerContext
    message_bytes: int  # of the request as it came


Method = Callable[[Any, Call], Awaitable[Message]]
StreamMethod = Callable[[grpc.aio.ServicerContext], Awaitable[None]]

# In trailing metadata: the request surely was not executed, so that it is safe to send it again. Of a stream: the
# requests that it did not answer.
NOT_EXECUTED = (("gpkvs-executed", "no"),)
# There too: what is full, of a request refused for want of room (`NoSpaceError.resource`).
FULL_KEY = "gpkvs-full"


def add_service(
    server: grpc.aio.Server, service: ServiceDescriptor, servicer: object, gate: Gate, metrics: Metrics
) -> str:
    """Register an object that has a coroutine for each method of a service; return the service's full name.

    A method of one request takes it and the `Call` and returns the response. A method of streams takes the context,
    reads and writes bytes there, and returns when the stream is done.
    """

    def handler(method: MethodDescriptor) -> Any:
        run = getattr(servicer, method.name)
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(_stream(run, gate, metrics))
        return grpc.unary_unary_rpc_method_handler(_answer(run, GetMessageClass(method.input_type), gate, metrics))

    handlers = {method.name: handler(method) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    return str(service.full_name)


def _answer(
    method: Method, request_class: type[Message], gate: Gate, metrics: Metrics
) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]:
    """Wrap a method: bytes in, bytes out, errors as status codes.

    Messages are parsed here and not by grpc, which answers UNKNOWN where a client sent bytes that are no message.
    """
    parse = request_class.FromString

    async def handler(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            with gate:
                response: bytes = (await method(parse(data), Call(context, len(data)))).SerializeToString()
                return response
        except DecodeError as error:
            unreadable = InvalidArgumentError(f"these bytes are no {request_class.DESCRIPTOR.full_name}: {error}")
            await _abort(context, unreadable, method, metrics)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await _abort(context, error, method, metrics)
        raise AssertionError("abort always raises")

    return handler


def _stream(
    method: StreamMethod, gate: Gate, metrics: Metrics
) -> Callable[[object, grpc.aio.ServicerContext], Awaitable[None]]:
    """Wrap a method of streams: errors as status codes."""

    async def handler(_requests: object, context: grpc.aio.ServicerContext) -> None:
        try:
            with gate:
                await method(context)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            await _abort(context, error, method, metrics)

    return handler


async def _abort(
    context: grpc.aio.ServicerContext, error: Exception, method: Callable[..., object], metrics: Metrics
) -> NoReturn:
    if not isinstance(error, GpkvsError):  # the last line of defence: the log gets the traceback
        _log.error("%s failed", method.__qualname__, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error: the server's log has the details")
    else:
        code, refused = status_of(error)
        if refused:
            metrics.request_refused(refused)
            full = ((FULL_KEY, error.resource),) if isinstance(error, NoSpaceError) else ()
            await context.abort(code, status_text(error), NOT_EXECUTED + full)
        _log.error("%s: %s", code.name, error)
        await context.abort(code, status_text(error))
    raise AssertionError("abort always raises")
