"""What becomes of requests between the native door, the engine and Python: a test is both of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gpkvs.batch import Status
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.library import Refusal, Turn
from tests.door.held_door import PYTHON, VALUE, HeldDoor
from tests.door.http2_client import Http2Client, framed
from tests.door.toy_engine import ToyEngine
from tests.server.wire import (
    ABSENT,
    DELETE,
    EQUALS,
    EXISTS,
    GET,
    INCREMENT,
    SET,
    TTL_MS_MAX,
    batch,
    trailing_of,
    u32,
    u64,
)

CODES = grpc.StatusCode
QUEUE_FULL = 1  # of the reasons why requests were refused (door.h)
PIPELINE = 6  # of the methods (door.h)
FULL = Refusal(CODES.RESOURCE_EXHAUSTED.value[0], "heap full: of records", "heap")
STOPPING = Refusal(CODES.UNAVAILABLE.value[0], "the server is stopping: try again elsewhere or later")


class Stream:
    """A Pipeline: requests are sent one by one."""

    def __init__(self, kv: Any, *metadata: tuple[str, str]) -> None:
        self._requests: queue.SimpleQueue[kv_pb2.BatchRequest | None] = queue.SimpleQueue()
        self._responses = kv.Pipeline(iter(self._requests.get, None), timeout=20, metadata=metadata)

    def send(self, *requests: kv_pb2.BatchRequest) -> None:
        for request in requests:
            self._requests.put(request)

    def receive(self) -> kv_pb2.BatchResponse:
        return next(self._responses)

    def end(self) -> tuple[grpc.StatusCode, str]:
        """Send no more; return the status that the stream ended with."""
        self._requests.put(None)
        return self._responses.code(), self._responses.details()

    def cancel(self) -> None:
        self._responses.cancel()
        self._requests.put(None)


@pytest.fixture
def door() -> Iterator[HeldDoor]:
    with HeldDoor(queue_requests_max=3) as made:
        yield made
        made.wait(lambda: made.library.clients_bytes() == 0)


@pytest.fixture
def kv(door: HeldDoor) -> Iterator[Any]:
    with door.client() as made:
        yield made


def get(kv: Any) -> Any:
    return kv.Get.future(kv_pb2.GetRequest(key=b"k"), timeout=20)


def plain(number: int) -> kv_pb2.BatchRequest:
    return batch([(GET, b"k"), (EXISTS, b"k")], id=number)


def other(number: int) -> kv_pb2.BatchRequest:
    """One that is not plain."""
    return batch([(GET, b"k")], id=number, ttls=u64(TTL_MS_MAX + 1))


def several(number: int) -> kv_pb2.BatchRequest:
    return batch([(SET, b"k", b"value"), (EXISTS, b"k"), (DELETE, b"k")], id=number, request_ops=u32(2, 1))


def assert_refused(call: Any, code: grpc.StatusCode, text: str, **trailers: str) -> None:
    assert (call.code(), call.details()) == (code, text)
    assert {name.removeprefix("gpkvs-"): value for name, value in trailing_of(call).items()} == trailers


def test_plain_calls_never_reach_python(door: HeldDoor, kv: Any) -> None:
    call = get(kv)
    door.execute()
    assert call.result() == kv_pb2.GetResponse(found=True, value=VALUE)
    call = kv.Delete.future(kv_pb2.DeleteRequest(key=b"k"), timeout=20)
    door.execute(Status.NOT_FOUND)
    assert call.result() == kv_pb2.DeleteResponse(status=kv_pb2.STATUS_NOT_FOUND)
    door.wait(lambda: door.library.held_bytes("answers") == 0)
    assert door.handed == []


@pytest.mark.parametrize(
    ("prefix", "status"), [(b"\0\x7f\0\0\0", "8"), (b"\1\0\0\0\1", "12")], ids=["large", "compressed"]
)
def test_what_a_stream_cannot_take_ends_it_behind_its_responses(door: HeldDoor, prefix: bytes, status: str) -> None:
    """The status says that nothing was executed: so what was read before has its response."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/gpkvs.v1.KV/Pipeline"), (":authority", "a")]
    with Http2Client(door.target) as client:
        stream = client.begin([*headers, ("content-type", "application/grpc"), ("te", "trailers")])
        for number in (7, 8):
            client.send(stream, framed(batch([(DELETE, b"k")], id=number).SerializeToString()))
        door.wait_for_requests(2)
        client.send(stream, prefix + b"the rest is ignored")
        time.sleep(0.1)  # the door has it
        door.execute()
        answer = client.answer(stream)
    responses = map(kv_pb2.BatchResponse.FromString, messages_of(answer.data))
    assert [(response.id, response.status) for response in responses] == [(7, bytes(1)), (8, bytes(1))]
    trailers = dict(answer.trailers)
    assert (trailers["grpc-status"], trailers["gpkvs-executed"]) == (status, "no")


