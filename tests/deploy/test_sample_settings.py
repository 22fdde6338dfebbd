"""deploy/gpkvs.toml has every option of `gpkvs serve`, with its default and a comment."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from gpkvs.cli.main import app
from gpkvs.cli.options.sizes import parse_bytes
from gpkvs.config import HEAP_BYTES_MAX, HEAP_BYTES_USUAL, LOG_BYTES_MAX, Sizes

TEXT = (Path(__file__).parents[2] / "deploy/gpkvs.toml").read_text()
SETTINGS = tomllib.loads(TEXT)
# What has no default stands there commented out.
WITHOUT_DEFAULT = set(re.findall(r"^# (\w+) = ", TEXT, re.MULTILINE))


def options() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    serve = command.resolve_command(typer.Context(command), ["serve"])[1]
    return {option.name: option for option in serve.params if option.name != "config"}


def shown_default(option: Any) -> object:
    return option.show_default if isinstance(option.show_default, str) else option.default


def is_size(text: object) -> bool:
    return re.fullmatch(r"\d+[KMGT]iB", str(text)) is not None


def test_every_option_is_there_once() -> None:
    assert not WITHOUT_DEFAULT & SETTINGS.keys()
    assert WITHOUT_DEFAULT | SETTINGS.keys() == options().keys()


def test_every_value_is_the_default() -> None:
    for name, option in options().items():
        if option.required:
            assert name == "data"
            continue
        shown = shown_default(option)
        has_default = option.default is not None or is_size(shown)
        assert (name in SETTINGS) == has_default, name
        if has_default:
            assert SETTINGS[name] == shown, name
        if is_size(shown):
            of_growth = {
                "heap_bytes": HEAP_BYTES_USUAL,
                "heap_bytes_max": HEAP_BYTES_MAX,
                "log_bytes_max": LOG_BYTES_MAX,
            }
            usual = asdict(Sizes()) | of_growth
            assert parse_bytes(shown) == (usual[name] if option.default is None else option.default), name


def test_every_option_has_a_comment_and_a_variable() -> None:
    lines = TEXT.splitlines()
    for name, option in options().items():
        (at,) = (i for i, line in enumerate(lines) if re.match(rf"(# )?{name} = ", line))
        assert re.match(r"# [A-Z].{10,}[.)]$", lines[at - 1]), name
        assert option.envvar == f"GPKVS_{name.upper()}"
