"""What ends a request, at each moment of its life: nobody gets a wrong answer, nor one before it is durable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gpkvs.batch import Op
from gpkvs.bench.door.frames import DATA, END_HEADERS, END_STREAM, HEADERS, RST, WINDOW, call_headers, frame, message
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.left_batch import Results
from gpkvs.server.door.library import Turn
from tests.door.by_hand import BEGIN, Client
from tests.door.echo import MIB
from tests.door.held_door import PYTHON, HeldDoor
from tests.server.wire import EXISTS, GET, SET, batch, u32

MOMENTS = PARSING, QUEUED, IN_BATCH, COMMITTED, HALF_SENT = [
    "parsing",
    "queued",
    "in a batch",
    "committed",
    "half sent",
]
LARGE, WINDOW_BYTES = b"large", 65_535  # what a client takes unasked
DEADLINE_SECONDS = 0.3
CANCEL = (8).to_bytes(4, "big")
GATE = 1


def value_of(key: bytes) -> bytes:
    return b"the value of " + key * (20_000 if key.startswith(LARGE) else 1)


def get_response(key: bytes) -> bytes:
    return message(kv_pb2.GetResponse(found=True, value=value_of(key)).SerializeToString())


class Held(HeldDoor):
    """Finds the `value_of` each key."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        super().__init__()

    def answer(self, gate: int) -> None:
        """Say what became of the batch that the turn left."""
        left = self.library.left()
        ends = np.cumsum(left.key_lengths)
        keys = [left.keys[end - size : end].tobytes() for end, size in zip(ends, left.key_lengths, strict=True)]
        values = [value_of(key) for op, key in zip(left.ops, keys, strict=True) if op == Op.GET]
        self.stored += [key for op, key in zip(left.ops, keys, strict=True) if op == Op.SET]
        results = Results(
            np.zeros(len(left), np.uint8),
            None,
            np.array([len(value) for value in values], np.uint32),
            np.frombuffer(b"".join(values), np.uint8),
        )
        self.library.left_done(len(left.request_ops), results, gate)

    def answer_all(self) -> None:
        """Run turns until nothing waits; all of it is durable."""
        while self.library.turn(0) is Turn.LEFT:
            self.answer(GATE)
        assert not self.library.waiting()


@pytest.fixture
def door() -> Iterator[Held]:
    with Held() as made:
        yield made
        library = made.library
        made.wait(lambda: library.connections() == library.requests() == library.clients_bytes() == 0)
        assert library.held_bytes("batch") == 0


class Place:
    """One client whose request ends, and one that asks for other keys beside it."""

    def __init__(self, door: Held, client: Client, other: Client, moment: str, deadline: str) -> None:
        self.door, self.client, self.other, self.moment = door, client, other, moment
        self.whole = message(batch([(SET, b"set"), (GET, LARGE), (EXISTS, b"k")], id=7).SerializeToString())
        more = [("grpc-timeout", deadline)] if deadline else []
        client.send(frame(HEADERS, END_HEADERS, 1, call_headers("/gpkvs.v1.KV/Batch", more)))
        client.send(frame(DATA, 0, 1, self.whole[:9]))
        self.ask(1)
        if moment != PARSING:
            self.send_rest()
            door.wait_for_requests(2)
        if moment in MOMENTS[2:]:
            door.leave()
        if moment in MOMENTS[3:]:
            door.answer(GATE)
        if moment == HALF_SENT:
            door.library.durable(GATE)
            while len(client.messages(1)) < WINDOW_BYTES:
                client.receive()

    def send_rest(self) -> None:
        self.client.send(frame(DATA, END_STREAM, 1, self.whole[9:]))

    def ask(self, stream: int) -> None:
        key = b"key of %d" % stream
        self.other.call("/gpkvs.v1.KV/Get", message(kv_pb2.GetRequest(key=key).SerializeToString()), stream)
        if stream == 1:
            self.door.wait_for_requests(1)

    def require_silence(self) -> None:
        """Nobody hears of what is not durable."""
        if self.moment != HALF_SENT:
            time.sleep(0.02)
            assert not [stream for stream in (1, 3) if self.other.messages(stream)]
            assert not self.client.messages(1)

    def go_on(self) -> None:
        """Bring all that is left to its end."""
        if self.moment == IN_BATCH:
            self.door.answer(GATE)
        self.require_silence()
        self.door.library.durable(GATE)
        waiting, handed = self.door.library.waiting(), len(self.door.handed)
        self.ask(3)
        self.door.wait(lambda: self.door.library.waiting() > waiting or len(self.door.handed) > handed)
        self.door.answer_all()

    def require_answers(self, *, is_there: bool = True) -> None:
        """The other client has its answers, as long as there is the table."""
        for stream in (1, 3):
            is_found = is_there or (stream == 1 and self.moment in MOMENTS[2:])
            trailers = self.other.trailers(stream)
            assert trailers == {"grpc-status": "0"} if is_found else trailers["grpc-message"] == PYTHON
            assert self.other.messages(stream) == (get_response(b"key of %d" % stream) if is_found else b"")

    @property
    def response(self) -> bytes:
        """The right one."""
        value = value_of(LARGE)
        expected = kv_pb2.BatchResponse(id=7, status=bytes(3), values=value, value_lengths=u32(len(value)))
        return message(expected.SerializeToString())

    def require_part(self) -> None:
        """What came of a response before its end is right."""
        came = self.client.messages(1)
        assert self.response.startswith(came)
        assert bool(came) == (self.moment == HALF_SENT)

    def require_nothing_wasted(self) -> None:
        """What was not in a batch is not executed any more."""
        assert self.door.stored == ([b"set"] if self.moment in MOMENTS[2:] else [])


