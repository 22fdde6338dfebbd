"""The RESP door beside a real Redis: the same bytes go to both, the same bytes come back."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.server.door.left_batch import Results
from gpkvs.server.door.library import Library, Refusal, Turn
from tests.conftest import SMALL
from tests.door.resp_door import answers, bare_door, command, connect, resp_door, without_ids
from tests.programs import needs
from tests.server.redis.two_servers import redis_server

pytestmark = needs("redis-server")

KEYS = [b"a", b"b", b"key:%d" % 7, b"\x00\xff\r\n", b"long" * 100]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a Redis of its own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture(scope="module")
def door(redis: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a door on an embedded store. What it hands on, that Redis answers."""
    path: Path = tmp_path_factory.mktemp("resp") / "store"
    with connect(redis) as relay, gpkvs.open(path, **SMALL) as store:

        def answer_of(words: list[bytes]) -> bytes:
            relay.sendall(command(*words))
            return answers(relay, 1)

        with resp_door(store, answer_of) as (_, port):
            yield port


@pytest.fixture(autouse=True)
def _same_contents(redis: int, door: int) -> None:
    for port in (redis, door):
        with connect(port) as connection:
            connection.sendall(command(b"DEL", *KEYS))
            answers(connection, 1)


def random_command(pick: random.Random) -> bytes:
    """Return a command, in one of its spellings; some are wrong."""
    keys = pick.choices(KEYS, k=pick.randint(1, 4))
    value = pick.randbytes(pick.choice([0, 1, 20, 3000]))
    words = pick.choice(
        [
            [b"SET", keys[0], value],
            [b"SET", keys[0], value],
            [b"get", keys[0]],
            [b"Get", keys[0]],
            [b"DEL", *keys],
            [b"exists", *keys],
            [b"PING"],
            [b"ping", value],
            [b"GET"],
            [b"SET", keys[0]],
            [b"PING", b"1", b"2"],
            [b"MGET", *keys],
            [b"mset", *(word for key in keys for word in (key, value))],
            [b"unlink", *keys],
            [b"GETSET", keys[0], value],
            [b"getdel", keys[0]],
            [b"SET", keys[0], value, b"get"],
            [b"set", keys[0], value, b"Get", pick.choice([b"GET", b"foo"])],
            [b"set", keys[0], value, *pick.choice([[b"GET", b"EX", b"1000"], [b"px", b"100000", b"GET"]])],
            [b"GETRANGE", keys[0], *(b"%d" % pick.choice([0, 1, -1, 5, -5, 19, 20, -4000, 10**17]) for _ in range(2))],
            [b"substr", keys[0], *pick.choice([[b"0", b"-1"], [b"x", b"1"], [b"1", b"9" * 30], [b"2"]])],
            [b"Touch", *keys],
            [b"TYPE", keys[0]],
            [b"ECHO", value],
            [b"MSET", *keys, b"x", b"y", b"z"],
            [b"ECHO"],
            [b"NONSENSE", *keys],
            [b"nonsense" * 40, b"x" * 200],
        ]
    )
    if pick.random() < 0.2:
        return pick.choice(
            [b"PING\r\n", b"get a\n", b"  set b 'x y'\r\n", b'SET "\\x61" "\\n\\"z"\r\n', b"EXISTS a b\r\n"]
        )
    nothing = pick.choice([b"", b"", b"", b"\r\n", b"*0\r\n", b"*-1\r\n"])
    return nothing + command(*words)


def random_commands(pick: random.Random) -> list[bytes]:
    """Return some, or a transaction."""
    if pick.random() < 0.7:
        return [random_command(pick) for _ in range(pick.choice([1, 2, 30]))]
    keys = pick.choices(KEYS, k=4)
    inside = [
        command(b"SET", keys[0], pick.randbytes(pick.choice([0, 5, 3000]))),
        command(b"GET", keys[1]),
        command(b"MGET", *keys),
        command(b"MSET", keys[0], b"x", keys[1], b"y", keys[0], b"z"),
        command(b"DEL", *keys[:2]),
        command(b"GETSET", keys[0], b"new"),
        command(b"GETDEL", keys[0]),
        command(b"SET", keys[1], b"other", b"GET"),
        command(b"GETRANGE", keys[2], b"1", b"-2"),
        command(b"EXISTS", *keys),
        b"get a\r\n",
    ]
    return [
        b"MULTI\r\n",
        *pick.choices(inside, k=pick.choice([0, 1, 2, 20])),
        pick.choice([b"EXEC\r\n"] * 3 + [b"DISCARD\r\n"]),
    ]


