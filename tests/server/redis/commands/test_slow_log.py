"""SLOWLOG: what is in it, what is cut, who may see it; as a real Redis answers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.server.calls.running_call import RunningCall
from gpkvs.server.redis import service  # noqa: F401 - registers the commands
from gpkvs.server.redis.commands.slow_log import PROTOCOL, end_command, words_of
from gpkvs.server.signs.slow_log import SlowLog
from tests.accounts import Account, Accounts
from tests.server.redis.two_servers import Connection, redis_server, resp_port
from tests.serving import Server

ALL = ("--slow-log-over-ms", "0")


def noted(*words: bytes) -> list[bytes]:
    """Return what is shown of a command that Python has executed."""
    log = SlowLog(0.0, 128)
    call = RunningCall(log, "ip:127.0.0.1:1", PROTOCOL, "")
    call.begin()
    end_command(call, words)
    return [word for entry in log.last() for word in words_of(entry.call)]


def test_of_the_words_the_name_and_a_key_are_shown() -> None:
    assert noted(b"get", b"k") == [b"GET", b"k"]
    assert noted(b"MGET", *[b"k"] * 40) == [b"MGET", b"k", b"... (39 more arguments)"]
    assert noted(b"SET", b"k", b"a secret value") == [b"SET", b"k", b"... (1 more arguments)"]
    assert noted(b"INCR", bytes(32)) == [b"INCR", bytes(32)]
    assert noted(b"INCR", bytes(1000)) == [b"INCR", bytes(32) + b"... (968 more bytes)"]
    assert noted(b"slowlog", b"get", b"5") == [b"SLOWLOG", b"GET", b"... (1 more arguments)"]
    assert noted(b"EVAL", b"return 'a secret'", b"0") == [b"EVAL", b"... (2 more arguments)"]
    assert noted(b"PING") == [b"PING"]


@pytest.mark.parametrize(
    "words",
    [
        (b"auth", b"user", b"pass"),
        (b"HELLO", b"3", b"AUTH", b"user", b"pass"),
        (b"CONFIG", b"SET", b"requirepass", b"pass"),
        (b"AUHT", b"pass"),
    ],
)
def test_passwords_are_never_in_it(words: tuple[bytes]) -> None:
    assert noted(*words) == []


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, Connection]]:
    """Connections to gpkvs and to a real Redis, which note every command."""
    folder = tmp_path_factory.mktemp("servers")
    server = Server(folder / "store", folder, "--resp", "127.0.0.1:0", *ALL)
    with (
        redis_server(folder, "--slowlog-log-slower-than", "0") as expected,
        Connection(resp_port(server)) as one,
        Connection(expected) as other,
    ):
        yield one, other
    server.stop()


def test_it_is_that_of_redis(pair: tuple[Connection, Connection]) -> None:
    logs = []
    for connection in pair:
        connection.call(b"SLOWLOG", b"RESET")
        for words in ("SET k v", "GET k", "STRLEN k", "INCR n", "TTL k", "DEL k", "GET", "KEYS", "TYPE k"):
            connection.call(*words.encode().split())
        logs.append((connection.call(b"SLOWLOG", b"LEN"), connection.call(b"SLOWLOG", b"GET", b"-1")))
    (found_entries, found), (expected_entries, expected) = logs
    assert found_entries == expected_entries
    for ours, theirs in zip(found, expected, strict=True):
        assert [type(part) for part in ours] == [type(part) for part in theirs]
        assert abs(int(ours[1][1:]) - int(theirs[1][1:])) < 60
        assert int(ours[2][1:]) >= 0
        assert ours[4][1].startswith(b"127.0.0.1:")
        if theirs[3][0][1] != b"SET":
            assert ours[3] == theirs[3]
    for entries in (found, expected):
        numbers = [int(entry[0][1:]) for entry in entries]
        assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))


@pytest.mark.parametrize(
    "words", ["GET -2", "GET x", "GET 1 2", "LEN x", "RESET x", "NOSUCH", "GET 99999999999999999999"]
)
def test_what_is_wrong_is_said_as_redis_says_it(pair: tuple[Connection, Connection], words: str) -> None:
    found, expected = (connection.call(b"SLOWLOG", *words.encode().split()) for connection in pair)
    assert found == expected


def test_so_many_entries_as_redis_shows(pair: tuple[Connection, Connection]) -> None:
    for asked in ((), (b"3",), (b"0",), (b"1000",)):
        lengths = []
        for connection in pair:
            connection.call(b"SLOWLOG", b"RESET")
            for _ in range(20):
                connection.call(b"GET", b"k")
            lengths.append(len(connection.call(b"SLOWLOG", b"GET", *asked)))
        assert lengths[0] == lengths[1]


def test_help(pair: tuple[Connection, Connection]) -> None:
    assert {b"+GET\r\n", b"+LEN\r\n", b"+RESET\r\n", b"+HELP\r\n"} <= set(pair[0].call(b"SLOWLOG", b"HELP"))


def test_transactions_and_scripts_have_one_entry(pair: tuple[Connection, Connection]) -> None:
    redis = pair[0]
    redis.call(b"SLOWLOG", b"RESET")
    redis.send([b"MULTI"], [b"SET", b"first", b"1"], [b"INCR", b"other"], [b"EXEC"])
    assert [redis.reply() for _ in range(4)][-1][0] == b"+OK\r\n"
    [[_, _, _, words, *_], *_] = redis.call(b"SLOWLOG", b"GET")
    assert words[:2] == [("bulk", b"EXEC"), ("bulk", b"first")]


def entries_of(redis: Connection, name: bytes) -> list[list[Any]]:
    return [entry for entry in redis.call(b"SLOWLOG", b"GET", b"-1") if entry[3][0] == ("bulk", name)]


def test_it_is_shown_to_administrators_alone(tmp_path: Path) -> None:
    root = Account(password="a long password", read=("*",), write=("*",), admin=("*",))
    other = Account(password="another password", read=("*",), write=("*",))
    accounts = Accounts(tmp_path / "users.toml", root=root, other=other)
    accounts.save()
    server = Server(tmp_path / "store", tmp_path, "--resp", "127.0.0.1:0", "--users", str(accounts.path), *ALL)
    with Connection(resp_port(server)) as redis, Connection(resp_port(server)) as stranger:
        assert redis.call(b"AUTH", b"root", b"a long password") == b"+OK\r\n"
        assert redis.call(b"CLIENT", b"SETNAME", b"slow") == b"+OK\r\n"
        redis.call(b"GET", b"native")
        redis.call(b"KEYS", b"*")
        for name in (b"GET", b"KEYS"):
            [[_, timestamp, _, _, peer, client]] = entries_of(redis, name)
            assert abs(int(timestamp[1:]) - time.time()) < 60
            assert (peer[1].partition(b":")[0], client) == (b"127.0.0.1", ("bulk", b"slow"))
        assert entries_of(redis, b"AUTH") == []
        assert redis.call(b"CONFIG", b"GET", b"slowlog-log-slower-than")[1] == ("bulk", b"0")
        assert redis.call(b"CONFIG", b"GET", b"slowlog-max-len")[1] == ("bulk", b"128")
        assert stranger.call(b"AUTH", b"other", b"another password") == b"+OK\r\n"
        for words in ((b"GET",), (b"LEN",), (b"RESET",)):
            assert stranger.call(b"SLOWLOG", *words).startswith(b"-NOPERM ")
        stranger.send([b"MULTI"], [b"INCR", b"n"], [b"SLOWLOG", b"LEN"], [b"EXEC"])
        done, refused = [stranger.reply() for _ in range(4)][-1]
        assert done == b":1\r\n"
        assert refused.startswith(b"-NOPERM ")
        assert redis.call(b"SLOWLOG", b"RESET") == b"+OK\r\n"
        assert entries_of(redis, b"GET") == []
    server.stop()


def id_of(error: bytes) -> str:
    """Return the id that an error ends with."""
    found = re.fullmatch(rb"-(?:OOM|NOPERM) .* \(request ([0-9a-f]{16})\)\r\n", error)
    assert found, error
    return found[1].decode()


def test_errors_have_the_ids_of_their_entries(tmp_path: Path) -> None:
    """Of commands that the door executes, and of those that Python does."""
    root = Account(password="a long password", read=("*",), write=("*",), admin=("*",))
    reader = Account(password="another password", read=("*",))
    accounts = Accounts(tmp_path / "users.toml", root=root, reader=reader)
    token = accounts.token("root")
    accounts.save()
    small = ("--heap-bytes", "4MiB", "--heap-bytes-max", "4MiB")
    server = Server(tmp_path / "store", tmp_path, "--resp", "127.0.0.1:0", "--users", str(accounts.path), *ALL, *small)
    with Connection(resp_port(server)) as redis:
        assert redis.call(b"AUTH", b"root", b"a long password") == b"+OK\r\n"
        replies = (redis.call(b"SET", b"%d" % number, bytes(100_000)) for number in range(100))
        refused = [id_of(next(reply for reply in replies if reply != b"+OK\r\n"))]
        assert redis.call(b"AUTH", b"reader", b"another password") == b"+OK\r\n"
        refused += [id_of(redis.call(*words)) for words in ((b"SET", b"k", b"v"), (b"DEL", b"k"))]
        assert redis.call(b"INCR") == b"-ERR wrong number of arguments for 'incr' command\r\n"
        calls = server.admin.SlowLog(admin_pb2.SlowLogRequest(), metadata=token).calls
    named = [call for call in reversed(calls) if call.request_id and call.protocol == "redis"]
    assert [(call.request_id, call.command) for call in named] == list(zip(refused, ("SET", "SET", "DEL"), strict=True))
    assert [call.user for call in named] == ["root", "reader", "reader"]
    server.stop()


def test_calls_of_grpc_are_not_in_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "store", tmp_path, "--resp", "127.0.0.1:0", *ALL)
    with Connection(resp_port(server)) as redis:
        server.kv.Get(kv_pb2.GetRequest(key=b"k"))
        redis.call(b"STRLEN", b"k")
        assert [entry[3][0] for entry in redis.call(b"SLOWLOG", b"GET")] == [("bulk", b"STRLEN")]
        redis.call(b"SLOWLOG", b"RESET")
        calls = server.admin.SlowLog(admin_pb2.SlowLogRequest()).calls
        assert [(call.protocol, call.command) for call in calls] == [("redis", "SLOWLOG RESET"), ("grpc", "Get")]
    server.stop()
