"""Runs a workload with many concurrent callers of one client."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Final

from gpkvs.client.aio import AsyncClient
from gpkvs.client.errors import (
    AccessDeniedError,
    DeadlineError,
    OutcomeUnknownError,
    ServerBusyError,
    UnavailableError,
)
from gpkvs.client.ycsb.measurements import Measurements
from gpkvs.client.ycsb.properties import Properties
from gpkvs.client.ycsb.report import Progress, Report
from gpkvs.client.ycsb.workload import CoreWorkload, Operation, Record, Step, pack, unpack
from gpkvs.errors import GpkvsError, InvalidArgumentError


class Return(StrEnum):
    """The outcome of an operation, by YCSB's names."""

    OK = "OK"
    ERROR = "ERROR"
    NOT_FOUND = "NOT_FOUND"
    BAD_REQUEST = "BAD_REQUEST"
    FORBIDDEN = "FORBIDDEN"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
    UNEXPECTED_STATE = "UNEXPECTED_STATE"


_RETURN_OF_ERROR: Final[tuple[tuple[type[GpkvsError], Return], ...]] = (
    (UnavailableError, Return.SERVICE_UNAVAILABLE),
    (ServerBusyError, Return.SERVICE_UNAVAILABLE),
    (InvalidArgumentError, Return.BAD_REQUEST),
    (AccessDeniedError, Return.FORBIDDEN),
    (GpkvsError, Return.ERROR),
)
_NO_RESPONSE = (UnavailableError, DeadlineError, OutcomeUnknownError)


