"""The whole server: its parts, the order in which it starts, and how it stops.

Start: bind the ports, refuse calls (health NOT_SERVING) -> open the store, recovery included -> serve (SERVING).
Stop:  refuse new calls -> finish the calls under way, in bounded time -> close the store, as soon as no table is being
       made or dropped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import uvloop

from gpkvs.config_checks import raise_faults
from gpkvs.engine.tables.table_quota import raise_open_files
from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.info import package_version
from gpkvs.process.private_memory import keep_memory_private
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.server.access.audit_file import open_audit
from gpkvs.server.access.users_file import UsersFile
from gpkvs.server.account.bounds import bounds_of, memory_bytes_of
from gpkvs.server.account.resident import give_back_free
from gpkvs.server.calls.admin import AdminService
from gpkvs.server.calls.foreign import ForeignServices
from gpkvs.server.calls.interceptor import CallMetrics
from gpkvs.server.calls.rpc import Doors, add_service
from gpkvs.server.calls.service import KVService
from gpkvs.server.door.native_door import NativeDoor
from gpkvs.server.gate import Gate, NotServingError, Serving
from gpkvs.server.http_port import REASONS, HttpPort
from gpkvs.server.ports.address import Address, parse_address
from gpkvs.server.ports.exposure import warn_of_exposure
from gpkvs.server.ports.private_files import warn_of_readers
from gpkvs.server.ports.tls import Tls, tls_files
from gpkvs.server.redis.service import Service as RedisService
from gpkvs.server.serve_options import ServeOptions
from gpkvs.server.setting_checks import setting_faults
from gpkvs.server.signs.clock_watch import ClockWatch
from gpkvs.server.signs.disk_watch import DiskWatch
from gpkvs.server.signs.exporter import Metrics
from gpkvs.server.signs.refused_connections import RefusedConnections
from gpkvs.server.signs.slow_log import SlowLog
from gpkvs.server.start_log import Addresses, log_access, log_addresses, log_memory, log_start, log_store
from gpkvs.server.threads import begun_threads
from gpkvs.store import Store
from gpkvs.text import counted

_log = logging.getLogger("gpkvs.server")

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# For streams that never end by themselves, such as a health watch, and for responses to slow clients.
_STREAM_GRACE_SECONDS = 5.0
# Also where no time is left: whoever is refused at the end should hear of it.
_LAST_WORD_SECONDS = 0.1
# A stop that takes longer says what it waits for.
_SILENT_SECONDS = 1.0

_HELPERS = 2

# While the engine's thread waits for the interpreter, its transaction stands still: the event loop must hand over soon.
# With Python's default of 5 ms, SETs in batches of 4,096 were a quarter to a third slower.
_SWITCH_SECONDS = 0.0005


def run(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises
    ------
    InvalidArgumentError, ListenError
        If an address is wrong, taken, or open to others without protection.
    TlsFilesError
        If a file of TLS is wrong.
    GpkvsError
        If the store cannot be opened (`gpkvs.open`).
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    raise_open_files()
    if options.server.tls_key or options.server.users:
        keep_memory_private()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))


async def _serve(options: ServeOptions) -> None:
    await _Server(options).run()


class _Server:
    """One server, from start to stop; made inside its event loop."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        raise_faults(setting_faults(options.store, options.server))
        self._listen = parse_address(options.server.listen, "listen")
        self._metrics_listen = parse_address(options.server.metrics, "metrics")
        self._resp_listen = parse_address(options.server.resp, "resp") if options.server.resp else None
        self._memory_bytes_max = memory_bytes_of(options.server)
        store = options.store
        self._bounds = bounds_of(
            options.server, store.limits, store.batch_result_bytes_max, self._memory_bytes_max, store.changes_bytes
        )
        self._metrics = Metrics()
        self._audit = open_audit(options.server, self._metrics)
        files = tls_files(options.server)
        self._tls = Tls(files, self._audit) if files else None
        self._users_file = UsersFile(options.server.users, self._metrics, self._audit) if options.server.users else None
        # For what the event loop may not wait for, such as files. Its own threads would begin one by one, and the loop
        # begins one more to end them.
        self._helpers = begun_threads("helper", _HELPERS)
        config = options.server
        self._slow_log = SlowLog(config.slow_log_over_ms, config.slow_log_entries_max, self._metrics.call_was_slow)
        self._door = NativeDoor(config, self._bounds, self._metrics, self._slow_log, self._tls, self._helpers)
        users = self._users_file.users if self._users_file else None
        self._logins = self._door.make_logins(users, self._metrics, self._audit)

    async def run(self) -> None:
        """Start, serve, stop."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        gate = Gate()
        async with AsyncExitStack() as stack:
            stack.callback(self._audit.close)
            stack.callback(self._helpers.shutdown, wait=False)
            stack.callback(_ignore_signals)
            # Not by the loop: to forget its handler it restores the default one, which ends the process.
            for stopping in _STOP_SIGNALS:
                signal.signal(stopping, lambda number, _: loop.call_soon_threadsafe(self._on_signal, number, stop))
            signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(self._reload))
            log_start()
            self._audit.note("start", version=package_version(), pid=os.getpid())
            if self._options.ready_file:
                _require_writable(self._options.ready_file)
            stack.callback(self._door.close)
            stack.push_async_callback(self._logins.stop)  # when no call logs in any more
            address = await self._start_grpc(gate)
            stack.push_async_callback(self._door.stop, 0.0)
            resp_address = await self._start_resp(gate, self._resp_listen) if self._resp_listen else None
            ports = [one.port for one in (address, resp_address) if one]
            self._logins.begin(ports, self._door.receives.end_gone)
            if self._users_file:
                stack.callback(self._users_file.close)
                self._users_file.begin(self._logins.change)
            if self._tls:
                stack.callback(self._tls.watch().close)
                self._metrics.watch_tls(self._tls)
            http_port = HttpPort(self._metrics.registry, gate, self._logins, self._tls)
            stack.callback(http_port.close)
            self._metrics.watch_metrics_port(lambda: http_port.connections, http_port.refused)
            refused = RefusedConnections(lambda: http_port.refused, REASONS, "metrics_connections_refused")
            stack.callback(refused.close)
            metrics_address = await http_port.listen(self._metrics_listen)
            store = await loop.run_in_executor(self._door.engine_thread, self._open_store)
            stack.push_async_callback(self._close_store, store)
            clock_watch = ClockWatch(lambda: store.clock_back_seconds)
            stack.callback(clock_watch.close)
            clock_watch.begin()
            disk_watch = DiskWatch(self._options.data, self._helpers)
            stack.callback(disk_watch.close)
            await disk_watch.begin()
            self._metrics.watch_disk(disk_watch)
            await self._serve(gate, store, stop, Addresses(address, metrics_address, resp_address))

    def _on_signal(self, number: int, stop: asyncio.Event) -> None:
        name = signal.Signals(number).name
        _log.info("%s: stopping", name, extra={"event": "stopping", "signal": name})
        stop.set()

    def _reload(self) -> None:
        """Read again what may change while the server runs."""
        self._options.reload()
        self._audit.reopen()
        for files in (self._tls, self._users_file):
            if files:
                asyncio.get_running_loop().run_in_executor(self._helpers, files.reload)

    async def _start_grpc(self, gate: Gate) -> Address:
        """Open the port; until the gate opens, calls are refused with UNAVAILABLE."""
        receives = self._door.receives
        doors = Doors(self._logins, gate, self._door.memory, receives, self._metrics, self._slow_log)
        services = {
            kv_pb2.DESCRIPTOR.services_by_name["KV"]: KVService(self._logins, gate, receives, self._metrics),
            admin_pb2.DESCRIPTOR.services_by_name["Admin"]: AdminService(
                gate,
                self._audit,
                self._slow_log,
                self._metrics.backup_notes,
                self._door.tables_changed,
            ),
        }
        self._foreign = ForeignServices(doors, [service.full_name for service in services], self._helpers)
        server = self._door.make_server([CallMetrics(self._metrics.registry), self._foreign])
        for service, servicer in services.items():
            add_service(server, service, servicer, doors)
        return await self._door.listen(self._listen)

    async def _start_resp(self, gate: Gate, address: Address) -> Address:
        """Open the port of the Redis protocol."""
        service = RedisService(
            gate, self._door.memory, self._logins, self._door.redis_stats, self._slow_log, self._door.tell
        )
        return await self._door.listen_resp(address, service)

    def _open_store(self) -> Store:
        """Open and recover; in the engine's thread."""
        options, last = self._options, time.monotonic()

        def log_progress(step: str, share: float) -> None:
            nonlocal last
            if time.monotonic() - last >= 1.0:
                last = time.monotonic()
                fields = {"event": "opening", "step": step, "share": share}
                _log.info("opening: %s, %.0f %%", step, 100 * share, extra=fields)

        config = replace(
            options.store,
            limits=self._bounds.limits,
            batch_result_bytes_max=self._bounds.batch_result_bytes_max,
            changes_bytes=self._bounds.changes_bytes,
            lent_value_bytes_max=options.store.limits.value_bytes_max,
        )
        store = Store(options.data, config, on_progress=log_progress)
        give_back_free()  # what recovery needed
        return store

    async def _close_store(self, store: Store) -> None:
        self._metrics.detach()
        self._metrics.tables.attach(None)
        self._slow_log.attach(None)
        await asyncio.get_running_loop().run_in_executor(self._door.engine_thread, store.close)
        _log.info("store closed", extra={"event": "closed"})

    async def _serve(
        self,
        gate: Gate,
        store: Store,
        stop: asyncio.Event,
        addresses: Addresses,
    ) -> None:
        config = self._bounds.config
        log_store(store, config.message_bytes_max)
        log_memory(self._memory_bytes_max, self._bounds)
        self._slow_log.attach(store)
        self._metrics.tables.attach(store)
        gate.open(Serving(store, self._door.queue, config.message_bytes_max, config.watches_max))
        self._door.open(store)
        self._metrics.watch_memory(self._door.held_bytes, self._memory_bytes_max)
        self._metrics.attach(store.info, store.meter, self._door.queue_requests, lambda: store.changes_held_bytes)
        self._metrics.watch_clock(lambda: store.clock_back_seconds)
        await self._foreign.set_serving(True)
        warn_of_readers(self._options.data)
        if audit_log := self._options.server.audit_log:
            warn_of_readers(audit_log)
        warn_of_exposure(self._options.server, *addresses)
        log_access(self._options.server, self._users_file.users if self._users_file else None)
        log_addresses(addresses, tls=self._tls is not None)
        if self._options.ready_file:
            _write_whole(self._options.ready_file, "".join(f"{address}\n" for address in addresses if address))

        await stop.wait()
        gate.close()
        self._door.shut(NotServingError(gate.refusal))
        if self._options.ready_file:
            _remove(self._options.ready_file)
        self._metrics.stopping()
        await self._foreign.set_serving(False)
        began = time.monotonic()
        saying = asyncio.get_running_loop().call_later(_SILENT_SECONDS, self._log_wait)
        try:
            async with asyncio.timeout(config.drain_seconds_max):
                await gate.wait_idle()
                await self._door.wait_idle()
        except TimeoutError:
            _log.warning(
                "%s still waiting after %.0f s (drain_seconds_max): dropped, and not executed",
                counted(self._door.queue_requests(), "request"),
                config.drain_seconds_max,
            )
            self._door.abandon()
        gate.end()
        left = config.drain_seconds_max - (time.monotonic() - began)
        await self._door.stop(min(max(left, _LAST_WORD_SECONDS), _STREAM_GRACE_SECONDS))
        saying.cancel()

    def _log_wait(self) -> None:
        _log.info(
            "stopping: waits for %s; --drain-seconds-max bounds it", self._door.waits_for(), extra={"event": "draining"}
        )


def _ignore_signals() -> None:
    """Let no second signal kill a process that has closed its store and is about to exit: its status would be wrong."""
    for number in (*_STOP_SIGNALS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or nothing.

    Raises
    ------
    GpkvsError
        If it cannot be written now.
    """
    part = _part_of(path)
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise GpkvsError(f"cannot write {path}: {error.strerror} (ready_file)") from error


def _remove(path: Path) -> None:
    """Remove a file; where that cannot be, go on."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot remove %s: %s", path, error.strerror, extra={"event": "ready_file"})


def _require_writable(path: Path) -> None:
    """Find out before the start whether the ready file can be written; remove an old one.

    Raises
    ------
    InvalidArgumentError
        If it cannot.
    """
    try:
        path.unlink(missing_ok=True)
        # Try with another name: a program that waits for the file must not see an empty one.
        _part_of(path).touch()
        _part_of(path).unlink()
    except OSError as error:
        raise InvalidArgumentError(f"cannot write {path}: {error.strerror}", field="ready_file") from error


def _part_of(path: Path) -> Path:
    """Return the name under which a file is written before it is whole."""
    return path.with_name(f"{path.name}.{os.getpid()}")
