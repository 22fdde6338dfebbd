"""Runs with many operations in a message: `BatchRunner`.

One request reads and writes for all of them. A second one writes the records that depend on these reads.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from gpkvs.batch import Batch, Op, Status
from gpkvs.client.ycsb.runner import Return, Runner
from gpkvs.client.ycsb.workload import Operation, Record, Step, pack, unpack
from gpkvs.errors import GpkvsError
from gpkvs.operations import ttl_ms

Request = tuple[Op, bytes] | tuple[Op, bytes, bytes]


@dataclass(slots=True)
class _Part:
    """One operation of a message, and what is known of it so far."""

    operation: Operation
    number: int
    key: bytes
    read: Return | None = None  # the outcome of its GET, if it has one
    record: Record | None = None  # the record that the GET found
    written: Return | None = None  # the outcome of its SET, if it has one


class BatchRunner(Runner):
    """A runner whose callers put `batch` operations into a message.

    An operation's latency is that of the message, or of both messages: reads, inserts and updates of all fields need
    one, other updates two. A request is atomic, so a full store fails all operations of a message alike.
    """

    async def _caller(self, steps: Iterator[Step]) -> None:
        size = self._properties.batch
        intended_ns = time.perf_counter_ns()
        if self._pace_s:
            intended_ns += int(random.random() * self._pace_s * size * 1e9)
        while parts := [_Part(*step) for step in islice(steps, size)]:
            if self._pace_s:
                await asyncio.sleep((intended_ns - time.perf_counter_ns()) / 1e9)
                await self._do_all(parts, intended_ns)
                intended_ns += int(self._pace_s * len(parts) * 1e9)
            else:
                await self._do_all(parts, time.perf_counter_ns())
            self._operations += len(parts)

    async def _do_all(self, parts: list[_Part], intended_ns: int) -> None:
        """Do the operations of one message, and measure them."""
        workload, start_ns = self._workload, time.perf_counter_ns()
        readers, writes = [], []
        for part in parts:
            if part.operation is Operation.INSERT:
                writes.append((part, workload.record(part.key)))
            elif part.operation is Operation.UPDATE and self._properties.writeallfields:
                writes.append((part, workload.changed_fields(part.key)))
            else:
                readers.append(part)
        await self._send(readers, writes)
        for part in parts:
            if part.operation in (Operation.READ, Operation.READ_MODIFY_WRITE):
                self._measure_read(part, start_ns, intended_ns)
            elif part.written is not None:
                self._measure(part.operation.value, part.written, start_ns, intended_ns)
            if part.operation is Operation.INSERT:
                workload.inserted(part.number)
        await self._change(readers, start_ns, intended_ns)

    async def _change(self, readers: list[_Part], start_ns: int, intended_ns: int) -> None:
        """Write the records that depend on a read, and measure the writes."""
        changed_ns = time.perf_counter_ns()
        changing = [part for part in readers if part.operation is not Operation.READ]
        writes = [
            (part, {**part.record, **self._workload.changed_fields(part.key)})
            for part in changing
            if part.record is not None
        ]
        if writes:
            await self._send([], writes)
        for part in changing:
            result = part.written or part.read or Return.ERROR
            if part.operation is Operation.UPDATE:
                self._measure("UPDATE", result, start_ns, intended_ns)
                continue
            if part.written is not None:
                self._measure("UPDATE", part.written, changed_ns, intended_ns)
            self._measure(part.operation.value, result, start_ns, intended_ns, count_return=False)

    async def _send(self, readers: list[_Part], writes: list[tuple[_Part, Record]]) -> None:
        """Send one request, and note the outcome of each operation."""
        operations: list[Request] = [(Op.GET, part.key) for part in readers]
        operations += [(Op.SET, part.key, pack(record)) for part, record in writes]
        ttls = None
        if self._ttl and writes:
            ttls = np.zeros(len(operations), np.uint64)
            ttls[len(readers) :] = ttl_ms(self._ttl)
        try:
            result = await self._client.execute(Batch.of(operations), ttls=ttls)
        except GpkvsError as error:
            failed = self._failed(error)
            for part in readers:
                part.read = failed
            for part, _ in writes:
                part.written = failed
            return
        for part, status, value in zip(readers, result.status.tolist(), result.value_list(), strict=False):
            part.read = Return.OK if status == Status.OK else Return.ERROR
            if status == Status.NOT_FOUND:
                part.read = Return.NOT_FOUND
            elif status == Status.OK:
                try:
                    part.record = unpack(value)
                except ValueError as error:
                    part.read = self._failed(error)
        for part, _ in writes:
            part.written = Return.OK

    def _measure_read(self, part: _Part, start_ns: int, intended_ns: int) -> None:
        fields = self._workload.read_fields(part.record) if part.record is not None else {}
        result = part.read or Return.ERROR
        self._measure("READ", result, start_ns, intended_ns)
        if self._properties.dataintegrity and not self._has_expired(result):
            self._verify(part.key, fields)
