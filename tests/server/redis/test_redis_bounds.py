"""What one client of the Redis protocol can make Python hold, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpkvs.config import Limits
from gpkvs.server.redis import executor, scripts
from gpkvs.server.redis.command import COMMANDS, NO_KEYS, Command, Step
from gpkvs.server.redis.overlay import Overlay
from gpkvs.server.redis.reply import Error
from gpkvs.server.redis.service import Service  # noqa: F401 - registers the commands
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


def held_bytes(server: Server, kind: str = "calls") -> float:
    return server.metric("gpkvs_memory_bytes", kind=kind)


def in_python(redis: Connection) -> None:
    """Begin a transaction that Python has."""
    redis.send((b"MULTI",), (b"PERSIST", b"n"))
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
        assert redis.call(b"GETEX", b"k") == ("bulk", VALUE)
        assert redis.call(b"INCR", b"n") in (b":%d\r\n" % number for number in range(1, 50))
    assert redis.call(b"DEL", b"n") == b":1\r\n"
    assert held_bytes(server, "answers") <= before + 2 * len(VALUE)


def test_what_is_watched_is_counted(redis: Connection, server: Server) -> None:
    before = held_bytes(server)
    keys = [b"%01000d" % number for number in range(3000)]
    for number in range(3):
        assert redis.call(b"WATCH", *keys[1000 * number : 1000 * number + 1000]) == OK
    assert redis.call(b"WATCH", *keys[:1000] * 3) == OK
    assert before + 3000 * 1000 < held_bytes(server) < before + 3000 * 1100
    assert redis.call(b"UNWATCH") == OK
    assert held_bytes(server) <= before + 50_000


def test_a_reply_that_has_no_room_is_not_made(redis: Connection) -> None:
    """A value is there once, and in the reply a thousand times."""
    assert redis.call(b"SET", b"k", VALUE) == OK
    in_python(redis)
    redis.send(*[(b"MGET", *[b"k"] * 1000)] * 2, (b"EXEC",))
    assert [redis.reply(), redis.reply()] == [QUEUED, QUEUED]
    refusal = b"-OOM this was executed, but there is no room for its reply of 200,000,000 bytes (--memory-max)"
    assert redis.reply().startswith(refusal)
    assert redis.call(b"GET", b"n") != b"$-1\r\n"
    assert redis.call(b"PING") == b"+PONG\r\n"


def test_a_command_of_a_long_transaction_is_as_fast_as_the_first() -> None:
    """It could look at all keys that were written before it."""
    db = Overlay(None, 0, Limits())
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

    db = Overlay(None, 0, Limits())
    db.set(b"old", b"1")
    executor._reply(Step(Command("fail", 1, NO_KEYS, writes=True, run=fail), [b"FAIL"]), db)
    assert {key: record.value for key, record in db.written.items()} == {b"old": b"1"}


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ((b"KEYS", b"[a-z]*" * 200), b"-ERR a pattern of 1,200 bytes, allowed are 1,024\r\n"),
        ((b"SCAN", b"0", b"MATCH", b"*" * 1025), b"-ERR a pattern of 1,025 bytes, allowed are 1,024\r\n"),
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
        assert len(scripts._loaded) <= 1024
        with pytest.raises(Exception, match="no scripts run here"):
            scripts._load(release + b" " * 10_000)
    finally:
        scripts._loaded.clear()
