"""Health and reflection as gRPC's packages bring them. They need grpcio, so the first call of one loads this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gpkvs.server.calls import Details


class GrpcServices:
    """Both services; made inside the event loop.

    Parameters
    ----------
    names
        Of the services that they describe.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._health_names = ("", *names)
        self._health = _Health(self._health_names)
        self._services: list[grpc.GenericRpcHandler] = []
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self)
        # What `enable_server_reflection` does, but for servers of any class.
        shown = reflection.aio.ReflectionServicer((*names, health.SERVICE_NAME, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(shown, self)

    def add_generic_rpc_handlers(self, services: Sequence[grpc.GenericRpcHandler]) -> None:
        """Take a service, as a `grpc.aio.Server` does."""
        self._services.extend(services)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing, as `grpc.aio.Server`: the same handlers come as generic ones."""

    def handler(self, details: Details) -> Any:
        """Return the handler of a call, or None."""
        return next(filter(None, (service.service(details) for service in self._services)), None)

    async def set_serving(self, is_serving: bool) -> None:
        """Set the health of all services, and tell who watches it."""
        statuses = health_pb2.HealthCheckResponse
        for name in self._health_names:
            await self._health.set(name, statuses.SERVING if is_serving else statuses.NOT_SERVING)


class _Health(health.aio.HealthServicer):  # type: ignore[misc] # grpc has no types
    """Health by the name of a service; "" stands for the server.

    The class of grpcio-health-checking for asyncio has no `List`, though newer versions of the package have the method.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    async def List(  # noqa: N802 - the contract's name
        self, _request: health_pb2.HealthListRequest, context: object
    ) -> health_pb2.HealthListResponse:
        """Return the health of all services."""
        asked = {name: health_pb2.HealthCheckRequest(service=name) for name in sorted(self._names)}
        return health_pb2.HealthListResponse(
            statuses={name: await self.Check(request, context) for name, request in asked.items()}
        )