@pytest.fixture(params=MOMENTS)
def place(request: pytest.FixtureRequest, door: Held) -> Iterator[Callable[[str], Place]]:
    with Client(door) as client, Client(door) as other:
        yield lambda deadline: Place(door, client, other, request.param, deadline)


def test_a_call_is_reset(place: Callable[[str], Place]) -> None:
    made = place("")
    made.client.send(frame(RST, 0, 1, CANCEL))
    made.client.call("/gpkvs.v1.Admin/Info", message(b""), 3)  # Python answers it, so the reset has been seen
    assert made.client.trailers(3)
    made.go_on()
    made.require_answers()
    made.require_part()
    made.require_nothing_wasted()


def test_a_deadline_passes(place: Callable[[str], Place]) -> None:
    made = place(f"{int(1e3 * DEADLINE_SECONDS)}m")
    if made.moment == HALF_SENT:
        assert made.client.wait(RST, 1).payload == CANCEL
    else:
        trailers = made.client.trailers(1)
        assert (trailers["grpc-status"], trailers["grpc-message"]) == ("4", "Deadline Exceeded")
    made.go_on()
    made.require_answers()
    made.require_part()
    made.require_nothing_wasted()


def test_a_connection_is_closed(place: Callable[[str], Place]) -> None:
    made = place("")
    made.client.__exit__()
    if made.moment in (PARSING, HALF_SENT):
        made.door.wait(lambda: made.door.library.connections() == 1)
    else:
        time.sleep(0.05)  # it waits for its request
    made.go_on()
    made.require_answers()
    made.require_nothing_wasted()


def test_a_table_is_dropped(place: Callable[[str], Place]) -> None:
    made = place("")
    made.door.library.set_tables([])
    made.client.send(b"".join(frame(WINDOW, 0, stream, MIB.to_bytes(4, "big")) for stream in (0, 1)))
    if made.moment == PARSING:
        made.send_rest()
        made.door.wait(lambda: len(made.door.handed) == 1)
    made.go_on()
    made.require_answers(is_there=False)
    trailers = made.client.trailers(1)
    if made.moment in MOMENTS[2:]:
        assert (trailers, made.client.messages(1)) == ({"grpc-status": "0"}, made.response)
    else:
        assert trailers["grpc-message"] == PYTHON
        assert not made.client.messages(1)
    made.require_nothing_wasted()


