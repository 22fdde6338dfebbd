"""Batching while busy, bounded, in arrival order; cancelled and late work is dropped. The store is a real one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

import gpkvs
from gpkvs.batch import Batch, BatchResult, Op
from gpkvs.config import Limits, ServerConfig
from gpkvs.errors import NoSpaceError
from gpkvs.server import codec
from gpkvs.server.batcher import Batcher, DeadlineError
from gpkvs.server.codec import Answer
from gpkvs.server.outbox import Account, Outbox
from tests.e2e import wire

LIMITS = Limits()


def set_one(key: bytes, value: bytes = b"") -> codec.Request:
    return codec.one(Op.SET, key, value, LIMITS)


@dataclass
class Watched:
    """A store whose engine can be held, and what the batcher did with it."""

    store: gpkvs.Store
    go: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[list[bytes]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def execute(self, batch: Batch) -> BatchResult:
        ends = batch.key_lengths.cumsum().tolist()
        starts = [0, *ends[:-1]]
        keys = batch.keys.tobytes()
        self.batches.append([keys[start:end] for start, end in zip(starts, ends, strict=True)])
        self.entered.release()
        assert self.go.wait(60)
        return self.store.execute_requests(batch)

    def batch_done(self, result: BatchResult, requests: int, seconds: float) -> None:
        assert requests == result.requests
        assert seconds > 0

    def request_dropped(self, reason: str) -> None:
        self.dropped.append(reason)

    async def wait_entered(self) -> None:
        await asyncio.to_thread(self.entered.acquire)


class OneConnection(Batcher):
    """A batcher whose requests all come over one connection; a test says when answers are read."""

    outbox: Outbox

    def submit(self, request: codec.Request, seconds_left: float | None = None) -> asyncio.Future[Answer]:  # type: ignore[override]
        return super().submit(request, Account(self.outbox, "one"), seconds_left)


@asynccontextmanager
async def running(store: gpkvs.Store, **config: int) -> AsyncIterator[tuple[OneConnection, Watched]]:
    watched = Watched(store)
    with ThreadPoolExecutor(1) as engine:
        batcher = OneConnection(watched.execute, engine, ServerConfig(**config), watched)  # type: ignore[arg-type]
        batcher.outbox = Outbox(config.get("answer_bytes_max", 1 << 40))
        try:
            yield batcher, watched
        finally:
            watched.go.set()


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
        versions = [int.from_bytes((await answer).versions, "little") for answer in [*first, *later]]
    assert watched.batches == [[b"a", b"b"], [b"%d" % i for i in range(100)]]
    assert versions == sorted(versions)
    assert (batcher.queue_requests, batcher.queue_bytes) == (0, 0)


@asynchronous
async def test_what_comes_after_an_idle_moment_starts_a_batch(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        watched.go.set()
        for i in range(3):
            await asyncio.wait_for(batcher.submit(set_one(b"%d" % i)), 30)
            await asyncio.sleep(0.01)  # nothing waits
    assert watched.batches == [[b"0"], [b"1"], [b"2"]]


@asynchronous
async def test_batches_are_bounded_and_requests_stay_whole(store: gpkvs.Store) -> None:
    def request(name: bytes, count: int) -> codec.Request:
        return codec.decode(wire.batch([(2, name + b"%d" % i, b"12345678") for i in range(count)]), LIMITS)

    async with running(store, batch_ops_max=5, batch_bytes_max=1000) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        answers = [batcher.submit(request(name, count)) for name, count in ((b"a", 2), (b"b", 3), (b"c", 9), (b"d", 1))]
        answers += [batcher.submit(set_one(b"e", bytes(990))), batcher.submit(set_one(b"f", bytes(10)))]
        watched.go.set()
        await asyncio.gather(busy, *answers)
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
    async with running(store, queue_requests_max=3, queue_bytes_max=100) as (batcher, watched):
        accepted = [batcher.submit(set_one(b"busy"))]
        await watched.wait_entered()
        accepted.append(batcher.submit(set_one(b"a", bytes(60))))
        with pytest.raises(NoSpaceError, match=r"queue full: 69 bytes wait, 69 more .* 100 \(queue_bytes_max\)"):
            batcher.submit(set_one(b"b", bytes(60)))
        accepted += [batcher.submit(set_one(b"c")), batcher.submit(set_one(b"d"))]
        with pytest.raises(NoSpaceError, match=r"queue full: 3 requests wait.*queue_requests_max"):
            batcher.submit(set_one(b"e"))
        watched.go.set()
        await asyncio.gather(*accepted)
        await batcher.submit(set_one(b"b", bytes(200)))  # alone, it may be larger than the queue
    assert store.get(b"e") is None
    assert store.get(b"b") == bytes(200)


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
        with pytest.raises(DeadlineError):
            await late
    assert watched.dropped == ["cancelled", "deadline"]
    assert watched.batches == [[b"in batch"], [b"in time"]]
    assert store.get(b"in batch") == b""  # a batch commits whole, whoever still waits for it


@asynchronous
async def test_a_request_that_does_not_fit_fails_alone(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        value = bytes(500_000)
        answers = [batcher.submit(set_one(b"%d" % i, value)) for i in range(40)]  # 20 MB into a heap of 16 MiB
        answers.append(batcher.submit(codec.one(Op.GET, b"busy", b"", LIMITS)))
        watched.go.set()
        await busy
        results = await asyncio.gather(*answers, return_exceptions=True)
    refused = [i for i, result in enumerate(results) if isinstance(result, NoSpaceError)]
    assert len(watched.batches) == 2
    assert 5 < len(refused) < 35
    assert results[-1].status == b"\x00"  # type: ignore[union-attr]
    assert [i for i in range(40) if store.get(b"%d" % i) is None] == refused


@asynchronous
async def test_what_the_engine_leaves_over_runs_next(store: gpkvs.Store) -> None:
    """The store cuts a batch whose answers are too large; the rest keeps its place."""
    store.set(b"large", bytes(2 << 20 >> 2))
    async with running(store) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        # 150 x 512 KiB = 75 MiB: more than the 64 MiB of values that one transaction may read.
        answers = [batcher.submit(codec.one(Op.GET, b"large", b"", LIMITS)) for _ in range(150)]
        watched.go.set()
        await busy
        lengths = {len((await answer).values) for answer in answers}
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
        answers = [batcher.submit(request) for request in requests]
        watched.go.set()
        await busy
        versions = [int.from_bytes((await answer).versions[:8], "little") for answer in answers]
    assert len(watched.batches) == 3, "nothing was left over"
    assert versions == sorted(versions)
    assert store.get(b"k") == b"149"


@asynchronous
async def test_who_has_gone_does_not_take_the_answers_of_others(store: gpkvs.Store) -> None:
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
        answers = [batcher.submit(set_one(b"%d" % i)) for i in range(3)]
        await watched.wait_entered()
        store.close()
        watched.go.set()
        results = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 30)
    assert len(watched.batches) == 1
    assert all(isinstance(result, gpkvs.GpkvsError) for result in results)


@asynchronous
async def test_abandoned_work_is_cancelled(store: gpkvs.Store) -> None:
    async with running(store) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        waiting = batcher.submit(set_one(b"waiting"))
        batcher.abandon()
        watched.go.set()
        await busy
        assert waiting.cancelled()
    assert store.get(b"waiting") is None


@asynchronous
async def test_what_is_no_column_counts_in_the_queue(store: gpkvs.Store) -> None:
    """A client may send fields that nobody knows; they take memory all the same."""
    async with running(store, queue_bytes_max=1000) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        fat = codec.one(Op.SET, b"fat", b"", LIMITS, message_bytes=900)
        waiting = batcher.submit(fat)
        assert 900 <= batcher.queue_bytes <= 920
        with pytest.raises(NoSpaceError, match="queue_bytes_max"):
            batcher.submit(fat)
        watched.go.set()
        await asyncio.gather(busy, waiting)
        assert batcher.queue_bytes == 0


@asynchronous
async def test_who_does_not_read_is_refused_before_the_memory_is_gone(store: gpkvs.Store) -> None:
    """One connection may hold as much as it leaves free; another one is served; what was read makes room."""
    size = 1_000_000
    store.set(b"large", bytes(size))
    read = codec.one(Op.GET, b"large", b"", LIMITS)
    async with running(store, answer_bytes_max=10 * size + size // 2) as (batcher, watched):
        watched.go.set()
        results = [(await asyncio.gather(batcher.submit(read), return_exceptions=True))[0] for _ in range(20)]
        assert [isinstance(result, NoSpaceError) for result in results] == [False] * 6 + [True] * 14
        assert isinstance(results[-1], NoSpaceError)
        assert results[-1].resource == "answers"
        assert "answer_bytes_max" in str(results[-1])
        assert 6 * size < batcher.outbox.bytes < 7 * size
        await batcher.submit(set_one(b"k"))  # its answer is small, and nobody else would be helped
        other = Account(batcher.outbox, "another")
        assert len((await Batcher.submit(batcher, read, other)).values) == size
        other.close()

        batcher.outbox.change("one", -3 * size)
        assert len((await batcher.submit(read)).values) == size


@asynchronous
async def test_what_is_refused_was_not_executed(store: gpkvs.Store) -> None:
    size = 1_000_000
    store.set(b"large", bytes(size))
    both = codec.decode(wire.batch([(2, b"k", b"v"), (1, b"large")]), LIMITS)
    async with running(store, answer_bytes_max=3 * size) as (batcher, watched):
        busy = batcher.submit(set_one(b"busy"))
        await watched.wait_entered()
        together = [batcher.submit(both) for _ in range(5)]
        watched.go.set()
        await busy
        assert {len((await answer).values) for answer in together} == {size}
        store.delete(b"k")
        with pytest.raises(NoSpaceError, match="answers full"):
            await batcher.submit(both)
    assert store.get(b"k") is None


def test_an_account_gives_back_what_it_took() -> None:
    outbox = Outbox(1 << 30)
    first, second = Account(outbox, "peer"), Account(outbox, "peer")
    first.add(1000)
    first.add(2000)
    second.add(4000)
    first.sent(1000)
    first.close()
    first.add(50_000)  # a call that has ended holds nothing
    assert 4000 <= outbox.bytes == outbox.held_bytes("peer") < 40_000
    second.close()
    second.close()
    assert (outbox.bytes, outbox.held_bytes("peer")) == (0, 0)
