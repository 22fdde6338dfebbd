"""Keys that clients watch: the door executes their transactions by itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import gpkvs
from gpkvs.backends.cpu.backend import HOST_OPS_MAX
from tests.conftest import SMALL
from tests.door.resp_client import client
from tests.door.resp_door import answers, command, commands_of, connect, resp_door

OK, QUEUED, NOTHING = b"+OK\r\n", b"+QUEUED\r\n", b"*-1\r\n"


class Clients:
    """Some clients of a door; Python is asked for nothing."""

    def __init__(self, connections: list[socket.socket]) -> None:
        self._connections = connections

    def call(self, number: int, *commands: bytes) -> bytes:
        """Send commands of one client together; return the answers."""
        self._connections[number].sendall(b"".join(command(*words.split()) for words in commands))
        return answers(self._connections[number], len(commands))


def handed_on(words: list[bytes]) -> bytes:
    raise AssertionError(f"Python was asked for {words}")


@pytest.fixture(params=["native", "left"])
def clients(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    if request.param == "left":
        monkeypatch.setenv(HOST_OPS_MAX, "0")  # as on a GPU: each batch is left that one could run
    with ExitStack() as opened:
        store = opened.enter_context(gpkvs.open(tmp_path / "store", **SMALL))
        _, port = opened.enter_context(resp_door(store, handed_on))
        yield Clients([opened.enter_context(connect(port)) for _ in range(2)])


@pytest.mark.parametrize(
    "change", [b"SET k 1", b"SET k 2", b"DEL k", b"INCR k", b"EXPIRE k 100", b"RENAME other k", b"MSETNX new 1 k 1"]
)
@pytest.mark.parametrize("before", [b"SET k 1", b"DEL k"])
def test_a_transaction_does_nothing_where_a_watched_key_has_changed(
    clients: Clients, before: bytes, change: bytes
) -> None:
    clients.call(1, before, b"SET other x")
    was = clients.call(1, b"GET k", b"TTL k")
    assert clients.call(0, b"WATCH a k", b"GET k").startswith(OK)
    clients.call(1, change)
    has_changed = clients.call(1, b"GET k", b"TTL k") != was or change == before == b"SET k 1"
    done = clients.call(0, b"MULTI", b"SET mine 1", b"EXEC")
    assert done == OK + QUEUED + (NOTHING if has_changed else b"*1\r\n+OK\r\n")
    assert clients.call(1, b"EXISTS mine") == b":%d\r\n" % (not has_changed)
    assert clients.call(0, b"MULTI", b"SET mine 1", b"EXEC") == OK + QUEUED + b"*1\r\n+OK\r\n"  # it is forgotten


def test_what_a_client_sends_at_once_is_one_after_the_other(clients: Clients) -> None:
    """The transaction begins when it is known which versions the keys had."""
    commands = [b"SET k 1", b"WATCH k", b"INCR k", b"MULTI", b"SET k 9", b"EXEC", b"GET k"]
    assert clients.call(0, *commands) == OK * 2 + b":2\r\n" + OK + QUEUED + NOTHING + b"$1\r\n2\r\n"
    commands = [b"WATCH k", b"GET k", b"MULTI", b"INCR k", b"GET k", b"EXEC", b"GET k"]
    executed = b"*2\r\n:3\r\n$1\r\n3\r\n$1\r\n3\r\n"
    assert clients.call(0, *commands) == OK + b"$1\r\n2\r\n" + OK + QUEUED * 2 + executed


@pytest.mark.parametrize("forget", [[b"UNWATCH"], [b"MULTI", b"DISCARD"], [b"MULTI", b"GET k", b"EXEC"]])
def test_keys_are_watched_until_the_next_transaction(clients: Clients, forget: list[bytes]) -> None:
    clients.call(0, b"WATCH k", b"WATCH k z", *forget)
    clients.call(1, b"SET k 1", b"SET z 1")
    assert clients.call(0, b"MULTI", b"GET k", b"EXEC") == OK + QUEUED + b"*1\r\n$1\r\n1\r\n"


def test_a_key_that_is_watched_again_is_as_it_was_first(clients: Clients) -> None:
    clients.call(0, b"WATCH k")
    clients.call(1, b"SET k 1")
    assert clients.call(0, b"WATCH k", b"MULTI", b"GET k", b"EXEC") == OK * 2 + QUEUED + NOTHING


def test_python_gets_what_is_watched_before_its_commands() -> None:
    with client() as one:
        one.send([b"WATCH", b"a", b"bc", b"a"])
        assert [key for _, key in one.execute()] == [b"a", b"bc", b"a"]
        assert answers(one.connection, 1) == OK
        one.send([b"MULTI"], [b"NOSUCH", b"x"])
        call = one.python.open()
        event = one.python.next()
        assert event is not None
        assert event.message[3] == 0x80
        [words] = commands_of(event.message[:3] + b"\0" + event.message[4:])
        assert dict(zip(words[::2], words[1::2], strict=True)) == {b"a": bytes(8), b"bc": bytes(8)}
        one.python.answer(call, b"")
        assert one.python.words(call) == [b"MULTI"]
        one.python.answer(call, OK)
        assert one.python.words(call) == [b"NOSUCH", b"x"]
        one.python.answer(call, b"-ERR no such command\r\n")
        assert answers(one.connection, 2) == OK + b"-ERR no such command\r\n"
