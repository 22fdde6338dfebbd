"""Deadlines, cancellation, calls before and after serving: the real services around a store whose engine is held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

import gpkvs
from gpkvs.batch import Batch
from gpkvs.config import Limits, ServerConfig
from gpkvs.engine.begun_batch import BegunBatch
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2, kv_pb2_grpc
from gpkvs.server.access.audit import NO_AUDIT
from gpkvs.server.admin import AdminService
from gpkvs.server.backup_notes import BackupNotes
from gpkvs.server.batcher import Batcher
from gpkvs.server.bounds import Bounds, bounds_of
from gpkvs.server.exporter import Metrics
from gpkvs.server.gate import Gate, NotServingError, Serving
from gpkvs.server.interceptor import CallMetrics
from gpkvs.server.memory import Memory
from gpkvs.server.receives import Receives
from gpkvs.server.rpc import Doors, add_service
from gpkvs.server.service import KVService
from gpkvs.server.slow_log import SlowLog
from tests.server.access.everybody import open_to_everybody
from tests.server.wire import SET, batch


@dataclass
class Services:
    """The services in this process, their gate, and a store whose engine can be held."""

    store: gpkvs.Store
    engine: ThreadPoolExecutor
    flush: ThreadPoolExecutor
    gate: Gate
    metrics: Metrics
    bounds: Bounds
    memory: Memory
    kv: Any = None
    admin: Any = None
    go: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def begin(self, batch: Batch) -> BegunBatch:
        self.entered.release()
        assert self.go.wait(60)
        return self.store.begin_requests(batch)

    def open_gate(self) -> Batcher:
        batcher = Batcher(self.begin, self.engine, self.flush, self.bounds, self.memory, self.metrics)
        self.gate.open(Serving(self.store, batcher, 1 << 20, 64, 1 << 20))
        return batcher

    async def wait_entered(self) -> None:
        await asyncio.to_thread(self.entered.acquire)

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


class Context:
    """A call of gRPC's own server, with what a call of the native door has beside."""

    is_counted = False

    def __init__(self, of: grpc.aio.ServicerContext) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def ask(self) -> asyncio.Future[object]:
        return asyncio.ensure_future(self._read())

    async def _read(self) -> object:
        message = await self._of.read()
        return None if message is grpc.aio.EOF else message


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """One of ours; it hands such calls on."""

    def __init__(self, ours: CallMetrics) -> None:
        self._ours = ours

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await self._ours.intercept_service(continuation, details)
        assert handler
        kind = "stream_unary" if handler.stream_unary else "stream_stream"
        run = getattr(handler, kind)

        async def served(requests: object, context: grpc.aio.ServicerContext) -> Any:
            return await run(requests, Context(context))

        exchanged: dict[str, Any] = {kind: served}
        return handler._replace(**exchanged)


@asynccontextmanager
async def serving(store: gpkvs.Store) -> AsyncIterator[Services]:
    with ThreadPoolExecutor(1) as engine, ThreadPoolExecutor(1) as flush:
        metrics, gate = Metrics(), Gate()
        bounds = bounds_of(ServerConfig(), Limits(), 64 << 20, 16 << 30)
        memory, receives = Memory(bounds.clients_bytes_max), Receives(30.0)
        access = open_to_everybody()
        doors = Doors(access, gate, memory, receives, metrics, SlowLog(10.0, 128))
        server = grpc.aio.server(interceptors=[Interceptor(CallMetrics(metrics.registry))])
        for module, name, service in (
            (kv_pb2, "KV", KVService(access, gate, receives, metrics)),
            (admin_pb2, "Admin", AdminService(gate, NO_AUDIT, SlowLog(10.0, 128), BackupNotes())),
        ):
            add_service(server, module.DESCRIPTOR.services_by_name[name], service, doors)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        services = Services(store, engine, flush, gate, metrics, bounds, memory)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                services.kv, services.admin = kv_pb2_grpc.KVStub(channel), admin_pb2_grpc.AdminStub(channel)
                yield services
        finally:
            services.go.set()
            await server.stop(None)


def asynchronous(test: Callable[[gpkvs.Store], Awaitable[None]]) -> Callable[[gpkvs.Store], None]:
    """Run a test in an event loop."""

    def run(store: gpkvs.Store) -> None:
        asyncio.run(test(store))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


async def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("waited 10 s in vain")


@asynchronous
async def test_unavailable_before_and_after(store: gpkvs.Store) -> None:
    async with serving(store) as services:
        calls = (
            lambda: services.kv.Get(kv_pb2.GetRequest(key=b"k")),
            lambda: services.kv.Set(kv_pb2.SetRequest(key=b"k")),
            lambda: services.kv.Delete(kv_pb2.DeleteRequest(key=b"k")),
            lambda: services.kv.Batch(batch([(SET, b"k", b"")])),
            lambda: services.admin.Info(admin_pb2.InfoRequest()),
        )

        async def expect_unavailable(word: str) -> None:
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call()
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert word in caught.value.details()
                assert ("gpkvs-executed", "no") in tuple(caught.value.trailing_metadata())

        await expect_unavailable("recovering")
        services.go.set()
        services.open_gate()
        for call in calls:
            await call()
        services.gate.close()
        await expect_unavailable("stopping")
        assert services.sample("gpkvs_requests_refused_total", reason="not_serving") == 10


