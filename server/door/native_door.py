"""The native door: its life, and the calls that it hands to Python."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import Executor, wait
from dataclasses import replace
from typing import NamedTuple

from gpkvs.changes import Changes
from gpkvs.config import ServerConfig
from gpkvs.errors import GpkvsError
from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import Users
from gpkvs.server.account.bounds import HANDSHAKE_SECONDS, Bounds
from gpkvs.server.account.memory import Kind, Memory
from gpkvs.server.account.resident import FreeMemory
from gpkvs.server.call_types import Interceptor, StatusCode
from gpkvs.server.calls.context import Context, Opened
from gpkvs.server.calls.handlers import Handlers
from gpkvs.server.calls.receives import Receives
from gpkvs.server.calls.request_queue import RequestQueue
from gpkvs.server.calls.rpc import abort
from gpkvs.server.calls.status import status_of, status_text
from gpkvs.server.door.engine_thread import EngineThread
from gpkvs.server.door.library import Event, EventKind, Library, Protocol, Refusal
from gpkvs.server.door.logins import DoorLogins
from gpkvs.server.door.refusals import CLOSED, reasons
from gpkvs.server.door.slow_calls import SlowCalls
from gpkvs.server.door.stats import DoorStats, closed_connections, redis_counts, refused_connections, table_counts
from gpkvs.server.door.turns import Turns
from gpkvs.server.ports.address import Address, ListenError, require_free
from gpkvs.server.ports.tls import Material, Tls
from gpkvs.server.redis.commands import scripts
from gpkvs.server.redis.service import Service as RedisService
from gpkvs.server.redis.stats import Stats as RedisStats
from gpkvs.server.signs.exporter import Metrics
from gpkvs.server.signs.refused_connections import RefusedConnections
from gpkvs.server.signs.slow_log import SlowLog
from gpkvs.server.threads import begun_threads
from gpkvs.store import Store
from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")

_REDIS = "/redis"  # the call that stands for a connection of RESP
_CANCEL_SECONDS = 1.0
_LOOK_SECONDS = 0.01
_FREED_SECONDS = 1.0
_SCRIPTS_SECONDS = 0.1


class _Running(NamedTuple):
    """A call that a handler serves."""

    context: Context
    task: asyncio.Task[None]


class NativeDoor:
    """A port of the native door; used inside its event loop.

    Parameters
    ----------
    config, bounds
        The settings, and what they make of the memory.
    metrics
        Is told of refusals.
    slow_log
        Has the calls that took long.
    tls
        Makes the port one of TLS.
    helpers
        Threads for what the event loop may not wait for; by default those of the loop.

    Raises
    ------
    InvalidArgumentError
        If the door is not built.
    TlsFilesError
        If it cannot use the files of TLS.
    """

    def __init__(
        self,
        config: ServerConfig,
        bounds: Bounds,
        metrics: Metrics,
        slow_log: SlowLog,
        tls: Tls | None,
        helpers: Executor | None = None,
    ) -> None:
        self._library = Library(config, bounds)
        self._tls = tls
        self._helpers = helpers
        if tls:
            tls.give(self._take_tls)
        self._metrics = metrics
        self._slow_log = slow_log
        self._stats = DoorStats(self._library.stats, self._library.connections, bounds.connections_max)
        metrics.registry.register(self._stats)
        metrics.tables.follow(lambda: table_counts(self._library.table_stats()))
        self.redis_stats = RedisStats(lambda: redis_counts(self._library.stats(), self._library.redis_commands))
        metrics.registry.register(self.redis_stats)
        self._refused_connections = RefusedConnections(
            lambda: refused_connections(self._library.stats()), reasons(bounds.connections_max), "connections_refused"
        )
        self._closed_connections = RefusedConnections(
            lambda: closed_connections(self._library.stats()), CLOSED, "connections_closed", "closed"
        )
        self.memory = Memory(self._library, bounds.clients_bytes_max)
        self.receives = Receives(config.receive_seconds_max)
        self.queue = RequestQueue(self._library)
        self.engine_thread = EngineThread(self._library.interrupt)
        self._stop_thread = begun_threads("door-stop")
        self._calls: dict[int, _Running] = {}
        self._turns: Turns | None = None
        self._store: Store | None = None
        self._redis: RedisService | None = None
        self._freed_bytes_max = bounds.freed_bytes_max
        self._look_at: asyncio.TimerHandle | None = None
        self._scripts_at: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def held_bytes(self, kind: Kind) -> int:
        """Return what clients make the server hold, of a kind."""
        return self._library.held_bytes(kind)

    def make_logins(self, users: Users | None, metrics: Metrics, audit: AuditLog) -> DoorLogins:
        """Return what lets these users in; everybody, if there are none."""
        if users is not None:
            self._library.ask_for_logins()
        sessions = Sessions(self.memory.has_requests, self._library.close_answered, helpers=self._helpers)
        self._logins = DoorLogins(users, sessions, metrics, audit, self._library)
        self._slow_calls = SlowCalls(self._library, self._slow_log, self._logins.name_of)
        return self._logins

    def make_server(self, interceptors: Sequence[Interceptor]) -> Handlers:
        """Return what runs the handlers of services, to add these to it before the door listens."""
        self._handlers = Handlers(interceptors)
        return self._handlers

    async def listen(self, address: Address) -> Address:
        """Open the port; return the address it got.

        Raises
        ------
        ListenError
            If the operating system refuses.
        """
        require_free(address, "listen")
        self._loop.add_reader(self._library.events_file(), self._take_events)
        return await self._listen_on(address, "listen", Protocol.GRPC)

    async def _listen_on(self, address: Address, option: str, protocol: Protocol) -> Address:
        host = socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM)[0][4][0]
        try:
            port = self._library.listen(str(host), address.port, protocol)
        except OSError as error:  # taken between the two
            raise ListenError(f"cannot listen on {address} ({option}): {error.strerror}") from error
        return replace(address, port=port)

    async def listen_resp(self, address: Address, service: RedisService) -> Address:
        """Open a port of the Redis protocol, after that of gRPC; return the address it got.

        Raises
        ------
        ListenError
            If the operating system refuses.
        """
        require_free(address, "resp")
        self._redis = service
        scripts.loaded.follow(self._scripts_changed)
        self._set_scripts()
        return await self._listen_on(address, "resp", Protocol.RESP)

    def open(self, store: Store) -> None:
        """Serve an open store."""
        self._set_tables(store)
        self._store = store
        self._turns = Turns(self._library, store, self._metrics)
        self.engine_thread.begin(self._turns.turn)
        self._library.open()
        self._give_back_freed(FreeMemory(self._freed_bytes_max, self._helpers))

    def tell(self, database: int, changes: Changes) -> None:
        """Tell the connections of the Redis protocol that have subscribed of keys that changed; from one thread.

        Raises
        ------
        MemoryError
            If not all of them were told.
        """
        self._library.tell(database, changes)

    def tables_changed(self) -> None:
        """Return when the door knows which tables there are: it would take a table for an older one of its name.

        Called in a thread of its own.
        """
        if self._store:
            wait((self.engine_thread.submit(self._set_tables, self._store),))

    def queue_requests(self) -> int:
        """Return how many requests wait."""
        return self._library.waiting()

    def shut(self, error: GpkvsError) -> None:
        """Hand new calls to Python, which refuses them; end those that wait for a message."""
        if self._turns:
            self._turns.maintains = False
        self._library.shut()
        self._refusal = Refusal(status_of(error)[0].value[0], status_text(error))
        self.receives.stop(error)

    async def wait_idle(self) -> None:
        """Wait until no request is in the door."""
        while self._library.requests():  # noqa: ASYNC110 - another thread answers them
            await asyncio.sleep(_LOOK_SECONDS)

    def waits_for(self) -> str:
        """Return what a stop waits for."""
        calls = self._library.requests() + len(self._calls)
        return f"{counted(self._library.connections(), 'connection')} with {counted(calls, 'call')}"

    def abandon(self) -> None:
        """Refuse the requests that wait in the door."""
        self._library.abandon(self._refusal)

    async def stop(self, grace_seconds: float) -> None:
        """Close the port and end all calls, in bounded time."""
        if grace_seconds and (connections := self._library.connections()):
            _log.info(
                "stopping: %s; each ends when its client has its answers",
                counted(connections, "open connection"),
                extra={"event": "connections_end", "connections": connections},
            )
        self._library.drain()
        await self._handlers.stop(grace_seconds)
        try:
            async with asyncio.timeout(grace_seconds + _CANCEL_SECONDS if grace_seconds else 0.0):
                while self._library.connections():  # noqa: ASYNC110 - another thread closes them
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            if grace_seconds:
                _log.warning(
                    "clients do not read their responses, or do not hear that they end: given up after %.0f s",
                    grace_seconds + _CANCEL_SECONDS,
                )
        # In a thread that is there.
        await self._loop.run_in_executor(self._stop_thread, self._library.stop)

    def close(self) -> None:
        """End what runs beside the calls; the port is closed."""
        if self._tls:
            self._tls.give(lambda _: None)
        self._refused_connections.close()
        self._closed_connections.close()
        self._loop.remove_reader(self._library.events_file())
        for collector in (self._stats, self.redis_stats):
            self._metrics.registry.unregister(collector)
        scripts.loaded.leave(self._scripts_changed)
        if self._scripts_at:
            self._scripts_at.cancel()
        self.engine_thread.shutdown()
        if self._look_at:
            self._look_at.cancel()
        self._stop_thread.shutdown()  # the door itself stays: a scrape may still read what it has counted

    def _give_back_freed(self, memory: FreeMemory) -> None:
        """Look at freed memory, now and again, while the door serves."""
        self._look_at = self._loop.call_later(_FREED_SECONDS, self._give_back_freed, memory)
        memory.look()
        self._slow_calls.take()

    def _set_tables(self, store: Store) -> None:
        tables = list(store.open_tables())
        self._library.set_tables(tables)
        self._loop.call_soon_threadsafe(self._logins.take_tables, {table.name: table.id for table in tables})

    def _scripts_changed(self) -> None:
        """Tell the door soon, however many scripts come; at once that there are none."""
        if len(scripts.loaded):
            self._loop.call_soon_threadsafe(self._set_scripts_soon)  # another server's thread may say so
        else:
            self._set_scripts()

    def _set_scripts_soon(self) -> None:
        if not self._scripts_at:
            self._scripts_at = self._loop.call_later(_SCRIPTS_SECONDS, self._set_scripts)

    def _set_scripts(self) -> None:
        self._scripts_at = None
        self._library.set_scripts(scripts.loaded.known)

    def _take_tls(self, material: Material) -> None:
        self._library.set_tls(material.cert, material.key, material.client_ca, HANDSHAKE_SECONDS)

    def _take_events(self) -> None:
        """Do what the door's events ask for."""
        for event in self._library.events():
            try:
                self._take_event(event)
            except Exception:  # noqa: BLE001 - those behind it are other calls'
                _log.exception("an event of the door could not be taken")

    def _take_event(self, event: Event) -> None:
        if event.answer is not None:
            self.queue.answered(event.answer)
        elif event.opened is not None:
            self._open_call(event.kind, event.opened)
        elif (running := self._calls.get(event.call)) is not None:
            self._tell(running, event)

    def _open_call(self, kind: EventKind, opened: Opened) -> None:
        context = Context(self._library, opened)
        if kind is EventKind.LOGIN:
            task = self._handlers.run(self._log_in, context, opened.path)
        elif opened.path == _REDIS and self._redis:
            task = self._loop.create_task(self._serve_redis(self._redis, context))
        else:
            task = self._handlers.start(context, opened.path)
        self._calls[opened.id] = _Running(context, task)
        task.add_done_callback(lambda _: self._calls.pop(opened.id, None))

    async def _log_in(self, context: Context, path: str) -> None:
        """Say who makes a call that the door serves, or end it as its method would."""
        try:
            await self._logins.caller(context)
        except Exception as error:  # noqa: BLE001 - a client gets a status, whatever happens
            method = path.removeprefix("/").replace("/", ".")
            await abort(context, error, method, self._logins, self._metrics)

    async def _serve_redis(self, service: RedisService, context: Context) -> None:
        try:
            await service.serve(context)
        except asyncio.CancelledError:
            pass  # the connection is gone, or the server stops
        except Exception:  # noqa: BLE001 - its connection ends, the others go on
            _log.exception("a connection of the Redis protocol failed")
        finally:
            context.finish(StatusCode.OK)
            context.end()

    def _tell(self, running: _Running, event: Event) -> None:
        match event.kind:
            case EventKind.MESSAGE:
                running.context.arrived(event.message)
            case EventKind.HALF_CLOSED:
                running.context.half_closed()
            case EventKind.SENT:
                running.context.sent()
            case EventKind.OVER:
                running.context.cancel()
                running.task.cancel()
