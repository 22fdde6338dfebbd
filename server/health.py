"""gRPC's health service, with the method that lists the health of all services."""

from __future__ import annotations

from grpc_health.v1 import health, health_pb2


class HealthService(health.aio.HealthServicer):  # type: ignore[misc] # grpc has no types
    """Health by the name of a service; "" stands for the server.

    The class of grpcio-health-checking for asyncio has no `List`, though newer versions of the package have the method.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names = {""}

    async def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Set the health of a service."""
        self._names.add(service)
        await super().set(service, status)

    async def List(  # noqa: N802 - the contract's name
        self, _request: health_pb2.HealthListRequest, context: object
    ) -> health_pb2.HealthListResponse:
        """Return the health of all services."""
        asked = {name: health_pb2.HealthCheckRequest(service=name) for name in sorted(self._names)}
        return health_pb2.HealthListResponse(
            statuses={name: await self.Check(request, context) for name, request in asked.items()}
        )
