"""A processor that lacks what the kernels are compiled for: every command says so, and none dies of an instruction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpkvs import native

ROOT = Path(__file__).parents[2]
# Answers for a processor that is not at hand; any other call of it fails.
OLD = 'extern "C" const char* gpkvs_processor_lacks() { return "ssse3;sse4_2;"; }'


@pytest.fixture(scope="module")
def of_an_old_processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    (folder / "old.cpp").write_text(OLD)
    subprocess.run(["c++", "-shared", "-fPIC", "-o", folder / "old.so", folder / "old.cpp"], check=True)
    return folder / "old.so"


def test_this_processor_lacks_nothing() -> None:
    assert native.library.gpkvs_processor_lacks() == b""


def test_the_doctor_sends_an_old_processor_to_no_other_build(of_an_old_processor: Path) -> None:
    environment = os.environ | {"GPKVS_KERNELS": str(of_an_old_processor)}
    command = [sys.executable, "-m", "gpkvs.cli", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done.stderr
    (fact,) = json.loads(done.stdout)["facts"]
    assert "lacks ssse3, sse4_2" in fact["value"]
    assert fact["mend"].startswith("another machine; ")
    assert "install" not in fact["mend"]


@pytest.mark.parametrize("command", [["--version"], ["demo"], ["check", "store"]])
def test_an_old_processor_is_refused(of_an_old_processor: Path, command: list[str]) -> None:
    environment = os.environ | {"GPKVS_KERNELS": str(of_an_old_processor)}
    done = subprocess.run(
        [sys.executable, "-m", "gpkvs.cli", *command], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("gpkvs: this processor is too old for gpkvs: it lacks ssse3, sse4_2. ")
    assert done.stderr.count("\n") == 1
