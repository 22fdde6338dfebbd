"""The reader of the documents can fail: what it would not see, a document could show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of
from tests.docs.session import Session


def shell(*commands: str) -> Block:
    return Block("some.md", 1, "sh", "\n".join(commands))


def python(text: str) -> Block:
    return Block("some.md", 1, "python", text)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    opened = Session(tmp_path, tmp_path, tmp_path)
    yield opened
    opened.close()


def run(session: Session, block: Block, seconds_max: float = 60) -> None:
    for command in block.commands if block.language == "sh" else [""]:
        session.run(block, command, seconds_max=seconds_max)


def test_blocks_share_a_shell_and_a_namespace(session: Session, tmp_path: Path) -> None:
    run(session, shell("cd /tmp/", "place=$(pwd)", 'echo "$place" > here  # a comment'))
    assert (tmp_path / "here").read_text() == f"{tmp_path}\n"
    run(session, python("number = 41"))
    run(session, python("number += 1\nnumber  # 42; the answer\nprint(number)  # 42"))


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (shell("true", "false", "true"), "false: 1"),
        (shell("no_such_command"), "127"),
        (shell("exit 3"), "no answer"),
        (shell("gpkvs serve --no-such-option"), "no-such-option"),
        (python("undefined"), "NameError"),
        (python("async with client: ..."), "SyntaxError"),
        (python("with open('/dev/null'):\n    1 + 1  # 3; not 2"), "it is not 3"),
        (python("print(1 + 1)  # 3"), "it is not 3"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_what_does_not_work_fails(session: Session, block: Block, why: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=why):
        run(session, block)


def test_what_does_not_end_fails(session: Session) -> None:
    with pytest.raises(pytest.fail.Exception, match="not done after 1 s"):
        run(session, shell("sleep 60"), seconds_max=1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Words:\n\n    gpkvs info\n", "some.md:3: a block that is only indented"),
        ("```\ngpkvs info\n```\n", "some.md:1: a fence that does not name its language"),
        ("```sh\ngpkvs info\n", "some.md:1: a fence that does not end"),
    ],
)
def test_what_is_no_block_is_an_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        blocks_of("some.md", text)
