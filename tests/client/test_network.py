"""The clients over a network that goes silent: connections stay up, and no byte comes through any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpkvs.batch import Batch, Op
from gpkvs.client import AsyncClient, DeadlineError, OutcomeUnknownError, UnavailableError, aio
from gpkvs.errors import GpkvsError
from tests.serving import Server

WRITE = Batch.of([(Op.SET, b"k", b"v")])
READ = Batch.of([(Op.GET, b"k")])
STALL_SECONDS_MAX = 30.0  # only a close that hangs takes so long


class Proxy:
    """Forwards bytes between clients and a server until `silent` is set."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self.silent = asyncio.Event()
        self.address = ""

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._server.split(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._tasks.add(asyncio.create_task(self._forward(source, sink)))

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                if self.silent.is_set():
                    await asyncio.Event().wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy_to(server: Server) -> AsyncIterator[Proxy]:
    proxy = Proxy(server.target)
    listener = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        await proxy.close()
        listener.close()


async def outcome(result: asyncio.Future[object]) -> type[GpkvsError] | None:
    try:
        await result
    except GpkvsError as error:
        return type(error)
    return None


def test_a_pipeline_closes_within_its_time_when_the_network_is_gone(server: Server) -> None:
    async def main() -> None:
        async with proxy_to(server) as proxy, AsyncClient(proxy.address, timeout=0.5) as client:
            pipeline = client.pipeline()
            await (await pipeline.send(WRITE))
            proxy.silent.set()
            write, read = await pipeline.send(WRITE), await pipeline.send(READ)
            await pipeline.close()
            assert await outcome(write) is OutcomeUnknownError
            assert await outcome(read) is DeadlineError

    asyncio.run(asyncio.wait_for(main(), STALL_SECONDS_MAX))


def test_a_send_that_is_stuck_does_not_hold_up_the_end(server: Server) -> None:
    async def main() -> None:
        large = Batch.of([(Op.SET, b"%d" % i, bytes(1 << 20)) for i in range(4)])
        async with proxy_to(server) as proxy, AsyncClient(proxy.address, timeout=0.5) as client:
            pipeline = client.pipeline()
            await (await pipeline.send(WRITE))
            proxy.silent.set()
            sends = [asyncio.create_task(pipeline.send(large)) for _ in range(4)]
            await asyncio.sleep(0.2)
            assert not sends[-1].done()
            await asyncio.wait_for(pipeline.close(), 8)  # long before keepalive ends the connection
            for send in sends:
                send.cancel()
            ended = await asyncio.gather(*sends, return_exceptions=True)
            results = [result for result in ended if isinstance(result, asyncio.Future)]
            assert {await outcome(result) for result in results} <= {OutcomeUnknownError}
            assert {type(error) for error in ended if error not in results} <= {asyncio.CancelledError, DeadlineError}

    asyncio.run(asyncio.wait_for(main(), STALL_SECONDS_MAX))


def test_without_a_deadline_keepalive_finds_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sooner = {"grpc.keepalive_time_ms": 500, "grpc.keepalive_timeout_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    assert sooner.keys() < dict(aio.CHANNEL_OPTIONS).keys()
    monkeypatch.setattr(aio, "CHANNEL_OPTIONS", tuple((dict(aio.CHANNEL_OPTIONS) | sooner).items()))

    async def main() -> None:
        async with proxy_to(server) as proxy, AsyncClient(proxy.address, timeout=None) as client:
            pipeline = client.pipeline()
            await (await pipeline.send(WRITE))
            proxy.silent.set()
            write, single = await pipeline.send(WRITE), asyncio.create_task(client.set(b"k", b"v"))
            await pipeline.close()
            assert await outcome(write) is OutcomeUnknownError
            with pytest.raises(OutcomeUnknownError) as caught:
                await single
            assert isinstance(caught.value.__cause__, UnavailableError)

    asyncio.run(asyncio.wait_for(main(), STALL_SECONDS_MAX))


def test_a_close_waits_as_long_as_responses_come(server: Server) -> None:
    async def main() -> None:
        async with proxy_to(server) as proxy, AsyncClient(proxy.address) as client, client.pipeline() as pipeline:
            results = [await pipeline.send(WRITE) for _ in range(32)]
            await pipeline.close()
            assert all([(await result).status[0] == 0 for result in results])

    asyncio.run(asyncio.wait_for(main(), STALL_SECONDS_MAX))
