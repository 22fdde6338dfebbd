"""Options for the columns of Parquet files: one column each, and of a file."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gpkvs.cli.main import app

ENVIRONMENT = {"COLUMNS": "1000", "TERM": "dumb"}


def failed(*words: str) -> str:
    result = CliRunner().invoke(app, ["import", *words], env=ENVIRONMENT)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


@pytest.mark.parametrize("option", ["--key", "--value", "--expires"])
def test_several_columns_are_refused(option: str) -> None:
    said = failed("file", option, "a", option, "b")
    assert f"Invalid value for {option}: several columns are not supported" in said
    assert "given were a, b" in said


@pytest.mark.parametrize("option", ["--key", "--value", "--expires"])
def test_a_redis_has_no_columns(option: str) -> None:
    assert "they name columns of a Parquet file" in failed("--from-redis", "127.0.0.1:1", option, "a")


def test_the_help_says_that_several_are_not_supported() -> None:
    result = CliRunner().invoke(app, ["import", "--help"], env=ENVIRONMENT)
    assert "Several columns of values are not supported" in " ".join(result.stdout.split())
