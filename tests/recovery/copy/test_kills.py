"""A copy that is cut short at any place leaves no store that opens, and a second run begins anew."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gpkvs
from gpkvs.cli.main import app
from gpkvs.errors import StoreError
from gpkvs.process import failpoint
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from gpkvs.recovery.startup.check import check
from tests.recovery.copy.stores import assert_holds, copy, format1, snapshot
from tests.recovery.startup.harness import kill_at

GPKVS = ("-m", "gpkvs.cli")


@pytest.mark.parametrize("point", [*failpoint.COPY, "mid_copy:2", "mid_copy:4", "between"])
def test_a_killed_copy(point: str, tmp_path: Path) -> None:
    old, expected = format1("active", tmp_path)
    before, new = snapshot(old), tmp_path / "new"
    if point == "between":  # killed twice
        assert kill_at([*GPKVS, "copy", old, new], "mid_copy:3")
        point = "before_copy_publish"
    assert kill_at([*GPKVS, "copy", old, new], point)
    assert snapshot(old) == before
    if point == "after_copy_publish":
        assert_holds(new, expected)
        assert not (new / "COPYING").exists()
        return
    for use in (gpkvs.open, check):
        with pytest.raises(StoreError, match="copy that was not finished"):
            use(new)
    copy(old, new)
    assert not (new / "COPYING").exists()
    assert_holds(new, expected)


def test_another_copy_may_follow_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    old, _ = format1("active", tmp_path / "a")
    assert kill_at([*GPKVS, "copy", str(old), str(tmp_path / "new"), "--heap-bytes", "4MiB"], "before_copy_root")
    gpkvs.open(tmp_path / "b", index_bytes=64 << 10, heap_bytes=1 << 20, store_format="3").close()
    copy(tmp_path / "b", tmp_path / "new", "undo", "3")  # the other one has blobs
    assert {file.name for file in (tmp_path / "new").iterdir()} == {
        "LOCK", "root", "log", "heap", "index-0-0", "catalog-0.json",
    }  # fmt: skip


def test_what_else_lies_beside_an_unfinished_copy_is_not_removed(tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    assert kill_at([*GPKVS, "copy", str(old), str(tmp_path / "new")], "mid_copy")
    (tmp_path / "new" / "mine").write_text("precious")
    with pytest.raises(StoreError, match="not empty"):
        copy(old, tmp_path / "new")
    assert (tmp_path / "new" / "mine").read_text() == "precious"


@pytest.mark.parametrize("at", range(10))
def test_an_exception_at_any_step(at: int, tmp_path: Path) -> None:
    old, expected = format1("clean", tmp_path)
    steps: list[str] = []

    def interrupt(step: str, _share: float) -> None:
        steps.append(step)
        if len(steps) == at + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_store(old, tmp_path / "a" / "new", CopySizes(), interrupt)
    assert not (tmp_path / "a" / "new").exists()
    copy(old, tmp_path / "new")
    assert_holds(tmp_path / "new", expected)


def test_the_command(tmp_path: Path) -> None:
    old, expected = format1("active", tmp_path)
    new = tmp_path / "new"
    done = CliRunner().invoke(app, ["copy", str(old), str(new), "--json", "--table-index-bytes", "numbers=1MiB"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["old_format"] == "1"
    assert report["keys"] == sum(len(records) for records in expected.tables.values())
    assert [table["index_bytes"] for table in report["tables"] if table["name"] == "numbers"] == [1 << 20]
    assert_holds(new, expected)
    again = CliRunner().invoke(app, ["copy", str(old), str(tmp_path / "other")])
    assert again.exit_code == 0
    assert "format 1; a batch was in progress" in again.stdout
    assert "357 keys in 4 tables" in again.stdout
    refused = CliRunner().invoke(app, ["copy", str(old), str(new)])
    assert refused.exit_code == 1
    assert "holds a store" in refused.stderr
    wrong = CliRunner().invoke(app, ["copy", str(old), str(tmp_path / "third"), "--table-index-bytes", "numbers"])
    assert wrong.exit_code == 2


# Ended by a signal, the command kills the children of its process: not those of this one.
SIGNALLED = """
import os, sys
import gpkvs.cli.data.copy as command
from gpkvs.cli.__main__ import main

class Interrupted(command.Bar):
    def update(self, *arguments, **fields):
        if "copying" in str(fields["description"]):
            os.kill(os.getpid(), number)
        super().update(*arguments, **fields)

number = int(sys.argv.pop())
command.Bar = Interrupted
main()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal(number: int, status: int, tmp_path: Path) -> None:
    old, _ = format1("clean", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, "copy", str(old), str(tmp_path / "new"), str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "new holds no store" in done.stderr
    assert not (tmp_path / "new").exists()
