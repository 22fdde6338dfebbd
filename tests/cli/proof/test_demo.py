"""The demo: it tells its story, and fails when something was lost."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gpkvs
from gpkvs.cli.main import app
from gpkvs.cli.proof import demo_story
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerProcess
from tests.conftest import assert_clean

SMALL = ("demo", "--records=300", "--seconds=1")


def test_nothing_is_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [*GPKVS, *SMALL, f"--data={tmp_path}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost: 0" in done.stdout
    assert "recovery: " in done.stdout
    assert "16 callers in Python that send one record and wait" in done.stdout
    assert re.search(r"the server worked [1-9]\d* us for each", done.stdout)
    assert re.search(r"[1-9][\d,]* SETs and [1-9][\d,]* GETs a second, from one client on a stream", done.stdout)
    assert "15,000 numbers, " in done.stdout
    assert "all 15,000 numbers are there" in done.stdout
    assert "gpkvs serve --data /tmp/first" in done.stdout.splitlines()[-2]
    assert "persistence domain" in done.stdout
    assert "\x1b" not in done.stdout, "plain text where no terminal is"
    assert_clean(tmp_path / "store")


class Forgetful(demo_story.Story):
    """A demo in which one acknowledged write is undone while the server is down."""

    async def _kill(self, server: ServerProcess, load: demo_story.Load) -> None:
        await super()._kill(server, load)
        with gpkvs.open(self._store) as store:
            store.delete(
                next(
                    cell.keys[0]
                    for cell in self._ledger.cells
                    if len(cell.keys) == 1 and cell.newest.state[0] and not cell.open
                )
            )


class Careless(demo_story.Story):
    """A demo in which one number is undone while the server is down."""

    async def _kill(self, server: ServerProcess, load: demo_story.Load) -> None:
        await super()._kill(server, load)
        with gpkvs.open(self._store) as store:
            store.delete(7, table="numbers")


def test_a_lost_number_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_story, "Story", Careless)
    result = CliRunner().invoke(app, [*SMALL, f"--data={tmp_path}"])
    assert result.exit_code == 1
    assert "1 of 15,000 numbers are lost or have other values" in result.stderr


def test_a_lost_write_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_story, "Story", Forgetful)
    result = CliRunner().invoke(app, [*SMALL, f"--data={tmp_path}"])
    assert result.exit_code == 1
    assert "lost: key b'single-" in result.stderr
    assert "The demo failed" in result.stdout
    assert (tmp_path / "store" / "root").exists()
