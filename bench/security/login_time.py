"""The time that the server's own code takes to tell who makes a call, with calls of a real gRPC server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import grpc

from gpkvs.server.access.audit import NO_AUDIT
from gpkvs.server.access.login import Logins
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import load_users
from gpkvs.server.exporter import Metrics

_LOGINS = 1000  # in one call: the time of a single one is below the noise
_PATH = "/gpkvs.bench.Login/Time"


async def login_us(users: Path, token: str, calls: int) -> float:
    """Return the microseconds that `Logins.known` takes for a call with a token, the median of some calls."""
    sessions = Sessions(lambda _: False, lambda _: None)
    logins = Logins(load_users(users), sessions, Metrics(), NO_AUDIT)

    async def timed(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        begin = perf_counter()
        for _ in range(_LOGINS):
            logins.known(context)
        seconds = perf_counter() - begin
        assert logins.known(context) is not None
        return repr(1e6 * seconds / _LOGINS).encode()

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(timed),))
    port = server.add_insecure_port("127.0.0.1:0")
    logins.begin(port, lambda: None)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(_PATH)
            metadata = (("authorization", f"Bearer {token}"),)
            return median([float(await call(b"", metadata=metadata)) for _ in range(calls)])
    finally:
        await server.stop(None)
        await logins.stop()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
    def __init__(self, behaviour: Callable[..., object]) -> None:
        self._method = grpc.unary_unary_rpc_method_handler(behaviour)

    def service(self, details: grpc.HandlerCallDetails) -> object:
        return self._method