@asynchronous
async def test_deadline_passes_while_the_request_waits(store: gpkvs.Store) -> None:
    async with serving(store) as services:
        batcher = services.open_gate()
        busy = services.kv.Set(kv_pb2.SetRequest(key=b"busy"))
        await services.wait_entered()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services.kv.Set(kv_pb2.SetRequest(key=b"late"), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        services.go.set()
        assert (await busy).version
        await wait_until(lambda: batcher.queue_requests == 0)
        dropped = sum(services.sample("gpkvs_requests_refused_total", reason=why) for why in ("cancelled", "deadline"))
        assert dropped == 1
    assert store.get(b"late") is None


@asynchronous
async def test_cancelled_call(store: gpkvs.Store) -> None:
    """In a batch it commits, waiting it is dropped."""
    async with serving(store) as services:
        batcher = services.open_gate()
        in_batch = services.kv.Set(kv_pb2.SetRequest(key=b"in batch"))
        await services.wait_entered()
        waiting = services.kv.Set(kv_pb2.SetRequest(key=b"waiting"))
        await wait_until(lambda: batcher.queue_requests == 1)
        waiting.cancel()
        in_batch.cancel()
        ended = {"grpc_type": "unary", "grpc_service": "gpkvs.v1.KV", "grpc_method": "Set", "grpc_code": "CANCELLED"}
        await wait_until(lambda: services.sample("grpc_server_handled_total", **ended) == 2)
        services.go.set()
        await services.kv.Get(kv_pb2.GetRequest(key=b"k"))
        assert services.sample("gpkvs_requests_refused_total", reason="cancelled") == 1
    assert store.get(b"in batch") == b""
    assert store.get(b"waiting") is None


@asynchronous
async def test_a_stream_that_is_given_up_runs_no_further(store: gpkvs.Store) -> None:
    """What is in a batch commits, what waits is dropped: nobody is there for its responses."""
    async with serving(store) as services:
        batcher = services.open_gate()
        stream = services.kv.Pipeline()
        await stream.write(batch([(SET, b"in batch", b"")]))
        await services.wait_entered()
        for i in range(5):
            await stream.write(batch([(SET, b"waiting-%d" % i, b"")]))
        await wait_until(lambda: batcher.queue_requests == 5)
        stream.cancel()
        ended = {"grpc_type": "bidi_stream", "grpc_service": "gpkvs.v1.KV", "grpc_method": "Pipeline"}
        await wait_until(lambda: services.sample("grpc_server_handled_total", **ended, grpc_code="CANCELLED") == 1)
        services.go.set()
        await services.kv.Get(kv_pb2.GetRequest(key=b"k"))
    assert store.get(b"in batch") == b""
    assert [store.get(b"waiting-%d" % i) for i in range(5)] == [None] * 5


@asynchronous
async def test_gate_waits_for_calls_under_way(store: gpkvs.Store) -> None:
    async with serving(store) as services:
        services.open_gate()
        call = services.kv.Set(kv_pb2.SetRequest(key=b"k"))
        await services.wait_entered()
        await services.admin.Info(admin_pb2.InfoRequest())  # one call that ends is not all of them
        services.gate.close()
        idle = asyncio.ensure_future(services.gate.wait_idle())
        await asyncio.sleep(0.05)
        assert not idle.done()
        services.go.set()
        assert (await call).version
        await idle


@asynchronous
async def test_a_failed_engine_does_not_claim_that_nothing_was_executed(store: gpkvs.Store) -> None:
    async with serving(store) as services:
        services.open_gate()
        store.close()
        services.go.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services.kv.Set(kv_pb2.SetRequest(key=b"k"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ("gpkvs-executed", "no") not in tuple(caught.value.trailing_metadata())


@asynchronous
async def test_what_is_dropped_after_the_drain_was_not_executed_and_says_so(store: gpkvs.Store) -> None:
    async with serving(store) as services:
        batcher = services.open_gate()
        busy = services.kv.Set(kv_pb2.SetRequest(key=b"busy"))
        await services.wait_entered()
        waiting = services.kv.Set(kv_pb2.SetRequest(key=b"waiting"))
        stream = services.kv.Pipeline()
        await stream.write(batch([(SET, b"streamed", b"")]))
        await wait_until(lambda: batcher.queue_requests == 2)
        services.gate.close()
        batcher.abandon(NotServingError(services.gate.refusal))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ("gpkvs-executed", "no") in tuple(caught.value.trailing_metadata())
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.read()
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert ("gpkvs-executed", "no") in tuple(await stream.trailing_metadata())
        assert services.sample("gpkvs_requests_refused_total", reason="not_serving") == 2
        services.go.set()
        assert (await busy).version
    assert store.get(b"waiting") is None
    assert store.get(b"streamed") is None
