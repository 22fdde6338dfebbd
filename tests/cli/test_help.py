"""What every help text says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gpkvs.cli.main import Gpkvs, app
from gpkvs.info import package_version

ENVIRONMENT = {"COLUMNS": "1000", "TERM": "dumb"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group of commands, by its words."""
    yield path, command
    context = typer.Context(command)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from commands(command.resolve_command(context, [name])[1], (*path, name))


EVERY = dict(commands(typer.main.get_command(app)))
EXPECTED = {
    ("serve",): {0, 1, 2, 3, 70, 71, 74, 130},
    ("get",): {0, 1, 2, 71, 74, 130},
    ("set",): {0, 1, 2, 71, 74, 130},
    ("incr",): {0, 2, 71, 74, 130},
    ("doctor",): {0, 1, 2, 71, 74, 130, 143},
    ("check",): {0, 1, 2, 3, 71, 74, 130},
    ("recover",): {0, 1, 2, 3, 70, 71, 74, 130},
    ("copy",): {0, 1, 2, 3, 71, 74, 130, 143},
    ("backup",): {0, 1, 2, 3, 71, 74, 130, 143},
    ("archive",): {0, 1, 2, 3, 71, 74},
    ("restore",): {0, 1, 2, 3, 71, 74, 130, 143},
    ("top",): {0, 2, 71, 74},
    ("table", "drop"): {0, 1, 2, 71, 74, 130},
    ("ycsb", "run"): {0, 1, 2, 71, 74},
    ("drill",): {0, 1, 2, 71, 74, 130},
    (): {0, 2, 71, 74, 130},
}


def test_all_commands_are_found() -> None:
    assert len(EVERY) >= 25
    assert EXPECTED.keys() <= EVERY.keys()


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_lists_exit_statuses(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], env=ENVIRONMENT)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert text.count("Exit status: 0 ") == 1
    listed = text.partition("Exit status: ")[2].partition("│" if "│" in text else "╭")[0]
    statuses = {int(number) for number in re.findall(r"(?:^|; )(\d+) ", listed)}
    assert {0, 2} <= statuses
    assert statuses == EXPECTED.get(words, statuses)
    assert "wrong options" in text


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_help_shows_the_words_that_were_written(words: tuple[str, ...]) -> None:
    """Markdown would eat the asterisks of `--read '*'` outside of backticks."""
    command = EVERY[words]
    written = " ".join([command.help, *(getattr(parameter, "help", None) or "" for parameter in command.params)])
    shown = CliRunner().invoke(app, [*words, "--help"], env=ENVIRONMENT).stdout
    assert set(written.replace("`", "").split()) - set(shown.split()) <= {"-"}  # of a list


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ycsb", "load"), "table=NAME"),
        (("ycsb", "run"), "table=NAME"),
        (("set",), "Write -- before one that begins with -"),
        (("append",), "Write -- before one that begins with -"),
    ],
)
def test_what_new_users_looked_for(words: tuple[str, ...], told: str) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"], env=ENVIRONMENT).stdout
    assert told in " ".join(shown.split())


def test_every_command_stands_under_a_heading() -> None:
    panels = [name for names in Gpkvs.panels.values() for name in names]
    assert len(panels) == len(set(panels))
    assert set(Gpkvs.subcommands) <= set(panels)
    shown = CliRunner().invoke(app, ["--help"], env=ENVIRONMENT).stdout
    places = [shown.index(f" {panel} ") for panel in Gpkvs.panels]
    assert places == sorted(places)
    assert "Commands ─" not in shown


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(option: str) -> None:
    result = CliRunner().invoke(app, [option])
    first, second = result.stdout.splitlines()
    assert (result.exit_code, first) == (0, f"gpkvs {package_version()}")
    assert re.fullmatch(r"native door: (nghttp2 \d+\.\d+\.\d+, OpenSSL \d+\.\d+\.\d+|not built)", second)
