"""Whose calls the native door serves itself, when it asks who calls, and what it hands on: the test is Python."""

from __future__ import annotations

import queue
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.batch import Op
from gpkvs.config import DEFAULT_TABLE, Limits, ServerConfig
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.account.bounds import bounds_of
from gpkvs.server.calls.context import Opened
from gpkvs.server.door.library import Event, EventKind, Library, Protocol, Refusal, Turn
from gpkvs.store import OpenTable
from tests.accounts import Header, bearer
from tests.certificates import HERE, Authority
from tests.door.blob_door import wait_for
from tests.server.wire import batch, trailing_of

SECONDS_MAX = 20
NEVER_NS = (1 << 64) - 1
TABLE, OTHER = 3, 7
READ, WRITE = 1, 2
ALICE, BOB = 1, 2
NAMES = (
    "IP:2001:db8::1",
    "URI:spiffe://example/a",
    "DNS:a.example",
    "EMAIL:a@b.example",
    "DNS:b.example",
)

Call = Callable[[Header], Any]


class Place:
    """A door that asks for logins, and a connection to it."""

    def __init__(self, folder: Path) -> None:
        config = ServerConfig()
        self.door = Library(config, bounds_of(config, Limits(), 64 << 20, 1 << 30))
        self.door.ask_for_logins()
        tables = ((TABLE, DEFAULT_TABLE), (OTHER, "other"))
        self.door.set_tables(
            OpenTable(id=number, name=name, layout=BYTES_LAYOUT.name, limits=Limits()) for number, name in tables
        )
        self.authority = Authority(folder)
        server, self.client = self.authority.issue("server", *HERE), self.authority.issue("client", *NAMES)
        files = [path.read_bytes() for path in (server.cert, server.key, self.authority.path)]
        self.door.set_tls(*files, SECONDS_MAX)
        self.door.open()
        self.target = f"localhost:{self.door.listen('127.0.0.1', 0, Protocol.GRPC)}"
        self.channel = self.connect()
        self.kv = kv_pb2_grpc.KVStub(self.channel)

    def connect(self) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(self.target, self.authority.credentials(self.client), options)

    def close(self) -> None:
        self.channel.close()
        self.door.delete()

    def get(self, header: Header) -> Any:
        return self.kv.Get.future(kv_pb2.GetRequest(key=b"k"), metadata=header)

    def set(self, header: Header) -> Any:
        return self.kv.Set.future(kv_pb2.SetRequest(key=b"k"), metadata=header)

    def event(self, *kinds: EventKind) -> Event:
        """Return the next event of one of these kinds."""
        give_up = time.monotonic() + SECONDS_MAX
        while time.monotonic() < give_up:
            select.select([self.door.events_file()], [], [], 0.1)
            for event in self.door.events():
                if event.kind in kinds:
                    return event
        pytest.fail(f"none of {kinds} comes")

    def opened(self, kind: EventKind = EventKind.OPEN) -> Opened:
        """Return the call that the door hands to Python next, or of which it asks who makes it."""
        event = self.event(EventKind.OPEN, EventKind.LOGIN)
        assert event.kind is kind
        assert event.opened
        return event.opened

    def handed_on(self, call: Call, header: Header) -> Opened:
        """Make a call that the door hands to Python; it has ended then."""
        return self._ended(call(header), EventKind.OPEN)

    def asked(self, call: Call, header: Header) -> Opened:
        """Make a call of which the door asks who makes it: nobody, and it has ended then."""
        opened = self._ended(call(header), EventKind.LOGIN)
        assert opened.caller == 0
        return opened

    def _ended(self, future: Any, kind: EventKind) -> Opened:
        opened = self.opened(kind)
        self.finish(opened, future)
        return opened

    def finish(self, opened: Opened, future: Any) -> None:
        self.door.finish(opened.id, grpc.StatusCode.UNAUTHENTICATED.value[0], "", [])
        assert future.exception(SECONDS_MAX).code() is grpc.StatusCode.UNAUTHENTICATED

    def is_served(self, call: Call, header: Header) -> bool:
        """Make a call that the door gives to the engine; it has ended then."""
        return self.serves(call(header))

    def serves(self, future: Any) -> bool:
        if self.door.turn(SECONDS_MAX) is not Turn.LEFT:
            return False
        self.door.left_failed(Refusal(grpc.StatusCode.INTERNAL.value[0], "served"))
        return bool(future.exception(SECONDS_MAX).details() == "served")

    def let_in(
        self, opened: Opened, caller: int, *, tables: tuple[int, ...] = (TABLE,), may: int = READ | WRITE, **how: int
    ) -> None:
        """Say who makes a call."""
        self.door.set_rights(caller, tables, bytes([may] * len(tables)))
        self.door.logged_in(opened.id, caller, how.get("end_ns", NEVER_NS), how.get("idle_ns", NEVER_NS))
        self.door.finish(opened.id, 0, "", [])

    def log_in(self, header: Header, caller: int, **how: Any) -> None:
        """Say who shows a header, as Python does with the first call that shows it, here one of no method."""
        future = self.channel.unary_unary("/gpkvs.v1.KV/Nothing").future(b"", metadata=header)
        self.let_in(self.opened(), caller, **how)
        assert future.code() is grpc.StatusCode.OK

    def counts(self, method: int) -> dict[str, int]:
        """Return how often calls of a method began, and how they ended."""
        stats = self.door.stats().methods[method]
        ended = {code.name: stats.handled[code.value[0]] for code in grpc.StatusCode if stats.handled[code.value[0]]}
        return {"started": stats.started} | ended


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def test_a_login_counts_for_what_was_shown_and_nothing_else(place: Place) -> None:
    header = bearer("gpkvs_token")
    assert place.asked(place.get, header)
    place.log_in(header, ALICE)
    assert place.is_served(place.get, header)
    assert place.is_served(place.set, header)
    for other in (bearer("gpkvs_tokem"), bearer("gpkvs_token1"), bearer("gpkvs_toke"), bearer(""), header * 2, ()):
        opened = place.asked(place.get, other)
        assert [pair for pair in opened.metadata if pair[0] == "authorization"] == list(other)
    assert place.is_served(place.get, header)


