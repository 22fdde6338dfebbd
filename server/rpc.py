"""From a coroutine that raises gpkvs errors to a gRPC method that answers with status codes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from gpkvs.errors import (
    CorruptRecordError,
    CorruptStoreError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    StoreClosedError,
    UnknownTableError,
)
from gpkvs.server.batcher import DeadlineError
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate, NotServingError

_log = logging.getLogger("gpkvs.server")

Method = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Message]]

# In trailing metadata: the request surely was not executed, so that it is safe to send it again.
NOT_EXECUTED = (("gpkvs-executed", "no"),)

# The first class that fits counts. The reason is a label of gpkvs_requests_refused_total.
_REFUSALS: tuple[tuple[type[GpkvsError], grpc.StatusCode, str], ...] = (
    (UnknownTableError, grpc.StatusCode.NOT_FOUND, "unknown_table"),
    (InvalidArgumentError, grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    (NoSpaceError, grpc.StatusCode.RESOURCE_EXHAUSTED, "no_space"),
    (NotServingError, grpc.StatusCode.UNAVAILABLE, "not_serving"),
    (DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"),
)
_FAILURES: tuple[tuple[type[GpkvsError], grpc.StatusCode], ...] = (
    (CorruptRecordError, grpc.StatusCode.DATA_LOSS),
    (CorruptStoreError, grpc.StatusCode.DATA_LOSS),
    (StoreClosedError, grpc.StatusCode.UNAVAILABLE),
    (GpkvsError, grpc.StatusCode.INTERNAL),
)


def add_service(
    server: grpc.aio.Server, service: ServiceDescriptor, servicer: object, gate: Gate, metrics: Metrics
) -> str:
    """Register an object that has a coroutine for each method of a service; return the service's full name."""
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                service.full_name,
                {
                    method.name: grpc.unary_unary_rpc_method_handler(
                        _answer(getattr(servicer, method.name), GetMessageClass(method.input_type), gate, metrics)
                    )
                    for method in service.methods
                },
            ),
        )
    )
    return str(service.full_name)


def _answer(
    method: Method, request_class: type[Message], gate: Gate, metrics: Metrics
) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]:
    """Wrap a method: bytes in, bytes out, errors as status codes.

    Messages are parsed here and not by grpc, which answers UNKNOWN where a client sent bytes that are no message.
    """
    parse = request_class.FromString

    async def handler(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        with gate:
            try:
                response: bytes = (await method(parse(data), context)).SerializeToString()
                return response
            except GpkvsError as error:
                await _abort(context, error, metrics)
            except DecodeError as error:
                unreadable = InvalidArgumentError(f"these bytes are no {request_class.DESCRIPTOR.full_name}: {error}")
                await _abort(context, unreadable, metrics)
            except Exception:  # noqa: BLE001 - the last line of defence: a client gets a status, the log the traceback
                _log.exception("%s failed", method.__qualname__)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error: the server's log has the details")
            raise AssertionError("abort always raises")

    return handler


async def _abort(context: grpc.aio.ServicerContext, error: GpkvsError, metrics: Metrics) -> NoReturn:
    for kind, code, reason in _REFUSALS:
        if isinstance(error, kind):
            metrics.request_refused(error.resource + "_full" if isinstance(error, NoSpaceError) else reason)
            await context.abort(code, str(error), NOT_EXECUTED)
    code = next(code for kind, code in _FAILURES if isinstance(error, kind))
    _log.error("%s: %s", code.name, error)
    await context.abort(code, str(error))
    raise AssertionError("abort always raises")