def messages_of(data: bytes) -> Iterator[bytes]:
    while data:
        end = 5 + int.from_bytes(data[1:5], "big")
        yield data[5:end]
        data = data[end:]


def test_what_is_not_plain_is_pythons(door: HeldDoor, kv: Any) -> None:
    for method, message in (
        (kv.Set, kv_pb2.SetRequest(key=b"k", condition=4)),
        (kv.Get, kv_pb2.GetRequest()),
        (kv.Get, kv_pb2.GetRequest(key=b"k", table="none")),
        (kv.Batch, batch([(EXISTS, b"k")] * 1025, request_ops=u32(*[1] * 1025))),
    ):
        assert method.future(message, timeout=20).details() == PYTHON
        assert door.handed.pop()[1] == message.SerializeToString()


def test_each_request_of_a_batch_has_its_own_conditions(door: HeldDoor, kv: Any) -> None:
    messages = [
        batch([(SET, b"k", b"v"), (DELETE, b"k")], conditions=bytes([EQUALS, ABSENT]), expected=u64(7, 0)),
        batch([(GET, b"k"), (INCREMENT, b"k", bytes(8))]),
        batch([(SET, b"k", b"v")], conditions=bytes([EQUALS]), expected=u64(9)),
    ]
    calls = []
    for number, message in enumerate(messages):
        calls.append(kv.Batch.future(message, timeout=20))
        door.wait_for_requests(number + 1)
    door.leave()
    left = door.library.left()
    assert left.conditions is not None
    assert left.expected is not None
    assert left.conditions.tolist() == [EQUALS, ABSENT, 0, 0, EQUALS]
    assert left.expected.tolist() == [7, 0, 0, 0, 9]
    door.execute_left()
    assert [len(call.result().status) for call in calls] == [2, 2, 1]
    assert calls[1].result().value_lengths == u32(len(VALUE), len(VALUE))
    assert door.handed == []


def test_several_requests_of_a_message_stay_several_for_the_engine(door: HeldDoor, kv: Any) -> None:
    engine = ToyEngine(door.library)
    calls = [kv.Batch.future(several(5)), kv.Delete.future(kv_pb2.DeleteRequest(key=b"k"))]
    door.wait_for_requests(2)
    door.drop_all()
    assert calls[0].result() == kv_pb2.BatchResponse(id=5, status=bytes(3))
    assert calls[1].result() == kv_pb2.DeleteResponse(found=True)
    assert engine.request_ops in ([[2, 1, 1]], [[1, 2, 1]])
    assert door.handed == []


def test_a_batch_has_no_more_operations_than_the_engine_takes(door: HeldDoor, kv: Any) -> None:
    engine = ToyEngine(door.library, operations_max=4)
    stream = Stream(kv)
    stream.send(*(batch([(EXISTS, b"k")] * count, id=number) for number, count in enumerate((2, 2, 3))))
    door.wait_for_requests(3)
    door.drop_all()
    assert [stream.receive().id for _ in range(3)] == [0, 1, 2]
    assert engine.request_ops == [[2, 2], [3]]
    assert stream.end()[0] is CODES.OK


def test_several_requests_in_a_stream_are_pythons(door: HeldDoor, kv: Any) -> None:
    stream = Stream(kv)
    stream.send(several(1))
    assert stream.receive().message == PYTHON
    assert stream.end()[0] is CODES.OK


def test_a_request_whose_table_is_gone_is_pythons(door: HeldDoor, kv: Any) -> None:
    call, stream = get(kv), Stream(kv)
    stream.send(plain(1))
    door.wait_for_requests(2)
    door.library.set_tables([])
    door.drop_all()
    assert call.details() == PYTHON
    assert door.handed == [("Get", kv_pb2.GetRequest(key=b"k").SerializeToString())]
    # In a stream it would come behind requests that were sent after it.
    gone = stream.receive()
    assert (gone.id, gone.code, gone.message) == (1, CODES.NOT_FOUND.value[0], "table: there is no table 'default'")
    assert stream.end()[0] is CODES.OK


