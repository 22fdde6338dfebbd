"""What a connection that speaks RESP hands to Python, and how they go on."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from gpkvs.batch import Op
from gpkvs.config import Limits
from gpkvs.server.door.left_batch import Results
from gpkvs.server.door.library import EventKind, Library, Refusal, Turn
from tests.server.door.resp_door import PythonSide, answers, bare_door, command, connect

VALUE = b"a value"
LIMITS = Limits(key_bytes_max=100, value_bytes_max=5000, request_ops_max=50)
NEVER_NS = (1 << 64) - 1


class Client:
    """A client, the engine, and Python's side of the client's connection; a test is all three."""

    def __init__(self, library: Library, connection: socket.socket) -> None:
        self.library = library
        self.connection = connection
        self.python = PythonSide(library)

    def send(self, *commands: list[bytes]) -> None:
        """Send commands, at once."""
        self.connection.sendall(b"".join(command(*words) for words in commands))

    def ask(self, *words: bytes) -> bytes:
        """Send a command that needs neither the engine nor Python."""
        self.send([*words])
        return answers(self.connection, 1)

    def rest(self) -> bytes:
        """Read until the door closes the connection."""
        with self.connection.makefile("rb") as stream:
            return stream.read()

    def execute(self) -> list[tuple[Op, bytes]]:
        """Run a batch in which everything is found; return its operations."""
        turn = self.library.turn(10)
        assert turn is Turn.LEFT, turn
        batch = self.library.left()
        gets = int(np.count_nonzero(batch.ops == Op.GET.value))
        ends = np.cumsum(batch.key_lengths)
        keys = [batch.keys[end - size : end].tobytes() for end, size in zip(ends, batch.key_lengths, strict=True)]
        found = [(Op(op), key) for op, key in zip(batch.ops.tolist(), keys, strict=True)]
        lengths, values = np.full(gets, len(VALUE), np.uint32), np.frombuffer(VALUE * gets, np.uint8)
        self.library.left_done(
            len(batch.request_ops), Results(np.zeros(len(batch), np.uint8), None, lengths, values), 0
        )
        return found

    def is_silent(self) -> bool:
        """Return whether nothing happens that Python or the engine would see."""
        return self.python.next(0.05) is None and self.library.waiting() == 0


@contextmanager
def client() -> Iterator[Client]:
    """Yield a client of a door."""
    with bare_door(LIMITS) as (library, port), connect(port) as connection:
        yield Client(library, connection)


HANDED = [
    [b"INCR", b"a"],
    [b"nonsense"],
    [b"", b"\x00\r\n", b""],
    [b"GET"],
    [b"GET", b"a", b"b"],
    [b"SET", b"a"],
    [b"SET", b"a", b"1", b"NX"],
    [b"MSET", b"a", b"1", b"b"],
    [b"MGET"],
    [b"ECHO"],
    [b"PING", b"a", b"b"],
    [b"GET", b""],
    [b"GET", b"x" * (LIMITS.key_bytes_max + 1)],
    [b"SET", b"a", b"x" * (LIMITS.value_bytes_max + 1)],
    [b"DEL", *[b"k"] * (LIMITS.request_ops_max + 1)],
]


def test_what_is_not_plain_is_python_s() -> None:
    with client() as one:
        call = None
        for words in HANDED:
            one.send(words)
            call = call or one.python.open()
            assert one.python.words(call) == words
            one.python.answer(call, b"+%d\r\n" % len(words))
            assert answers(one.connection, 1) == b"+%d\r\n" % len(words)
        assert one.library.waiting() == 0


def test_python_is_told_who_calls() -> None:
    with client() as one:
        one.send([b"INCR", b"a"])
        event = one.python.next()
        assert event is not None
        assert event.opened is not None
        host, port = one.connection.getsockname()
        assert event.opened.peer == f"ipv4:{host}:{port}"
        assert (event.opened.path, event.opened.metadata, event.opened.deadline) == ("/redis", [], None)
        assert event.opened.certificate == ()


def test_a_command_of_python_s_waits_for_those_before_it_and_those_behind_it_for_python() -> None:
    with client() as one:
        one.send([b"SET", b"a", b"1"], [b"GET", b"a"], [b"INCR", b"a"], [b"GET", b"b"], [b"PING"], [b"INCR", b"b"])
        while one.library.waiting() < 2:
            time.sleep(0.001)
        assert one.python.next(0.05) is None
        executed = one.execute()
        if len(executed) < 2:  # the first was a batch of its own
            assert one.python.next(0.05) is None
            executed += one.execute()
        assert executed == [(Op.SET, b"a"), (Op.GET, b"a")]
        call = one.python.open()
        assert one.python.words(call) == [b"INCR", b"a"]
        assert one.is_silent()
        one.python.answer(call, b":2\r\n")
        assert one.execute() == [(Op.GET, b"b")]
        assert one.python.words(call) == [b"INCR", b"b"]
        one.python.answer(call, b":3\r\n")
        expected = b"+OK\r\n$7\r\na value\r\n:2\r\n$7\r\na value\r\n+PONG\r\n:3\r\n"
        assert answers(one.connection, 6) == expected


def test_a_command_comes_when_python_asks_for_it() -> None:
    with client() as one:
        one.send([b"INCR", b"a"], [b"INCR", b"b"])
        event = one.python.next()
        assert event is not None
        assert event.kind is EventKind.OPEN
        call = event.call
        assert one.is_silent()
        one.library.ask(call)
        assert one.python.words(call) == [b"INCR", b"a"]
        one.library.respond(call, b":1\r\n")
        assert one.is_silent()
        one.library.ask(call)
        assert one.python.words(call) == [b"INCR", b"b"]


def test_an_answer_may_be_empty_or_large() -> None:
    large = b"$1000000\r\n" + bytes(1_000_000) + b"\r\n"
    with client() as one:
        one.send([b"CLIENT", b"REPLY", b"SKIP"], [b"A"], [b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"CLIENT", b"REPLY", b"SKIP"]
        one.python.answer(call, b"")
        assert one.python.words(call) == [b"A"]
        one.python.answer(call, large)
        assert answers(one.connection, 2) == large + b"+PONG\r\n"


def test_a_session_goes_on_as_python_says() -> None:
    def go_on(*, table: int | None = 0, protocol: int = 2, hands_all: bool = False) -> None:
        one.send([b"SELECT"], [b"ECHO", b"behind"])
        assert one.python.words(call) == [b"SELECT"]
        one.library.set_session(call, table, protocol, hands_all=hands_all)
        one.python.answer(call, b"+OK\r\n")
        if hands_all:
            assert one.python.words(call) == [b"ECHO", b"behind"]
            one.python.answer(call, b"$6\r\nbehind\r\n")
        assert answers(one.connection, 2) == b"+OK\r\n$6\r\nbehind\r\n"

    def is_handed(*words: bytes) -> bool:
        one.send([*words])
        event = one.python.next(0.05)
        if event is None:
            one.execute()
        else:
            one.python.answer(call, b"+handed\r\n")
        return answers(one.connection, 1) == b"+handed\r\n"

    with client() as one:
        one.send([b"HELLO"])
        call = one.python.open()
        assert one.python.words(call) == [b"HELLO"]
        one.python.answer(call, b"+OK\r\n")
        answers(one.connection, 1)
        assert not is_handed(b"GET", b"a")
        for table in (None, 5):  # there is no such table
            go_on(table=table)
            assert is_handed(b"GET", b"a")
        go_on(hands_all=True)
        assert is_handed(b"GET", b"a")
        assert is_handed(b"PING")
        go_on()
        assert not is_handed(b"GET", b"a")


def test_nothing_is_an_underscore_in_resp3() -> None:
    with client() as one:
        one.send([b"GET", b"a"], [b"HELLO", b"3"], [b"GET", b"a"], [b"MGET", b"a", b"b"])
        for protocol in (2, 3):
            while one.library.turn(10) is not Turn.LEFT:
                pass
            batch = one.library.left()
            gets = len(batch)
            missing = Results(np.ones(gets, np.uint8), None, np.zeros(gets, np.uint32), np.zeros(0, np.uint8))
            one.library.left_done(len(batch.request_ops), missing, 0)
            if protocol == 2:
                call = one.python.open()
                assert one.python.words(call) == [b"HELLO", b"3"]
                one.library.set_session(call, 0, 3, hands_all=False)
                one.python.answer(call, b"+OK\r\n")
        if gets == 1:
            one.library.turn(10)
            missing = Results(np.ones(2, np.uint8), None, np.zeros(2, np.uint32), np.zeros(0, np.uint8))
            one.library.left()
            one.library.left_done(1, missing, 0)
        expected = b"$-1\r\n+OK\r\n_\r\n*2\r\n_\r\n_\r\n"
        found = b""
        while len(found) < len(expected):
            found += one.connection.recv(100)
        assert found == expected


def test_python_ends_a_connection_behind_its_answers() -> None:
    with client() as one:
        one.send([b"PING"], [b"QUIT"], [b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"QUIT"]
        one.library.respond(call, b"+OK\r\n")
        one.library.finish(call, 0, "", [])
        assert one.rest() == b"+PONG\r\n+OK\r\n"


def test_python_ends_a_connection_without_an_answer() -> None:
    with client() as one:
        one.send([b"PING"], [b"INCR", b"a"], [b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"INCR", b"a"]
        one.library.finish(call, 13, "it failed", [])
        assert one.rest() == b"+PONG\r\n"


@pytest.mark.parametrize("is_answered", [True, False])
def test_python_hears_that_a_client_is_gone(is_answered: bool) -> None:
    with bare_door(LIMITS) as (library, port):
        with connect(port) as connection:
            one = Client(library, connection)
            one.send([b"SET", b"a", bytes(10_000)])
            call = one.python.open()
            assert one.python.words(call) == [b"SET", b"a", bytes(10_000)]
            if is_answered:
                one.python.answer(call, b"+OK\r\n")
                assert answers(connection, 1) == b"+OK\r\n"
        if not is_answered:  # the door reads on, and so hears of the end, when it has the answer
            library.respond(call, b"+OK\r\n")
        event = one.python.next()
        assert event is not None
        assert (event.kind, event.call) == (EventKind.OVER, call)
        library.events()  # the last ones are gone then
        while library.connections():
            time.sleep(0.001)
        assert library.clients_bytes() == 0


def test_a_stop_waits_for_python_s_answer() -> None:
    with client() as one:
        one.send([b"INCR", b"a"], [b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"INCR", b"a"]
        one.library.drain()
        assert one.library.connections() == 1
        one.library.respond(call, b":1\r\n")
        assert one.rest() == b":1\r\n"


def test_while_the_server_does_not_serve_commands_on_keys_are_python_s() -> None:
    with client() as one:
        one.library.abandon(Refusal(14, "the server stops"))
        one.send([b"GET", b"a"])
        call = one.python.open()
        assert one.python.words(call) == [b"GET", b"a"]


def test_a_login_lets_plain_commands_in() -> None:
    def is_handed(*words: bytes) -> bool:
        one.send([*words])
        event = one.python.next(0.05)
        if event is not None:
            one.python.answer(call, b"+handed\r\n")
        elif words != (b"PING",):
            one.execute()
        return answers(one.connection, 1) == b"+handed\r\n"

    def handed() -> list[str]:
        words = [[b"GET", b"a"], [b"SET", b"a", b"1"], [b"DEL", b"a"], [b"PING"]]
        return [asked[0].decode() for asked in words if is_handed(*asked)]

    with client() as one:
        one.library.ask_for_logins()
        one.send([b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"PING"]
        one.python.answer(call, b"-NOAUTH\r\n")
        answers(one.connection, 1)
        assert handed() == ["GET", "SET", "DEL", "PING"]
        for rights, expected in ((1, ["SET", "DEL"]), (2, ["GET", "DEL"]), (3, [])):
            one.library.set_rights(7, [0], bytes([rights]))
            one.library.logged_in(call, 7, NEVER_NS, NEVER_NS)
            assert handed() == expected
        one.library.forget_certificates()
        assert is_handed(b"GET", b"a")
        one.library.logged_in(call, 7, NEVER_NS, NEVER_NS)
        assert handed() == []
        one.library.end_caller(7)
        assert handed() == ["GET", "SET", "DEL", "PING"]


@pytest.mark.parametrize("sent", [b"*11\r\n", b"*1\r\n$16385\r\n"])
def test_a_client_that_has_not_logged_in_sends_little(sent: bytes) -> None:
    refused = b"-ERR Protocol error: unauthenticated "
    with client() as one:
        one.library.ask_for_logins()
        one.send([b"A"] * 10)
        call = one.python.open()
        assert one.python.words(call) == [b"A"] * 10
        one.library.set_rights(7, [0], bytes([3]))
        one.library.logged_in(call, 7, NEVER_NS, NEVER_NS)
        one.python.answer(call, b"+OK\r\n")
        answers(one.connection, 1)
        one.connection.sendall(sent)
        one.connection.shutdown(socket.SHUT_WR)
        assert one.rest() == b""
    with client() as one:
        one.library.ask_for_logins()
        one.connection.sendall(sent)
        assert one.rest().startswith(refused)


def test_what_was_sent_is_answered_though_no_more_comes() -> None:
    with client() as one:
        one.send([b"SET", b"a", b"1"], [b"INCR", b"a"], [b"GET", b"a"])
        one.connection.shutdown(socket.SHUT_WR)
        assert one.execute() == [(Op.SET, b"a")]
        call = one.python.open()
        assert one.python.words(call) == [b"INCR", b"a"]
        one.python.answer(call, b":2\r\n")
        assert one.execute() == [(Op.GET, b"a")]
        assert one.rest() == b"+OK\r\n:2\r\n$7\r\na value\r\n"


def test_a_command_with_too_many_bytes_is_refused() -> None:
    with client() as one:
        one.connection.sendall(b"*2\r\n$3\r\nGET\r\n$100000000\r\n")
        assert one.rest().startswith(b"-ERR Protocol error: a command of more than ")
