"""Transactions of connections that speak RESP."""

from __future__ import annotations

import time

import pytest

from gpkvs.batch import Op
from gpkvs.server.door.library import Refusal, Turn
from tests.door.resp_client import LIMITS, Client, client
from tests.door.resp_door import answers, bare_door, connect, without_ids

NEVER_NS = (1 << 64) - 1


def test_a_transaction_is_one_request() -> None:
    with client() as one:
        one.send([b"SET", b"c", b"0"], [b"MULTI"], [b"SET", b"a", b"1"], [b"MGET", b"a", b"b"], [b"DEL", b"c"])
        assert one.execute() == [(Op.SET, b"c")]
        assert answers(one.connection, 5) == b"+OK\r\n+OK\r\n" + b"+QUEUED\r\n" * 3
        assert one.is_silent()
        one.send([b"EXEC"], [b"GET", b"a"])
        executed = one.execute()
        while len(executed) < 5:
            executed += one.execute()
        transaction = [(Op.SET, b"a"), (Op.GET, b"a"), (Op.GET, b"b"), (Op.DELETE, b"c")]
        assert executed == [*transaction, (Op.GET, b"a")]
        value = b"$7\r\na value\r\n"
        assert answers(one.connection, 2) == b"*3\r\n+OK\r\n*2\r\n" + value * 2 + b":1\r\n" + value
        assert one.is_silent()


@pytest.mark.parametrize("last", [[b"APPEND", b"a"], [b"GET"], [b"MULTI"], [b"PING"], [b"GET", b""], [b"SELECT", b"1"]])
def test_a_transaction_that_needs_python_is_python_s(last: list[bytes]) -> None:
    with client() as one:
        one.send([b"MULTI"], [b"SET", b"a", b"1"], [b"GET", b"a"])
        assert answers(one.connection, 3) == b"+OK\r\n+QUEUED\r\n+QUEUED\r\n"
        one.send(last, [b"GET", b"b"])
        call = one.python.open()
        for words in ([b"MULTI"], [b"SET", b"a", b"1"], [b"GET", b"a"]):
            assert one.python.words(call) == words
            one.library.set_session(call, 0, 2, hands_all=True)
            one.python.answer(call, b"+the client has this\r\n")
        assert one.python.words(call) == last
        one.python.answer(call, b"+QUEUED\r\n")
        assert one.python.words(call) == [b"GET", b"b"]
        one.python.answer(call, b"+and this\r\n")
        assert answers(one.connection, 2) == b"+QUEUED\r\n+and this\r\n"
        one.library.set_session(call, 0, 2, hands_all=False)
        one.send([b"MULTI"], [b"EXEC"])
        assert one.python.next(0.05) is None
        assert answers(one.connection, 2) == b"+OK\r\n*0\r\n"


def test_a_transaction_whose_table_is_gone_is_python_s() -> None:
    with client() as one:
        one.send([b"MULTI"], [b"GET", b"a"])
        answers(one.connection, 2)
        one.library.set_tables([])
        one.send([b"EXEC"])
        call = one.python.open()
        for words in ([b"MULTI"], [b"GET", b"a"], [b"EXEC"]):
            assert one.python.words(call) == words
            one.python.answer(call, b"-ERR\r\n")
        assert answers(one.connection, 1) == b"-ERR\r\n"


def test_a_transaction_that_is_refused_or_discarded_changes_nothing() -> None:
    with client() as one:
        one.send([b"MULTI"], [b"SET", b"a", b"1"], [b"DISCARD"], [b"MULTI"], [b"SET", b"b", b"1"], [b"EXEC"])
        assert one.library.turn(10) is Turn.LEFT
        one.library.left_failed(Refusal(13, "broken", is_refusal=True))
        expected = b"+OK\r\n+QUEUED\r\n+OK\r\n+OK\r\n+QUEUED\r\n"
        expected += b"-EXECABORT Transaction discarded because of: ERR broken\r\n"
        assert without_ids(answers(one.connection, 6)) == expected
        assert one.library.waiting() == 0


def test_rights_are_asked_for_again_at_the_end_of_a_transaction() -> None:
    with client() as one:
        one.library.ask_for_logins()
        one.send([b"PING"])
        call = one.python.open()
        assert one.python.words(call) == [b"PING"]
        one.library.set_rights(7, [0], bytes([3]))
        one.library.logged_in(call, 7, NEVER_NS, NEVER_NS)
        one.python.answer(call, b"+PONG\r\n")
        one.send([b"MULTI"], [b"SET", b"a", b"1"])
        assert answers(one.connection, 3) == b"+PONG\r\n+OK\r\n+QUEUED\r\n"
        one.library.set_rights(7, [0], bytes([1]))
        one.send([b"EXEC"])
        assert one.python.words(call) == [b"MULTI"]
        assert one.library.waiting() == 0


def test_a_transaction_is_bounded_and_counted() -> None:
    many = [[b"SET", b"%d" % number, b"x"] for number in range(40)]
    with bare_door(LIMITS) as (library, port):
        with connect(port) as connection:
            one = Client(library, connection)
            one.send([b"MULTI"], *many)
            answers(connection, 41)
            assert library.held_bytes("requests") > 40 * (4 + 12 + 5)
            large = [b"MSET", *(b"%d" % n if n % 2 else bytes(4000) for n in range(1, 41))]
            found = b"+QUEUED\r\n"
            while found == b"+QUEUED\r\n":
                found = one.ask(*large)
            assert found.startswith(b"-ERR a transaction of more than ")
            assert one.rest() == b""
        library.events()
        while library.connections():
            time.sleep(0.001)
        assert library.clients_bytes() == 0