def test_a_login_counts_for_its_connection(place: Place) -> None:
    place.log_in(bearer("a"), ALICE)
    with place.connect() as channel:
        call = kv_pb2_grpc.KVStub(channel).Get
        assert place.asked(lambda header: call.future(kv_pb2.GetRequest(key=b"k"), metadata=header), bearer("a"))


def test_what_a_caller_may_not_do_is_for_python(place: Place) -> None:
    """Python is told whom the door takes the caller for."""
    header = bearer("a")
    place.log_in(header, ALICE, may=READ)
    assert place.is_served(place.get, header)
    assert place.handed_on(place.set, header).caller == ALICE

    def batch_of(*ops: Op, table: str = "", conditions: bytes = b"") -> Call:
        values = {Op.SET: b"v", Op.APPEND: b"v", Op.INCREMENT: bytes(8)}
        operations = [(op, b"k", values[op]) if op in values else (op, b"k") for op in ops]
        message = batch(operations, table=table, conditions=conditions)
        return lambda header: place.kv.Batch.future(message, metadata=header)

    assert place.is_served(batch_of(Op.GET, Op.EXISTS, Op.EXPIRY), header)
    for call in (batch_of(Op.GET, Op.SET), batch_of(Op.DELETE), batch_of(), batch_of(Op.GET, table="other")):
        assert place.handed_on(call, header).caller == ALICE
    for op in (Op.INCREMENT, Op.APPEND, Op.EXPIRE):
        assert place.handed_on(batch_of(op), header).caller == ALICE
    place.door.set_rights(ALICE, [TABLE, OTHER], bytes([WRITE, READ]))
    assert place.is_served(place.set, header)
    assert place.is_served(batch_of(Op.SET, Op.DELETE, Op.APPEND, Op.EXPIRE), header)
    # What becomes of it tells what is there.
    for call in (batch_of(Op.INCREMENT), batch_of(Op.EXPIRY), batch_of(Op.SET, conditions=b"\1")):
        assert place.handed_on(call, header).caller == ALICE
    assert place.is_served(batch_of(Op.GET, table="other"), header)
    assert place.handed_on(place.get, header).caller == ALICE


def test_a_login_ends(place: Place) -> None:
    place.log_in(bearer("a"), ALICE, end_ns=time.monotonic_ns() + 300_000_000)
    place.log_in(bearer("b"), BOB, idle_ns=300_000_000)
    for _ in range(4):
        assert place.is_served(place.get, bearer("b"))
        time.sleep(0.1)
    assert place.asked(place.get, bearer("a"))
    assert place.is_served(place.get, bearer("b")), "it is used"
    time.sleep(0.4)
    assert place.asked(place.get, bearer("b"))


