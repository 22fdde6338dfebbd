"""Commands with subcommands refuse what Redis refuses, in its words; what they tell of themselves has its shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.redis.two_servers import Connection, gpkvs_server, redis_server

# Both answer these alike.
SAME = """
    CLIENT | CLIENT NOSUCH | client ID 1 | CLIENT SETNAME | CLIENT setname a b | CLIENT LIST x | CLIENT LIST ID
    CLIENT LIST ID x | CLIENT LIST TYPE | CLIENT LIST TYPE x | CLIENT LIST TYPE master | CLIENT NO-EVICT
    CLIENT NO-EVICT x | CLIENT LIST ID 1000000 | CLIENT GETNAME x
    CONFIG | CONFIG NOSUCH | CONFIG GET | CONFIG RESETSTAT x | CONFIG SET | CONFIG SET maxmemory
    CONFIG SET maxmemory 0 x | CONFIG SET maxmemory 0 maxmemory 0
    SLOWLOG | SLOWLOG NOSUCH | SLOWLOG LEN x | SLOWLOG RESET x | SCRIPT | SCRIPT NOSUCH | SCRIPT LOAD | SCRIPT EXISTS
    SCRIPT FLUSH x | SCRIPT FLUSH SYNC x | SCRIPT FLUSH ASYNC | FUNCTION | FUNCTION NOSUCH | FUNCTION FLUSH
    FUNCTION FLUSH x | ACL | ACL NOSUCH | ACL WHOAMI | ACL WHOAMI x | MEMORY | MEMORY NOSUCH | MEMORY USAGE
    MEMORY USAGE k x | MEMORY USAGE k x 3 | MEMORY USAGE k
    COMMAND NOSUCH | COMMAND COUNT x | COMMAND LIST x | COMMAND LIST FILTERBY | COMMAND LIST FILTERBY x
    COMMAND LIST FILTERBY x y | COMMAND LIST FILTERBY MODULE x | COMMAND LIST FILTERBY ACLCAT x
    COMMAND LIST FILTERBY PATTERN getd* | COMMAND INFO nosuch | COMMAND GETKEYS | COMMAND GETKEYS GET
    COMMAND GETKEYS NOSUCH x | COMMAND GETKEYS PING x | COMMAND GETKEYS MSET a b c d | COMMAND GETKEYS EVAL x 2 a b c
    COMMAND GETKEYS EVAL x 0
    EVAL x y | EVAL x -1 | EVAL x 2 a | EVAL x | EVALSHA x y | EVALSHA x 0 | EVALSHA {sha1} y | EVALSHA {sha1} 0
    EVALSHA {sha1} -1 | EVALSHA {sha1} 2 a
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, Connection]]:
    """Connections to gpkvs and to a real Redis."""
    folder = tmp_path_factory.mktemp("servers")
    with (
        gpkvs_server(folder) as found,
        redis_server(folder) as expected,
        Connection(found) as one,
        Connection(expected) as other,
    ):
        yield one, other


def commands() -> list[list[bytes]]:
    text = SAME.format(sha1="0" * 40)
    return [part.encode().split() for line in text.strip().splitlines() for part in line.split("|") if part.strip()]


@pytest.mark.parametrize("words", commands(), ids=lambda words: b" ".join(words).decode())
def test_a_reply_is_that_of_redis(pair: tuple[Connection, Connection], words: list[bytes]) -> None:
    found, expected = (connection.call(*words) for connection in pair)
    assert found == expected


# No entry of the log: on a busy machine any command may be slow.
@pytest.mark.parametrize("words", [(b"CLIENT", b"NOSUCH"), (b"CONFIG", b"GET"), (b"SLOWLOG", b"GET", b"0")])
def test_also_where_they_are_queued(pair: tuple[Connection, Connection], words: tuple[bytes, ...]) -> None:
    replies = []
    for connection in pair:
        connection.send((b"MULTI",), words, (b"EXEC",))
        replies.append([connection.reply() for _ in range(3)])
    assert replies[0] == replies[1]


def test_commands_tell_of_their_subcommands(pair: tuple[Connection, Connection]) -> None:
    connection = pair[0]
    names = [name for _, name in connection.call(b"COMMAND", b"LIST")]
    assert {b"set", b"client", b"client|list", b"config|get"} <= set(names)
    lines = connection.call(b"CLIENT", b"HELP")
    assert lines[0].startswith(b"+CLIENT <subcommand>")
    assert {b"+LIST\r\n", b"+HELP\r\n"} <= set(lines)
    [[name, arity, flags, *_]] = connection.call(b"COMMAND", b"INFO", b"eval")
    assert (name, arity) == (("bulk", b"eval"), b":-3\r\n")
    assert b"+movablekeys\r\n" in flags


def test_client_list_names_clients_by_their_ids(pair: tuple[Connection, Connection]) -> None:
    connection = pair[0]
    number = connection.call(b"CLIENT", b"ID")[1:-2]
    _, line = connection.call(b"CLIENT", b"LIST", b"ID", number, b"1000000")
    assert line.startswith(b"id=" + number + b" ")
    assert b" cmd=client|list " in line
    assert line.count(b"\n") == 1


def test_the_document_lists_all_commands(pair: tuple[Connection, Connection]) -> None:
    document = (Path(__file__).parents[4] / "docs/redis.md").read_text()
    listed, _, behind = document.partition("All commands:")[2].partition("Anything else")
    words = set(re.findall(r"\b[A-Z]+(?:-[A-Z]+)?\b", listed))
    assert words >= {"SLOWLOG", "CLIENT"}
    assert "CLIENT TRACKING" in behind
    assert "FUNCTION FLUSH" in behind
    assert "HELP" in behind
    names = [name.upper().decode() for _, name in pair[0].call(b"COMMAND", b"LIST")]
    # What tells of tracking is there to refuse it by name; SLOWLOG is listed with all that it has.
    elsewhere = r"CLIENT\|(CACHING|GETREDIR|TRACKING|TRACKINGINFO)|SLOWLOG\|.*|.*\|HELP|FUNCTION.*"
    assert words == {part for name in names if not re.fullmatch(elsewhere, name) for part in name.split("|")}
