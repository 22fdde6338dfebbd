"""gRPC's calls as handlers see them.

These are gRPC's own interfaces, as far as this server uses them. They stand here because the server serves without
grpcio: a process loads that library when somebody asks for health or reflection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

Metadata = Sequence[tuple[str, str]]
CallContext = Any  # `gpkvs.server.door.context.Context`, which imports this; or what stands for it in tests


class StatusCode(Enum):
    """The statuses of gRPC, with the values that they have in `grpc.StatusCode`."""

    OK = (0, "ok")
    CANCELLED = (1, "cancelled")
    UNKNOWN = (2, "unknown")
    INVALID_ARGUMENT = (3, "invalid argument")
    DEADLINE_EXCEEDED = (4, "deadline exceeded")
    NOT_FOUND = (5, "not found")
    ALREADY_EXISTS = (6, "already exists")
    PERMISSION_DENIED = (7, "permission denied")
    RESOURCE_EXHAUSTED = (8, "resource exhausted")
    FAILED_PRECONDITION = (9, "failed precondition")
    ABORTED = (10, "aborted")
    OUT_OF_RANGE = (11, "out of range")
    UNIMPLEMENTED = (12, "unimplemented")
    INTERNAL = (13, "internal")
    UNAVAILABLE = (14, "unavailable")
    DATA_LOSS = (15, "data loss")
    UNAUTHENTICATED = (16, "unauthenticated")


class Details(NamedTuple):
    """What is known of a call when its handler is looked for: `grpc.HandlerCallDetails`."""

    method: str  # ``/service/method``
    invocation_metadata: Metadata


class Handler(NamedTuple):
    """How a method is served: `grpc.RpcMethodHandler`. One of the last four is its function."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Any] | None = None
    response_serializer: Callable[[Any], bytes] | None = None
    unary_unary: Callable[..., Any] | None = None
    unary_stream: Callable[..., Any] | None = None
    stream_unary: Callable[..., Any] | None = None
    stream_stream: Callable[..., Any] | None = None


def stream_unary(run: Callable[..., Any], serializer: Callable[[Any], bytes] | None = None) -> Handler:
    """Return the handler of a function that reads its messages itself, as bytes, and returns one response."""
    return Handler(True, False, response_serializer=serializer, stream_unary=run)


def stream_stream(run: Callable[..., Any], serializer: Callable[[Any], bytes] | None = None) -> Handler:
    """Return the handler of a function that reads its messages itself, as bytes, and writes its responses."""
    return Handler(True, True, response_serializer=serializer, stream_stream=run)


class Service(NamedTuple):
    """The handlers of a service, by the paths of its methods: `grpc.GenericRpcHandler`."""

    handlers: Mapping[str, Handler]

    def service(self, details: Details) -> Handler | None:
        """Return the handler of a call, if it is of this service."""
        return self.handlers.get(details.method)


Find = Callable[[Details], Awaitable[Handler | None]]
"""Returns the handler of a call, or None."""


class Interceptor(Protocol):
    """Sees what serves a call, and may exchange it."""

    async def intercept_service(self, continuation: Find, details: Details, /) -> Handler | None:
        """Return the handler of a call, or None."""
