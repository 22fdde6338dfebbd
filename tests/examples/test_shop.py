"""The example of a shop, against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.serving import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop"


def test_the_example_runs_as_its_page_says(server: Server) -> None:
    command = [sys.executable, str(EXAMPLE / "shop.py"), server.target]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr.decode()
    said = re.search(r"```text\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    assert said
    assert result.stdout.decode() == said[1]
