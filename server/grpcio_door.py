"""The door by gRPC's own server: the calls of its core, served in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace

import grpc

from gpkvs.config import ServerConfig
from gpkvs.errors import GpkvsError
from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.login import Logins
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import Users
from gpkvs.server.address import Address, ListenError, require_free
from gpkvs.server.bounds import CALL_BYTES, CONNECTION_CALLS_MAX, HANDSHAKE_SECONDS, WINDOW_BYTES, Bounds
from gpkvs.server.calls import Find, Interceptor
from gpkvs.server.exporter import Metrics
from gpkvs.server.grpcio_tls import GrpcioTls
from gpkvs.server.memory import Kind, Memory
from gpkvs.server.receive import Receives
from gpkvs.server.threads import begun_threads
from gpkvs.server.tls import Tls
from gpkvs.store import Store
from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")

_CANCEL_SECONDS = 1.0

# A call may wait any time for the event loop to take it.
_UNREQUESTED_SECONDS = 1 << 20

# gRPC asks a silent connection whether it is still there, and waits so long for the response. The server frees what a
# dead connection holds.
_KEEPALIVE_SECONDS, _KEEPALIVE_RESPONSE_SECONDS = 60, 20


class GrpcioInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """One of ours, of the class that gRPC wants."""

    def __init__(self, ours: Interceptor) -> None:
        self._ours = ours

    async def intercept_service(self, continuation: Find, details: grpc.HandlerCallDetails) -> object:
        """Return the handler of a call, or None."""
        return await self._ours.intercept_service(continuation, details)


class GrpcioDoor:
    """A port of gRPC's own server; used inside its event loop.

    Parameters
    ----------
    config, bounds
        The settings, and what they make of the memory.
    tls
        Makes the port one of TLS.
    helpers
        Threads for what the event loop may not wait for; by default those of the loop.
    """

    def __init__(self, config: ServerConfig, bounds: Bounds, tls: Tls | None, helpers: Executor | None = None) -> None:
        self._bounds = bounds
        self._helpers = helpers
        self._tls = GrpcioTls(tls) if tls else None
        self.memory = Memory(bounds.clients_bytes_max, bounds.connection_receives_max)
        self.receives = Receives(self.memory, bounds.receive_bytes_max, config.receive_seconds_max, helpers)
        # All batches, the opening and the closing run here, one at a time: the event loop never waits for the store.
        self.engine_thread = begun_threads("engine")

    @property
    def memory_bytes(self) -> Mapping[Kind, int]:
        """What clients make the server take, by kind."""
        return self.memory.by_kind

    def make_logins(self, users: Users | None, metrics: Metrics, audit: AuditLog) -> Logins:
        """Return what lets these users in; everybody, if there are none."""
        return Logins(users, Sessions(self.memory.has_requests, helpers=self._helpers), metrics, audit)

    def make_server(self, interceptors: Sequence[Interceptor]) -> grpc.aio.Server:
        """Return the server, to add services to it before it listens."""
        ours = [GrpcioInterceptor(interceptor) for interceptor in interceptors]
        self._server = grpc.aio.server(interceptors=ours, options=self._options())
        return self._server

    async def listen(self, address: Address) -> Address:
        """Open the port; return the address it got.

        Raises
        ------
        ListenError
            If the operating system refuses.
        """
        require_free(address, "listen")
        try:
            if self._tls:
                port = self._server.add_secure_port(str(address), self._tls.credentials)
            else:
                port = self._server.add_insecure_port(str(address))
        except RuntimeError as error:  # taken between the two
            raise ListenError(f"cannot listen on {address} (listen): {error}") from error
        await self._server.start()
        return replace(address, port=port)

    def open(self, store: Store) -> None:
        """Serve an open store."""
        self.receives.begin(lambda: store.kept_bytes)

    def tables_changed(self) -> None:
        """Take note that a table was made or dropped: Python's handlers see it by themselves."""

    def maintenance(self, store: Store) -> Callable[[], bool]:
        """Return what the batcher does in idle time."""
        return store.maintain

    def queue_requests(self) -> int:
        """Return how many requests wait here: all are Python's."""
        return 0

    def shut(self, error: GpkvsError) -> None:
        """Receive no message any more; calls that wait for one raise an error."""
        self.receives.stop(error)

    async def wait_idle(self) -> None:
        """Wait until no request is here."""

    def waits_for(self) -> str:
        """Return what a stop waits for."""
        return counted(self.memory.by_kind["calls"] // CALL_BYTES, "call")

    def abandon(self) -> None:
        """Drop the requests that wait here."""

    async def stop(self, grace_seconds: float) -> None:
        """Close the port and end all calls, in bounded time: gRPC itself waits long for a connection nobody reads."""
        stopping = asyncio.create_task(self._server.stop(grace_seconds))
        await asyncio.wait([stopping], timeout=grace_seconds + _CANCEL_SECONDS)
        if grace_seconds and not stopping.done():
            _log.warning("clients do not read their responses: given up after %.0f s", grace_seconds + _CANCEL_SECONDS)

    def close(self) -> None:
        """End what runs beside the calls; the port is closed."""
        self.receives.close()
        self.engine_thread.shutdown()

    def _options(self) -> list[tuple[str, int]]:
        message_bytes_max = self._bounds.config.message_bytes_max
        pending_max = self._bounds.pending_calls_max
        return [
            # With it two servers could share a port, and each would get some of the connections.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", message_bytes_max),
            ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
            # A client that has not yet heard of that limit may start with more calls. The core takes them; with the
            # protection it would refuse them with a bare REFUSED_STREAM. Their number is bounded below, and the account
            # bounds what they hold.
            ("grpc.http.overload_protection", 0),
            ("grpc.max_allowed_incoming_connections", self._bounds.connections_max),
            # The core may hold so much of each message that nobody has asked for yet; the probe would raise it.
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.http2.bdp_probe", 0),
            # By default the core drops calls above 1,000 with a bare CANCELLED, and those that wait for 30 s.
            ("grpc.server.max_pending_requests", pending_max),
            ("grpc.server.max_pending_requests_hard_limit", pending_max),
            ("grpc.server_max_unrequested_time_in_server", _UNREQUESTED_SECONDS),
            # The server refuses compressed messages (`gpkvs.server.wire`): it must see them as they came.
            ("grpc.per_message_decompression", 0),
            ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
            ("grpc.keepalive_time_ms", 1000 * _KEEPALIVE_SECONDS),
            ("grpc.keepalive_timeout_ms", 1000 * _KEEPALIVE_RESPONSE_SECONDS),
            ("grpc.keepalive_permit_without_calls", 1),
            # A client may ask over a silent connection whether the server is still there. Ours does so every 20 s.
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ]
