"""Whatever is interrupted, wherever it waits: no account, no lock and no gauge keeps anything."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.client import AsyncClient
from gpkvs.errors import GpkvsError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.access.login import Logins
from gpkvs.server.account.memory import Account, Memory
from gpkvs.server.calls.receives import Receives
from gpkvs.server.calls.request_queue import Answer, RequestQueue
from gpkvs.server.gate import Gate, Serving
from gpkvs.server.redis.execution.key_locks import KeyLocks
from gpkvs.server.redis.service import Service
from gpkvs.server.redis.stats import DoorCounts, Stats
from gpkvs.server.signs.slow_log import SlowLog
from tests.server.cancelling import Run, interruptions
from tests.server.counted import Counted
from tests.server.store_queue import StoreQueue

WAIT_SECONDS = 60.0


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something, with a generous bound."""
    for _ in range(int(WAIT_SECONDS / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"after {WAIT_SECONDS:g} s: {what}")


def each(attempt: Callable[[Run], Awaitable[None]]) -> None:
    """Run an attempt for each interruption."""

    async def within() -> None:
        async for run in interruptions():
            await attempt(run)

    asyncio.run(within())


def test_locks_of_keys() -> None:
    async def attempt(run: Run) -> None:
        locks, go = KeyLocks(), asyncio.Event()

        async def one(*keys: bytes) -> None:
            async with locks.hold([(0, key) for key in keys]):
                await go.wait()

        others = [asyncio.create_task(one(b"b", b"d")) for _ in range(2)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.001, go.set)
        await run(one(b"a", b"b", b"c", b"d", b"e"))
        await asyncio.wait_for(asyncio.gather(*others, one(b"a", b"e")), WAIT_SECONDS)
        assert len(locks) == 0

    each(attempt)


@pytest.mark.parametrize("is_stream", [False, True])
def test_calls_that_wait_for_a_message(is_stream: bool) -> None:
    async def attempt(run: Run) -> None:
        receives = Receives(30.0)

        async def read() -> bytes:
            await asyncio.sleep(0.001)
            return b"message"

        context = SimpleNamespace(ask=lambda: asyncio.ensure_future(read()))

        async def one() -> None:
            assert await receives.read(context, is_stream=is_stream) == b"message"

        other = asyncio.create_task(one())
        await asyncio.sleep(0)
        await run(one())
        await asyncio.wait_for(asyncio.gather(other, one()), WAIT_SECONDS)
        assert not receives._waiting

    each(attempt)


class Client:
    """A connection of the Redis protocol, as the door would hand it on: it sends commands and goes."""

    connection = 0

    def __init__(self, peer: str, commands: Sequence[bytes]) -> None:
        self._peer, self._commands = peer, [line.split() for line in commands]
        self._done: list[Callable[[Any], object]] = []
        self.replies: list[bytes] = []

    def peer(self) -> str:
        return self._peer

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._done.append(callback)

    def ask(self) -> asyncio.Future[object]:
        asked = asyncio.get_running_loop().create_future()
        asked.set_result(packed(self._commands.pop(0)) if self._commands else None)
        return asked

    def half_closed(self) -> None: ...

    def respond(self, message: object) -> None:
        assert isinstance(message, bytes)
        self.replies.append(message)

    def set_session(self, *_: object) -> None: ...

    def with_metadata(self, _metadata: object) -> None: ...

    async def served_by(self, service: Service) -> None:
        try:
            await service.serve(self)
        finally:
            for callback in self._done:
                callback(self)


def packed(words: Sequence[bytes]) -> bytes:
    return struct.pack(f"<I{len(words)}I", len(words), *map(len, words)) + b"".join(words)


# Those of two clients wait for each other's keys and in each other's rounds.
COMMANDS = (
    *(b"APPEND k x", b"WATCH k w", b"GET k", b"MULTI", b"APPEND k y", b"SETRANGE w 40000 z", b"PING", b"EXEC"),
    *(b"MSETNX a 1 b 2 c 3", b"DEL a b c", b"RENAME k z", b"RENAME z k", b"KEYS *", b"SCAN 0", b"COPY k v REPLACE"),
    *(b"GETRANGE w 0 -1", b"MEMORY USAGE w", b"INCRBYFLOAT n 1.5", b"DEL k w v n"),
)


@asynccontextmanager
async def redis_service(store: gpkvs.Store, memory: Memory) -> AsyncIterator[tuple[Service, Gate]]:
    door = StoreQueue(store)
    gate = Gate()
    gate.open(Serving(store, door.queue, 64 << 20))
    stats = Stats(lambda: DoorCounts({}, {}, 0, 0))
    service = Service(
        gate, memory, cast(Logins, SimpleNamespace(is_open=True)), stats, SlowLog(10.0, 128), lambda *_: None
    )
    try:
        yield service, gate
    finally:
        service.shutdown()
        door.close()


def test_clients_of_the_redis_protocol(store: gpkvs.Store) -> None:
    async def within() -> None:
        counted = Counted()
        async with redis_service(store, counted.memory) as (service, gate):
            async for run in interruptions():
                other = Client("ipv4:127.0.0.1:1", COMMANDS)
                others = asyncio.create_task(other.served_by(service))
                await asyncio.sleep(0)
                await run(Client("ipv4:127.0.0.1:2", COMMANDS).served_by(service))
                await asyncio.wait_for(others, WAIT_SECONDS)
                assert len(other.replies) == len(COMMANDS)
                assert not any(reply.startswith(b"-") for reply in other.replies if reply != b"-ERR no such key\r\n")
                await wait_until(lambda: counted.clients_bytes() == 0, f"{counted.held} are held")
                await wait_until(lambda: not gate.serving().queue._waiting, "requests are not answered")
                assert len(service.executor._locks) == 0
                assert not service.executor._rounds._waiting
                assert not service.sessions
                assert gate._calls == 0
                assert not counted.memory._connections

    asyncio.run(within())


class HeldQueue:
    """Takes requests, and answers none by itself."""

    def __init__(self) -> None:
        self.deadlines: list[int] = []
        self.withdrawn: list[int] = []

    def submit(self, _connection: int, ticket: int, _table: int, deadline_ns: int, _message: bytes) -> None:
        assert ticket == len(self.deadlines) + 1
        self.deadlines.append(deadline_ns)

    def withdraw(self, _connection: int, ticket: int) -> None:
        self.withdrawn.append(ticket)

    def waiting(self) -> int:
        return len(self.deadlines)


def done(ticket: int) -> Answer:
    return Answer(ticket, kv_pb2.BatchResponse(status=b"\0").SerializeToString(), 0, False, 1, 2, 3, 4)


def test_a_request_that_nobody_waits_for_is_withdrawn() -> None:
    """It may be in a batch already: its answer is nobody's, and those behind it have theirs."""

    async def within() -> None:
        counted, door = Counted(), HeldQueue()
        queue, account = RequestQueue(door), Account(counted.connection())
        message = kv_pb2.BatchRequest(ops=b"\1", keys=b"k", key_size=1)
        first, second = (queue.submit(message, 0, account) for _ in range(2))
        first.cancel()
        await asyncio.sleep(0)
        assert door.withdrawn == [1]
        queue.answered(done(1))
        queue.answered(done(2))
        assert (await second).status == b"\0"
        assert door.withdrawn == [1]
        assert counted.held["answers"] > 0
        account.close()
        assert counted.clients_bytes() == 0

    asyncio.run(within())


def test_a_deadline_counts_from_now_on() -> None:
    async def within() -> None:
        counted, door = Counted(), HeldQueue()
        queue, account = RequestQueue(door), Account(counted.connection())
        message = kv_pb2.BatchRequest(ops=b"\1", keys=b"k", key_size=1)
        before_ns = time.monotonic_ns()
        queue.submit(message, 0, account, 5.0)
        queue.submit(message, 0, account)
        assert 5_000_000_000 <= door.deadlines[0] - before_ns < 6_000_000_000 + 10**10
        assert door.deadlines[1] == (1 << 64) - 1

    asyncio.run(within())


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Yield the address of a server that takes connections and says nothing."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def test_a_client_that_is_closed() -> None:
    """Nobody answers it; who closes it has no patience."""

    async def attempt(run: Run) -> None:
        async with silent_server() as target:
            client = AsyncClient(target, timeout=WAIT_SECONDS)
            call = asyncio.create_task(client.get(b"k"))
            await asyncio.sleep(0.01)
            await run(client.close(grace_s=0.02))
            await asyncio.wait([call], timeout=WAIT_SECONDS)
            assert isinstance(call.exception(), GpkvsError)
            await wait_until(
                lambda: client._channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN, "the channel is open"
            )

    each(attempt)


def test_a_pipeline_that_is_closed() -> None:
    async def attempt(run: Run) -> None:
        async with silent_server() as target, AsyncClient(target, timeout=0.05) as client:
            pipeline = client.pipeline()
            sending = asyncio.create_task(pipeline.send(Batch.of([(Op.SET, b"k", b"v")])))
            await asyncio.sleep(0.01)
            await run(pipeline.close())
            await asyncio.wait([pipeline._reader], timeout=WAIT_SECONDS)
            assert pipeline._reader.done()
            assert not pipeline._sent
            sending.cancel()  # it is stuck in gRPC until that one gives up the connection

    each(attempt)
