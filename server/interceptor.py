"""The usual three metrics of gRPC, for every unary call, health checks included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from gpkvs.server.exporter import SECONDS

_LABELS = ["grpc_type", "grpc_service", "grpc_method"]

# A context gives the code as it was set: a member or its number.
_CODE_NAMES = {key: code.name for code in grpc.StatusCode for key in (code, code.value[0])}

Handler = Any  # grpc.RpcMethodHandler; grpc has no types


class CallMetrics(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Counts calls as they start and end, and the time between."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = Counter("grpc_server_started", "Calls started", _LABELS, registry=registry)
        self._handled = Counter("grpc_server_handled", "Calls ended", [*_LABELS, "grpc_code"], registry=registry)
        self._seconds = Histogram(
            "grpc_server_handling_seconds", "Time of a call in the server", _LABELS, buckets=SECONDS, registry=registry
        )
        self._measured: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]], details: grpc.HandlerCallDetails
    ) -> Handler:
        """Return the method's handler, measured; it is made once for each method."""
        handler = self._measured.get(details.method)
        if handler is None:
            handler = await continuation(details)
            if handler is not None and handler.unary_unary:
                handler = self._measured[details.method] = self._measure(details.method, handler)
        return handler

    def _measure(self, path: str, handler: Handler) -> Handler:
        _, service, method = path.split("/")
        labels = ("unary", service, method)
        started, seconds = self._started.labels(*labels), self._seconds.labels(*labels)
        ok = self._handled.labels(*labels, "OK")
        run = handler.unary_unary

        async def measured(request: Any, context: grpc.aio.ServicerContext) -> Any:
            started.inc()
            began = time.perf_counter()
            try:
                response = await run(request, context)
            except asyncio.CancelledError:
                self._handled.labels(*labels, "CANCELLED").inc()
                raise
            except BaseException:
                self._handled.labels(*labels, _code_name(context)).inc()
                raise
            else:
                ok.inc()
                return response
            finally:
                seconds.observe(time.perf_counter() - began)

        return grpc.unary_unary_rpc_method_handler(
            measured,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _code_name(context: grpc.aio.ServicerContext) -> str:
    """Return the name of the code that a handler aborted with."""
    return str(_CODE_NAMES.get(context.code(), "UNKNOWN"))