def assert_same_answers(commands: list[bytes], found: socket.socket, expected: socket.socket) -> None:
    """Send commands together on both connections, and compare."""
    for connection in (expected, found):
        connection.sendall(b"".join(commands))
    assert answers(found, len(commands)) == answers(expected, len(commands)), commands


def test_random_commands_are_answered_as_by_redis(redis: int, door: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    pick = random.Random(seed)
    with connect(redis) as expected, connect(door) as found:
        for _ in range(60):
            commands = random_commands(pick)
            assert_same_answers(commands, found, expected)


def looking_command(pick: random.Random) -> bytes:
    """Return a command whose answer depends on what is there, and which the door executes by itself."""
    key = pick.choice(KEYS)
    number = pick.choice([b"1", b"-1", b"0", b"12", b"9" * 18, b"-" + b"9" * 18])
    text = pick.choice(
        [b"10", b"-7", b"007", b"-0", b"-", b"", b"9223372036854775807", b"9223372036854775808", b"x" * 3000]
    )
    condition = pick.choice([b"nx", b"XX"])
    time_to_live = pick.choice([b"5000", b"77"])  # what is left of it differs by a moment, so nobody asks
    return command(
        *pick.choice(
            [
                [b"SET", key, text],
                [b"GET", key],
                [b"DEL", key],
                [b"EXISTS", key],
                [b"incr", key],
                [b"DECR", key],
                [b"INCRBY", key, number],
                [b"DecrBy", key, number],
                [b"SET", key, text, condition],
                [b"SET", key, text, condition, b"EX", time_to_live],
                [b"SET", key, text, b"px", time_to_live + b"000", condition],
                [b"SETNX", key, text],
                [b"GETEX", key, b"ex", time_to_live],
                [b"getex", key, b"Persist"],
                [b"GETEX", key],
                [b"PERSIST", key],
                [b"getset", key, text],
                [b"append", key, text],
                [b"APPEND", key, text],
                [b"GETDEL", key],
                [b"STRLEN", key],
                [b"EXPIRE", key, time_to_live],
                [b"PEXPIRE", key, time_to_live + b"000"],
                [b"TTL", b"missing"],
                [b"EXPIRETIME", b"missing"],
                [b"PEXPIRETIME", b"missing"],
                [b"PTTL", b"missing"],
            ]
        )
    )


def timed_command(pick: random.Random) -> bytes:
    """Return one that says when a key expires, or asks for it."""
    key, moment = pick.choice(KEYS), b"%d" % pick.choice([4102444800, 4102444801])
    moment_ms = moment + pick.choice([b"000", b"123", b"999"])
    return command(
        *pick.choice(
            [
                [b"SET", key, b"1", pick.choice([b"EXAT", b"exat"]), moment],
                [b"SET", key, b"12", b"PxAt", moment_ms, pick.choice([b"NX", b"XX", b"GET"])],
                [b"GETEX", key, *pick.choice([[b"EXAT", moment], [b"pxat", moment_ms]])],
                [b"ExpireAt", key, moment],
                [b"PEXPIREAT", key, moment_ms],
                [b"PERSIST", key],
                [b"INCR", key],
                [b"DEL", key],
                [b"EXPIRETIME", key],
                [b"PEXPIRETIME", key],
            ]
        )
    )


@pytest.mark.parametrize("one_of", [looking_command, timed_command])
def test_commands_that_look_first_are_answered_as_by_redis(
    redis: int, door: int, one_of: Callable[[random.Random], bytes]
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    pick = random.Random(seed)
    with connect(redis) as expected, connect(door) as found:
        for _ in range(150):
            commands = [one_of(pick) for _ in range(pick.choice([1, 2, 30]))]
            if pick.random() < 0.3:
                commands = [b"MULTI\r\n", *commands, b"EXEC\r\n"]
            assert_same_answers(commands, found, expected)


def test_times_to_live_count_from_the_moment_of_their_batch(door: int) -> None:
    with connect(door) as connection:

        def ask(*commands: list[bytes]) -> bytes:
            connection.sendall(b"".join(command(*words) for words in commands))
            return answers(connection, len(commands))

        assert (
            ask([b"SET", b"a", b"1"], [b"TTL", b"a"], [b"PTTL", b"a"], [b"EXPIRETIME", b"a"])
            == b"+OK\r\n" + b":-1\r\n" * 3
        )
        for begin in ([b"SET", b"a", b"1", b"EX", b"100"], [b"PEXPIRE", b"a", b"100000"]):
            moment = [
                [b"MULTI"],
                begin,
                [b"TTL", b"a"],
                [b"PTTL", b"a"],
                [b"PEXPIRETIME", b"a"],
                [b"EXPIRETIME", b"a"],
                [b"EXEC"],
            ]
            before_ms = time.time_ns() // 1_000_000
            numbers = ask(*moment).split(b":")[-4:]
            assert numbers[:2] == [b"100\r\n", b"100000\r\n"]
            expiry_ms = int(numbers[2])
            assert before_ms <= expiry_ms - 100_000 <= time.time_ns() // 1_000_000
            assert int(numbers[3]) == (expiry_ms + 500) // 1000
        assert 99_000 < int(ask([b"PTTL", b"a"])[1:]) <= 100_000
        assert ask([b"INCR", b"a"], [b"SET", b"a", b"1"], [b"TTL", b"a"]) == b":2\r\n+OK\r\n:-1\r\n"
        assert ask([b"PEXPIRE", b"a", b"1"]) == b":1\r\n"
        time.sleep(0.01)
        assert ask([b"TTL", b"a"], [b"GET", b"a"], [b"EXPIRE", b"a", b"9"]) == b":-2\r\n$-1\r\n:0\r\n"


def test_commands_may_be_cut_anywhere_on_two_connections(redis: int, door: int) -> None:
    texts = [
        command(b"SET", b"a", b"one\r\n") + command(b"GET", b"a") + b"PING\r\n" + command(b"EXISTS", b"a", b"a"),
        command(b"SET", b"b", b"two") + b"get b\r\n" + command(b"DEL", b"b", b"b") + command(b"PING", b"$3\r\n"),
    ]
    with connect(redis) as expected:
        expected.sendall(texts[0])
        wanted = [answers(expected, 4)]
        expected.sendall(texts[1])
        wanted.append(answers(expected, 4))
    with connect(door) as first, connect(door) as second, connect(door) as other:
        for cut in range(1, max(map(len, texts))):
            for part in (slice(None, cut), slice(cut, None)):
                first.sendall(texts[0][part])
                second.sendall(texts[1][part])
                other.sendall(b"PING\r\n")  # when this is answered, the door's thread has seen the others
                assert answers(other, 1) == b"+PONG\r\n"
            assert [answers(first, 4), answers(second, 4)] == wanted, cut


def test_a_pipelined_client_gets_all_answers_in_order(redis: int, door: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    pick = random.Random(seed)
    commands = [
        command(*pick.choice([[b"SET", key, b"%d" % i], [b"GET", key], [b"DEL", key], [b"PING", b"%d" % i]]))
        for i, key in enumerate(pick.choices(KEYS, k=5000))
    ]
    found = []
    for port in (redis, door):
        with connect(port) as connection:
            sender = threading.Thread(target=connection.sendall, args=(b"".join(commands),))
            sender.start()
            found.append(answers(connection, len(commands)))
            sender.join()
    assert found[0] == found[1]


# Each is taken as by Redis, wherever it is cut.
TEXTS = [
    *(
        b"*%b\r\nPING\r\n" % count
        for count in (b"x", b"-5", b"-1", b"0", b"00", b"-0", b"+1", b"01", b"", b" 1", b"1 ")
    ),
    *(b"*1\r\n$%b\r\nPING\r\nPING\r\n" % size for size in (b"4", b"-1", b"-0", b"+4", b"04", b" 4", b"", b"x")),
    *(b"*1\r\n%bPING\r\n" % wrong for wrong in (b"PING\r\n", b":4\r\n", b"\r\n", b"*1\r\n", b"4\r\n", b"\xff\r\n")),
    b"*1\r\n$0\r\n\r\nPING\r\n",
    b"*1\r\n$4\r\nPINGxxPING\r\n",
    b"*1\rx$4\rxPING\r\nPING\r\n",
    b"*\rPING\r\n",
    b"*1\r\n\0\r\nPING\r\n",
    b"*2\r\n$4\r\nECHO\r\n*1\r\n",
    *(
        b"PING\r\n%b\r\nPING\r\n" % line
        for line in (b"POST / HTTP/1.1", b"post", b"Host: a", b"host:", b"Host", b"POSTS")
    ),
    b"*2\r\n$4\r\nPost\r\n$1\r\na\r\nPING\r\n",
    b"*1\r\n$5\r\nhost:\r\nPING\r\n",
    *(b"%b\nPING\r\n" % line for line in (b"\r", b"", b"  \t \r", b"''\r", b'"" PING\r', b"$4\r", b"+PING\r", b"\0\r")),
    *(
        b"echo %b\r\nPING\r\n" % word
        for word in (b"'a", b'"a', b"a'b'", b"'a'b", b'a"b"c', b"a'b' c", b"'a'\tb", b"'a'\r")
    ),
    *(b"echo %b\r\nPING\r\n" % word for word in (rb"\x41", rb'"\x41"', rb"'\x41'", rb'"\x4"', rb'"\x4g"', rb'"\xFf"')),
    *(b"echo %b\r\nPING\r\n" % word for word in (rb'"\n\r\t\b\a\\\"\q"', rb"'\'\n\\'", rb'"a\"', rb"'a\'", b'"a\\')),
    *(
        b"echo %b\r\nPING\r\n" % word
        for word in (b"a\0b", b"\va\f", b"a\fb", b"a\rb", b"a\r", b"'\n'", b'"\r"', b"\xff")
    ),
    *(b"PING\r\n" + begun for begun in (b"PING", b"PING\r", b"*", b"*1\r", b"*1\r\n$4\r\nPI", b"*1\r\n$4\r\nPING")),
]
# Large numbers, and what is too long without an end, or just not.
LARGE_TEXTS = [
    *(b"*%d\r\nPING\r\n" % count for count in (1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 10**30)),
    *(b"*1\r\n$%d\r\n" % size for size in ((512 << 20) + 1, 1 << 63, 10**30)),
    *(begin + b"x" * (count - 1) for begin in (b"x", b"*", b"*1\r\n$") for count in (65_536, 65_537, 70_000)),
]
BYTES = [bytes([byte]) for byte in b"\r\n$*1\"'\\\0 "]


def exchange(port: int, pieces: list[bytes]) -> tuple[bytes, bool]:
    """Send these and no more; return what comes until the server ends the connection, and whether that is all of it.

    A server that ends it while there are bytes that it has not read resets it: the client may lose the last answers.
    """
    found = b""
    with connect(port) as connection, connect(port) as other:
        try:
            for number, piece in enumerate(pieces):
                if number:  # when this is answered, the server has seen the one before
                    other.sendall(b"PING\r\n")
                    answers(other, 1)
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(1 << 16):
                found += data
        except OSError:
            return found, False
    return found, True


def require_same(found: tuple[bytes, bool], expected: tuple[bytes, bool], pieces: list[bytes]) -> None:
    """Compare what came from two servers, as far as it came: one that is attacked may still send what it had to say."""
    is_attack = any(name in b"".join(pieces).upper() for name in (b"POST", b"HOST:"))
    if found[1] and expected[1] and not is_attack:
        assert found == expected, pieces
    else:
        bytes_both = min(len(found[0]), len(expected[0]))
        assert found[0][:bytes_both] == expected[0][:bytes_both], pieces


@pytest.mark.parametrize("text", [*TEXTS, *LARGE_TEXTS], ids=lambda text: f"{len(text)} {text[:20]!r}")
def test_bytes_are_taken_as_by_redis(redis: int, door: int, text: bytes) -> None:
    require_same(exchange(door, [text]), exchange(redis, [text]), [text])


def test_bytes_may_be_cut_anywhere(redis: int, door: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    pick = random.Random(seed)
    for _ in range(300):
        good = [b"PING\r\n", b"echo 'a b'\r\n", command(b"ECHO", b"\r\n*1\r\n"), b"\r\n"]
        text = b"".join(pick.choices(good, k=pick.randint(0, 3))) + pick.choice(TEXTS)
        if pick.random() < 0.5:  # and one of its bytes is another one
            at, byte = pick.randrange(len(text)), pick.choice([b"", *BYTES])
            text = text[:at] + byte + text[at + 1 :]
        cuts = sorted(pick.choices(range(len(text)), k=pick.randint(1, 4)))
        pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        require_same(exchange(door, pieces), exchange(redis, pieces), pieces)


def left_commands(library: Library) -> list[bytes]:
    """Wait for a batch that is left; return its keys."""
    while library.turn(1.0) is not Turn.LEFT:
        pass
    batch = library.left()
    ends = np.cumsum(batch.key_lengths)
    return [batch.keys[end - size : end].tobytes() for end, size in zip(ends, batch.key_lengths, strict=True)]


def found_nothing(count: int) -> Results:
    """Return the results of GETs that find nothing, or of SETs."""
    return Results(np.zeros(count, np.uint8), None, np.zeros(0, np.uint32), np.zeros(0, np.uint8))


def test_no_answer_leaves_before_its_gate_is_durable() -> None:
    with bare_door() as (library, port), connect(port) as connection:
        connection.sendall(command(b"SET", b"a", b"1"))
        assert left_commands(library) == [b"a"]
        library.left_done(1, found_nothing(1), 5)
        library.durable(4)
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        library.durable(5)
        assert answers(connection, 1) == b"+OK\r\n"


def test_requests_that_were_not_covered_come_again_in_their_order() -> None:
    with bare_door() as (library, port), connect(port) as connection:
        connection.sendall(b"".join(command(b"SET", b"%d" % i, b"v") for i in range(5)))
        left = left_commands(library)
        while len(left) < 5:  # the first ones were a batch of their own
            library.left_done(0, found_nothing(0), 0)
            left = left_commands(library)
        for first in (0, 2, 4):
            assert left == [b"%d" % i for i in range(first, 5)]
            covered = min(2, len(left))
            library.left_done(covered, found_nothing(covered), 0)
            left = left_commands(library) if first < 4 else []
        assert answers(connection, 5) == b"+OK\r\n" * 5


def test_each_refusal_has_an_id_of_its_own() -> None:
    with bare_door() as (library, port), connect(port) as connection:
        lines = []
        for _ in range(2):
            connection.sendall(command(b"SET", b"a", b"1"))
            left_commands(library)
            library.left_failed(Refusal(8, "no\r\nroom", "heap"))
            lines += answers(connection, 1).splitlines()
        ids = [re.fullmatch(rb"-OOM no  room \(request ([0-9a-f]{16})\)", line) for line in lines]
        assert all(ids)
        assert len({found[1] for found in ids if found}) == 2


def test_what_waits_is_refused_when_the_door_is_shut() -> None:
    with bare_door() as (library, port), connect(port) as connection:
        connection.sendall(command(b"SET", b"a", b"1"))
        left_commands(library)
        connection.sendall(command(b"SET", b"b", b"1") + b"PING\r\n")
        library.left_failed(Refusal(13, "broken", is_refusal=False))
        assert answers(connection, 1) == b"-ERR broken\r\n"
        library.abandon(Refusal(14, "the server stops"))
        while library.waiting():
            library.turn(0.01)
        assert without_ids(answers(connection, 2)) == b"-ERR the server stops\r\n+PONG\r\n"


def test_a_client_that_is_gone_leaves_nothing_behind() -> None:
    with bare_door() as (library, port):
        with connect(port) as connection:
            connection.sendall(command(b"SET", b"a", b"1" * 10_000))
            left_commands(library)
            assert library.held_bytes("requests") > 10_000
        time.sleep(0.02)
        assert library.connections() == 1  # it is there until its request is back
        library.left_done(1, found_nothing(1), 0)
        while library.connections():
            time.sleep(0.001)
        assert library.clients_bytes() == 0
