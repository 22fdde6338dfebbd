"""CLIENT REPLY: which replies are sent, as by a real Redis."""

from __future__ import annotations

import random
import secrets
import socket
from collections.abc import Iterator, Sequence

import pytest

from tests.server.redis.two_servers import Connection, encoded, gpkvs_server, redis_server

Commands = Sequence[bytes]

ON, OFF, SKIP = b"CLIENT REPLY ON", b"CLIENT REPLY OFF", b"CLIENT REPLY SKIP"
END = b"the end of what was sent"
# Native ones, Python's, wrong ones, and transactions of both.
ROUNDS: dict[str, Commands] = {
    "off": (b"PING", OFF, b"SET k 1", b"GET k", b"INCR k", b"GET", b"NO SUCH", ON, b"GET k"),
    "off and skip": (OFF, SKIP, b"PING", b"INCR k", ON, SKIP, ON, b"PING"),
    "skip": (SKIP, b"SET k 1", b"GET k", SKIP, b"INCR k", b"GET k", SKIP, b"NO SUCH", b"PING"),
    "skip twice": (SKIP, SKIP, b"PING", b"ECHO a", SKIP, OFF, b"PING", ON),
    "wrong": (b"CLIENT REPLY", b"CLIENT REPLY MAYBE", SKIP, b"CLIENT REPLY MAYBE", OFF, b"CLIENT REPLY MAYBE", ON),
    "multi off": (b"SET k 1", OFF, b"MULTI", b"SET k 2", b"GET k", b"EXEC", ON, b"GET k"),
    "multi off, mixed": (b"SET k 1", OFF, b"MULTI", b"GET k", b"INCR k", b"EXEC", b"MULTI", b"DISCARD", ON, b"GET k"),
    "multi off, refused": (OFF, b"MULTI", b"NO SUCH", b"SET k 3", b"EXEC", b"EXEC", ON, b"GET k"),
    "skip before multi": (SKIP, b"MULTI", b"SET k 2", b"EXEC", b"MULTI", b"INCR k", b"EXEC"),
    "skip before exec": (b"MULTI", b"INCR k", b"EXEC", SKIP, b"EXEC", b"PING"),
    "reset": (OFF, b"RESET", b"SELECT 9", SKIP, b"RESET", b"PING"),
    "hello": (OFF, b"HELLO 3", b"GET none", ON, b"GET none", SKIP, b"HELLO 2", b"GET none"),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Return the ports of gpkvs and of Redis."""
    folder = tmp_path_factory.mktemp("replies")
    with redis_server(folder) as expected, gpkvs_server(folder) as found:
        yield found, expected


def replies(port: int, commands: Commands, *, pipelined: bool) -> bytes:
    """Return what comes for commands before replies to ECHO come again."""
    words = [tuple(command.split()) for command in (b"SELECT 9", b"FLUSHDB", *commands)]
    last = encoded((b"CLIENT", b"REPLY", b"ON")) + encoded((b"ECHO", END))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for data in [b"".join(map(encoded, words)) + last] if pipelined else [*map(encoded, words), last]:
            connection.sendall(data)
        received = b""
        while not received.endswith(END + b"\r\n"):
            more = connection.recv(1 << 16)
            assert more, received
            received += more
    return received


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("commands", ROUNDS.values(), ids=ROUNDS)
def test_replies_are_those_of_redis(ports: tuple[int, int], commands: Commands, pipelined: bool) -> None:
    found, expected = (replies(port, commands, pipelined=pipelined) for port in ports)
    assert found == expected


def test_random_mixtures(ports: tuple[int, int]) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    kinds = (ON, OFF, SKIP, b"SET k 1", b"GET k", b"INCR k", b"NO SUCH", b"MGET k none", b"TTL k", b"PING")
    whole = ((b"MULTI", b"SET k 1", b"GET k", b"EXEC"), (b"MULTI", b"APPEND k 1", b"GET k", b"EXEC"))
    for _ in range(50):
        commands: list[bytes] = []
        for _ in range(choice.randrange(40)):
            commands += (choice.choice(kinds),) if choice.random() < 0.8 else choice.choice(whole)
        found, expected = (replies(port, commands, pipelined=True) for port in ports)
        assert found == expected, commands


@pytest.mark.parametrize("silence", [OFF, SKIP])
@pytest.mark.parametrize("last", [b"*1\r\nno bulk string\r\n", encoded([b"QUIT"])])
def test_the_connection_ends_without_a_word(ports: tuple[int, int], silence: bytes, last: bytes) -> None:
    # A Redis leaves such a connection open, since it waits until the reply has left that it has not made.
    with socket.create_connection(("127.0.0.1", ports[0]), timeout=20) as connection:
        connection.sendall(encoded(silence.split()) + last)
        assert connection.recv(1) == b""


def test_inside_multi_it_is_refused(ports: tuple[int, int]) -> None:
    with Connection(ports[0]) as connection:
        assert connection.call(b"MULTI") == b"+OK\r\n"
        refused = connection.call(b"CLIENT", b"REPLY", b"OFF")
        assert refused == b"-ERR CLIENT REPLY is not possible inside MULTI here\r\n"
        assert connection.call(b"EXEC").startswith(b"-EXECABORT")
