"""The programs of tests/tools import what there is; no test runs all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = sorted((Path(__file__).parents[1] / "tools").glob("[a-z]*.py"))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.stem)
def test_it_begins(tool: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.tools.{tool.stem}", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
