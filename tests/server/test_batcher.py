"""Batching while busy, bounded, in arrival order; cancelled and late work is dropped. The store is a real one."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, BatchResult, Condition, Op
from gpkvs.config import Limits, ServerConfig
from gpkvs.engine.begun_batch import BegunBatch
from gpkvs.engine.engine import Engine
from gpkvs.errors import ConflictError, NoSpaceError
from gpkvs.server import codec
from gpkvs.server.batcher import Batcher, ExpiredRequestError
from gpkvs.server.bounds import CALL_BYTES, bounds_of
from gpkvs.server.codec import Response
from gpkvs.server.gate import NotServingError
from gpkvs.server.memory import Account, Memory
from tests.server import wire

LIMITS = Limits()


def set_one(key: bytes, value: bytes = b"") -> codec.Request:
    return codec.single(Op.SET, key, value, LIMITS)


MAINTENANCE_STEPS = 3


@dataclass
class Watched:
    """A store whose engine can be held, and what the batcher did with it."""

    store: gpkvs.Store
    go: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[list[bytes]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    holds_flushes: bool = False
    flushes: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    held: deque[BegunBatch] = field(default_factory=deque)
    steps: int = 0
    requests_max: int | None = None  # the store takes no more of them at once

    def maintain(self) -> bool:
        self.steps += 1
        return self.steps < MAINTENANCE_STEPS

    def begin(self, batch: Batch) -> BegunBatch:
        ends = batch.key_lengths.cumsum().tolist()
        starts = [0, *ends[:-1]]
        keys = batch.keys.tobytes()
        self.batches.append([keys[start:end] for start, end in zip(starts, ends, strict=True)])
        self.entered.release()
        assert self.go.wait(60)
        if self.requests_max:
            batch = batch.take(np.arange(len(batch.request_ops)) < self.requests_max)
        begun = self.store.begin_requests(batch)
        if not self.holds_flushes:
            return begun
        self.held.append(begun)
        return begun._replace(engine=cast(Engine, self))

    # In place of an engine: batches are stored, and durable when the test says so.
    def is_durable(self, _gate: int) -> bool:
        return False

    def wait(self, result: BatchResult, _gate: int) -> None:
        assert self.flushes.acquire(timeout=60)
        assert self.held.popleft().finish() is result

    def batch_done(self, result: BatchResult, seconds: float) -> None:
        assert seconds > 0

    def request_dropped(self, reason: str) -> None:
        self.dropped.append(reason)

    async def wait_entered(self) -> None:
        await asyncio.to_thread(self.entered.acquire)


class OneConnection(Batcher):
    """A batcher whose requests all come in one call; a test says when responses are read."""

    account: Account

    def submit(self, request: codec.Request, seconds_left: float | None = None) -> asyncio.Future[Response]:  # type: ignore[override]
        return super().submit(request, self.account, seconds_left)


@asynccontextmanager
async def running(
    store: gpkvs.Store, memory: Memory | None = None, **config: int
) -> AsyncIterator[tuple[OneConnection, Watched]]:
    watched = Watched(store)
    memory = memory or Memory(1 << 40)
    bounds = bounds_of(ServerConfig(**config), LIMITS, 64 << 20, 16 << 30)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as engine, ThreadPoolExecutor(1) as flush:
        batcher = OneConnection(watched.begin, engine, flush, bounds, memory, watched, watched.maintain)
        batcher.account = Account(memory.connection("one"))
        try:
            yield batcher, watched
        finally:
            watched.go.set()
            watched.flushes.release(100)


Test = Callable[[gpkvs.Store], Awaitable[None]]


def asynchronous(test: Test) -> Callable[[gpkvs.Store], None]:
    """Run a test in an event loop."""

    def run(store: gpkvs.Store) -> None:
        asyncio.run(test(store))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@asynchronous
async def test_what_arrives_while_busy_forms_the_next_batch(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        first = [batcher.submit(set_one(b"a")), batcher.submit(set_one(b"b"))]
        await watched.wait_entered()
        later = [batcher.submit(set_one(b"%d" % i)) for i in range(100)]
        await asyncio.sleep(0.01)
        assert batcher.queue_requests == 100
        watched.go.set()
        versions = [int.from_bytes((await response).versions, "little") for response in [*first, *later]]
    assert watched.batches == [[b"a", b"b"], [b"%d" % i for i in range(100)]]
    assert versions == sorted(versions)
    assert batcher.queue_requests == 0


@asynchronous
async def test_what_comes_after_an_idle_moment_starts_a_batch(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        watched.go.set()
        for i in range(3):
            await asyncio.wait_for(batcher.submit(set_one(b"%d" % i)), 30)
            await asyncio.sleep(0.01)  # nothing waits
    assert watched.batches == [[b"0"], [b"1"], [b"2"]]


@asynchronous
async def test_maintenance_runs_when_idle_and_not_after_the_stop(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        watched.go.set()
        assert watched.steps == 0
        await asyncio.wait_for(batcher.submit(set_one(b"a")), 30)
        assert watched.steps == 0
        await asyncio.sleep(0.3)
        assert watched.steps == MAINTENANCE_STEPS  # as long as there is more to do
        await asyncio.wait_for(batcher.submit(set_one(b"b")), 30)
        batcher.stop_maintenance()  # its timer is set
        await asyncio.sleep(0.2)
        await asyncio.wait_for(batcher.submit(set_one(b"c")), 30)
        await asyncio.sleep(0.2)
        assert watched.steps == MAINTENANCE_STEPS


@asynchronous
async def test_a_batcher_that_maintains_nothing_leaves_the_engine_alone(store: gpkvs.Store) -> None:
    watched, memory = Watched(store), Memory(1 << 40)
    bounds = bounds_of(ServerConfig(), LIMITS, 64 << 20, 16 << 30)
    with ThreadPoolExecutor(1) as engine, ThreadPoolExecutor(1) as flush, pytest.MonkeyPatch.context() as patch:
        batcher = Batcher(watched.begin, engine, flush, bounds, memory, watched)
        watched.go.set()
        account = Account(memory.connection("one"))
        await asyncio.wait_for(batcher.submit(set_one(b"a"), account, None), 30)
        jobs = list[object]()
        patch.setattr(engine, "submit", lambda *job: jobs.append(job))
        await asyncio.sleep(0.3)
        assert not jobs


@asynchronous
async def test_an_idle_store_is_maintained_again(store: gpkvs.Store) -> None:
    """What is not needed for a minute is given back although nobody asks for anything; a request comes between."""

    async def steps_above(watched: Watched, steps: int) -> None:
        while watched.steps <= steps:  # noqa: ASYNC110 - what counts them runs in a thread
            await asyncio.sleep(0.02)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpkvs.server.batcher._IDLE_AGAIN_SECONDS", 0.3)
        async with running(store) as (batcher, watched):
            await asyncio.wait_for(steps_above(watched, MAINTENANCE_STEPS), 20)
            watched.go.set()
            patch.setattr("gpkvs.server.batcher._IDLE_AGAIN_SECONDS", 60.0)
            await asyncio.wait_for(steps_above(watched, watched.steps), 20)
            await asyncio.wait_for(batcher.submit(set_one(b"a")), 30)
            # A batch leaves something to do, and that does not wait for long.
            await asyncio.wait_for(steps_above(watched, watched.steps), 20)


@asynchronous
async def test_batches_are_bounded_and_requests_stay_whole(store: gpkvs.Store) -> None:
    def request(name: bytes, count: int) -> codec.Request:
        return codec.decode(wire.batch([(2, name + b"%d" % i, b"12345678") for i in range(count)]), LIMITS)

    async with running(store, batch_ops_max=5, batch_bytes_max=1000) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        responses = [
            batcher.submit(request(name, count)) for name, count in ((b"a", 2), (b"b", 3), (b"c", 9), (b"d", 1))
        ]
        responses += [batcher.submit(set_one(b"e", bytes(990))), batcher.submit(set_one(b"f", bytes(10)))]
        watched.go.set()
        await asyncio.gather(busy, *responses)
    assert [[key[:1] for key in keys] for keys in watched.batches] == [
        [b"b"],
        [b"a"] * 2 + [b"b"] * 3,
        [b"c"] * 9,  # more than a batch should hold, but it is one request
        [b"d"],
        [b"e"],
        [b"f"],
    ]


@asynchronous
async def test_full_queue_refuses_and_recovers(store: gpkvs.Store) -> None:
    async with running(store, queue_requests_max=3) as (batcher, watched):
        accepted = [batcher.submit(set_one(b"busy"))]
        await watched.wait_entered()
        accepted += [batcher.submit(set_one(key)) for key in (b"a", b"c", b"d")]
        with pytest.raises(NoSpaceError, match=r"queue full: 3 requests wait.*queue_requests_max"):
            batcher.submit(set_one(b"e"))
        watched.go.set()
        await asyncio.gather(*accepted)
        await batcher.submit(set_one(b"b", bytes(200)))
    assert store.get(b"e") is None
    assert store.get(b"b") == bytes(200)


@asynchronous
async def test_a_connection_does_not_wait_for_all_that_another_sent(store: gpkvs.Store) -> None:
    """Each has a request in the next batch; those of one connection stay in their order."""
    async with running(store, batch_ops_max=4) as (batcher, watched):
        other = Account(Memory(1 << 40).connection("another"))
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        responses = [busy, *(batcher.submit(set_one(b"%d" % i)) for i in range(6))]
        responses += [Batcher.submit(batcher, set_one(b"x%d" % i), other) for i in range(3)]
        watched.go.set()
        await asyncio.gather(*responses)
    assert watched.batches == [[b"busy"], [b"0", b"x0", b"1", b"x1"], [b"2", b"x2", b"3", b"4"], [b"5"]]


@asynchronous
async def test_work_not_yet_in_a_batch_is_dropped(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        in_batch = batcher.submit(set_one(b"in batch"))
        await watched.wait_entered()
        cancelled = batcher.submit(set_one(b"cancelled"))
        late = batcher.submit(set_one(b"late"), 0.01)
        in_time = batcher.submit(set_one(b"in time"), 60.0)
        cancelled.cancel()
        in_batch.cancel()
        await asyncio.sleep(0.02)
        watched.go.set()
        await in_time
        with pytest.raises(ExpiredRequestError, match=r"^Deadline Exceeded$"):
            await late
    assert watched.dropped == ["cancelled", "deadline"]
    assert watched.batches == [[b"in batch"], [b"in time"]]
    assert store.get(b"in batch") == b""  # a batch commits whole, whoever still waits for it


@pytest.mark.format3
@asynchronous
async def test_a_request_that_does_not_fit_fails_alone(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        value = bytes(500_000)
        responses = [batcher.submit(set_one(b"%d" % i, value)) for i in range(40)]  # 20 MB into a heap of 16 MiB
        responses.append(batcher.submit(codec.single(Op.GET, b"busy", b"", LIMITS)))
        watched.go.set()
        await busy
        results = await asyncio.gather(*responses, return_exceptions=True)
    refused = [i for i, result in enumerate(results) if isinstance(result, NoSpaceError)]
    assert len(watched.batches) == 2
    assert 5 < len(refused) < 35
    assert results[-1].status == b"\x00"  # type: ignore[union-attr]
    assert [i for i in range(40) if store.get(b"%d" % i) is None] == refused


@pytest.mark.format3
@asynchronous
async def test_what_the_engine_leaves_over_runs_next(store: gpkvs.Store) -> None:
    """The store cuts a batch whose responses are too large; the rest keeps its place."""
    store.set(b"large", bytes(2 << 20 >> 2))
    async with running(store) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        # 150 x 512 KiB = 75 MiB: more than the 64 MiB of values that one transaction may read.
        responses = [batcher.submit(codec.single(Op.GET, b"large", b"", LIMITS)) for _ in range(150)]
        watched.go.set()
        await busy
        lengths = {len((await response).values) for response in responses}
    assert lengths == {2 << 20 >> 2}
    # Cut by what the records take, which is some bytes more than the values: 127 of them surely fit.
    assert [len(keys) for keys in watched.batches] == [1, 150, 150 - 127]


@asynchronous
async def test_what_the_engine_leaves_over_keeps_the_order_of_arrival(store: gpkvs.Store) -> None:
    """Each request writes one key and reads so much that the store cuts the batch: the last write must stay."""
    store.set(b"large", bytes(1 << 19))
    async with running(store) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        requests = [codec.decode(wire.batch([(2, b"k", b"%d" % i), (1, b"large")]), LIMITS) for i in range(150)]
        responses = [batcher.submit(request) for request in requests]
        watched.go.set()
        await busy
        versions = [int.from_bytes((await response).versions[:8], "little") for response in responses]
    assert len(watched.batches) == 3, "nothing was left over"
    assert versions == sorted(versions)
    assert store.get(b"k") == b"149"


def together(count: int, conflicts: list[int]) -> codec.Request:
    """Return requests of one message that write and read a key each; some conflict."""
    operations, conditions, counts = [], bytearray(), []
    for i in range(count):
        leave_out = i not in conflicts
        operations += [(7, b"there"), (2, b"k%d" % i, b"%d" % i), (1, b"k%d" % i)][leave_out:]
        conditions += bytes([Condition.ABSENT, 0, 0][leave_out:])
        counts.append(3 - leave_out)
    request = codec.decode(wire.batch(operations, conditions=bytes(conditions)), LIMITS)
    request.request_ops = wire.u32(*counts)
    return request


@asynchronous
async def test_what_came_together_and_was_done_in_part_has_one_response(store: gpkvs.Store) -> None:
    """The rest is not begun before the first part is durable; if it comes too late, the first part counts."""
    store.set(b"there", b"")
    async with running(store) as (batcher, watched):
        watched.holds_flushes, watched.requests_max = True, 7
        watched.go.set()
        for seconds_left in (None, 0.05):
            begun = len(watched.batches)
            shared = batcher.submit(together(11, [3, 9]), seconds_left)
            other = batcher.submit(set_one(b"other"))
            await until(lambda: batcher.batches_in_flight == 1)
            await asyncio.sleep(0.06)
            assert (len(watched.batches), shared.done()) == (begun + 1, False)
            watched.flushes.release(2)
            response, last = await asyncio.gather(shared, other)
            failures = {number: type(error) for number, error in response.failures}
            late = dict.fromkeys(range(7, 11), ExpiredRequestError)
            assert failures == {3: ConflictError} | (late if seconds_left else {9: ConflictError})
            done = [i for i in range(11) if i not in failures]
            assert (response.status, response.values) == (bytes(2 * len(done)), b"".join(b"%d" % i for i in done))
            assert response.value_lengths == wire.u32(*[len(b"%d" % i) for i in done])
            versions = [int.from_bytes(response.versions[16 * n : 16 * n + 8], "little") for n in range(len(done))]
            read = [store.get_with_version(b"k%d" % i) for i in done]
            assert read == [(b"%d" % i, version) for i, version in zip(done, versions, strict=True)]
            batcher.account.change_responses(-response.held_bytes - last.held_bytes)
        assert batcher.account.connection.bytes == CALL_BYTES


@asynchronous
async def test_who_has_gone_does_not_take_the_responses_of_others(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        gone, stays = batcher.submit(set_one(b"gone")), batcher.submit(set_one(b"stays"))
        await watched.wait_entered()
        gone.cancel()
        watched.go.set()
        assert int.from_bytes((await asyncio.wait_for(stays, 30)).versions, "little") == 2
    assert watched.batches == [[b"gone", b"stays"]]


@asynchronous
async def test_a_failing_engine_fails_its_batch_only(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        watched.go.set()
        await batcher.submit(set_one(b"a"))
        store.close()
        with pytest.raises(gpkvs.GpkvsError, match="is closed"):
            await batcher.submit(set_one(b"b"))
        with pytest.raises(gpkvs.GpkvsError, match="is closed"):
            await batcher.submit(set_one(b"c"))


@asynchronous
async def test_a_failing_engine_tells_everybody_in_the_batch(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        responses = [batcher.submit(set_one(b"%d" % i)) for i in range(3)]
        await watched.wait_entered()
        store.close()
        watched.go.set()
        results = await asyncio.wait_for(asyncio.gather(*responses, return_exceptions=True), 30)
    assert len(watched.batches) == 1
    assert all(isinstance(result, gpkvs.GpkvsError) for result in results)


def many(count: int, name: str = "") -> codec.Request:
    """Return a request so large, or so small, that it starts early or does not."""
    return codec.decode(wire.batch([(2, f"{name}{i}".encode(), b"") for i in range(count)]), LIMITS)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.003)
    pytest.fail("it never came")


LARGE = 4096


@asynchronous
async def test_a_large_batch_starts_before_the_one_before_is_durable(store: gpkvs.Store) -> None:
    """Nobody hears of a batch that is not durable; a small one waits, and then takes all that came meanwhile."""
    async with running(store) as (batcher, watched):
        watched.holds_flushes = True
        watched.go.set()
        first = batcher.submit(set_one(b"first"))
        await until(lambda: batcher.batches_in_flight == 1)
        small = [batcher.submit(set_one(b"small"))]
        await asyncio.sleep(0.02)
        assert len(watched.batches) == 1
        large = batcher.submit(many(LARGE - 1))
        await until(lambda: batcher.batches_in_flight == 2)
        small.append(batcher.submit(set_one(b"also small")))
        await asyncio.sleep(0.02)
        assert [len(keys) for keys in watched.batches] == [1, LARGE]
        assert not first.done()
        assert not large.done()

        watched.flushes.release()
        await first
        await asyncio.sleep(0.02)
        assert not large.done()
        assert len(watched.batches) == 2, "a small batch started beside one in flight"
        watched.flushes.release()
        await large
        await small[0]
        await until(lambda: len(watched.batches) == 3)
        assert watched.batches[2] == [b"also small"]
        watched.flushes.release()
        versions = [int.from_bytes((await response).versions[:8], "little") for response in (first, *small, large)]
    assert versions[:2] == [1, 2]
    assert versions[2] > versions[3] == 3
    assert batcher.batches_in_flight == 0


@asynchronous
async def test_no_more_batches_are_in_flight_than_the_journal_has_buffers(store: gpkvs.Store) -> None:
    memory = Memory(1 << 40)
    async with running(store, memory) as (batcher, watched):
        watched.holds_flushes = True
        watched.go.set()
        responses = []
        for number in range(6):
            responses.append(batcher.submit(many(LARGE)))
            await until(lambda: batcher.batches_in_flight == min(number + 1, 4))  # noqa: B023
            await asyncio.sleep(0.005)
        assert len(watched.batches) == 4
        assert 4 * LARGE * 200 < memory.by_kind["batch"] < 8 * LARGE * 200
        watched.flushes.release(6)
        await asyncio.gather(*responses)
    assert [len(keys) for keys in watched.batches] == [LARGE] * 4 + [2 * LARGE]
    assert memory.by_kind["batch"] == 0


@asynchronous
async def test_a_batch_waits_for_the_memory_of_those_in_flight(store: gpkvs.Store) -> None:
    """What batches in flight read stays in memory: together they keep to the engine's share."""
    store.set(b"large", bytes(1 << 19))
    memory = Memory(1 << 40)
    async with running(store, memory, batch_bytes_max=1 << 20, message_bytes_max=1 << 20, batch_ops_max=1) as (
        batcher,
        watched,
    ):
        watched.holds_flushes = True
        watched.go.set()
        engine_bytes = batcher._bounds.engine_bytes
        reads = codec.decode(wire.batch([(1, b"large")] * 120 + [(2, b"k", b"")] * LARGE), LIMITS)
        first = batcher.submit(reads)
        await until(lambda: batcher.batches_in_flight == 1)
        assert 180 << 20 < memory.by_kind["batch"] < engine_bytes
        second = batcher.submit(reads)
        await asyncio.sleep(0.05)
        assert len(watched.batches) == 1
        watched.flushes.release(2)
        await asyncio.gather(first, second)
    assert len(watched.batches) == 2


