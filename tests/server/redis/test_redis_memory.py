"""No command makes the server take more memory than `--memory-max`, however often it is sent, and by however many.

Each test sends the worst that one kind of command can do. The server's peak must stay below the limit, and each reply
must be right, or an error that names a limit. A transaction that is refused has changed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.server.redis.two_servers import Connection, resp_port, wait_for_connections
from tests.serving import Server

MIB = 1 << 20
MEMORY_BYTES_MAX = 256 * MIB
OK = b"+OK\r\n"
# What a client is told that asks for too much, and the end of its connection in the middle of a transaction.
LIMITS = re.compile(
    rb"-(EXECABORT Transaction discarded because of: )?"
    rb"(OOM .*\(--memory-max\).*|ERR .*(allowed are|message_bytes_max|limit is).*|ERR string exceeds maximum.*)\r\n"
)
LONG = 3_000_000
CLIENTS = 16

Command = Sequence[bytes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("memory")
    sizes = ("--index-bytes", "4MiB", "--heap-bytes", "128MiB", "--log-bytes", "64MiB", "--journal-bytes", "96MiB")
    made = Server(
        folder / "store",
        folder,
        "--resp",
        "127.0.0.1:0",
        "--memory-max",
        str(MEMORY_BYTES_MAX),
        *sizes,
        own_python=True,
    )
    try:
        with Connection(resp_port(made)) as redis:
            assert redis.call(b"SET", b"long", bytes(LONG)) == OK
            for first in range(0, 20_000, 1000):
                keys = [word for number in range(first, first + 1000) for word in (b"key:%d" % number, b"v")]
                assert redis.call(b"MSET", *keys) == OK
        yield made
        made.stop()
    finally:
        made.kill()
    assert "Traceback" not in made.log.read_text()


def status_bytes(server: Server, name: str) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(name))) << 10


def peak_of(server: Server, attack: Callable[[], None]) -> int:
    """Return how many bytes more of no file the server had at its worst moment.

    It has places for 27 connections. Those of the attack before must have gone: else it refuses some of this one.
    """
    wait_for_connections(server, 0)
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the peak is what there is now
    before = status_bytes(server, "RssAnon")
    attack()
    files = status_bytes(server, "RssFile") + status_bytes(server, "RssShmem")  # of the store: they stay
    return status_bytes(server, "VmHWM") - files - before


def is_error(reply: object) -> bool:
    return isinstance(reply, bytes) and reply.startswith(b"-")


def is_limit(reply: object) -> bool:
    return isinstance(reply, bytes) and LIMITS.fullmatch(reply) is not None


# Each makes far more than it brings: the command, how often it is queued, and whether a reply to it is right.
BULK: dict[str, tuple[Callable[[int], Command], int, Callable[[Any], bool]]] = {
    "setrange": (
        lambda n: (b"SETRANGE", b"new:%d" % n, b"%d" % (LONG - 1), b"x"),
        300,
        lambda r: r == b":%d\r\n" % LONG,
    ),
    "copy": (lambda n: (b"COPY", b"long", b"new:%d" % n), 300, lambda r: r == b":1\r\n"),
    "getrange": (lambda _: (b"GETRANGE", b"long", b"0", b"-2"), 300, lambda r: r == ("bulk", bytes(LONG - 1))),
    "substr": (lambda _: (b"SUBSTR", b"long", b"1", b"-1"), 300, lambda r: r == ("bulk", bytes(LONG - 1))),
    "getex": (lambda _: (b"GETEX", b"long", b"PERSIST", b"PERSIST"), 300, lambda r: r == ("bulk", bytes(LONG))),
    "set get": (lambda _: (b"SET", b"long", b"x", b"XX", b"GET"), 300, lambda r: r[0] == "bulk"),
    "mget": (lambda _: (b"MGET", *[b"long"] * 300), 2, lambda r: r == [("bulk", bytes(LONG))] * 300),
    "command": (lambda _: (b"COMMAND",), 1800, lambda r: len(r) > 50),
    "command docs": (lambda _: (b"COMMAND", b"DOCS"), 300, lambda r: len(r) > 50),
    "command info": (lambda _: (b"COMMAND", b"INFO", *[b"get"] * 1000), 30, lambda r: len(r) == 1000),
    "command list": (lambda _: (b"COMMAND", b"LIST"), 300, lambda r: len(r) > 50),
    "config get": (lambda _: (b"CONFIG", b"GET", b"*"), 300, lambda r: len(r) >= 10),
    "info": (lambda _: (b"INFO",), 300, lambda r: b"redis_version" in r[1]),
    "client list": (lambda _: (b"CLIENT", b"LIST", b"ID", *[b"ME"] * 1000), 100, lambda r: r[1].count(b"\n") == 1000),
    "slowlog": (lambda _: (b"SLOWLOG", b"GET", b"-1"), 300, lambda r: isinstance(r, list)),
    "option": (
        lambda n: (b"EXPIRE", b"long", b"%d" % n, b"o" * 4000),
        800,
        lambda r: r.startswith(b"-ERR Unsupported"),
    ),
    "client id": (lambda _: (b"CLIENT", b"ID"), 3000, lambda r: r.startswith(b":")),
}


# These are the door's own, if all of their transaction are.
NATIVE = ("setrange", "copy", "getrange", "set get", "mget")


@pytest.mark.parametrize(
    ("kind", "protocol", "is_native"),
    [(kind, protocol, False) for kind, protocol in zip(BULK, cycle((2, 3)), strict=False)]
    + [(kind, 2, True) for kind in NATIVE],
)
def test_a_transaction_makes_no_more_than_there_is_room_for(
    server: Server, kind: str, protocol: int, is_native: bool
) -> None:
    """Without a bound these take from half a gigabyte to several, one client alone."""
    make, count, is_right = BULK[kind]

    def attack() -> None:
        with Connection(resp_port(server)) as redis:
            redis.call(b"HELLO", b"%d" % protocol)
            me = redis.call(b"CLIENT", b"ID")[1:-2]
            words = [[me if word == b"ME" else word for word in make(number)] for number in range(count)]
            again = (b"SET", b"witness", b"1") + (() if is_native else (b"XX", b"KEEPTTL"))
            redis.send((b"MULTI",), (b"SET", b"witness", b"1"), again, *words, (b"EXEC",))
            queued: list[Any] = []
            try:
                queued += [redis.reply() for _ in range(count + 4)]
            except (EOFError, ConnectionResetError):
                assert is_limit(queued[-1])
        *_, executed = queued
        if isinstance(executed, list):
            assert len(executed) == count + 2
            wrong = [reply for reply in executed[2:] if not is_limit(reply) and not is_right(reply)]
            assert not wrong, repr(wrong[0])[:200]
        else:
            assert is_limit(executed), executed
        with Connection(resp_port(server)) as redis:
            assert (redis.call(b"DEL", b"witness") == b":1\r\n") == isinstance(executed, list)
            if not isinstance(executed, list):
                assert redis.call(b"EXISTS", *[b"new:%d" % number for number in range(300)]) == b":0\r\n"
                assert redis.call(b"STRLEN", b"long") == b":%d\r\n" % LONG
            redis.call(b"SET", b"long", bytes(LONG))

    assert peak_of(server, attack) < MEMORY_BYTES_MAX


# Of many clients at once, which send whole messages, or do not read what they get.
MANY: dict[str, Callable[[int], Sequence[Command]]] = {
    "words": lambda n: [(b"MSETNX", *[b"%x" % (number + n) for number in range(20_000)])],
    "keys to lock": lambda n: [(b"MSETNX", *[b"%d" % (number + n) for number in range(10_000)])],
    "keys to watch": lambda n: [(b"WATCH", *[b"%d" % (number + n) for number in range(10_000)])],
    "long values": lambda n: [(b"APPEND", b"own:%d" % n, bytes(LONG))] * 3 + [(b"GETDEL", b"own:%d" % n)] * 3,
    "values made longer": lambda n: [(b"SETRANGE", b"own:%d" % n, b"%d" % (LONG * i), bytes(LONG)) for i in range(3)],
    "parts": lambda _: [(b"GETRANGE", b"long", b"0", b"-2")] * 3,
    "one after the other": lambda _: [(b"GETEX", b"long", b"PERSIST", b"PERSIST")] * 3,
    "usage": lambda _: [(b"MEMORY", b"USAGE", b"long")] * 3,
    "all keys": lambda _: [(b"KEYS", b"*")],
    "scans": lambda _: [(b"SCAN", b"0", b"COUNT", b"100000")] * 3,
    "refused": lambda _: [(b"CONFIG", b"SET", b"x" * MIB, b"y" * MIB), (b"HELLO", b"2", b"z" * MIB), (b"n" * MIB,)] * 2,
    "logins": lambda _: [(b"AUTH", b"default", "\N{SNOWMAN}".encode() * MIB)] * 5,
    "texts": lambda _: [(b"EVAL", b" a" * MIB, b"0"), (b"SCRIPT", b"LOAD", b" a" * MIB)] * 3,
}


# Their commands are wrong, and so are the replies.
WRONG = ("refused", "texts")


@pytest.mark.parametrize(("kind", "protocol"), list(zip(MANY, cycle((2, 3)), strict=False)))
def test_many_clients_that_do_not_read_have_no_more_room(server: Server, kind: str, protocol: int) -> None:
    """Every second client reads; the others send, and go."""
    commands = [MANY[kind](number) for number in range(CLIENTS)]

    def send(client: Connection, number: int) -> None:
        with suppress(OSError):  # it does not read, and so the server does not, either
            client.send(*commands[number])

    def attack() -> None:
        with ExitStack() as opened, ThreadPoolExecutor(CLIENTS) as senders:
            clients = [opened.enter_context(Connection(resp_port(server))) for _ in range(CLIENTS)]
            for number, client in enumerate(clients):
                hello = client.call(b"HELLO", b"%d" % protocol)
                assert not is_error(hello), hello
                senders.submit(send, client, number)
            for number in range(0, CLIENTS, 2):
                replies = [clients[number].reply() for _ in commands[number]]
                wrong = [reply for reply in replies if is_error(reply) and not is_limit(reply)]
                assert kind in WRONG or not wrong, wrong[0][:200]
            for client in clients:
                client.end()

    assert peak_of(server, attack) < MEMORY_BYTES_MAX
