"""Which commands change a key that somebody watches: the same as of a real Redis, command by command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.redis.two_servers import DATABASE, Connection, gpkvs_server, redis_server
from tests.tools.fuzz_redis import RELEASE, is_same

STATES = ((), (b"SET k 1",), (b"SET k 1 EX 5000",), (b"SET k abc",), (b"SET k 1", b"SET z 5"))
# R: the script that releases a lock. A word may be empty. Commands that make a key and delete it at once are left out:
# it is absent as it was.
COMMANDS = b"""
PERSIST k|EXPIRE k 1000 NX|EXPIRE k 1000 XX|EXPIRE k 1000 GT|EXPIRE k 1000 LT|EXPIRE k 1000|EXPIRE k -1|EXPIRE k x
PEXPIREAT k 4102444800000|PEXPIREAT k 1|SET k 1|SET k abc|SET k 1 NX|SET k 1 XX|SET k 1 GET|SET k 1 KEEPTTL
SET k 1 EX 100|SET k 1 EX 0|SETNX k 1|SETEX k 100 1|PSETEX k 100000 1|GETSET k 1|GETSET k v|GETDEL k|GETEX k
GETEX k EX 100|GETEX k PERSIST|GETEX k EXAT 1|GETEX k PXAT 4102444800000|MGET k k|MSET k 1|MSET k 1 k 2
MSETNX k 1 z 2|MSETNX z 1 k 2|MSETNX k 1 k 2|INCR k|DECR k|INCRBY k 0|INCRBY k x|INCRBY k 9223372036854775807
DECRBY k 0|INCRBYFLOAT k 0|INCRBYFLOAT k 1.5|INCRBYFLOAT k nan|APPEND k |APPEND k x|STRLEN k|GETRANGE k 0 -1
SETRANGE k 0 |SETRANGE k 5 |SETRANGE k 0 x|SETRANGE k 10 x|SETRANGE k -1 x|DEL k|UNLINK k|DEL k k|EXISTS k|TOUCH k
TYPE k|RENAME k k|RENAME k z|RENAME z k|RENAMENX k k|RENAMENX k z|RENAMENX z k|COPY k k|COPY k z|COPY k z REPLACE
COPY z k|COPY z k REPLACE|TTL k|EXPIRETIME k|GET k|EVAL R 1 k 1|EVAL R 1 k other
"""


def words_of(line: bytes) -> list[bytes]:
    """Return the words of a command."""
    return [RELEASE if word == b"R" else word for word in line.split(b" ")]


@pytest.fixture(scope="module")
def connections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Connection]]:
    folder = tmp_path_factory.mktemp("watch")
    with redis_server(folder) as expected, gpkvs_server(folder) as found:
        opened = [Connection(port) for port in (found, found, expected, expected)]
        for connection in opened:
            connection.call(b"SELECT", b"%d" % DATABASE)
        yield opened
        for connection in opened:
            with connection:
                pass


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("queued", [(), (b"PING",), (b"GET", b"k"), (b"SETRANGE", b"k", b"0", b"")])
def test_commands_change_a_watched_key_as_those_of_redis(
    connections: list[Connection], state: tuple[bytes, ...], queued: tuple[bytes, ...]
) -> None:
    """The door executes a transaction by itself, or Python with what the door has seen."""

    def replies(watcher: Connection, other: Connection, words: list[bytes]) -> list[object]:
        other.call(b"DEL", b"k", b"z")
        for made in state:
            other.call(*words_of(made))
        watcher.call(b"WATCH", b"k")
        reply = other.call(*words)
        watcher.call(b"MULTI")
        if queued:
            watcher.call(*queued)
        return [reply, watcher.call(b"EXEC"), watcher.call(b"GET", b"k")]

    differ = []
    for line in COMMANDS.strip().replace(b"\n", b"|").split(b"|"):
        words = words_of(line)
        (reply, *found), (of_redis, *expected) = (replies(*connections[at : at + 2], words) for at in (0, 2))
        if found != expected or not is_same(words, reply, of_redis):
            differ.append((line, reply, found, of_redis, expected))
    assert not differ
