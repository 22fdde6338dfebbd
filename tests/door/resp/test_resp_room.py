"""Connections that speak RESP where memory or the queue are full: they wait for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.door import probes
from tests.door.resp_client import Client, client
from tests.door.resp_door import answers, command

MORE_THAN_ALL = 1 << 40


@contextmanager
def full_memory(one: Client) -> Iterator[None]:
    """Let others hold all memory."""
    one.library.charge(0, "requests", MORE_THAN_ALL)
    try:
        yield
    finally:
        one.library.charge(0, "requests", -MORE_THAN_ALL)


def test_a_full_queue_is_waited_for() -> None:
    with client(queue_requests_max=2) as one:
        one.send(*([b"SET", b"%d" % number, b"x"] for number in range(7)))
        executed = []
        while len(executed) < 7:
            executed += [key for _, key in one.execute()]
        assert executed == [b"%d" % number for number in range(7)]
        assert answers(one.connection, 7) == b"+OK\r\n" * 7


def test_a_full_queue_is_not_waited_for_without_an_end() -> None:
    with client(queue_requests_max=1) as one:
        probes.hurry(one.library._door, 100)
        one.send([b"SET", b"a", b"1"], [b"SET", b"b", b"1"], [b"PING"])
        while one.library.waiting() < 1:
            time.sleep(0.001)
        time.sleep(0.5)
        one.execute()
        found = answers(one.connection, 3)
        assert found.startswith(b"+OK\r\n-OOM queue full: 1 requests wait")
        assert found.endswith(b"\r\n+PONG\r\n")


def test_memory_is_waited_for() -> None:
    text = command(b"SET", b"a", b"x" * 4000)
    with client() as one:
        assert one.ask(b"PING") == b"+PONG\r\n"
        for sent in ([text], [text[:100], text[100:]], [command(b"APPEND", b"a")], [command(b"MULTI")]):
            with full_memory(one):
                for piece in sent:
                    one.connection.sendall(piece)
                    time.sleep(0.05)
                assert one.is_silent()
            if sent[0] == command(b"APPEND", b"a"):
                call = one.python.open()
                assert one.python.words(call) == [b"APPEND", b"a"]
                one.python.answer(call, b"+OK\r\n")
            elif sent[0] != command(b"MULTI"):
                one.execute()
            assert answers(one.connection, 1) == b"+OK\r\n"


def test_memory_is_not_waited_for_without_an_end() -> None:
    with client() as one:
        probes.hurry(one.library._door, 100)
        with full_memory(one):
            one.send([b"SET", b"a", b"1"], [b"PING"])
            found = answers(one.connection, 2)
        assert found.startswith(b"-OOM memory full: ")
        assert found.endswith(b"\r\n+PONG\r\n")
        assert one.library.waiting() == 0
