"""YCSB on a server with the backend cuda and with cpu, from a native client: h2load sends streams of messages.

A stream's body is made before anything is timed: messages of a given number of operations, GETs and SETs mixed as the
workload has them, on records drawn from YCSB's zipfian distribution. Each of the clients sends a body of its own, again
and again. The server's own metrics must count as many operations as were sent.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import Batch, Op
from gpkvs.bench.door.bodies import write_messages
from gpkvs.bench.door.h2load import PIPELINE, Load, require_h2load, run_load
from gpkvs.bench.engine.workload import SHAPES, U64, Shape, mixed
from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.peers.embedded_gpkvs import TABLE, index_bytes
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.server.load import fill
from gpkvs.bench.server.measured_server import serve
from gpkvs.bench.wear.zipfian import zipfian_records
from gpkvs.client import AsyncClient
from gpkvs.config import MIB
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess
from gpkvs.server.signs.metrics_reader import Scrape

_RECORDS = 10_000_000  # of numbers; of records of 100 bytes, a tenth
_SECONDS = 1.5
_GETS = {"a": 0.5, "b": 0.95, "c": 1.0}  # of all operations
_MESSAGES = {1: 4096, 64: 256, 4096: 16}  # of a stream, by the operations in a message
_STREAMS = 4  # of a client at the same time
_FILLED_AT_ONCE = 4096  # operations
_COUNT_SECONDS_MAX = 2.0


def measure_server(folder: Path) -> tuple[list[Measurement], dict[str, Any]]:
    """Run workloads a, b and c with each size of message on both backends; a half of the processors is the clients'.

    Raises
    ------
    BenchError
        If h2load is not installed, or the server counts other operations than were sent.
    """
    require_h2load()
    clients = max(len(os.sched_getaffinity(0)) // 2, 1)
    measurements = [
        measurement
        for shape in SHAPES.values()
        for backend in ("cpu", "cuda")
        for measurement in asyncio.run(_measure(folder / f"{backend}-{shape.name}", backend, shape, clients))
    ]
    facts = {"clients": clients, "streams_of_a_client": _STREAMS, "records": _RECORDS, "seconds": _SECONDS}
    return measurements, facts


async def _measure(folder: Path, backend: str, shape: Shape, clients: int) -> list[Measurement]:
    records = _RECORDS if shape.is_numbers else _RECORDS // 10
    index = index_bytes(shape, records)
    heap = 64 * MIB if shape.is_numbers else 8 * records * (shape.key_bytes + shape.value_bytes + 64)
    options = ServerOptions(backend=backend, index=str(MIB), heap=str(heap), log=str(64 * MIB))
    measurements = []
    async with serve(folder, options) as server:
        async with AsyncClient(server.target, table=TABLE, timeout=60) as client:
            await client.create_table(TABLE, layout="u64" if shape.is_numbers else "bytes", index_bytes=index)
            await fill(client, _all_records(shape, records))
        draw = zipfian_records(np.random.default_rng(1), records)
        for workload, gets in _GETS.items():
            for size, messages in _MESSAGES.items():
                bodies = [_body(folder.parent, shape, draw, gets, size, number) for number in range(clients)]
                run = await _run(server, bodies, size * messages)
                task = f"YCSB {workload}, {shape.text}, {size:,} operations a message"
                measurements.append(Measurement(task, backend, [run]))
    return measurements


def _all_records(shape: Shape, records: int) -> Iterator[Batch]:
    for first in range(0, records, _FILLED_AT_ONCE):
        numbers = np.arange(first, min(first + _FILLED_AT_ONCE, records), dtype=np.uint64)
        yield _batch(shape, numbers, np.zeros(len(numbers), np.bool_))


def _batch(shape: Shape, records: U64, is_get: NDArray[np.bool_]) -> Batch:
    """Return one request of operations on records."""
    words = mixed(records)
    keys = np.repeat(words, shape.key_bytes // 8).view(np.uint8)
    sets = len(records) - int(np.count_nonzero(is_get))
    values = words[~is_get].view(np.uint8) if shape.is_numbers else np.zeros(sets * shape.value_bytes, np.uint8)
    return Batch(
        ops=np.where(is_get, np.uint8(Op.GET), np.uint8(Op.SET)),
        keys=keys,
        key_lengths=np.full(len(records), shape.key_bytes, np.uint32),
        values=values,
        value_lengths=np.full(sets, shape.value_bytes, np.uint32),
    )


def _body(folder: Path, shape: Shape, draw: Callable[[int], U64], gets: float, size: int, number: int) -> Path:
    messages = _MESSAGES[size]
    numbers = draw(size * messages)
    is_get = np.random.default_rng(number).random(size * messages) < gets
    batches = [
        _batch(shape, numbers[first : first + size], is_get[first : first + size])
        for first in range(0, size * messages, size)
    ]
    return write_messages(folder / f"ycsb.{number}", batches)


async def _run(server: ServerProcess, bodies: list[Path], operations: int) -> Run:
    """Send streams from all clients for about the time; return the operations and seconds of all of them together."""
    loads = [Load(PIPELINE, body, streams=_STREAMS) for body in bodies]
    url = f"http://{server.target}"
    trial = await run_load(url, loads[0], _STREAMS)
    calls = max(_STREAMS, round(trial.rate * _SECONDS / len(loads)))
    before = _counted(server)
    began = time.perf_counter()
    runs = await asyncio.gather(*[run_load(url, load, calls) for load in loads])
    seconds = time.perf_counter() - began
    sent = sum(run.operations for run in runs) * operations
    give_up = time.monotonic() + _COUNT_SECONDS_MAX
    while (counted := _counted(server) - before) != sent:
        if time.monotonic() > give_up:
            raise BenchError(f"the server counts {counted:,} operations, and {sent:,} were sent")
        await asyncio.sleep(0.05)
    return Run(sent, seconds)


def _counted(server: ServerProcess) -> float:
    scrape = Scrape(server.metrics)
    return sum(scrape.by("gpkvs_operations_total", "status").values())