@asynchronous
async def test_what_the_engine_leaves_over_starts_before_what_came_later(store: gpkvs.Store) -> None:
    """Also when it starts before the first part is durable."""
    store.set(b"large", bytes(1 << 19))
    async with running(store) as (batcher, watched):
        watched.holds_flushes = True
        operations = [(2, b"k%d" % i, b"") for i in range(LARGE // 16)] + [(1, b"large")]
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        requests = [codec.decode(wire.batch([*operations, (2, b"k", b"%d" % i)]), LIMITS) for i in range(150)]
        responses = [batcher.submit(request) for request in requests]
        watched.go.set()
        await watched.wait_entered()
        responses.append(batcher.submit(set_one(b"k", b"late")))
        await until(lambda: batcher.batches_in_flight == 3)
        watched.flushes.release(3)
        await busy
        last = [(await response).versions[-8:] for response in responses]
    versions = [int.from_bytes(version, "little") for version in last]
    assert len(watched.batches) == 3, "nothing was left over"
    assert versions == sorted(versions)
    assert store.get(b"k") == b"late"


@asynchronous
async def test_abandoned_work_fails_with_the_reason(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        waiting = batcher.submit(set_one(b"waiting"))
        batcher.abandon(NotServingError("stopping"))
        watched.go.set()
        await busy
        with pytest.raises(NotServingError, match="stopping"):
            await waiting
    assert store.get(b"waiting") is None


@asynchronous
async def test_who_does_not_read_is_refused_before_the_memory_is_gone(store: gpkvs.Store) -> None:
    """One connection may hold as much as it leaves free; another one is served; what was read makes room."""
    size = 1_000_000
    store.set(b"large", bytes(size))
    read = codec.single(Op.GET, b"large", b"", LIMITS)
    memory = Memory(21 * size)
    async with running(store, memory) as (batcher, watched):
        watched.go.set()
        for _ in range(6):  # gRPC keeps a copy of each response: 6 of 2 MB are more than half
            await batcher.submit(read)
        with pytest.raises(NoSpaceError, match=r"memory full.*--memory-max"):
            await batcher.submit(read)
        assert 12 * size < memory.bytes < 13 * size
        with pytest.raises(NoSpaceError):
            await batcher.submit(set_one(b"k"))  # responses of writes count too
        other = Account(memory.connection("another"))
        assert len((await Batcher.submit(batcher, read, other)).values) == size
        other.close()

        batcher.account.change_responses(-3 * size)
        assert len((await batcher.submit(read)).values) == size


@asynchronous
async def test_what_is_refused_was_not_executed(store: gpkvs.Store) -> None:
    """What GETs bring is known afterwards: the responses of one transaction may pass the bound, then none runs."""
    size = 1_000_000
    store.set(b"large", bytes(size))
    both = codec.decode(wire.batch([(2, b"k", b"v"), (1, b"large")]), LIMITS)
    async with running(store, Memory(3 * size)) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        together = [batcher.submit(both) for _ in range(5)]
        watched.go.set()
        await busy
        assert {len((await response).values) for response in together} == {size}
        store.delete(b"k")
        with pytest.raises(NoSpaceError, match="memory full"):
            await batcher.submit(both)
    assert store.get(b"k") is None


@asynchronous
async def test_requests_and_planned_responses_count_until_they_are_done(store: gpkvs.Store) -> None:
    """Of any kind, cancelled or not, and with the fields that nobody knows: they take memory all the same."""
    memory = Memory(100_000)
    async with running(store, memory) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        before = memory.by_kind["requests"]
        waiting = batcher.submit(codec.single(Op.DELETE, b"fat", b"", LIMITS, message_bytes=10_000))
        assert 10_000 < memory.by_kind["requests"] - before < 13_000
        assert memory.by_kind["answers"] > 0
        waiting.cancel()
        await asyncio.sleep(0)
        assert memory.by_kind["requests"] - before > 10_000  # the queue still has it
        many = codec.decode(wire.batch([(3, b"%d" % i) for i in range(1000)]), LIMITS)
        with pytest.raises(NoSpaceError, match=r"memory full: this connection holds .* and asks for"):
            batcher.submit(many)
        assert memory.by_kind["batch"] > 0
        watched.go.set()
        await busy
        await batcher.submit(set_one(b"behind it"))
        batcher.account.close()
    assert memory.by_kind == {"calls": 0, "requests": 0, "answers": 0, "batch": 0}
    assert watched.dropped == ["cancelled"]


def test_an_account_gives_back_what_it_took() -> None:
    memory = Memory(1 << 30)
    first, second = Account(memory.connection("peer")), Account(memory.connection("peer"))
    first.change_responses(3000)
    second.admit(0, 4000)
    first.change_responses(-1000)
    first.close()
    first.change_responses(50_000)  # a call that has ended holds nothing
    assert 8000 <= memory.bytes == memory.connection("peer").bytes < 40_000
    second.close()
    second.close()
    assert (memory.bytes, memory.connection("peer").bytes) == (0, 0)


def test_a_connection_never_holds_more_than_it_leaves_free() -> None:
    """However many there are and whatever they ask for: the bound is kept, and a newcomer finds room."""
    memory = Memory(100_000_000)
    for number in range(10):
        account = Account(memory.connection(str(number)))
        for size in (40_000_000, 9_000_000, 1_000_000, 100_000, 10_000):
            with suppress(NoSpaceError):
                while True:
                    account.admit(size, 0)
    assert 90_000_000 < memory.bytes <= 100_000_000
    Account(memory.connection("newcomer")).admit(10_000, 1000)


@asynchronous
async def test_a_batch_is_on_one_table(store: gpkvs.Store) -> None:
    """Who waits for another table keeps its place, and those of its connection behind it."""
    store.create_table("other")
    other = store.table("other").id
    memory = Memory(1 << 40)
    accounts = [Account(memory.connection(name)) for name in ("one", "two", "three")]
    async with running(store, memory) as (batcher, watched):
        responses = [batcher.submit(set_one(b"first"))]
        await watched.wait_entered()
        for account, asked in zip(accounts, ("a0 b0 a1 b1", "a2 a3", "b2 a4"), strict=True):
            for key in asked.encode().split():
                request = codec.single(Op.SET, key, key, LIMITS, other if key[:1] == b"b" else 0)
                responses.append(Batcher.submit(batcher, request, account))
        await asyncio.sleep(0.01)
        watched.go.set()
        for response in responses:
            await asyncio.wait_for(response, 30)
    assert watched.batches == [[b"first"], [b"a0", b"a2", b"a3"], [b"b2", b"b0"], [b"a4", b"a1"], [b"b1"]]
    assert {key for key, _ in store.scan()} == {b"first", b"a0", b"a1", b"a2", b"a3", b"a4"}
    assert {key for key, _ in store.scan(table="other")} == {b"b0", b"b1", b"b2"}
