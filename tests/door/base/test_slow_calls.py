"""What the native door notes of calls that took long, while a test is its engine: each part of the time is given."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest

from gpkvs.batch import Status
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.library import Refusal, SlowCall
from tests.door.held_door import PYTHON, HeldDoor
from tests.server.wire import SET, batch

PAUSE_SECONDS = 0.03
PAUSE_NS = int(1e9 * PAUSE_SECONDS)
SECONDS_MAX = 10.0


@pytest.fixture
def door() -> Iterator[HeldDoor]:
    with HeldDoor(slow_log_over_ms=20) as made:
        yield made


def slow(door: HeldDoor) -> list[SlowCall]:
    return list(door.library.slow_calls())


def pause() -> None:
    time.sleep(PAUSE_SECONDS)


def test_the_time_of_a_call_is_told_by_its_parts(door: HeldDoor) -> None:
    with door.client() as kv:
        began = time.monotonic()
        call = kv.Set.future(kv_pb2.SetRequest(key=b"k" * 40, value=b"value"), metadata=[("gpkvs-request-id", "mine")])
        door.wait_for_requests(1)
        pause()
        door.leave()
        pause()
        door.execute_left(gate=1)
        pause()
        door.library.durable(1)
        call.result(SECONDS_MAX)
        took_ns = 1e9 * (time.monotonic() - began)
    [noted] = slow(door)
    parts = noted.waiting_ns, noted.executing_ns, noted.durable_ns
    assert min(parts) >= PAUSE_NS
    assert sum(parts) + noted.answering_ns <= took_ns
    assert (noted.command, noted.request_id, noted.peer.partition(b":")[0]) == (b"Set", b"mine", b"ipv4")
    assert (bytes(noted.key), noted.key_bytes) == (b"k" * 32, 40)
    assert (noted.operations, noted.bytes_in, noted.bytes_out) == (1, 45, 0)
    assert slow(door) == []  # each is told once


def test_quick_calls_are_not_in_it(door: HeldDoor) -> None:
    with HeldDoor(slow_log_over_ms=86_400_000) as patient, patient.client() as kv:
        call = kv.Get.future(kv_pb2.GetRequest(key=b"k"))
        patient.wait_for_requests(1)
        pause()
        patient.execute()
        call.result(SECONDS_MAX)
        assert slow(patient) == []
        assert patient.library.stats().slow == 0


def test_a_call_that_is_given_up_is_noted_by_its_id(door: HeldDoor) -> None:
    with door.client() as kv:
        call = kv.Get.future(kv_pb2.GetRequest(key=b"k"), timeout=PAUSE_SECONDS)
        assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        door.wait_for_requests(1)
        pause()
        door.drop_all()
        door.wait(lambda: door.library.stats().slow == 1)
    [noted] = slow(door)
    assert noted.command == b"Get"
    assert len(noted.request_id) == 16
    assert noted.waiting_ns >= PAUSE_NS
    assert (noted.executing_ns, noted.durable_ns) == (0, 0)


def test_a_request_that_is_refused_is_noted_too(door: HeldDoor) -> None:
    with door.client() as kv:
        stream = kv.Pipeline(iter([batch([(SET, b"a", b"1"), (SET, b"b", b"2")], id=1)]), timeout=SECONDS_MAX)
        door.wait_for_requests(1)
        pause()
        door.leave()
        door.library.left_failed(Refusal(13, "failed"))
        assert [response.message for response in stream] == ["failed"]
    [noted] = slow(door)
    assert (noted.command, noted.operations, noted.bytes_in) == (b"Pipeline", 2, 4)
    assert noted.waiting_ns >= PAUSE_NS


def test_what_python_serves_is_noted_there(door: HeldDoor) -> None:
    with door.client() as kv:
        call = kv.Get.future(kv_pb2.GetRequest(key=b"k"))
        door.wait_for_requests(1)
        door.library.set_tables([])  # Python finds the words
        pause()
        door.drop_all()
        assert call.exception(SECONDS_MAX).details() == PYTHON
    assert slow(door) == []


def test_there_is_room_for_the_last_ones() -> None:
    with HeldDoor(slow_log_over_ms=0, slow_log_entries_max=3) as door, door.client() as kv:
        for number in range(5):
            call = kv.Get.future(kv_pb2.GetRequest(key=b"%d" % number))
            door.wait_for_requests(1)
            door.execute(Status.NOT_FOUND)
            call.result(SECONDS_MAX)
        assert [bytes(noted.key[:1]) for noted in slow(door)] == [b"2", b"3", b"4"]
        assert door.library.stats().slow == 5


def test_a_thread_notes_so_many_and_counts_the_others() -> None:
    with HeldDoor(slow_log_over_ms=0, slow_log_entries_max=1000, queue_requests_max=1000) as door, door.client() as kv:
        stream = kv.Pipeline((batch([(SET, b"k", b"v")], id=at) for at in range(400)), timeout=SECONDS_MAX)
        while door.library.stats().operations[SET][Status.OK] < 400:
            door.wait(lambda: door.library.waiting() > 0)
            door.execute()
        assert len(list(stream)) == 400
        stats = door.library.stats()
        assert stats.slow == 400
        assert stats.slow_unnoted == 400 - len(slow(door))
