"""Clients whose operations look before they act, and the judge of what they were told.

Conditions, checks, increments and appends meet on a few keys, which the other clients leave alone. Each request also
SETs a *marker*: a key of its client alone, until a request gets no response. So versions put the requests in the order
in which they were done, as in serializability.py, and that of a request without a response shows whether it was done.
A dictionary then runs them in that order: every result must be its own. A request that was refused by a check must be
refused by a state between the requests that were done before it was sent and those that were sent after its response.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import grpc
import numpy as np

from gpkvs.batch import BatchPart, BatchResult, Condition, Op, RequestResult
from gpkvs.errors import ConflictError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.model import Asked, Held, Kept, Model, batch_of, number

_CALL_SECONDS_MAX = 30.0
_KEYS = tuple(b"look-%d" % at for at in range(24))
_SUMS, _TEXTS, _ANY = _KEYS[:6], _KEYS[6:10], _KEYS[10:]
_OPS_MAX = 6
_REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
_FAILED_CHECK, _FOUND = "gpkvs-failed-check", "gpkvs-found"
_NEVER = 1 << 63


@dataclass
class Looked:
    """A request, and what its client was told.

    Attributes
    ----------
    at
        The place of the marker.
    start, end
        When it was sent, and when its response came, in ns; `_NEVER` without one.
    result
        Its results, or why it was refused; None: without a response.
    base
        The number of its first operation; None: not known to be done.
    """

    request: list[Asked]
    at: int
    start: int
    end: int = _NEVER
    result: BatchResult | None = None
    base: int | None = None

    @property
    def conflict(self) -> ConflictError | None:
        """The check that failed."""
        refusal = self.result.rejected.get(0) if self.result else None
        return refusal if isinstance(refusal, ConflictError) else None


@dataclass
class LookingClients:
    """Some clients; what they were told is judged at the end.

    Parameters
    ----------
    seed
        Of their choices.

    Attributes
    ----------
    requests
        All that may have been done, in the order in which they were sent.
    anomalies
        Results that no order explains; after `judge`.
    """

    seed: int
    requests: list[Looked] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)
    stopping: bool = False
    conflicts: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._markers = 0
        self._versions: dict[bytes, int] = {}  # the last one that anybody was told of
        self._final: Held = {}

    @property
    def operations(self) -> int:
        """How many operations were asked for."""
        return sum(len(looked.request) for looked in self.requests)

    async def work(self, stub: kv_pb2_grpc.KVStub) -> None:
        """Make requests until the server is lost, or `stopping` is set."""
        marker = self._new_marker()
        while not self.stopping:
            looked = self._choose(marker)
            self.requests.append(looked)
            call = stub.Batch(_message(looked.request), timeout=_CALL_SECONDS_MAX)
            if self._random.random() < 0.01:
                asyncio.get_running_loop().call_later(self._random.random() * 0.004, call.cancel)
            try:
                self._note(looked, await call)
            except grpc.aio.AioRpcError as error:
                if not self._is_refused(looked, error):
                    return
            except asyncio.CancelledError:
                if not call.cancelled():
                    raise
            if looked.result is None:
                marker = self._new_marker()

    async def read_back(self, stub: kv_pb2_grpc.KVStub) -> None:
        """Read all keys, as the end of the history, and the markers of requests without a response."""
        unknown = [looked for looked in self.requests if looked.result is None]
        keys = [*_KEYS, *(looked.request[looked.at].key for looked in unknown)]
        found: Held = {}
        for first in range(0, len(keys), 200):
            asked = [Asked(Op.GET, key) for key in keys[first : first + 200]]
            got = _result(asked, await stub.Batch(_message(asked), timeout=_CALL_SECONDS_MAX)).request(0)
            for one, status, value, version in zip(
                asked, got.status.tolist(), got.value_list(), got.versions.tolist(), strict=True
            ):
                if status == 0:
                    found[one.key] = Kept(value, version)
        for looked in unknown:
            kept = found.get(looked.request[looked.at].key, Kept(b"", 0))
            if kept.value == looked.request[looked.at].value:
                looked.base = kept.version - looked.at
        self._final = {key: found[key] for key in _KEYS if key in found}

    def _new_marker(self) -> bytes:
        self._markers += 1
        return b"look-marker-%d" % self._markers

    def _choose(self, marker: bytes) -> Looked:
        rng = self._random
        request = [self._operation() for _ in range(rng.randint(1, _OPS_MAX))]
        if rng.random() < 0.4:
            request.insert(rng.randint(0, len(request)), self._on_condition(Asked(Op.CHECK, rng.choice(_KEYS))))
        at = rng.randint(0, len(request))
        request.insert(at, Asked(Op.SET, marker, b"%d" % len(self.requests)))
        return Looked(request, at, time.monotonic_ns())

    def _operation(self) -> Asked:
        rng = self._random
        kind = rng.random()
        if kind < 0.3:
            return self._perhaps(Asked(Op.INCREMENT, rng.choice(_SUMS), number(rng.randint(-3, 9))))
        if kind < 0.4:
            key = rng.choice(_TEXTS)
            if rng.random() < 0.05:  # else they would become long
                return Asked(Op.SET, key, b"")
            return self._perhaps(Asked(Op.APPEND, key, b"%d," % rng.randint(0, 99)))
        if kind < 0.6:
            return Asked(rng.choice((Op.GET, Op.EXISTS)), rng.choice(_KEYS))
        if kind < 0.7:
            return self._perhaps(Asked(Op.DELETE, rng.choice(_KEYS)))
        return self._perhaps(Asked(Op.SET, rng.choice(_ANY), b"%d." % rng.getrandbits(40)))

    def _perhaps(self, one: Asked) -> Asked:
        return self._on_condition(one) if self._random.random() < 0.5 else one

    def _on_condition(self, one: Asked) -> Asked:
        condition = self._random.choice((Condition.ABSENT, Condition.PRESENT, Condition.EQUALS, Condition.EQUALS))
        return replace(one, condition=condition, expected=self._versions.get(one.key, 1))

    def _note(self, looked: Looked, response: kv_pb2.BatchResponse) -> None:
        looked.end = time.monotonic_ns()
        looked.result = _result(looked.request, response)
        found = looked.result.request(0)
        looked.base = int(found.versions[looked.at]) - looked.at
        self._versions |= dict(zip((one.key for one in looked.request), found.versions.tolist(), strict=True))

    def _is_refused(self, looked: Looked, error: grpc.aio.AioRpcError) -> bool:
        """Note a refusal, and return whether it is one: else the server is gone."""
        told = dict(error.trailing_metadata() or ())
        if error.code() is grpc.StatusCode.ABORTED and _FAILED_CHECK in told:
            found = told.get(_FOUND)
            refusal = ConflictError(int(told[_FAILED_CHECK]), None if found is None else int(found))
            looked.end, looked.result = time.monotonic_ns(), BatchResult(None, {0: refusal}, 1)
            self.conflicts += 1
            return True
        if error.code() in _REFUSALS:
            self.requests.remove(looked)
            return True
        return False

    def judge(self) -> None:
        """Find the results that no order explains."""
        done = sorted((one for one in self.requests if one.base is not None), key=lambda one: one.base or 0)
        self.anomalies += _out_of_order(done)
        model, timeline = Model({}, has_records=True), _Timeline()
        for rank, looked in enumerate(done):
            before = dict(model.held)
            self.anomalies += (f"request {looked.base}: {text}" for text in _replayed(model, looked))
            timeline.add(rank, before, model.held)
        held = {key: model.held[key] for key in _KEYS if key in model.held}
        if held != self._final:
            self.anomalies.append(f"at the end the store holds {self._final}, the dictionary {held}")
        windows = _Windows(done)
        for looked in self.requests:
            if looked.conflict and not any(timeline.explains(looked, at) for at in windows.of(looked)):
                self.anomalies.append(f"no state explains that a check failed: {looked.conflict}, {looked.request}")


def _message(request: list[Asked]) -> kv_pb2.BatchRequest:
    batch = batch_of(0, [request])
    return kv_pb2.BatchRequest(
        ops=batch.ops.tobytes(),
        keys=batch.keys.tobytes(),
        key_lengths=batch.key_lengths.astype("<u4").tobytes(),
        values=batch.values.tobytes(),
        value_lengths=batch.value_lengths.astype("<u4").tobytes(),
        conditions=b"" if batch.conditions is None else batch.conditions.tobytes(),
        expected=b"" if batch.expected is None else batch.expected.astype("<u8").tobytes(),
    )


def _result(request: list[Asked], response: kv_pb2.BatchResponse) -> BatchResult:
    columns = RequestResult(
        np.frombuffer(response.status, np.uint8),
        np.frombuffer(response.versions, "<u8"),
        np.frombuffer(response.value_lengths, "<u4"),
        np.frombuffer(response.values, np.uint8),
    )
    return BatchResult(BatchPart(np.zeros(1, np.int64), batch_of(0, [request]), columns), {}, 1)


def _out_of_order(done: list[Looked]) -> Iterator[str]:
    """Say which requests have the numbers of others, or were sent after the response to a later one."""
    first_end = _NEVER
    following = _NEVER
    for looked in reversed(done):
        assert looked.base is not None
        if looked.base + len(looked.request) > following:
            yield f"request {looked.base}: it has numbers of the request after it"
        if first_end < looked.start:
            yield f"request {looked.base}: it was sent after the response to a later one"
        first_end, following = min(first_end, looked.end), looked.base


def _replayed(model: Model, looked: Looked) -> Iterator[str]:
    """Run a request that was done, and say where the results differ."""
    assert looked.base is not None
    if looked.result:
        yield from model.differences(looked.request, looked.result, 0)
        versions = looked.result.request(0).versions.tolist()
        for at, one in enumerate(looked.request):
            if one.op is Op.SET and one.condition is Condition.NONE and versions[at] != looked.base + at:
                yield f"{at}, {one}: version {versions[at]}, not {looked.base + at}"
        return
    if any(model.refuses(one) for one in looked.request):
        yield "it was done, without a response, and a check of it fails"
        return
    for at, one in enumerate(looked.request):
        model.run(one, looked.base + at)


class _Timeline:
    """What each key had, from which moment on: after so many requests."""

    def __init__(self) -> None:
        self._moments: dict[bytes, list[int]] = {}
        self._told: dict[bytes, list[int | None]] = {}

    def add(self, rank: int, before: Held, after: Held) -> None:
        for key in _KEYS:
            if before.get(key) != after.get(key):
                self._moments.setdefault(key, []).append(rank)
                self._told.setdefault(key, []).append(after[key][1] if key in after else None)

    def told(self, key: bytes, moment: int) -> int | None:
        """Return the version after so many requests."""
        at = bisect_left(self._moments.get(key, []), moment)
        return self._told[key][at - 1] if at else None

    def explains(self, looked: Looked, moment: int) -> bool:
        """Whether the state after so many requests has the first failing check fail as the client was told."""
        state = {one.key: self.told(one.key, moment) for one in looked.request if one.op is Op.CHECK}
        held = {key: Kept(b"", version) for key, version in state.items() if version is not None}
        model = Model(held, has_records=True)
        failed = next((at for at, one in enumerate(looked.request) if model.refuses(one)), None)
        conflict = looked.conflict
        assert conflict
        return failed == conflict.index and model.told(looked.request[failed].key) == conflict.found


class _Windows:
    """Between which of the requests that were done another one was."""

    def __init__(self, done: list[Looked]) -> None:
        by_end = sorted((looked.end, rank) for rank, looked in enumerate(done))
        by_start = sorted((looked.start, rank) for rank, looked in enumerate(done))
        self._ends, self._starts = [end for end, _ in by_end], [start for start, _ in by_start]
        self._latest, self._earliest = [0], [len(done)]
        for _, rank in by_end:
            self._latest.append(max(self._latest[-1], rank + 1))
        for _, rank in reversed(by_start):
            self._earliest.append(min(self._earliest[-1], rank))
        self._earliest.reverse()

    def of(self, looked: Looked) -> range:
        """Return how many requests were done before it, at least and at most."""
        low = self._latest[bisect_left(self._ends, looked.start)]
        high = self._earliest[bisect_left(self._starts, looked.end)]
        return range(low, high + 1)
