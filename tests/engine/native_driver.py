"""Drives a native engine as a door does, with whole requests of one table."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import RETURNS_VALUE, Batch, BatchPart, BatchResult, RequestResult, Status
from gpkvs.engine.engine_batch import Engine, EngineBatch, EngineRefusal, EngineRoom
from gpkvs.engine.left import Left
from gpkvs.engine.native_engine import Ran
from gpkvs.errors import ConflictError, GpkvsError
from gpkvs.store import Store
from tests.native_calls import Durable, GivesRoom, Run, Wait

NO_BOUND = (1 << 64) - 1


def _address(column: NDArray[Any]) -> int | None:
    return address_of(column) if len(column) else None


def _unaligned(column: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.concatenate([np.zeros(1, np.uint8), column])[1:]


@dataclass(frozen=True)
class Answer:
    """What a native engine said to a batch."""

    ran: Ran
    gate: int
    status: list[int]
    versions: list[int]
    values: list[bytes]  # of the operations that return one
    requests: int = 0  # that were run: the first ones
    conflicts: Mapping[int, ConflictError] = field(default_factory=dict)  # of the requests that a check stopped
    lacking: Mapping[int, Left] = field(default_factory=dict)  # what those lack that were refused


def result_of(batch: Batch, answer: Answer, lacking: Mapping[Left, GpkvsError]) -> BatchResult:
    """Return an answer as the engine returns it; `lacking` words the refusals."""
    result = RequestResult(
        np.array(answer.status, np.uint8),
        np.array(answer.versions, np.uint64),
        np.array([len(value) for value in answer.values], np.uint32),
        np.frombuffer(b"".join(answer.values), np.uint8),
    )
    rejected = {**answer.conflicts, **{number: lacking[what] for number, what in answer.lacking.items()}}
    is_done = np.arange(len(batch.request_ops)) < answer.requests
    is_done[list(rejected)] = False
    done = BatchPart(np.flatnonzero(is_done), batch if is_done.all() else batch.take(is_done), result)
    return BatchResult(done if is_done.any() else None, rejected, answer.requests)


class NativeDriver:
    """A door without a network.

    Attributes
    ----------
    has_room
        Whether results find room.
    value_bytes_max
        Of a batch, where nothing else is said.
    waits
        Whether an answer is durable before anybody has it.
    crew
        Serves the native engine.
    refusals
        What the requests of the last batch hear that was left.
    counts
        How often each answer came.
    """

    def __init__(self, store: Store) -> None:
        native = store._engine.native
        self.native = native
        self._engine = Engine.from_address(native.address)
        self._run, self._durable, self._wait = (
            kind(getattr(self._engine, name)) for kind, name in ((Run, "run"), (Durable, "durable"), (Wait, "wait"))
        )
        self.crew = store._engine.crew()
        self.refusals: dict[Left, GpkvsError] = {}
        self.has_room = self.waits = True
        self.value_bytes_max = NO_BOUND
        self.counts = dict.fromkeys(Ran, 0)

    @property
    def operations_max(self) -> int:
        """Of a batch that the door may form in this turn."""
        return int(self._engine.operations_max)

    def run_with_help(self, batch: Batch) -> Answer | None:
        """Run a batch in a turn of its own; None: it lacks what nobody can do."""
        self.native.begin_turn()
        try:
            answer = self.run(batch)
            return answer if answer.ran is not Ran.LEFT else self.run_again(batch)
        finally:
            self.native.end_turn()

    def run_again(self, batch: Batch) -> Answer | None:
        """Have a batch run that was left, if the crew can help it."""
        answers: list[Answer] = []

        def run() -> bool:
            answers.append(self.run(batch))
            return answers[-1].ran is not Ran.LEFT

        self.refusals.clear()
        return answers[-1] if self.crew.run_again(batch, run, self.refusals.__setitem__) else None

    def run(
        self, batch: Batch, value_bytes_max: int | None = None, message_requests: list[int] | None = None
    ) -> Answer:
        """Run a batch in a turn, or as many of its messages as bring so many values; by default each is one request."""
        messages = np.array(message_requests or [1] * len(batch.request_ops), np.uint32)
        n, returning = len(batch), int(np.count_nonzero(RETURNS_VALUE[batch.ops]))
        columns: list[NDArray[Any]] = []

        def take(column: NDArray[Any]) -> int | None:
            # Such as a door may give it: a column without an item is null, one of bytes is unaligned.
            columns.append(_unaligned(column) if column.dtype == np.uint8 else np.ascontiguousarray(column))
            return _address(columns[-1])

        given = EngineBatch(
            n,
            take(batch.ops),
            take(batch.keys),
            take(batch.key_lengths),
            1,
            take(batch.values),
            take(batch.value_lengths),
            1,
            None if batch.expiries is None else take(batch.expiries),
            None if batch.conditions is None else take(batch.conditions),
            None if batch.expected is None else take(batch.expected),
            take(batch.request_ops),
            len(batch.request_ops),
            take(messages),
            len(messages),
            self.value_bytes_max if value_bytes_max is None else value_bytes_max,
            batch.table,
        )
        status, versions = np.full(n, 255, np.uint8), np.full(n, 255, np.uint64)
        lengths, rooms = np.empty(returning, np.uint32), []
        refusals: list[ctypes.Array[EngineRefusal]] = []

        def give_room(
            _: int | None, operations: int, count: int, value_bytes: int, refusal_count: int, out: Any
        ) -> bool:
            nonlocal n, returning
            assert operations <= n
            assert count <= returning
            n, returning = operations, count
            rooms.append(_unaligned(np.empty(value_bytes, np.uint8)))
            addresses = [_address(column) for column in (status, versions, lengths, rooms[0])]
            refusals.append((EngineRefusal * refusal_count)())
            out[0] = EngineRoom(*addresses, refusals[0])
            return self.has_room

        requests, gate, has_versions = (ctypes.c_uint64() for _ in range(3))
        outs = (ctypes.byref(out) for out in (requests, gate, has_versions))
        ran = Ran(self._run(self._engine.self, given, GivesRoom(give_room), None, *outs))
        self.counts[ran] += 1
        if ran is Ran.LEFT:
            return Answer(ran, 0, [], [], [])
        if self.waits and self.durable() < gate.value:
            self.wait(gate.value)
            assert self.durable() >= gate.value
        tells_numbers = status[:n] == Status.CONDITION_FAILED
        assert bool(has_versions.value) or not versions[:n][~tells_numbers].any()
        stopped = {int(one.request): one.conflict() for one in refusals[0] if not one.lacks}
        lacking = {int(one.request): Left(one.lacks) for one in refusals[0] if one.lacks}
        is_done = np.ones(requests.value, np.bool_)
        is_done[[*stopped, *lacking]] = False
        assert n == batch.request_ops[: requests.value][is_done].sum()
        ends = np.cumsum(lengths[:returning]).tolist()
        data = rooms[0].tobytes()
        values = [data[first:last] for first, last in zip([0, *ends], ends, strict=False)]
        columns_of_done = status[:n].tolist(), versions[:n].tolist(), values
        return Answer(ran, gate.value, *columns_of_done, requests.value, stopped, lacking)

    def wait(self, gate: int) -> None:
        """Return when everything up to a gate is durable, from any thread."""
        self._wait(self._engine.self, gate)

    def durable(self) -> int:
        """Return the newest durable gate."""
        return int(self._durable(self._engine.self))
