"""The door's table of commands (door/resp/resp_command.cpp) says of each nothing that Python's table does not say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpkvs.server.redis.execution.command import COMMANDS
from gpkvs.server.redis.service import Service  # noqa: F401 - registers the commands

_DOOR = Path(__file__).parents[4] / "door"
SOURCE = (_DOOR / "resp" / "resp_command.cpp").read_text()
_ROW = re.compile(r'^    \{"(\w+)", (\S+), Answer::\w+, (\d+), (\d+|NEVER), (\w+)', re.MULTILINE)
ROWS = _ROW.findall(SOURCE)


def test_the_table_was_read() -> None:
    assert len(ROWS) == int(re.findall(r"DOOR_REDIS_COMMANDS (\d+)", (_DOOR / "door.h").read_text())[0])


@pytest.mark.parametrize(("name", "op", "words_min", "words_max", "rights"), ROWS)
def test_a_row_fits_the_command(name: str, op: str, words_min: str, words_max: str, rights: str) -> None:
    command = COMMANDS[name.encode()]
    fewest = int(words_min)
    if command.arity > 0:
        assert words_min == words_max == str(command.arity)
    else:
        assert fewest >= -command.arity
    words = [name.encode(), *[b"get"] * (fewest - 1)]  # SET has the option of this name
    if op == "0":  # it is on no keys
        assert rights == "0"
    elif command.writes:
        assert rights == ("MAY_BOTH" if command.reads(words) else "MAY_WRITE")
    else:
        assert rights == "MAY_READ"


def test_what_is_answered_shortly_is_a_command() -> None:
    listed = SOURCE.partition("SHORTLY_ANSWERED[] = {")[2].partition("};")[0]
    assert {name.encode() for name in re.findall(r'"(\w+)"', listed)} < COMMANDS.keys()
