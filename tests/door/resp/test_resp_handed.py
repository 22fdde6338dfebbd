"""What a connection that speaks RESP hands to Python, and how they go on."""

from __future__ import annotations

import socket
import time

import numpy as np
import pytest

from gpkvs.batch import Op
from gpkvs.config import MIB
from gpkvs.server.access import connections
from gpkvs.server.door.left_batch import Results
from gpkvs.server.door.library import EventKind, Refusal, Turn
from tests.door import probes
from tests.door.resp_client import LIMITS, Client, client
from tests.door.resp_door import PythonSide, answers, bare_door, command, connect

NEVER_NS = (1 << 64) - 1

HANDED = [
    [b"APPEND", b"a"],
    [b"nonsense"],
    [b"", b"\x00\r\n", b""],
    [b"GET"],
    [b"GET", b"a", b"b"],
    [b"SET", b"a"],
    [b"SET", b"a", b"1", b"NX", b"XX"],
    [b"SET", b"a", b"1", b"NX", b"NX"],
    [b"SET", b"a", b"1", b"EX", b"9", b"PX", b"9"],
    [b"SET", b"a", b"1", b"KEEPTTL", b"XX"],
    [b"SET", b"a", b"1", b"KEEPTTL", b"KEEPTTL"],
    [b"SET", b"a", b"1", b"KEEPTTL", b"EX", b"9"],
    [b"SET", b"a", b"1", b"EX"],
    [b"SET", b"a", b"1", b"EX", b"0"],
    [b"SET", b"a", b"1", b"EX", b"09"],
    [b"SET", b"a", b"1", b"PX", b"-9"],
    [b"SET", b"a", b"1", b"PX", b"9.5"],
    [b"SET", b"a", b"1", b"PX", b""],
    [b"SET", b"a", b"1", b"EX", b"1" * 13],
    [b"SET", b"a", b"1", b"EXAT", b"1000000000"],
    [b"SETEX", b"a", b"9"],
    [b"SETEX", b"a", b"one", b"1"],
    [b"SETEX", b"", b"9", b"1"],
    [b"PSETEX", b"a", b"0", b"1"],
    [b"PSETEX", b"a", b"9", b"1", b"2"],
    [b"INCR"],
    [b"INCR", b"a", b"1"],
    [b"INCR", b""],
    [b"INCRBY", b"a", b"01"],
    [b"INCRBY", b"a", b"-"],
    [b"INCRBY", b"a", b""],
    [b"DECRBY", b"a", b"-0"],
    [b"DECRBY", b"a", b"1" * 19],
    [b"SETNX", b"a"],
    [b"GETSET", b"a"],
    [b"GETDEL", b"a", b"b"],
    [b"SET", b"a", b"1", b"GET", b"NX", b"XX"],
    [b"SET", b"a", b"1", b"GET", b"KEEPTTL", b"XX"],
    [b"MSETNX", b"a", b"1", b"b"],
    [b"RENAME", b"a", b"a"],
    [b"RENAMENX", b"a", b"a"],
    [b"RENAME", b"a", b""],
    [b"COPY", b"a", b"a"],
    [b"COPY", b"a", b"b", b"DB"],
    [b"COPY", b"a", b"b", b"DB", b"1"],
    [b"EVAL", b"return 1", b"1", b"a", b"b"],
    [b"EVALSHA", b"0" * 40, b"1", b"a", b"b"],
    [b"GETRANGE", b"a", b"0"],
    [b"GETRANGE", b"a", b"0", b"x"],
    [b"SUBSTR", b"a", b"0", b"1" * 19],
    [b"GETEX", b"a", b"PERSISTS"],
    [b"GETEX", b"a", b"NX", b"XX"],
    [b"GETEX", b"a", b"EX", b"0"],
    [b"GETEX", b"a", b"EXAT", b"1000000000"],
    [b"EXPIREAT", b"a", b"1000000000"],
    [b"PEXPIREAT", b"a", b"0"],
    [b"PEXPIREAT", b"a", b"1" * 16],
    [b"STRLEN"],
    [b"SETRANGE", b"a", b"-1", b"b"],
    [b"SETRANGE", b"a", b"x", b"b"],
    [b"INCRBYFLOAT", b"a"],
    [b"EXPIRE", b"a", b"0"],
    [b"EXPIRE", b"a", b"-1"],
    [b"EXPIRE", b"a", b"9", b"NX", b"XX"],
    [b"EXPIRE", b"a", b"9", b"foo"],
    [b"TTL", b"a", b"b"],
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
        one.send([b"APPEND", b"a"])
        event = one.python.next()
        assert event is not None
        assert event.opened is not None
        host, port = one.connection.getsockname()
        assert event.opened.peer == f"ipv4:{host}:{port}"
        assert (event.opened.path, event.opened.metadata, event.opened.deadline) == ("/redis", [], None)
        assert event.opened.certificate == ()


def test_a_command_of_python_s_waits_for_those_before_it_and_those_behind_it_for_python() -> None:
    with client() as one:
        one.send([b"SET", b"a", b"1"], [b"GET", b"a"], [b"APPEND", b"a"], [b"GET", b"b"], [b"PING"], [b"APPEND", b"b"])
        while one.library.waiting() < 2:
            time.sleep(0.001)
        assert one.python.next(0.05) is None
        executed = one.execute()
        if len(executed) < 2:  # the first was a batch of its own
            assert one.python.next(0.05) is None
            executed += one.execute()
        assert executed == [(Op.SET, b"a"), (Op.GET, b"a")]
        call = one.python.open()
        assert one.python.words(call) == [b"APPEND", b"a"]
        assert one.is_silent()
        one.python.answer(call, b":2\r\n")
        assert one.execute() == [(Op.GET, b"b")]
        assert one.python.words(call) == [b"APPEND", b"b"]
        one.python.answer(call, b":3\r\n")
        expected = b"+OK\r\n$7\r\na value\r\n:2\r\n$7\r\na value\r\n+PONG\r\n:3\r\n"
        assert answers(one.connection, 6) == expected


def test_a_command_comes_when_python_asks_for_it() -> None:
    with client() as one:
        one.send([b"APPEND", b"a"], [b"KEYS", b"b"])
        event = one.python.next()
        assert event is not None
        assert event.kind is EventKind.OPEN
        call = event.call
        assert one.is_silent()
        one.library.ask(call)
        assert one.python.words(call) == [b"APPEND", b"a"]
        one.library.respond(call, b":1\r\n")
        assert one.is_silent()
        one.library.ask(call)
        assert one.python.words(call) == [b"KEYS", b"b"]


def test_commands_with_short_answers_go_along_with_one_before_them() -> None:
    first = [[b"KEYS", b"*"], [b"APPEND", b"a"], [b"set", b"a", b"1", b"Ex", b"9"]]
    second = [[b"SET", b"a", b"1", b"KEEPTTL", b"XX", b"Get"], [b"TTL", b"a"]]
    with client() as one:
        one.send(*first, *second, [b"SET", b"a", b"1"], [b"APPEND", b"c"], [b"PING"])
        call = one.python.open()
        assert one.python.commands(call) == first
        assert one.is_silent()
        one.python.answer(call, b"*0\r\n:1\r\n+OK\r\n")
        assert one.python.commands(call) == second
        one.python.answer(call, b"$1\r\n1\r\n:9\r\n")
        assert one.execute() == [(Op.SET, b"a")]
        assert one.python.words(call) == [b"APPEND", b"c"]
        one.python.answer(call, b":3\r\n")
        assert answers(one.connection, 8) == b"*0\r\n:1\r\n+OK\r\n$1\r\n1\r\n:9\r\n+OK\r\n:3\r\n+PONG\r\n"


def test_those_that_go_along_are_so_many_and_so_long() -> None:
    with client(message_bytes_max=MIB) as one:
        one.send(*[[b"APPEND", b"%d" % i] for i in range(100)])
        call = one.python.open()
        for some in (range(64), range(64, 100)):
            assert one.python.commands(call) == [[b"APPEND", b"%d" % i] for i in some]
            one.python.answer(call, b":1\r\n" * len(some))
        assert answers(one.connection, 100) == b":1\r\n" * 100
        long = [b"SET", b"a", bytes(400_000), b"XX", b"KEEPTTL"]
        one.send(long, long, long, long)
        taken = 0
        while taken < 4:
            commands = one.python.commands(call)
            assert sum(len(word) for words in commands for word in words) <= MIB
            taken += len(commands)
            one.python.answer(call, b":1\r\n" * len(commands))
        assert answers(one.connection, 4) == b":1\r\n" * 4


def test_a_client_that_goes_leaves_nothing_of_what_went_along() -> None:
    with bare_door(LIMITS) as (library, port):
        with connect(port) as connection:
            one = Client(library, connection)
            one.send(*[[b"SET", b"a", bytes(1000), b"XX", b"KEEPTTL"]] * 50)
            call = one.python.open()
            assert one.python.commands(call)
        library.finish(call, 0, "", [])
        library.events()  # the last ones are gone then
        while library.connections():
            time.sleep(0.001)
        assert library.clients_bytes() == 0


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


def test_a_silent_session_has_pythons_answers_alone() -> None:
    with client() as one:
        one.send([b"CLIENT", b"REPLY", b"OFF"], [b"PING"], [b"SET", b"a", b"1"], [b"MULTI"], [b"GET", b"a"], [b"ON"])
        call = one.python.open()
        assert one.python.words(call) == [b"CLIENT", b"REPLY", b"OFF"]
        one.library.set_session(call, 0, 2, hands_all=False, is_silent=True)
        one.python.answer(call, b"")
        one.execute()
        for words in ([b"MULTI"], [b"GET", b"a"]):
            assert one.python.words(call) == words
            one.python.answer(call, b"")
        assert one.python.words(call) == [b"ON"]
        one.library.set_session(call, 0, 2, hands_all=False, is_silent=False)
        one.python.answer(call, b"+OK\r\n")
        one.send([b"PING"])
        assert answers(one.connection, 2) == b"+OK\r\n+PONG\r\n"


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
        one.send([b"PING"], [b"QUIT"], [b"SET", b"a", b"1"])
        call = one.python.open()
        assert one.python.words(call) == [b"QUIT"]
        one.library.respond(call, b"+OK\r\n")
        assert one.is_silent()
        one.library.finish(call, 0, "", [])
        assert one.rest() == b"+PONG\r\n+OK\r\n"


def test_python_ends_a_connection_without_an_answer() -> None:
    with client() as one:
        one.send([b"PING"], [b"APPEND", b"a"], [b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"APPEND", b"a"]
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
        one.send([b"APPEND", b"a"], [b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"APPEND", b"a"]
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
        one.library.forget_certificates()  # it counts while Python does not end it
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


def test_a_client_that_does_not_log_in_is_closed() -> None:
    """Also one that asks now and again; whoever has logged in may be silent."""
    with bare_door(LIMITS) as (library, port):
        library.ask_for_logins()
        probes.hurry(library._door, 200)
        with connect(port) as silent, connect(port) as busy, connect(port) as known:
            python = PythonSide(library)
            for one in (known, busy):
                one.sendall(command(b"PING"))
                call = python.open()
                assert python.words(call) == [b"PING"]
                if one is known:
                    library.set_rights(7, [0], bytes([3]))
                    library.logged_in(call, 7, NEVER_NS, NEVER_NS)
                python.answer(call, b"+PONG\r\n")
                assert answers(one, 1) == b"+PONG\r\n"
            for one in (silent, busy):
                assert one.recv(1000) == b"-ERR closed: nobody logged in within 0 s\r\n"
                assert one.recv(1) == b""
            time.sleep(0.2)
            known.sendall(command(b"PING"))
            assert answers(known, 1) == b"+PONG\r\n"


def test_the_system_looks_for_clients_that_are_gone() -> None:
    with bare_door(LIMITS) as (_, port), connect(port) as client:
        client.sendall(command(b"PING"))
        assert answers(client, 1) == b"+PONG\r\n"
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)]
        found = [[server.getsockopt(*option) for option in options] for server, _ in connections._connections([port])]
        assert found == [[1, 60]]


def test_what_was_sent_is_answered_though_no_more_comes() -> None:
    with client() as one:
        one.send([b"SET", b"a", b"1"], [b"APPEND", b"a"], [b"GET", b"a"])
        one.connection.shutdown(socket.SHUT_WR)
        assert one.execute() == [(Op.SET, b"a")]
        call = one.python.open()
        assert one.python.words(call) == [b"APPEND", b"a"]
        one.python.answer(call, b":2\r\n")
        assert one.execute() == [(Op.GET, b"a")]
        assert one.rest() == b"+OK\r\n:2\r\n$7\r\na value\r\n"


def test_a_command_with_too_many_bytes_is_refused() -> None:
    with client() as one:
        one.connection.sendall(b"*2\r\n$3\r\nGET\r\n$100000000\r\n")
        assert one.rest().startswith(b"-ERR Protocol error: a command of more than ")


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1", b"Host: localhost"])
def test_a_browser_is_not_served(line: bytes) -> None:
    with client() as one:
        one.connection.sendall(line + b"\r\n")
        assert one.rest().startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert one.is_silent()
