"""Requests that a check stops: the engine says which, the door says so to those who sent them, and to nobody else."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from gpkvs.engine.seam.left import Left
from gpkvs.errors import ConflictError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.library import Refusal
from tests.door.held_door import HeldDoor
from tests.door.toy_engine import DONE, LEFT, ToyEngine
from tests.server.wire import ABSENT, CHECK, DELETE, SET, batch, trailing_of, u32

SECONDS_MAX = 20


def request(number: int) -> kv_pb2.BatchRequest:
    """Return one with so many operations behind its check."""
    return batch([(CHECK, b"k"), *[(DELETE, b"k")] * number], id=number, conditions=bytes([ABSENT, *[0] * number]))


def failed(error: ConflictError, number: int) -> kv_pb2.BatchResponse:
    return kv_pb2.BatchResponse(id=number, code=10, message=str(error), failed_check=error.index, found=error.found)


@pytest.mark.parametrize("stopped", [(), (0,), (2,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_each_request_of_a_batch_has_its_own_conflict(stopped: tuple[int, ...]) -> None:
    errors = {number: ConflictError(number, None if number % 2 else number << 40) for number in stopped}
    with HeldDoor(queue_requests_max=10) as door, door.client() as kv:
        engine = ToyEngine(door.library)
        responses = kv.Pipeline(iter([request(number) for number in range(4)]), timeout=SECONDS_MAX)
        door.wait_for_requests(4)
        engine.conflicts = list(errors.items())
        door.library.turn(0)
        assert engine.request_ops == [[1, 2, 3, 4]]
        for number, response in enumerate(responses):
            if number in errors:
                assert response == failed(errors[number], number)
            else:
                assert response == kv_pb2.BatchResponse(id=number, status=bytes(number + 1))
        assert door.library.stats().conflicts == len(stopped)
        assert door.handed == []


@pytest.mark.parametrize("stopped", [(), (0,), (1, 3), (2, 4, 6), (5,), (1, 2, 3, 4, 5, 6)], ids=str)
def test_of_several_requests_each_has_its_own_conflict(stopped: tuple[int, ...]) -> None:
    """Three messages: one request, then four, of which the first deletes one key behind its check, then two."""
    errors = {number: ConflictError(0, None if number % 2 else number << 40) for number in stopped}
    messages = [
        batch([(CHECK, b"k"), (DELETE, b"k")]),
        batch([(CHECK, b"k"), (DELETE, b"k"), *[(CHECK, b"k")] * 3], id=1, request_ops=u32(2, 1, 1, 1)),
        batch([(CHECK, b"k")] * 2, id=2, request_ops=u32(1, 1)),
    ]
    for message in messages:
        message.conditions = bytes(ABSENT if op == CHECK else 0 for op in message.ops)
    with HeldDoor(queue_requests_max=10) as door, door.client() as kv:
        engine = ToyEngine(door.library)
        calls = []
        for number, message in enumerate(messages, 1):
            calls.append(kv.Batch.future(message, timeout=SECONDS_MAX))
            door.wait_for_requests(number)
        engine.conflicts = list(errors.items())
        door.library.turn(0)
        assert (calls[0].code() is grpc.StatusCode.ABORTED) == (0 in errors)
        for response, begin, counts in zip(
            (call.result() for call in calls[1:]), (1, 5), ((2, 1, 1, 1), (1, 1)), strict=True
        ):
            failures = [
                kv_pb2.RequestFailure(
                    request=number - begin, code=10, message=str(error), failed_check=error.index, found=error.found
                )
                for number, error in errors.items()
                if begin <= number < begin + len(counts)
            ]
            done = sum(count for number, count in enumerate(counts, begin) if number not in errors)
            assert response == kv_pb2.BatchResponse(id=response.id, status=bytes(done), failures=failures)
        assert door.library.stats().conflicts == len(stopped)
        assert door.handed == []


def test_of_several_requests_each_hears_what_it_lacks() -> None:
    """In one message, beside a conflict; the other messages of the batch are served."""
    several = batch(
        [(SET, b"k", b"v"), (CHECK, b"k"), (SET, b"l", b"v"), (SET, b"m", b"v")], request_ops=u32(1, 1, 1, 1)
    )
    several.conditions = bytes([0, ABSENT, 0, 0])
    with HeldDoor(queue_requests_max=10) as door, door.client() as kv:
        engine = ToyEngine(door.library)
        engine.ends = LEFT
        calls = [kv.Batch.future(several, timeout=SECONDS_MAX)]
        door.wait_for_requests(1)
        calls.append(kv.Batch.future(batch([(DELETE, b"k")], id=9), timeout=SECONDS_MAX))
        door.wait_for_requests(2)
        door.leave()
        door.library.left_lacks(Left.GROW_HEAP, Refusal(8, "the heap is full", "heap"))
        engine.ends, conflict = DONE, ConflictError(0, 5)
        engine.conflicts = [(1, conflict), (3, Left.GROW_HEAP)]
        assert door.library.run_left()
        assert door.library.left_without(Left.GROW_HEAP) == 1
        assert calls[0].result() == kv_pb2.BatchResponse(
            status=bytes(2),
            failures=[
                kv_pb2.RequestFailure(request=1, code=10, message=str(conflict), failed_check=0, found=5),
                kv_pb2.RequestFailure(request=3, code=8, message="the heap is full", full="heap"),
            ],
        )
        assert calls[1].result() == kv_pb2.BatchResponse(id=9, status=bytes(1))
        assert door.library.stats().conflicts == 1
        assert door.handed == []


def test_a_call_ends_with_the_conflict_of_its_request() -> None:
    with HeldDoor(queue_requests_max=10) as door, door.client() as kv:
        engine = ToyEngine(door.library)

        def ended(error: ConflictError) -> Any:
            call = kv.Batch.future(request(1), timeout=SECONDS_MAX)
            door.wait_for_requests(1)
            engine.conflicts = [(0, error)]
            door.library.turn(0)
            assert (call.code(), call.details()) == (grpc.StatusCode.ABORTED, str(error))
            return trailing_of(call)

        assert ended(ConflictError(0, 5)) == {"gpkvs-executed": "no", "gpkvs-failed-check": "0", "gpkvs-found": "5"}
        assert ended(ConflictError(7, None)) == {"gpkvs-executed": "no", "gpkvs-failed-check": "7"}