def test_callers_who_are_gone(place: Place) -> None:
    """Their calls that wait for a message are handed on at once, later ones as those of nobody."""
    place.log_in(bearer("a"), ALICE)
    place.log_in(bearer("b"), BOB)
    messages: queue.Queue[bytes] = queue.Queue()
    waiting = place.channel.stream_unary("/gpkvs.v1.KV/Set").future(iter(messages.get, None), metadata=bearer("a"))
    assert place.is_served(place.get, bearer("a")), "what waits has come before"
    place.door.end_caller(ALICE)
    opened = place.opened()
    assert (opened.path, opened.caller) == ("/gpkvs.v1.KV/Set", ALICE)
    place.finish(opened, waiting)
    messages.put(b"")
    assert place.asked(place.get, bearer("a"))
    assert place.is_served(place.get, bearer("b"))


def test_a_certificate_is_a_login(place: Place) -> None:
    opened = place.asked(place.get, ())
    assert opened.certificate == (NAMES[2], NAMES[4], NAMES[1], NAMES[3], NAMES[0])
    place.log_in((), ALICE)
    assert place.is_served(place.get, ())
    place.log_in(bearer("b"), BOB)
    place.door.forget_certificates()
    assert place.asked(place.get, ())
    assert place.is_served(place.get, bearer("b"))


def test_the_logins_of_a_connection_are_bounded(place: Place) -> None:
    """The one that was used longest ago makes room."""
    for number in range(256):
        place.log_in(bearer(str(number)), ALICE)
    assert place.is_served(place.get, bearer("0"))
    place.log_in(bearer("256"), BOB)
    assert place.asked(place.get, bearer("1"))
    for known in ("0", "2", "256"):
        assert place.is_served(place.get, bearer(known))


def test_a_connection_is_closed_when_it_has_its_answers(place: Place) -> None:
    place.log_in(bearer("a"), ALICE)
    opened = place.asked(place.get, ())
    future = place.get(bearer("a"))
    assert place.door.turn(SECONDS_MAX) is Turn.LEFT
    place.door.close_answered([opened.peer])
    time.sleep(0.3)
    assert place.door.connections() == 1
    place.door.left_failed(Refusal(grpc.StatusCode.INTERNAL.value[0], "served"))
    assert future.exception(SECONDS_MAX).details() == "served"
    give_up = time.monotonic() + SECONDS_MAX
    while place.door.connections():
        assert time.monotonic() < give_up
        time.sleep(0.01)


GET, SET, PIPELINE = 0, 1, 6  # methods, as the door counts them


def test_the_call_that_shows_a_login_is_served_itself(place: Place) -> None:
    """Python says who makes it, and hears nothing else of it."""
    operations = batch([(Op.GET, b"k")])
    for number, (method, message) in enumerate(
        (
            ("Get", kv_pb2.GetRequest(key=b"k")),
            ("Set", kv_pb2.SetRequest(key=b"k")),
            ("Delete", kv_pb2.DeleteRequest(key=b"k")),
            ("Increment", kv_pb2.IncrementRequest(key=b"k")),
            ("MultiGet", kv_pb2.MultiGetRequest(keys=[b"k"])),
            ("Batch", operations),
        )
    ):
        future = getattr(place.kv, method).future(message, metadata=bearer(str(number)))
        place.let_in(place.opened(EventKind.LOGIN), ALICE)
        assert place.serves(future)
        assert place.counts(number) == {"started": 1, "INTERNAL": 1}
    stream = place.kv.Pipeline(iter([operations]), metadata=bearer("stream"))
    place.let_in(place.opened(EventKind.LOGIN), ALICE)
    assert place.door.turn(SECONDS_MAX) is Turn.LEFT
    place.door.left_failed(Refusal(grpc.StatusCode.INTERNAL.value[0], "served"))
    assert [response.message for response in stream] == ["served"]
    assert place.counts(PIPELINE) == {"started": 1, "OK": 1}
    assert not place.door.events()


def test_whoever_is_refused_ends_with_what_python_says(place: Place) -> None:
    future = place.set(bearer("a"))
    opened = place.opened(EventKind.LOGIN)
    assert opened.path == "/gpkvs.v1.KV/Set"
    place.door.finish(opened.id, grpc.StatusCode.UNAUTHENTICATED.value[0], "who?", [("gpkvs-executed", "no")])
    error = future.exception(SECONDS_MAX)
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAUTHENTICATED, "who?")
    assert trailing_of(error) == {"gpkvs-executed": "no"}
    assert place.counts(SET) == {"started": 1, "UNAUTHENTICATED": 1}


