"""Load on a server, from one client process: streams of columns, single calls, gathered calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter

import grpc
import numpy as np

from gpkvs.batch import Batch, RequestResult
from gpkvs.bench.engine.workload import U64, mixed
from gpkvs.bench.report.results import Run, latencies_ms
from gpkvs.client import AsyncClient
from gpkvs.columns.numbers import gets_of, sets_of
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

_DRAWN = 1 << 22  # keys that are drawn before a run, outside of its time
_PERCENTILES = (50, 95, 99)

Call = Callable[[bytes], Awaitable[object]]


class DrawnKeys:
    """Keys drawn uniformly from the records of a u64 table.

    Parameters
    ----------
    records
        How many there are.
    seed
        Of the draw.
    first
        The first record that is drawn.
    """

    def __init__(self, records: int, seed: int, first: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._drawn: U64 = mixed(random.integers(first, records, min(_DRAWN, 4 * records), dtype=np.uint64))

    def batches(self, operation: str, size: int) -> Iterator[Batch]:
        """Yield requests, without end."""
        count = max(len(self._drawn) // size, 1)
        while True:
            for number in range(count):
                keys = self._drawn[number * size : (number + 1) * size]
                yield sets_of(keys, keys) if operation == "SET" else gets_of(keys)

    def singly(self) -> Iterator[bytes]:
        """Yield one key after the other, without end."""
        data = self._drawn.tobytes()
        while True:
            for start in range(0, len(data), 8):
                yield data[start : start + 8]


def all_records(records: int, size: int) -> Iterator[Batch]:
    """Yield requests that store every record once."""
    for start in range(0, records, size):
        keys = mixed(np.arange(start, min(start + size, records), dtype=np.uint64))
        yield sets_of(keys, keys)


async def fill(client: AsyncClient, batches: Iterator[Batch]) -> None:
    """Send all batches through a stream."""
    async with client.pipeline() as pipeline:
        async for _ in pipeline.results(batches):
            pass


async def stream(client: AsyncClient, batches: Iterator[Batch], seconds: float, in_flight: int) -> Run:
    """Send batches through a stream for some seconds; measure the latency of each message, from send to response."""
    latencies: list[float] = []
    operations = 0

    def received(began: float, response: asyncio.Future[RequestResult]) -> None:
        latencies.append(perf_counter() - began)
        response.result()  # a refusal must not count as fast

    async with client.pipeline(in_flight_max=in_flight) as pipeline:
        start = perf_counter()
        while True:
            batch = next(batches)
            response = await pipeline.send(batch)
            response.add_done_callback(partial(received, perf_counter()))
            operations += len(batch)
            if perf_counter() >= start + seconds:
                break
        await response
    return Run(operations, perf_counter() - start, latencies_ms(latencies, *_PERCENTILES))


async def single_calls(
    target: str, table: str, operation: str, keys: Iterator[bytes], seconds: float, connections: int
) -> Run:
    """Make unary calls, one at a time on each of some connections."""
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(connections):
            # Without the option, all channels of a process would share one connection.
            channel = grpc.aio.insecure_channel(target, options=(("grpc.use_local_subchannel_pool", 1),))
            await stack.enter_async_context(channel)
            await channel.channel_ready()
            calls.append(_unary(kv_pb2_grpc.KVStub(channel), table, operation))
        return await callers_of(calls, keys, seconds)


def _unary(stub: kv_pb2_grpc.KVStub, table: str, operation: str) -> Call:
    if operation == "SET":
        return lambda key: stub.Set(kv_pb2.SetRequest(table=table, key=key, value=key))
    return lambda key: stub.Get(kv_pb2.GetRequest(table=table, key=key))


async def gathered_calls(
    client: AsyncClient, operation: str, keys: Iterator[bytes], seconds: float, callers: int
) -> Run:
    """Make calls from concurrent callers of one client, which gathers them into messages."""
    call: Call = (lambda key: client.set(key, key)) if operation == "SET" else client.get
    return await callers_of([call] * callers, keys, seconds)


async def callers_of(calls: list[Call], keys: Iterator[bytes], seconds: float) -> Run:
    """Make calls one after the other for some seconds, each of `calls` beside the others."""
    latencies: list[float] = []
    end = perf_counter() + seconds

    async def caller(call: Call) -> None:
        began = perf_counter()
        while True:  # once at least, however busy the machine is
            await call(next(keys))
            now = perf_counter()
            latencies.append(now - began)
            if now >= end:
                break
            began = now

    start = perf_counter()
    await asyncio.gather(*map(caller, calls))
    return Run(len(latencies), perf_counter() - start, latencies_ms(latencies, *_PERCENTILES))