def test_a_deadline_that_the_engine_sees_first(door: Held) -> None:
    with Client(door) as client:
        for stream in range(1, 101, 2):
            data = message(kv_pb2.GetRequest(key=b"k").SerializeToString())
            client.call("/gpkvs.v1.KV/Get", data, stream, more=[("grpc-timeout", "1n")])
            door.library.turn(0.005)
            trailers = client.trailers(stream)
            assert trailers["grpc-status"] == "4"
            if door.library.stats().expired:
                break
        assert trailers["grpc-message"] == "Deadline Exceeded"
        assert trailers["gpkvs-executed"] == "no"
        assert not client.messages(stream)


def test_a_request_for_whose_answer_there_is_no_room(door: Held) -> None:
    """Its connection holds too much when its turn comes; the others are served."""
    library = door.library
    with Client(door) as client, Client(door) as other:
        client.call("/gpkvs.v1.Admin/Info", message(b""), 1)  # Python's
        door.wait(lambda: len(door.opened) == 1)
        (opened,) = door.opened.values()
        for made in (client, other):
            made.call("/gpkvs.v1.KV/Get", message(kv_pb2.GetRequest(key=b"k").SerializeToString()), 3)
        door.wait_for_requests(2)
        much = 6 * door.bounds.clients_bytes_max // 10
        held = library.held_bytes("answers") + much
        library.charge(opened.connection, "answers", much + 1)
        library.charge(opened.connection, "answers", -1)
        door.wait(lambda: library.held_bytes("answers") == held)  # the connection's thread has counted both
        door.leave()
        door.answer(0)
        trailers = client.trailers(3)
        assert trailers["grpc-status"] == "8"
        assert trailers["grpc-message"].startswith(f"memory full: this connection holds {much // 1000:,}"[:-3])
        assert (trailers["gpkvs-executed"], trailers["gpkvs-full"]) == ("no", "memory")
        assert other.trailers(3) == {"grpc-status": "0"}
        assert other.messages(3) == get_response(b"k")
        library.charge(opened.connection, "answers", -much)


def conversation(name: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Return calls of all plain methods, and what they are to be answered."""
    several = batch([(GET, name), (SET, name, b"v"), (GET, name + b"2")], id=300)
    values = [value_of(name), value_of(name + b"2")]
    answer = kv_pb2.BatchResponse(
        id=300, status=bytes(3), values=b"".join(values), value_lengths=u32(*map(len, values))
    )
    sent, answers = BEGIN, {}
    for stream, (method, requests, expected) in enumerate(
        (
            ("Get", [kv_pb2.GetRequest(key=name)], get_response(name)),
            ("Set", [kv_pb2.SetRequest(key=name, value=b"v")], message(b"")),
            ("Batch", [several], message(answer.SerializeToString())),
            ("Pipeline", [several, several], message(answer.SerializeToString()) * 2),
        )
    ):
        data = b"".join(message(request.SerializeToString()) for request in requests)
        sent += frame(HEADERS, END_HEADERS, 2 * stream + 1, call_headers(f"/gpkvs.v1.KV/{method}"))
        sent += frame(DATA, 0, 2 * stream + 1, data[:7]) + frame(DATA, END_STREAM, 2 * stream + 1, data[7:])
        answers[2 * stream + 1] = expected
    return sent, answers


def test_requests_cut_at_every_byte(door: Held) -> None:
    """Two connections' bytes come in turns; each gets its own answers."""
    is_over = threading.Event()

    def run_turns() -> None:
        while not is_over.is_set():
            if door.library.turn(0.01) is Turn.LEFT:
                door.answer(0)

    turns = threading.Thread(target=run_turns)
    turns.start()
    try:
        conversations = [conversation(name) for name in (b"one", b"another")]
        for cut in range(len(BEGIN), max(len(sent) for sent, _ in conversations)):
            clients = [Client(door, sent[:cut]) for sent, _ in conversations]
            for client, (sent, _) in zip(clients, conversations, strict=True):
                client.send(sent[cut:])
            for client, (_, answers) in zip(clients, conversations, strict=True):
                with client:
                    for stream, expected in answers.items():
                        assert client.trailers(stream) == {"grpc-status": "0"}, cut
                        assert client.messages(stream) == expected, cut
    finally:
        is_over.set()
        turns.join()
