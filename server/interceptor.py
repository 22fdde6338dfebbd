"""The usual three metrics of gRPC, for every call, health checks included."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpkvs.server.calls import CallContext, Details, Find, Handler, StatusCode
from gpkvs.server.exporter import SECONDS

_LABELS = ["grpc_type", "grpc_service", "grpc_method"]

# The type of a method, by the attribute of its handler that holds the function.
_TYPES = {
    "unary_unary": "unary",
    "unary_stream": "server_stream",
    "stream_unary": "client_stream",
    "stream_stream": "bidi_stream",
}

_CODE_NAMES = {code.value[0]: code.name for code in StatusCode}

# The attribute of a handler's function that says its type, where gRPC knows another one (`of_type`).
_TYPE = "grpc_type"

Run = TypeVar("Run", bound=Callable[..., object])


def of_type(grpc_type: str, run: Run) -> Run:
    """Mark a function with the type that its method has on the wire; it may have another one for gRPC."""
    setattr(run, _TYPE, grpc_type)
    return run


class CallMetrics:
    """Counts calls as they start and end, and measures the time between."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = Counter("grpc_server_started", "Calls started", _LABELS, registry=registry)
        self._handled = Counter("grpc_server_handled", "Calls ended", [*_LABELS, "grpc_code"], registry=registry)
        self._seconds = Histogram(
            "grpc_server_handling_seconds", "Time of a call in the server", _LABELS, buckets=SECONDS, registry=registry
        )
        self._measured: dict[str, Handler] = {}

    async def intercept_service(self, continuation: Find, details: Details) -> Handler | None:
        """Return the method's handler, measured; it is made once for each method."""
        handler = self._measured.get(details.method)
        if handler is None:
            handler = await continuation(details)
            if handler is not None:
                handler = self._measured[details.method] = self._measure(details.method, handler)
        return handler

    def _measure(self, path: str, handler: Handler) -> Handler:
        """Return a handler of the same kind that counts and times calls."""
        kind = next(kind for kind in _TYPES if getattr(handler, kind))
        run = getattr(handler, kind)
        _, service, method = path.split("/")
        labels = (getattr(run, _TYPE, _TYPES[kind]), service, method)
        series = _Series(self._started.labels(*labels), self._seconds.labels(*labels), self._handled, labels)

        async def measured(request: Any, context: CallContext) -> Any:
            with _Call(series, context):
                return await run(request, context)

        async def measured_generator(request: Any, context: CallContext) -> AsyncIterator[Any]:
            with _Call(series, context):
                async for response in run(request, context):
                    yield response

        exchanged: dict[str, Any] = {kind: measured_generator if inspect.isasyncgenfunction(run) else measured}
        return handler._replace(**exchanged)


class _Series:
    """The metrics of one method."""

    def __init__(self, started: Counter, seconds: Histogram, handled: Counter, labels: tuple[str, ...]) -> None:
        self.started, self.seconds = started, seconds
        self.ok = handled.labels(*labels, "OK")
        self._handled, self._labels = handled, labels

    def failed(self, code: str) -> None:
        """Count a call that did not end OK."""
        self._handled.labels(*self._labels, code).inc()


class _Call:
    """Measures one call, from start to end."""

    __slots__ = ("_began", "_context", "_series")

    def __init__(self, series: _Series, context: CallContext) -> None:
        self._series, self._context = series, context

    def __enter__(self) -> None:
        if not self._context.is_counted:  # by the door, which handed it on
            self._series.started.inc()
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._series.ok.inc()
        elif issubclass(kind, asyncio.CancelledError | GeneratorExit):
            self._series.failed("CANCELLED")
        else:
            self._series.failed(_code_name(self._context))
        self._series.seconds.observe(time.perf_counter() - self._began)


def _code_name(context: CallContext) -> str:
    """Return the name of the code that a handler aborted with."""
    code = context.code()  # as the handler set it: a member of our enumeration or of gRPC's, or its number
    return _CODE_NAMES.get(code.value[0] if isinstance(code, Enum) else code, "UNKNOWN")