def test_a_damaged_record_is_read_again_by_python(door: HeldDoor, kv: Any) -> None:
    call = get(kv)
    door.execute(Status.CORRUPT)
    assert call.details() == PYTHON
    call = kv.Batch.future(plain(1))
    door.execute(Status.CORRUPT)
    assert call.result().status == bytes([Status.CORRUPT] * 2)
    assert [method for method, _ in door.handed] == ["Get"]


def test_refusals_are_statuses_and_responses_of_a_stream(door: HeldDoor, kv: Any) -> None:
    call, stream = get(kv), Stream(kv)
    stream.send(plain(7))
    door.wait_for_requests(2)
    door.leave()
    door.library.left_failed(FULL)
    assert_refused(call, CODES.RESOURCE_EXHAUSTED, FULL.text, executed="no", full="heap")
    assert stream.receive() == kv_pb2.BatchResponse(id=7, code=8, message=FULL.text, full="heap")
    stream.send(plain(8))
    door.execute()
    assert stream.receive().values == VALUE
    assert stream.end()[0] is CODES.OK


def test_a_full_queue_refuses(door: HeldDoor, kv: Any) -> None:
    stream = Stream(kv)
    stream.send(*(batch([(EXISTS, b"k")], id=number) for number in range(4)))
    door.wait(lambda: door.library.stats().refused[QUEUE_FULL] == 1)
    text = (
        "queue full: 3 requests wait, as many as queue_requests_max allows: try again later, or send fewer and larger"
    )
    assert_refused(get(kv), CODES.RESOURCE_EXHAUSTED, f"{text} batches", executed="no", full="queue")
    door.execute()
    assert [stream.receive().id for _ in range(3)] == [0, 1, 2]
    assert stream.receive() == kv_pb2.BatchResponse(id=3, code=8, message=f"{text} batches", full="queue")
    assert stream.end()[0] is CODES.OK


def test_a_stream_keeps_its_order_between_engine_and_python(door: HeldDoor, kv: Any) -> None:
    stream = Stream(kv)
    stream.send(plain(1), other(2))
    door.wait_for_requests(1)
    time.sleep(0.05)  # the other message is there
    assert not door.handed  # not while the engine has one
    door.execute()
    assert stream.receive().values == VALUE
    assert stream.receive().message == PYTHON
    stream.send(plain(3))
    door.execute()
    assert stream.receive().values == VALUE
    assert len(door.handed) == 1
    assert stream.end()[0] is CODES.OK


def test_a_stream_that_the_client_ends_has_all_its_responses(door: HeldDoor, kv: Any) -> None:
    for requests in ((), (plain(1),), (other(1),), (plain(1), other(2))):
        responses = kv.Pipeline(iter(requests), timeout=20)
        if plain(1) in requests:
            door.execute()
        assert [response.id for response in responses] == [request.id for request in requests]
        assert responses.code() is CODES.OK


def test_a_plain_stream_never_reaches_python(door: HeldDoor, kv: Any) -> None:
    stream = Stream(kv)
    for number in range(3):
        stream.send(plain(number))
        door.execute()
        assert stream.receive().values == VALUE
    assert stream.end()[0] is CODES.OK
    assert not door.opened
    counted = door.library.stats().methods[PIPELINE]
    assert (counted.started, counted.handled[0]) == (1, 1)


def test_python_hears_of_a_stream_when_the_door_is_shut(door: HeldDoor, kv: Any) -> None:
    idle, ending = Stream(kv), Stream(kv)
    for stream in (idle, ending):
        stream.send(plain(1))
        door.execute()
        assert stream.receive().values == VALUE
    ending.send(plain(2))
    door.wait_for_requests(1)
    ended = threading.Thread(target=ending.end)
    ended.start()
    time.sleep(0.1)
    door.library.shut()
    door.wait(lambda: len(door.opened) == 1)
    (call,) = door.opened
    door.library.finish(call, CODES.UNAVAILABLE.value[0], STOPPING.text, [])
    assert idle.end() == (CODES.UNAVAILABLE, STOPPING.text)
    door.execute()
    assert ending.receive().id == 2
    ended.join()
    assert ending.end()[0] is CODES.OK
    assert len(door.opened) == 1


def test_python_hears_of_a_stream_where_there_is_memory_for_it(door: HeldDoor, kv: Any) -> None:
    assert kv.Get.future(kv_pb2.GetRequest(), timeout=20).details() == PYTHON
    (unary,) = door.opened.values()
    stream = Stream(kv, ("long", "x" * 10_000))
    stream.send(plain(1))
    door.execute()
    assert stream.receive().values == VALUE
    most = door.bounds.clients_bytes_max * 7 // 8
    held = most // 2 - (8 << 10) - door.library.clients_bytes()  # the connection may hold 8 KiB more
    door.library.charge(unary.connection, "requests", held)
    stream.send(other(2))
    refused = stream.receive()
    assert (refused.id, refused.code, refused.full) == (2, CODES.RESOURCE_EXHAUSTED.value[0], "memory")
    door.library.charge(unary.connection, "requests", -held)
    stream.send(other(3))
    assert stream.receive().message == PYTHON
    assert stream.end()[0] is CODES.OK


