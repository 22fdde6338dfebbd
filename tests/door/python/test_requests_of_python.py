"""Requests that Python's handlers make go through the door's queue, over the connections that they serve."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.engine.seam.left import Left
from gpkvs.errors import (
    ConflictError,
    CorruptRecordError,
    GpkvsError,
    InvalidArgumentError,
    NoMemoryError,
    NoSpaceError,
    StoreClosedError,
    UnknownTableError,
)
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.calls.request_queue import Answer, ConnectionGoneError, ExpiredRequestError, error_of
from gpkvs.server.door.library import Event, Protocol, Refusal, Turn
from gpkvs.server.door.turns import Turns
from gpkvs.server.gate import NotServingError
from gpkvs.server.redis.execution.columns import found_by, read_of
from gpkvs.server.signs.exporter import Metrics
from tests.door.blob_door import blob_store
from tests.door.held_door import VALUE, HeldDoor
from tests.door.resp_door import PythonSide, command, connect
from tests.door.resp_door import _library as door_of
from tests.door.toy_engine import DONE, LEFT, ToyEngine
from tests.server.wire import ABSENT, CHECK, DELETE, GET, SET, batch, u32, u64

NEVER = (1 << 64) - 1
SECONDS = 10
LARGE = {b"large": b"a" * 300_000, b"small": b"tiny", b"larger": b"b" * 2_000_000}


class AskingDoor(HeldDoor):
    """Such a door, whose Python side makes requests over the connection of the first call that it was handed."""

    def __init__(self, **settings: float) -> None:
        self.answers: dict[int, Answer] = {}
        super().__init__(**settings)

    def _take(self, event: Event) -> None:
        if event.answer:
            self.answers[event.answer.ticket] = event.answer
        else:
            super()._take(event)

    @property
    def connection(self) -> int:
        return next(iter(self.opened.values())).connection

    def ask(
        self, ticket: int, message: kv_pb2.BatchRequest, *, table: int = 0, deadline_ns: int = NEVER, waits: bool = True
    ) -> None:
        """Make a request; unless `waits` is false, return when it waits for the engine."""
        count = self.library.waiting()
        self.library.submit(self.connection, ticket, table, deadline_ns, message.SerializeToString())
        if waits:
            self.wait_for_requests(count + 1)

    def answer(self, ticket: int) -> tuple[Answer, kv_pb2.BatchResponse]:
        self.wait(lambda: ticket in self.answers)
        answer = self.answers[ticket]
        return answer, kv_pb2.BatchResponse.FromString(answer.data)


@contextmanager
def asking(**settings: float) -> Iterator[tuple[AskingDoor, kv_pb2_grpc.KVStub]]:
    with AskingDoor(**settings) as door, door.client() as kv:
        with pytest.raises(grpc.RpcError):  # a table that there is not: Python is handed the call
            kv.Get(kv_pb2.GetRequest(key=b"k", table="none"), timeout=SECONDS)
        yield door, kv


def test_it_runs_in_one_batch_with_those_of_clients() -> None:
    with asking() as (door, kv):
        setting: Future[Any] = kv.Set.future(kv_pb2.SetRequest(key=b"a"), timeout=SECONDS)
        door.wait_for_requests(1)
        before_ns = time.monotonic_ns()
        door.ask(1, batch([(SET, b"b", b""), (GET, b"c"), (DELETE, b"d")]))
        door.leave()
        assert door.library.left().request_ops.tolist() == [1, 3]
        door.execute_left()
        answer, response = door.answer(1)
        wanted = kv_pb2.BatchResponse(
            status=bytes(3), versions=u64(1, 2, 3), values=VALUE, value_lengths=u32(len(VALUE))
        )
        assert response == wanted
        assert before_ns < answer.submitted_ns <= answer.began_ns <= answer.planned_ns <= answer.durable_ns
        setting.result()
        assert door.library.requests() == 0
        assert door.library.held_bytes("requests") == 0


def test_it_is_durable_before_its_answer_comes() -> None:
    with asking() as (door, _):
        door.ask(1, batch([(SET, b"a", b"")]))
        door.execute(gate=5)
        time.sleep(0.05)
        assert not door.answers
        door.library.durable(5)
        assert door.answer(1)[1].status == bytes(1)


def test_one_that_is_withdrawn_is_not_executed() -> None:
    with asking() as (door, _):
        door.ask(1, batch([(SET, b"a", b"")]))
        door.library.withdraw(door.connection, 1)
        door.library.withdraw(door.connection, 77)  # that there is not
        door.ask(2, batch([(SET, b"b", b"")]))
        door.leave()
        assert door.library.left().keys.tobytes() == b"b"
        door.execute_left()
        answer, _response = door.answer(1)
        assert (answer.code, answer.is_refusal, answer.durable_ns) == (1, True, 0)
        assert door.library.stats().cancelled == 1


def test_one_is_not_executed_after_its_deadline() -> None:
    with asking() as (door, _):
        door.ask(1, batch([(SET, b"a", b"")]), deadline_ns=time.monotonic_ns() + 10_000_000)
        time.sleep(0.02)
        door.drop_all()
        answer, response = door.answer(1)
        assert isinstance(error_of(answer, response), ExpiredRequestError)
        assert door.library.stats().expired == 1


def test_none_is_made_over_a_connection_that_has_ended() -> None:
    with AskingDoor() as door:
        with door.client() as kv, pytest.raises(grpc.RpcError):
            kv.Get(kv_pb2.GetRequest(key=b"k", table="none"), timeout=SECONDS)
        door.wait(lambda: door.library.connections() == 0)
        door.ask(1, batch([(SET, b"a", b"")]), waits=False)
        answer, response = door.answer(1)
        assert isinstance(error_of(answer, response), ConnectionGoneError)
        assert answer.is_refusal
        assert door.library.requests() == 0


def test_one_that_waits_for_the_engine_outlives_its_connection() -> None:
    with AskingDoor() as door:
        with door.client() as kv:
            with pytest.raises(grpc.RpcError):
                kv.Get(kv_pb2.GetRequest(key=b"k", table="none"), timeout=SECONDS)
            door.ask(1, batch([(SET, b"a", b"")]))
        time.sleep(0.05)  # its client is gone; it stays until its requests are back
        door.execute()
        assert door.answer(1)[1].status == bytes(1)


def test_a_full_queue_refuses_it() -> None:
    with asking(queue_requests_max=1) as (door, _):
        door.ask(1, batch([(SET, b"a", b"")]))
        door.ask(2, batch([(SET, b"b", b"")]), waits=False)
        answer, response = door.answer(2)
        error = error_of(answer, response)
        assert isinstance(error, NoSpaceError)
        assert error.resource == "queue"
        assert str(error) == response.message
        assert "as many as queue_requests_max allows" in response.message
        assert sum(door.library.stats().refused) == 0
        door.execute()


def test_a_connection_that_holds_too_much_is_refused() -> None:
    with asking() as (door, _):
        free = door.bounds.clients_bytes_max
        door.library.charge(door.connection, "answers", free)
        door.ask(1, batch([(SET, b"a", b"")]), waits=False)
        answer, response = door.answer(1)
        error = error_of(answer, response)
        assert isinstance(error, NoSpaceError)
        assert error.resource == "memory"
        assert str(error) == response.message
        door.library.charge(door.connection, "answers", -free)
        door.ask(2, batch([(SET, b"a", b"")]))
        door.execute()
        assert door.answer(2)[1].status == bytes(1)


def test_a_table_that_is_gone() -> None:
    with asking() as (door, _):
        door.ask(1, batch([(SET, b"a", b"")], table="t"), table=9)
        door.drop_all()
        answer, response = door.answer(1)
        error = error_of(answer, response)
        assert isinstance(error, UnknownTableError)
        assert str(error) == "table: there is no table 't'"


def test_a_key_from_before_a_limit_was_lowered_can_be_removed() -> None:
    with asking() as (door, _):
        door.ask(1, batch([(DELETE, bytes(70_000))]))
        door.execute()
        assert door.answer(1)[1].status == bytes(1)


def test_a_check_that_stops_it() -> None:
    with asking() as (door, _):
        engine = ToyEngine(door.library)
        engine.conflicts = [(0, ConflictError(1, 7))]
        door.ask(1, batch([(DELETE, b"k"), (CHECK, b"k")], conditions=bytes([0, ABSENT])))
        door.library.turn(0)
        error = error_of(*door.answer(1))
        assert isinstance(error, ConflictError)
        assert (error.index, error.found) == (1, 7)
        assert door.library.stats().conflicts == 0


def test_of_several_each_hears_for_itself() -> None:
    """And what they are refused is counted here: Python gets one response for all of them."""
    with asking() as (door, _):
        engine = ToyEngine(door.library)
        engine.ends = LEFT
        several = batch([(DELETE, b"k"), (CHECK, b"k"), (SET, b"k", b"v"), (DELETE, b"l")], request_ops=u32(1, 1, 1, 1))
        several.id, several.conditions = 7, bytes([0, ABSENT, 0, 0])
        door.ask(1, several)
        door.leave()
        door.library.left_lacks(Left.GROW_HEAP, Refusal(8, "the heap is full", "heap"))
        engine.ends, engine.conflicts = DONE, [(1, ConflictError(0, 7)), (2, Left.GROW_HEAP)]
        assert door.library.run_left()
        answer, response = door.answer(1)
        assert error_of(answer, response) is None
        assert (response.id, response.status) == (7, bytes(2))
        assert [(failure.request, failure.code, failure.full) for failure in response.failures] == [
            (1, 10, ""),
            (2, 8, "heap"),
        ]
        assert door.library.stats().conflicts == door.library.left_without(Left.GROW_HEAP) == 1


@pytest.mark.parametrize(
    "message",
    [
        kv_pb2.BatchRequest(),
        batch([(SET, b"", b"")]),
        batch([(SET, b"a", b"")], request_ops=u32(2)),
        batch([(99, b"a")]),
    ],
    ids=["empty", "key", "several", "operation"],
)
def test_one_that_keeps_no_limits_is_a_fault(message: kv_pb2.BatchRequest) -> None:
    with asking() as (door, _):
        door.ask(1, message, waits=False)
        error = error_of(*door.answer(1))
        assert type(error) is GpkvsError
        assert "keeps no limits" in str(error)


def test_what_waits_at_the_stop_is_refused() -> None:
    with asking() as (door, _):
        door.ask(1, batch([(SET, b"a", b"")]))
        door.library.shut()
        door.library.abandon(Refusal(14, "the server is stopping"))
        assert door.library.turn(0) is Turn.IDLE
        answer, response = door.answer(1)
        assert isinstance(error_of(answer, response), NotServingError)


def answered(code: int, text: str = "", full: str = "", *, is_refusal: bool = True) -> GpkvsError | None:
    response = kv_pb2.BatchResponse(code=code, message=text, full=full)
    return error_of(Answer(1, b"", 0, is_refusal, 1, 0, 0, 0), response)


def test_errors_are_those_of_the_store() -> None:
    assert answered(0) is None
    for error in (NoSpaceError("gpu_memory", "so much"), NoSpaceError("heap", "heap full: twice")):
        found = answered(8, str(error), error.resource)
        assert isinstance(found, NoSpaceError)
        assert (str(found), found.resource) == (str(error), error.resource)
    kinds = {3: InvalidArgumentError, 5: UnknownTableError, 13: GpkvsError, 14: NotServingError, 15: CorruptRecordError}
    for code, kind in kinds.items():
        found = answered(code, "why")
        assert (type(found), str(found)) == (kind, "why")
    assert type(answered(14, "closed", is_refusal=False)) is StoreClosedError
    executed = answered(8, "memory full: none is left", "memory", is_refusal=False)
    assert type(executed) is GpkvsError  # whoever sends it again would do it twice
    nothing = kv_pb2.BatchResponse()
    assert type(error_of(Answer(1, b"", 8, True, 0, 0, 0, 0), nothing)) is NoMemoryError
    assert "was executed" in str(error_of(Answer(1, b"", 13, False, 1, 2, 3, 4), nothing))


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
def test_large_values_come_whole_also_over_a_connection_that_has_closed(tmp_path: Path, *, is_closed: bool) -> None:
    """They are lent to the request, which may be for others than the client that has gone."""
    with blob_store(tmp_path / "store", "journal") as store:
        for key, value in LARGE.items():
            store.set(key, value)
        library = door_of(store.open_tables())
        python = PythonSide(library)
        redis = connect(library.listen("127.0.0.1", 0, Protocol.RESP))
        redis.sendall(command(b"CLIENT", b"ID"))
        opened = python.next()
        assert opened
        assert opened.opened
        turns, table = Turns(library, store, Metrics()), store.open_table("default")
        library.submit(opened.opened.connection, 1, table.id, NEVER, read_of(list(LARGE), table).SerializeToString())
        while not library.waiting():
            time.sleep(0.002)
        if is_closed:
            library.finish(opened.call, 0, "", [])  # until then the door waits for what Python answers
            redis.close()
            time.sleep(0.2)  # the door counts it until its request is back
        turns.maintains = False
        turns.turn()
        end = time.monotonic() + SECONDS
        answer = None
        while not answer:
            assert time.monotonic() < end
            event = python.next()
            answer = event.answer if event else None
        response = kv_pb2.BatchResponse.FromString(answer.data)
        assert error_of(answer, response) is None
        assert {key: record.value for key, record in found_by(response, list(LARGE)).items()} == LARGE
        redis.close()
        library.delete()
