"""SLOWLOG: what is in it, what is cut, who may see it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpkvs.server.redis import service  # noqa: F401 - registers the commands
from gpkvs.server.redis.slow_log import ENTRIES_MAX, SLOWER_THAN_US, SlowLog
from tests.accounts import Account, Accounts
from tests.server.redis.two_servers import Connection, resp_port
from tests.serving import Server

SLOW = SLOWER_THAN_US + 1


def noted(*words: bytes) -> list[bytes]:
    log = SlowLog()
    log.note(words, SLOW, "127.0.0.1:1", b"")
    [entry] = log.last(1)
    return entry.words


def large_ones(redis: Connection) -> list[list[Any]]:
    """Return the entries of the one command that is slow wherever it runs; on a busy machine any may be."""
    return [entry for entry in redis.call(b"SLOWLOG", b"GET") if entry[3][0] == ("bulk", b"MSETNX")]


def test_many_and_long_words_are_cut_as_redis_cuts_them() -> None:
    assert noted(b"MGET", *[b"k"] * 31) == [b"MGET", *[b"k"] * 31]
    assert noted(b"MGET", *[b"k"] * 40) == [b"MGET", *[b"k"] * 30, b"... (10 more arguments)"]
    assert noted(b"INCR", bytes(128)) == [b"INCR", bytes(128)]
    assert noted(b"INCR", bytes(1000)) == [b"INCR", bytes(128) + b"... (872 more bytes)"]


def test_it_holds_the_last_ones_that_took_long() -> None:
    log = SlowLog()
    for number in range(ENTRIES_MAX + 10):
        log.note([b"INCR", b"%d" % number], SLOWER_THAN_US, "127.0.0.1:1", b"")
        log.note([b"INCR", b"%d" % number], SLOW, "127.0.0.1:1", b"name")
    assert len(log) == ENTRIES_MAX
    assert [(entry.number, entry.words[1]) for entry in log.last(2)] == [(137, b"137"), (136, b"136")]
    log.clear()
    assert log.last(10) == []


@pytest.mark.parametrize(
    "words", [(b"auth", b"user", b"pass"), (b"HELLO", b"3", b"AUTH", b"user", b"pass"), (b"AUHT", b"pass")]
)
def test_passwords_are_never_in_it(words: tuple[bytes]) -> None:
    log = SlowLog()
    log.note(words, SLOW, "127.0.0.1:1", b"")
    assert len(log) == 0


def test_a_slow_command_is_shown_to_administrators_alone(tmp_path: Path) -> None:
    root = Account(password="a long password", read=("*",), write=("*",), admin=("*",))
    other = Account(password="another password", read=("*",), write=("*",))
    accounts = Accounts(tmp_path / "users.toml", root=root, other=other)
    accounts.save()
    server = Server(tmp_path / "store", tmp_path, "--resp", "127.0.0.1:0", "--users", str(accounts.path))
    with Connection(resp_port(server)) as redis, Connection(resp_port(server)) as stranger:
        assert redis.call(b"AUTH", b"root", b"a long password") == b"+OK\r\n"
        assert redis.call(b"CLIENT", b"SETNAME", b"slow") == b"+OK\r\n"
        assert large_ones(redis) == []
        assert redis.call(b"WATCH", b"0") == b"+OK\r\n"
        assert redis.call(b"SET", b"0", b"", b"XX", b"KEEPTTL") is None  # from now on Python executes all
        assert redis.call(b"MSETNX", *[b"%d" % i for i in range(40_000)]) == b":1\r\n"
        assert int(redis.call(b"SLOWLOG", b"LEN")[1:]) >= 1
        [[number, timestamp, duration, words, peer, name]] = large_ones(redis)
        assert int(number[1:]) < 5  # of the few commands until now
        assert abs(int(timestamp[1:]) - time.time()) < 60
        assert int(duration[1:]) > SLOWER_THAN_US
        assert words[:2] + words[-1:] == [
            ("bulk", b"MSETNX"),
            ("bulk", b"0"),
            ("bulk", b"... (39970 more arguments)"),
        ]
        assert (peer[1].partition(b":")[0], name) == (b"127.0.0.1", ("bulk", b"slow"))
        assert redis.call(b"SLOWLOG", b"GET", b"-2").startswith(b"-ERR count should be")
        assert redis.call(b"CONFIG", b"GET", b"slowlog-log-slower-than")[1] == ("bulk", b"10000")
        assert stranger.call(b"AUTH", b"other", b"another password") == b"+OK\r\n"
        for words in ((b"GET",), (b"LEN",), (b"RESET",)):
            assert stranger.call(b"SLOWLOG", *words).startswith(b"-NOPERM ")
        stranger.send([b"MULTI"], [b"INCR", b"n"], [b"SLOWLOG", b"LEN"], [b"EXEC"])
        done, refused = [stranger.reply() for _ in range(4)][-1]
        assert done == b":1\r\n"
        assert refused.startswith(b"-NOPERM ")
        assert redis.call(b"SLOWLOG", b"RESET") == b"+OK\r\n"
        assert large_ones(redis) == []
    server.stop()
