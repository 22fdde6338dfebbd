"""The Redis protocol on a store of format 4, whose records are longer with an expiry."""

from __future__ import annotations

import pytest

from tests.server.redis.two_servers import Connection, resp_port
from tests.serving import StartServer

RELEASE = b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end'
EXTEND = b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end'


@pytest.fixture(params=["undo", "journal"])
def redis(start_server: StartServer, request: pytest.FixtureRequest) -> Connection:
    options = ("--format", "4", "--commit", request.param, "--heap-bytes-max", "1GiB")
    server = start_server("--resp", "127.0.0.1:0", *options)
    return Connection(resp_port(server))


def test_a_lock_is_released_whatever_its_value_s_length(redis: Connection) -> None:
    """Its length is compared before its record is read."""
    with redis:
        for length in range(36):
            value, other = b"t" * length, b"u" * length
            for expiry in ((), (b"PX", b"100000000")):
                redis.call(b"SET", b"lock", value, *expiry)
                assert redis.call(b"EVAL", RELEASE, b"1", b"lock", other) == (b":0\r\n" if length else b":1\r\n")
                redis.call(b"SET", b"lock", value, *expiry)
                assert redis.call(b"EVAL", EXTEND, b"1", b"lock", value, b"1000000") == b":1\r\n"
                assert redis.call(b"EVAL", RELEASE, b"1", b"lock", value) == b":1\r\n"
                assert redis.call(b"EXISTS", b"lock") == b":0\r\n"


def test_the_expiry_of_the_largest_value(redis: Connection) -> None:
    """It is longer than what one command may make, or read."""
    value = b"0123456789abcdef" * (100 << 16)
    with redis:
        assert redis.call(b"SET", b"key", value) == b"+OK\r\n"
        assert redis.call(b"EXPIRE", b"key", b"1000") == b":1\r\n"
        assert redis.call(b"EXPIRE", b"key", b"2000", b"GT") == b":1\r\n"
        assert redis.call(b"TTL", b"key") == b":2000\r\n"
        assert redis.call(b"PERSIST", b"key") == b":1\r\n"
        assert redis.call(b"TTL", b"key") == b":-1\r\n"
        assert redis.call(b"GETEX", b"key", b"EX", b"1000") == ("bulk", value)
        assert redis.call(b"GETEX", b"key", b"PERSIST") == ("bulk", value)
        assert redis.call(b"PEXPIRE", b"key", b"1000000") == b":1\r\n"
        refused = redis.call(b"APPEND", b"key", b"x")
        assert b"its operations make too many bytes" in refused
        assert redis.call(b"GET", b"key") == ("bulk", value)


def test_expiries_come_and_go(redis: Connection) -> None:
    with redis:
        for length in range(20):
            value = b"v" * length
            redis.call(b"SET", b"key", value, b"EX", b"1000")
            redis.call(b"APPEND", b"key", b"!")
            redis.call(b"SETRANGE", b"key", b"%d" % (length + 1), b"?")
            assert redis.call(b"PERSIST", b"key") == b":1\r\n"
            assert redis.call(b"TTL", b"key") == b":-1\r\n"
            redis.call(b"COPY", b"key", b"other", b"REPLACE")
            redis.call(b"EXPIRE", b"other", b"77")
            redis.call(b"SET", b"other", b"x" * length, b"KEEPTTL")
            assert redis.call(b"TTL", b"other") in (b":77\r\n", b":76\r\n")
            assert redis.call(b"GETEX", b"key", b"EX", b"5") == ("bulk", value + b"!?")