class Runner:
    """One load or run against a server.

    Parameters
    ----------
    client
        A connected client.
    properties, workload
        What the user asked for, and the operations made of it.
    on_error
        Called with the first error of each kind: the user must learn why operations fail.

    Attributes
    ----------
    gave_up
        Why the run ended early: an error of the time in which no response came (property `maxunavailabletime`).
    """

    def __init__(
        self,
        client: AsyncClient,
        properties: Properties,
        workload: CoreWorkload,
        on_error: Callable[[GpkvsError], None],
    ) -> None:
        self._client = client
        self._properties = properties
        self._workload = workload
        self._on_error = on_error
        self._errors_seen: set[type] = set()
        self._ttl = properties.ttl or None
        # Records that expire are not there later, as the user asked.
        self._measurements = Measurements((Return.OK, Return.NOT_FOUND) if self._ttl else (Return.OK,))
        self._operations = 0
        self._callers: list[asyncio.Task[None]] = []
        self.gave_up: Exception | None = None
        self._start = self._last_tick = 0.0
        self._answered_ns = 0  # when the last response came
        self._last_operations = 0
        # Seconds between two operations of a throttled caller; 0: the next one starts when the last one is done.
        self._pace_s = properties.threadcount / properties.target if properties.target else 0.0
        self._measure_op = properties.measurement_interval in ("op", "both")
        self._measure_intended = properties.measurement_interval in ("intended", "both")

    async def run(self, steps: Iterator[Step]) -> Report:
        """Do all steps, or as many as `stop` and maxexecutiontime allow, and return the report."""
        self._start = self._last_tick = time.monotonic()
        self._answered_ns = time.perf_counter_ns()
        self._callers = [asyncio.create_task(self._caller(steps)) for _ in range(self._properties.threadcount)]
        _, late = await asyncio.wait(
            self._callers,
            timeout=self._properties.maxexecutiontime or None,
            return_when=asyncio.FIRST_EXCEPTION,
        )
        if late:
            self.stop()
            await asyncio.wait(late)
        runtime_ms = round((time.monotonic() - self._start) * 1000)
        for caller in self._callers:
            if not caller.cancelled() and (bug := caller.exception()):
                raise bug
        return Report(runtime_ms, self._operations, self._measurements, self._properties.percentiles)

    def stop(self) -> None:
        """Cancel all callers, with the operations under way; `run` then returns."""
        for caller in self._callers:
            caller.cancel()

    def record_cleanup(self, seconds: float) -> None:
        """Note how long closing the connection took."""
        self._measurements.record("CLEANUP", round(seconds * 1e6))

    def progress(self, total: int) -> Progress:
        """Return how far the run is, and the rate since the last call."""
        now = time.monotonic()
        rate = (self._operations - self._last_operations) / max(now - self._last_tick, 1e-9)
        self._last_tick, self._last_operations = now, self._operations
        return Progress(now - self._start, self._operations, total, rate)

    async def _caller(self, steps: Iterator[Step]) -> None:
        """Do one operation after the other; YCSB calls this a thread."""
        intended_ns = time.perf_counter_ns()
        if self._pace_s:
            intended_ns += int(random.random() * self._pace_s * 1e9)  # so that callers do not march in step
        for operation, number, key in steps:
            if self._pace_s:
                await asyncio.sleep((intended_ns - time.perf_counter_ns()) / 1e9)
                await self._do(operation, number, key, intended_ns)
                intended_ns += int(self._pace_s * 1e9)
            else:
                await self._do(operation, number, key, time.perf_counter_ns())
            self._operations += 1

    async def _do(self, operation: Operation, number: int, key: bytes, intended_ns: int) -> None:
        match operation:
            case Operation.READ:
                await self._read(key, intended_ns)
            case Operation.UPDATE:
                await self._update(key, intended_ns)
            case Operation.INSERT:
                await self._insert(key, intended_ns)
                self._workload.inserted(number)
            case Operation.READ_MODIFY_WRITE:
                start_ns = time.perf_counter_ns()
                result = await self._read(key, intended_ns)
                if result is Return.OK:
                    result = await self._update(key, intended_ns)
                self._measure(operation.value, result, start_ns, intended_ns, count_return=False)

    async def _read(self, key: bytes, intended_ns: int) -> Return:
        start_ns = time.perf_counter_ns()
        fields = {}
        try:
            value = await self._client.get(key)
            if value is None:
                result = Return.NOT_FOUND
            else:
                fields = self._workload.read_fields(unpack(value))
                result = Return.OK
        except (GpkvsError, ValueError) as error:
            result = self._failed(error)
        self._measure("READ", result, start_ns, intended_ns)
        if self._properties.dataintegrity and not self._has_expired(result):
            self._verify(key, fields)
        return result

    def _has_expired(self, result: Return) -> bool:
        """Whether a record may be gone because the properties gave it a time to live."""
        return result is Return.NOT_FOUND and self._ttl is not None

    def _verify(self, key: bytes, fields: Record) -> None:
        """Check the fields that were read (dataintegrity=true)."""
        start_ns = time.perf_counter_ns()
        verified = Return.ERROR
        if fields:
            verified = Return.OK if self._workload.is_intact(key, fields) else Return.UNEXPECTED_STATE
        self._measure("VERIFY", verified, start_ns, start_ns)

    async def _update(self, key: bytes, intended_ns: int) -> Return:
        """Write fields of a record; read it first, unless all fields are written: the others stay."""
        start_ns = time.perf_counter_ns()
        changed = self._workload.changed_fields(key)
        try:
            value = None if self._properties.writeallfields else await self._client.get(key)
            if value is None and not self._properties.writeallfields:
                result = Return.NOT_FOUND
            else:
                record = changed if value is None else {**unpack(value), **changed}
                await self._client.set(key, pack(record), ttl=self._ttl)
                result = Return.OK
        except (GpkvsError, ValueError) as error:
            result = self._failed(error)
        self._measure("UPDATE", result, start_ns, intended_ns)
        return result

    async def _insert(self, key: bytes, intended_ns: int) -> None:
        """Write a new record; try again as often as the properties say. A failure never ends the load."""
        value = pack(self._workload.record(key))
        retries = 0
        while True:
            start_ns = time.perf_counter_ns()
            try:
                await self._client.set(key, value, ttl=self._ttl)
                result = Return.OK
            except GpkvsError as error:
                result = self._failed(error)
            self._measure("INSERT", result, start_ns, intended_ns)
            if result is Return.OK or retries >= self._properties.core_workload_insertion_retry_limit:
                return
            retries += 1
            await asyncio.sleep(self._properties.core_workload_insertion_retry_interval * random.uniform(0.8, 1.2))

    def _failed(self, error: Exception) -> Return:
        if type(error) not in self._errors_seen:
            self._errors_seen.add(type(error))
            self._on_error(error if isinstance(error, GpkvsError) else GpkvsError(str(error)))
        if isinstance(error, _NO_RESPONSE):
            self._wait_no_longer(error)
        else:
            self._answered_ns = time.perf_counter_ns()
        return next((result for kind, result in _RETURN_OF_ERROR if isinstance(error, kind)), Return.ERROR)

    def _wait_no_longer(self, error: Exception) -> None:
        """End the run if no response has come for so long as the properties allow."""
        limit_s = self._properties.maxunavailabletime
        if limit_s and self.gave_up is None and time.perf_counter_ns() - self._answered_ns > limit_s * 1e9:
            self.gave_up = error
            self.stop()

    def _measure(
        self, name: str, result: Return, start_ns: int, intended_ns: int, *, count_return: bool = True
    ) -> None:
        end_ns = time.perf_counter_ns()
        if result is Return.OK:
            series, self._answered_ns = name, end_ns
        else:
            series = f"{name}-FAILED"
        if self._measure_op:
            self._measurements.record(series, (end_ns - start_ns) // 1000)
        if self._measure_intended:
            # The event loop's clock is coarser than this one: a caller may wake a little before its time.
            self._measurements.record(f"Intended-{series}", (end_ns - min(intended_ns, start_ns)) // 1000)
        if count_return:
            self._measurements.record_return(name, result.value)


async def tick(interval_s: float, show: Callable[[], None]) -> None:
    """Call `show` at an interval until cancelled."""
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(interval_s)
            show()
