"""What one client of the Redis protocol can make Python hold, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.config import Limits
from gpkvs.server.account.memory import Account, Room
from gpkvs.server.redis.commands import scripts
from gpkvs.server.redis.execution import executor
from gpkvs.server.redis.execution.command import COMMANDS, NO_KEYS, Command, Step
from gpkvs.server.redis.execution.overlay import Overlay
from gpkvs.server.redis.protocol.reply import Error
from gpkvs.server.redis.service import Service  # noqa: F401 - registers the commands
from tests.certificates import HERE, Authority, server_options
from tests.server.counted import Counted
from tests.server.redis.two_servers import Connection, resp_port
from tests.serving import Server

OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"
VALUE = b"v" * 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("bounds")
    options = ("--resp", "127.0.0.1:0", "--memory-max", "256MiB", "--message-bytes-max", "4MiB")
    made = Server(folder / "store", folder, *options)
    try:
        yield made
        made.stop()
    finally:
        made.kill()
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def redis(server: Server) -> Iterator[Connection]:
    with Connection(resp_port(server)) as connection:
        yield connection


def overlay() -> Overlay:
    return Overlay(None, 0, Limits(), Room(Account(Counted(1 << 40).connection())))


def held_bytes(server: Server, kind: str = "calls") -> float:
    return server.metric("gpkvs_memory_bytes", kind=kind)


def in_python(redis: Connection) -> None:
    """Begin a transaction that Python has."""
    redis.send((b"MULTI",), (b"SET", b"n", b"", b"XX", b"KEEPTTL"))
    assert [redis.reply(), redis.reply()] == [OK, QUEUED]


def test_a_transaction_has_as_many_bytes_as_a_message(redis: Connection, server: Server) -> None:
    for end in (b"DISCARD", b"EXEC", b"RESET"):
        before = held_bytes(server)
        in_python(redis)
        for _ in range(30):
            assert redis.call(b"SET", b"k", VALUE) == QUEUED
        assert held_bytes(server) > before + 30 * len(VALUE)
        for _ in range(20):
            refusal = redis.call(b"SET", b"k", VALUE)
        assert (
            b"a transaction of more than 4,194,304 bytes (message_bytes_max): split it" in refusal or refusal == QUEUED
        )
        assert held_bytes(server) < before + 45 * len(VALUE)
        reply = redis.call(end)
        assert reply.startswith(b"-EXECABORT ") or end != b"EXEC"
        assert held_bytes(server) <= before + 50_000


def test_what_the_engine_has_answered_is_counted_until_the_client_has_its_reply(
    redis: Connection, server: Server
) -> None:
    before = held_bytes(server, "answers")
    assert redis.call(b"SET", b"k", VALUE) == OK
    for _ in range(20):
        assert redis.call(b"GETEX", b"k", b"PERSIST", b"PERSIST") == ("bulk", VALUE)
        assert redis.call(b"INCR", b"n") in (b":%d\r\n" % number for number in range(1, 50))
    assert redis.call(b"DEL", b"n") == b":1\r\n"
    assert held_bytes(server, "answers") <= before + 2 * len(VALUE)


@pytest.mark.parametrize(
    ("forgets", "in_between"),
    [(b"UNWATCH", ()), (b"EXEC", (b"GET", b"k")), (b"EXEC", (b"SET", b"k", b"v", b"XX", b"KEEPTTL"))],
)
def test_what_is_watched_is_counted(
    redis: Connection, server: Server, forgets: bytes, in_between: tuple[bytes, ...]
) -> None:
    before = held_bytes(server)
    keys = [b"%01000d" % number for number in range(3000)]
    for number in range(3):
        assert redis.call(b"WATCH", *keys[1000 * number : 1000 * number + 1000]) == OK
    assert redis.call(b"WATCH", *keys[:1000] * 3) == OK
    assert before + 3000 * 1000 < held_bytes(server) < before + 3000 * 1120
    if forgets == b"EXEC":
        redis.send((b"MULTI",), in_between, (b"EXEC",))
        assert [redis.reply() for _ in range(2)] == [OK, QUEUED]
        assert isinstance(redis.reply(), list)
    else:
        assert redis.call(b"UNWATCH") == OK
    assert held_bytes(server) <= before + 50_000


def test_what_would_have_a_reply_without_room_is_not_executed(redis: Connection) -> None:
    """A value is there once, and in the reply a thousand times."""
    assert redis.call(b"SET", b"k", VALUE) == OK
    in_python(redis)
    redis.send((b"SET", b"n", b"1"), *[(b"MGET", *[b"k"] * 1000)] * 2, (b"EXEC",))
    assert [redis.reply(), redis.reply(), redis.reply()] == [QUEUED] * 3
    assert redis.reply().startswith(b"-EXECABORT Transaction discarded because of: OOM memory full: this connection")
    assert redis.call(b"GET", b"n") is None
    assert redis.call(b"PING") == b"+PONG\r\n"


def test_a_transaction_writes_no_more_than_a_message_has(redis: Connection) -> None:
    """Its commands bring some bytes, and would store five megabytes."""
    commands = [(b"SETRANGE", b"new:%d" % number, b"499999", b"x") for number in range(10)]
    redis.send((b"MULTI",), *commands, (b"EXEC",))
    assert [redis.reply() for _ in range(11)] == [OK] + [QUEUED] * 10
    refusal = b"-EXECABORT Transaction discarded because of: ERR ops: its operations make too many"
    assert redis.reply().startswith(refusal)
    assert redis.call(b"EXISTS", *(words[1] for words in commands)) == b":0\r\n"
    redis.send((b"MULTI",), *commands[:2], (b"EXEC",))
    assert [redis.reply() for _ in range(3)] == [OK] + [QUEUED] * 2
    assert redis.reply() == [b":500000\r\n"] * 2
    assert redis.call(b"DEL", *(words[1] for words in commands)) == b":2\r\n"


def test_a_command_of_a_long_transaction_is_as_fast_as_the_first() -> None:
    """It could look at all keys that were written before it."""
    db = overlay()
    for number in range(100_000):
        db.set(b"%d" % number, b"")
    step = Step(COMMANDS[b"setex"], [b"SETEX", b"k", b"0", b"v"])
    began = time.perf_counter()
    for _ in range(1000):
        assert isinstance(executor._reply(step, db), Error)
    assert time.perf_counter() - began < 0.4  # two seconds when each copied them
    assert len(db.written) == 100_000


def test_a_command_that_fails_undoes_what_it_has_done() -> None:
    def fail(db: Overlay, _words: object) -> None:
        db.set(b"old", b"2")
        db.set(b"new", b"2")
        db.delete(b"new")
        raise Error("ERR no")

    db = overlay()
    db.set(b"old", b"1")
    executor._reply(Step(Command("fail", 1, NO_KEYS, writes=True, run=fail), [b"FAIL"]), db)
    assert {key: record.value for key, record in db.written.items()} == {b"old": b"1"}


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ((b"KEYS", b"[a-z]*" * 200), b"-ERR a pattern of 1,200 bytes, allowed are 1,024\r\n"),
        ((b"SCAN", b"0", b"MATCH", b"*" * 1025), b"-ERR a pattern of 1,025 bytes, allowed are 1,024\r\n"),
        ((b"CONFIG", b"GET", b"?" * 600, b"*" * 600), b"-ERR patterns of 1,200 bytes, allowed are 1,024\r\n"),
        ((b"CONFIG", b"GET", b"?" * (1 << 20)), b"-ERR CONFIG with words of 1,048,585 bytes, allowed are 65,536\r\n"),
        (
            (b"CONFIG", b"SET", *[b"%d" % n for n in range(2000)]),
            b"-ERR CONFIG with 2,002 words, allowed are 1,024\r\n",
        ),
        ((b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", b"*" * 1025), b"-ERR a pattern of 1,025 bytes, allowed are"),
        ((b"AUTH", b"default", b"p" * 70_000), b"-ERR AUTH with words of 70,011 bytes, allowed are 65,536\r\n"),
        ((b"EXPIRE", b"k", b"1", b"o" * 5000), b"-ERR Unsupported option " + b"o" * 128 + b"\r\n"),
        ((b"HELLO", b"2", b"o" * 5000), b"-ERR Syntax error in HELLO option '" + b"o" * 128 + b"'\r\n"),
        ((b"CLIENT", b"SETNAME", b"n" * 1025), b"-ERR a client name of 1,025 bytes, allowed are 1,024\r\n"),
        ((b"CLIENT", b"SETINFO", b"lib-name", b"n" * 1025), b"-ERR lib-name cannot contain spaces"),
        ((b"SCAN", b"9" * 5000), b"-ERR invalid cursor\r\n"),
        ((b"EVALSHA", b"0" * 40, b"9" * 5000, b"k"), b"-ERR value is not an integer or out of range\r\n"),
        ((b"EVAL", b" a" * 1_000_000, b"0"), b"-ERR no scripts run here but those of well-known locks"),
    ],
)
def test_what_is_kept_is_short(redis: Connection, words: tuple[bytes, ...], refusal: bytes) -> None:
    assert redis.call(*words).startswith(refusal)


def test_few_spellings_of_a_script_are_kept() -> None:
    release = b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end'
    try:
        for number in range(3000):
            scripts._load(release + b" " * number)
        assert len(scripts.loaded) <= 1024
        with pytest.raises(Exception, match="no scripts run here"):
            scripts._load(release + b" " * 10_000)
    finally:
        scripts.loaded.clear()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "TLS"])
def test_a_command_that_is_too_large_is_refused_with_a_word(tmp_path: Path, is_tls: bool) -> None:
    """The client has sent all of it before it looks: it must not lose the answer to a reset."""
    authority = Authority(tmp_path) if is_tls else None
    options = server_options(authority.issue("server", *HERE)) if authority else []
    server = Server(
        tmp_path / "store", tmp_path, "--resp", "127.0.0.1:0", "--memory-max", "64MiB", *options, authority=authority
    )
    try:
        context = authority.context() if authority else None
        for _ in range(5):
            with Connection(resp_port(server), context) as redis:
                reply = redis.call(b"APPEND", b"k", bytes(8 << 20))
                assert reply.startswith(
                    b"-ERR Protocol error: a command of more than 1,048,576 bytes (message_bytes_max): raise"
                )
                with pytest.raises(EOFError):
                    redis.reply()
        server.stop()
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        (b"*1048577\r\n", b"a command of more than 1,048,576 words: split it"),
        (b"*2\r\n$4\r\nECHO\r\n$4194304\r\n", b"a command of more than 4,194,304 bytes (message_bytes_max): raise"),
    ],
    ids=["words", "bytes"],
)
def test_a_command_over_a_limit_is_told_the_limit(server: Server, head: bytes, refusal: bytes) -> None:
    with Connection(resp_port(server)) as redis:
        redis.send_bytes(head)
        assert redis.reply().startswith(b"-ERR Protocol error: " + refusal)
        with pytest.raises(EOFError):
            redis.reply()


def test_a_command_reads_a_little_less_than_three_quarters_of_a_message(redis: Connection) -> None:
    keys = [b"part:%d" % number for number in range(64)]
    for key in keys:
        assert redis.call(b"SET", key, bytes((3 << 14) - 2)) == OK
    assert len(redis.call(b"MGET", *keys)) == len(keys)
    for key in keys:
        assert redis.call(b"SET", key, bytes(3 << 14)) == OK
    refusal = b"of values, the limit is 3,145,664 (result_bytes_max): split it"
    assert refusal in redis.call(b"MGET", *keys)
    assert redis.call(b"DEL", *keys) == b":64\r\n"