def test_a_stop_ends_a_stream_behind_what_was_executed(door: HeldDoor, kv: Any) -> None:
    stream = Stream(kv)
    stream.send(plain(1), plain(2))
    door.wait_for_requests(2)
    door.execute()
    stream.send(plain(3))
    door.wait_for_requests(1)
    door.library.abandon(STOPPING)
    door.drop_all()
    assert [stream.receive().id for _ in range(2)] == [1, 2]
    assert stream.end() == (CODES.UNAVAILABLE, STOPPING.text)


def test_a_stop_while_requests_wait() -> None:
    ended = []
    for _ in range(10):  # the engine's thread and that of the connections race
        with HeldDoor() as stopping, stopping.client() as kv:
            executed = get(kv)
            stopping.execute(gate=1)
            waiting = get(kv)  # until that is durable
            stopping.wait_for_requests(1)
            turns = threading.Thread(target=lambda: ended.append(stopping.library.turn(10)))
            turns.start()
            stopping.library.stop()
            turns.join()
            assert {executed.code(), waiting.code()} == {CODES.UNAVAILABLE}
            assert stopping.library.waiting() == 0
    assert ended == [Turn.STOPPED] * 10


@pytest.mark.parametrize("late", [plain(2), other(2)])
def test_a_stream_that_python_has_ended_takes_no_more(door: HeldDoor, kv: Any, late: kv_pb2.BatchRequest) -> None:
    stream = Stream(kv)
    stream.send(other(0))
    assert stream.receive().message == PYTHON
    stream.send(plain(1))
    door.wait_for_requests(1)
    (call,) = door.opened
    door.library.finish(call, CODES.UNAUTHENTICATED.value[0], "who are you?", [])
    stream.send(late)
    time.sleep(0.1)
    door.execute()
    assert stream.receive().values == VALUE
    assert stream.end() == (CODES.UNAUTHENTICATED, "who are you?")
    assert door.library.requests() == 0
    assert len(door.handed) == 1


def test_a_response_to_no_message_ends_the_stream(door: HeldDoor, kv: Any) -> None:
    stream = Stream(kv)
    stream.send(other(0))
    assert stream.receive().message == PYTHON
    stream.send(plain(1), other(2))
    door.wait_for_requests(1)
    (call,) = door.opened
    door.library.respond(call, kv_pb2.BatchResponse(id=2, message=PYTHON).SerializeToString())
    assert stream.end()[0] is CODES.INTERNAL
    door.drop_all()
    assert door.library.requests() == 0


@pytest.mark.parametrize("has_companion", [False, True])
@pytest.mark.parametrize("requests", [[plain(1), plain(2)], [other(1)], [plain(1), other(2)], []])
def test_a_stream_that_is_cancelled_leaves_nothing(
    door: HeldDoor, kv: Any, requests: list[kv_pb2.BatchRequest], has_companion: bool
) -> None:
    stream, waiting = Stream(kv), requests.count(plain(1)) + requests.count(plain(2))
    if has_companion:
        stream.send(other(0))
        assert stream.receive().message == PYTHON
    stream.send(*requests)
    is_pythons = has_companion or requests == [other(1)]
    door.wait(lambda: door.library.stats().methods[PIPELINE].started == 1 and len(door.opened) == is_pythons)
    door.wait_for_requests(waiting)
    stream.cancel()
    door.wait(lambda: len(door.over) + door.library.stats().methods[PIPELINE].handled[1] == 1)
    door.drop_all()
    assert door.library.requests() == 0


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_call_that_is_cancelled_while_it_waits_is_dropped(door: HeldDoor, kv: Any, cancelled: int) -> None:
    calls, held = [], []
    for count in range(3):
        calls.append(get(kv))
        door.wait_for_requests(count + 1)
        held.append(door.library.clients_bytes())
    calls.pop(cancelled).cancel()
    door.wait(lambda: door.library.clients_bytes() < held[2])
    door.leave()
    assert door.library.left().request_ops.tolist() == [1, 1]
    door.library.left_failed(FULL)
    assert {call.code() for call in calls} == {CODES.RESOURCE_EXHAUSTED}
