"""The judge of histories: good ones are accepted, and each way to be wrong is rejected."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from gpkvs.batch import Op
from gpkvs.recovery.proof.consistency.history import History, HistoryRecorder, RequestOutcome
from gpkvs.recovery.proof.consistency.serializability import judge

KEYS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Operation:
    op: Op
    key: str
    value: int = 0
    version: int = 0
    found: bool = False


@dataclass(frozen=True)
class Request:
    start: int
    end: int
    operations: tuple[Operation, ...]
    outcome: RequestOutcome = RequestOutcome.OK


def put(key: str, value: int, version: int = 0) -> Operation:
    return Operation(Op.SET, key, value, version)


def got(key: str, value: int, version: int) -> Operation:
    return Operation(Op.GET, key, value, version, True)


def missed(key: str) -> Operation:
    return Operation(Op.GET, key)


def removed(key: str, version: int) -> Operation:
    return Operation(Op.DELETE, key, 0, version, True)


def nothing_removed(key: str) -> Operation:
    return Operation(Op.DELETE, key)


def ok(start: int, end: int, *operations: Operation) -> Request:
    return Request(start, end, operations)


def lost(start: int, *operations: Operation) -> Request:
    """Make a request whose response never came."""
    return Request(start, 0, operations, RequestOutcome.UNKNOWN)


def refused(start: int, end: int, *operations: Operation) -> Request:
    return Request(start, end, operations, RequestOutcome.REFUSED)


def history(*requests: Request) -> History:
    operations = [operation for request in requests for operation in request.operations]
    return History(
        start=np.array([request.start for request in requests], np.int64),
        end=np.array([request.end for request in requests], np.int64),
        outcome=np.array([request.outcome for request in requests], np.uint8),
        first_op=np.cumsum([0, *[len(request.operations) for request in requests]]),
        op=np.array([operation.op for operation in operations], np.uint8),
        key=np.array([KEYS.index(operation.key) for operation in operations], np.uint32),
        value=np.array([operation.value for operation in operations], np.uint64),
        found=np.array([operation.found for operation in operations], np.bool_),
        version=np.array([operation.version for operation in operations], np.uint64),
    )


GOOD = {
    "empty": [],
    "write then read": [ok(0, 1, put("a", 10, 1)), ok(2, 3, got("a", 10, 1))],
    "a read of what was never written": [ok(0, 1, missed("a"), missed("b"))],
    "concurrent read sees the old state": [ok(0, 9, put("a", 10, 1)), ok(1, 8, missed("a"))],
    "concurrent read sees the new state": [ok(0, 9, put("a", 10, 1)), ok(1, 2, got("a", 10, 1))],
    "concurrent writes in the order of their versions": [
        ok(0, 9, put("a", 10, 2)),
        ok(0, 9, put("a", 11, 1)),
        ok(10, 11, got("a", 10, 2)),
    ],
    "a batch sees its own writes": [
        ok(0, 1, missed("a"), put("a", 10, 2), got("a", 10, 2), removed("a", 2), missed("a"), nothing_removed("a"))
    ],
    "the last write of a batch wins": [ok(0, 1, put("a", 10, 1), put("a", 11, 2)), ok(2, 3, got("a", 11, 2))],
    "a delete that hits": [
        ok(0, 1, put("a", 10, 1)),
        ok(2, 3, put("b", 11, 2), removed("a", 1)),
        ok(4, 5, missed("a"), got("b", 11, 2)),
    ],
    "a lost response, done": [lost(0, put("a", 10)), ok(5, 6, got("a", 10, 1))],
    "a lost response, done with its delete": [
        ok(0, 1, put("a", 10, 1)),
        lost(2, put("z", 11), removed("a", 0)),
        ok(3, 4, missed("a")),
        ok(5, 6, got("z", 11, 2)),
    ],
    "a lost response, not done": [lost(0, put("a", 10)), ok(5, 6, missed("a"))],
    "a lost response, done late": [lost(0, put("a", 10)), ok(5, 6, missed("a")), ok(7, 8, got("a", 10, 3))],
    "a refused request left no trace": [refused(0, 1, put("a", 10)), ok(2, 3, missed("a"))],
    "numbers left out": [ok(0, 1, put("a", 10, 5)), ok(2, 3, put("b", 11, 90)), ok(4, 5, got("a", 10, 5))],
    "absent, there, absent again": [
        ok(0, 1, put("a", 10, 1)),
        ok(2, 9, put("b", 11, 2), removed("a", 1)),
        ok(3, 8, missed("a")),
        ok(3, 8, got("a", 10, 1)),
        ok(10, 12, put("a", 12, 4)),
        ok(13, 14, got("a", 12, 4), got("b", 11, 2)),
    ],
}

TWO = [ok(0, 1, put("a", 10, 1), put("b", 11, 2)), ok(2, 3, put("a", 12, 3), put("b", 13, 4))]

BAD = {
    # number
    "two requests with one number": ("number", [ok(0, 1, put("a", 10, 1)), ok(2, 3, put("b", 11, 1))]),
    "requests whose numbers overlap": (
        "number",
        [ok(0, 9, put("a", 10, 1), put("b", 11, 2)), ok(0, 9, missed("c"), put("c", 12, 3))],
    ),
    "SETs of a request too far apart": ("number", [ok(0, 1, put("a", 10, 1), put("b", 11, 3))]),
    "SETs of a request in the wrong order": ("number", [ok(0, 1, put("a", 10, 2), put("b", 11, 1))]),
    "a number that leaves no room for what came before": (
        "number",
        [ok(0, 1, missed("a"), missed("b"), put("a", 10, 1))],
    ),
    "a SET without a number": ("number", [ok(0, 1, missed("a"), put("a", 10, 0))]),
    # phantom
    "a value that nobody wrote": ("phantom", [ok(0, 1, put("a", 10, 1)), ok(2, 3, got("a", 99, 1))]),
    "a value where nothing was ever written": ("phantom", [ok(0, 1, got("a", 99, 1))]),
    "a value of another key": ("phantom", [ok(0, 1, put("a", 10, 1)), ok(2, 3, got("b", 10, 1))]),
    "a value that was refused": ("phantom", [refused(0, 1, put("a", 10)), ok(2, 3, got("a", 10, 1))]),
    # version
    "a value with a later version": (
        "version",
        [ok(0, 1, put("a", 10, 1)), ok(2, 3, got("a", 10, 2))],
    ),
    "a value with an earlier version": (
        "version",
        [ok(0, 1, put("b", 9, 1)), ok(0, 1, put("a", 10, 2)), ok(2, 3, got("a", 10, 1))],
    ),
    "a lost response seen with two versions": (
        "version",
        [lost(0, put("a", 10)), ok(5, 6, got("a", 10, 1)), ok(7, 8, got("a", 10, 2))],
    ),
    # replay
    "a writer that misses what is there": (
        "replay",
        [ok(0, 1, put("a", 10, 1)), ok(2, 3, missed("a"), put("b", 11, 3))],
    ),
    "a writer that does not see its own write": ("replay", [ok(0, 1, put("a", 10, 1), missed("a"))]),
    "a writer that sees its write too early": ("replay", [ok(0, 1, got("a", 10, 2), put("a", 10, 2))]),
    "a writer that sees what it has overwritten": (
        "replay",
        [ok(0, 1, put("a", 10, 1)), ok(2, 3, put("a", 11, 2), got("a", 10, 1))],
    ),
    "a lost update": (
        "replay",
        [
            ok(0, 1, put("a", 10, 1)),
            ok(2, 9, got("a", 10, 1), put("a", 11, 3)),
            ok(2, 9, got("a", 10, 1), put("a", 12, 5)),
        ],
    ),
    "write skew": (
        "replay",
        [
            ok(0, 1, put("a", 10, 1), put("b", 11, 2)),
            ok(2, 9, got("a", 10, 1), put("b", 12, 4)),
            ok(2, 9, got("b", 11, 2), put("a", 13, 6)),
        ],
    ),
    "a delete that hits nothing": ("replay", [ok(0, 1, put("b", 10, 1), removed("a", 0))]),
    "a delete that misses what is there": (
        "replay",
        [ok(0, 1, put("a", 10, 1)), ok(2, 3, put("b", 11, 2), nothing_removed("a"))],
    ),
    "a delete that hits twice": (
        "replay",
        [
            ok(0, 1, put("a", 10, 1)),
            ok(2, 3, put("b", 11, 2), removed("a", 1)),
            ok(4, 5, put("b", 12, 4), removed("a", 1)),
        ],
    ),
    "a delete of another version": (
        "replay",
        [ok(0, 1, put("a", 10, 1)), ok(2, 3, put("b", 11, 2), removed("a", 7))],
    ),
    "a writer that reads a deleted value": (
        "replay",
        [
            ok(0, 1, put("a", 10, 1)),
            ok(2, 3, put("b", 11, 2), removed("a", 1)),
            ok(4, 5, put("b", 12, 4), got("a", 10, 1)),
        ],
    ),
    # snapshot
    "a stale read": ("snapshot", [*TWO, ok(4, 5, got("a", 10, 1))]),
    "an acknowledged write that is gone": ("snapshot", [ok(0, 1, put("a", 10, 1)), ok(2, 3, missed("a"))]),
    "an acknowledged delete that is gone": (
        "snapshot",
        [ok(0, 1, put("a", 10, 1)), ok(2, 3, put("b", 11, 2), removed("a", 1)), ok(4, 5, got("a", 10, 1))],
    ),
    "half a batch": (
        "snapshot",
        [TWO[0], ok(2, 9, put("a", 12, 3), put("b", 13, 4)), ok(3, 8, got("a", 12, 3), got("b", 11, 2))],
    ),
    "half a first batch": (
        "snapshot",
        [ok(0, 9, put("a", 10, 1), put("b", 11, 2)), ok(1, 8, got("a", 10, 1), missed("b"))],
    ),
    "half a batch in pieces between two requests": ("snapshot", [*TWO, ok(0, 5, got("a", 10, 1), got("b", 13, 4))]),
    "half of a lost batch": (
        "snapshot",
        [TWO[0], lost(2, put("a", 12), put("b", 13)), ok(5, 6, got("a", 12, 3), got("b", 11, 2))],
    ),
    "a delete of a lost batch left out": (
        "snapshot",
        [ok(0, 1, put("a", 10, 1)), lost(2, put("b", 11), removed("a", 0)), ok(5, 6, got("b", 11, 2), got("a", 10, 1))],
    ),
    "a value overwritten in its own request": (
        "snapshot",
        [ok(0, 9, put("a", 10, 1), put("a", 11, 2)), ok(1, 8, got("a", 10, 1))],
    ),
    "one request that reads two states of a key": (
        "snapshot",
        [ok(0, 9, put("a", 10, 1)), ok(0, 9, put("a", 11, 2)), ok(0, 9, got("a", 10, 1), got("a", 11, 2))],
    ),
    "a key there and absent at once": ("snapshot", [ok(0, 9, put("a", 10, 1)), ok(1, 8, got("a", 10, 1), missed("a"))]),
    "two absences that never were at one time": (
        "snapshot",
        [
            ok(0, 9, put("a", 10, 1)),
            ok(0, 9, put("b", 11, 2), removed("a", 1)),
            ok(0, 9, put("a", 12, 5), removed("b", 2)),
            ok(0, 9, put("c", 13, 7), put("b", 14, 8)),
            ok(0, 9, missed("a"), missed("b"), got("c", 13, 7)),
        ],
    ),
    "a read that goes back behind another read": (
        "snapshot",
        [ok(0, 20, put("a", 10, 1)), ok(1, 2, got("a", 10, 1)), ok(3, 4, missed("a"))],
    ),
    "a read that goes back behind a read of another key": (
        "snapshot",
        [ok(0, 20, put("a", 10, 1)), ok(0, 20, put("b", 11, 2)), ok(1, 2, got("b", 11, 2)), ok(3, 4, missed("a"))],
    ),
    "a read that goes back behind an absence": (
        "snapshot",
        [
            ok(0, 1, put("a", 10, 1)),
            ok(0, 20, put("b", 11, 2), removed("a", 1)),
            ok(2, 3, missed("a")),
            ok(4, 5, got("a", 10, 1)),
        ],
    ),
    "a read of what was not yet sent": (
        "snapshot",
        [ok(0, 1, got("a", 10, 1)), ok(2, 3, put("a", 10, 1))],
    ),
    "a lost response seen, and then gone": (
        "snapshot",
        [lost(0, put("a", 10)), ok(1, 2, got("a", 10, 1)), ok(3, 4, missed("a"))],
    ),
    "long fork": (
        "snapshot",
        [
            ok(0, 20, put("a", 10, 1)),
            ok(0, 20, put("b", 11, 2)),
            ok(1, 9, got("a", 10, 1), missed("b")),
            ok(1, 9, missed("a"), got("b", 11, 2)),
        ],
    ),
    # real time
    "a later write with an earlier number": ("real time", [ok(0, 1, put("a", 10, 5)), ok(2, 3, put("b", 11, 1))]),
    "a later batch with earlier numbers": (
        "real time",
        [ok(0, 1, put("a", 10, 9)), ok(2, 3, missed("c"), put("b", 11, 4)), ok(4, 5, put("c", 12, 20))],
    ),
    "a lost response, done before it was sent": (
        "real time",
        [ok(0, 1, put("b", 9, 7)), lost(2, put("a", 10)), ok(3, 4, got("a", 10, 2))],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_are_accepted(name: str) -> None:
    found = judge(history(*GOOD[name]))
    assert found.is_serializable, found.anomalies


@pytest.mark.parametrize("name", BAD)
def test_bad_histories_are_rejected(name: str) -> None:
    rule, requests = BAD[name]
    found = judge(history(*requests))
    assert rule in {anomaly.rule for anomaly in found.anomalies}, found.anomalies


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_columns_means_nothing(seed: int) -> None:
    for name, requests in GOOD.items():
        assert judge(history(*random.Random(seed).sample(requests, len(requests)))).is_serializable, name
    for name, (_, requests) in BAD.items():
        assert not judge(history(*random.Random(seed).sample(requests, len(requests)))).is_serializable, name


def test_there_are_enough_bad_histories() -> None:
    assert len(BAD) >= 30


def test_what_is_no_history_is_refused() -> None:
    with pytest.raises(ValueError, match="written twice"):
        judge(history(ok(0, 1, put("a", 10, 1)), ok(2, 3, put("b", 10, 2))))
    with pytest.raises(ValueError, match="no SET"):
        judge(history(ok(0, 1, nothing_removed("a"))))


def test_a_lost_write_that_only_a_delete_has_seen_must_not_be_recorded() -> None:
    """Nothing says which write it was: the clients leave such keys alone (`ConsistencyClients`)."""
    seen_by_a_delete = [lost(0, put("a", 10)), ok(5, 6, put("b", 11, 2), removed("a", 1))]
    assert not judge(history(*seen_by_a_delete)).is_serializable


def serial_run(seed: int, requests: int) -> list[Request]:
    """Make a history of requests that ran one at a time, at random moments between being sent and answered."""
    rng = random.Random(seed)
    state: dict[str, tuple[int, int]] = {}
    number, value, made = 1, 1, []
    for moment in range(requests):
        operations: list[Operation] = []
        writes = rng.random() < 0.6
        for index in range(rng.randint(1, 5)):
            key = rng.choice(KEYS[:6])
            kind = rng.choice("sgd") if writes else "g"
            if kind == "s" or (writes and index == 0):
                value += 1
                state[key] = (value, number)
                operations.append(put(key, value, number))
            elif kind == "g":
                operations.append(got(key, *state[key]) if key in state else missed(key))
            else:
                operations.append(removed(key, state.pop(key)[1]) if key in state else nothing_removed(key))
            number += 1
        start, end = 10 * moment - rng.randint(0, 40), 10 * moment + rng.randint(0, 40)
        made.append(ok(start, end, *operations))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_what_ran_one_at_a_time_is_accepted_and_any_change_of_it_is_not(seed: int) -> None:
    requests = serial_run(seed, 200)
    assert judge(history(*requests)).is_serializable
    rng = random.Random(seed)
    reads = [i for i, request in enumerate(requests) if any(o.op is Op.GET and o.found for o in request.operations)]
    changed = rng.choice(reads)
    operations = list(requests[changed].operations)
    at = rng.choice([i for i, o in enumerate(operations) if o.op is Op.GET and o.found])
    for wrong in (
        missed(operations[at].key),
        replace(operations[at], version=operations[at].version + 1),
        replace(operations[at], value=operations[at].value + 100_000),
    ):
        operations[at] = wrong
        # Alone at its time, so that nothing else explains it.
        tampered = ok(10 * changed, 10 * changed, *operations)
        assert not judge(history(*requests[:changed], tampered, *requests[changed + 1 :])).is_serializable


def test_a_recorder_writes_what_happened(tmp_path: Path) -> None:
    recorder = HistoryRecorder()
    op = np.array([Op.GET, Op.SET, Op.DELETE], np.uint8)
    for request in range(2000):
        number, values = recorder.begin(op, np.array([1, 2, 3], np.uint32))
        assert number == request
        assert values.tolist() == [number << 8 | 2]
        if request == 1:
            recorder.refuse(number)
        elif request != 2:
            response = np.array([True, True, False]), np.array([7], np.uint64), np.array([1, 9, 0], np.uint64)
            recorder.respond(number, *response)
    recorded = recorder.history()
    assert recorder.operations == len(recorded.op) == 6000
    assert recorded.first_op.tolist() == list(range(0, 6001, 3))
    assert recorded.outcome[:4].tolist() == [
        RequestOutcome.OK,
        RequestOutcome.REFUSED,
        RequestOutcome.UNKNOWN,
        RequestOutcome.OK,
    ]
    assert recorded.value[:3].tolist() == [7, 2, 0]
    assert recorded.version[-3:].tolist() == [1, 9, 0]
    assert (recorded.start[1:] >= recorded.start[:-1]).all()
    recorded.save(tmp_path / "history.npz")
    assert History.load(tmp_path / "history.npz").value.tolist() == recorded.value.tolist()
