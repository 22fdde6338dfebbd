"""Where tests may not be skipped, a missing tool is a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="a tool is not installed")
def test_at_its_mark(): ...

def test_in_the_middle():
    pytest.importorskip("a_package_that_is_not_there")

@pytest.mark.machine
@pytest.mark.skipif(True, reason="the machine cannot")
def test_of_the_machine(): ...

@pytest.mark.gpu
def test_on_a_gpu(): ...

@pytest.mark.xfail(reason="a known gap")
def test_known_to_fail():
    assert False

def test_that_runs(): ...
"""
A_WHOLE_FILE = 'import pytest\npytest.importorskip("a_package_that_is_not_there")\n'


@pytest.mark.parametrize(
    ("ci", "counts"),
    [
        ("", "1 passed, 5 skipped, 1 xfailed"),
        ("true", "1 failed, 1 passed, 2 skipped, 1 xfailed, 2 errors"),
    ],
)
def test_a_skipped_test_fails(tmp_path: Path, ci: str, counts: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_file.py").write_text(A_WHOLE_FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-c", str(REPOSITORY / "pyproject.toml"), "--continue-on-collection-errors", str(tmp_path)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | {"CI": ci}, capture_output=True, text=True, timeout=60, check=False
    )
    summary = done.stdout.splitlines()[-1]
    assert re.sub(r" in [\d.]+s.*", "", summary) == counts, done.stdout
    assert done.returncode == (1 if "failed" in summary.replace("xfailed", "") else 0)