def test_what_comes_before_the_login_is_bounded(place: Place) -> None:
    """The client waits with the rest of its message, also one who would not be let in."""
    future = place.kv.Set.future(kv_pb2.SetRequest(key=b"k", value=bytes(3 << 20)), metadata=bearer("a"))
    opened = place.opened(EventKind.LOGIN)
    before = time.monotonic()
    while time.monotonic() < before + 0.5:
        assert place.door.held_bytes("requests") <= 64 << 10
    place.let_in(opened, ALICE)
    assert place.serves(future)


def test_a_call_without_a_message_is_for_python(place: Place) -> None:
    """It has ended before anybody asked for its message."""
    future = place.channel.stream_unary("/gpkvs.v1.KV/Set").future(iter(()), metadata=bearer("a"))
    opened = place.opened(EventKind.LOGIN)
    time.sleep(0.1)
    place.let_in(opened, ALICE)
    opened = place.opened()
    assert opened.caller == ALICE
    place.door.ask(opened.id)
    place.event(EventKind.HALF_CLOSED)
    place.finish(opened, future)


def test_whom_the_door_does_not_know_all_the_same(place: Place) -> None:
    """It may have no memory for a login. Python serves such a call, and counts its end."""
    future = place.get(bearer("a"))
    place.door.finish(place.opened(EventKind.LOGIN).id, 0, "", [])
    opened = place.opened()
    assert (opened.caller, opened.is_counted) == (0, True)
    place.finish(opened, future)
    assert place.counts(GET) == {"started": 1}


def test_a_caller_who_goes_at_once(place: Place) -> None:
    """Python refuses the call, also where no message comes."""
    messages: queue.Queue[bytes] = queue.Queue()
    future = place.channel.stream_unary("/gpkvs.v1.KV/Set").future(iter(messages.get, None), metadata=bearer("a"))
    opened = place.opened(EventKind.LOGIN)
    place.door.set_rights(ALICE, [TABLE], bytes([READ]))
    place.door.logged_in(opened.id, ALICE, NEVER_NS, NEVER_NS)
    place.door.end_caller(ALICE)
    place.door.finish(opened.id, 0, "", [])
    opened = place.opened()
    assert opened.caller == ALICE
    place.finish(opened, future)
    messages.put(b"")


def test_the_door_is_shut_before_the_login_is_known(place: Place) -> None:
    future = place.get(bearer("a"))
    opened = place.opened(EventKind.LOGIN)
    place.door.shut()
    place.let_in(opened, ALICE)
    place.finish(place.opened(), future)


@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
def test_a_call_ends_before_its_login_is_known(place: Place, how: str) -> None:
    seconds = 0.3 if how == "deadline" else None
    future = place.kv.Get.future(kv_pb2.GetRequest(key=b"k"), metadata=bearer("a"), timeout=seconds)
    opened = place.opened(EventKind.LOGIN)
    if how == "cancel":
        future.cancel()
    elif how == "close":
        place.channel.close()
    assert place.event(EventKind.OVER).call == opened.id
    place.let_in(opened, ALICE)  # too late
    wait_for(lambda: len(place.counts(GET)) > 1)
    [ended] = place.counts(GET).keys() - {"started"}
    # The client resets a call whose deadline has passed; the door may see either first.
    assert ended in (("CANCELLED", "DEADLINE_EXCEEDED") if how == "deadline" else ("CANCELLED",))
    assert place.counts(GET) == {"started": 1, ended: 1}
    if how != "close":
        assert place.asked(place.get, bearer("a"))


def test_a_call_that_ends_before_python_hears_of_it(place: Place) -> None:
    """A flood of them is no work for Python."""
    with place.connect() as channel:
        future = kv_pb2_grpc.KVStub(channel).Get.future(kv_pb2.GetRequest(key=b"k"), metadata=bearer("a"))
        wait_for(lambda: place.counts(GET)["started"] == 1)
    wait_for(lambda: place.counts(GET) == {"started": 1, "CANCELLED": 1})
    assert future.code() is grpc.StatusCode.CANCELLED
    assert not place.door.events()
