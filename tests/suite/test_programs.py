"""What is missing on a machine is said with its package, and one list has all packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import programs
from tests.bare.readme import packages

REPOSITORY = Path(__file__).parents[2]


def test_the_list_has_the_package_of_each_tool() -> None:
    listed = (REPOSITORY / "tests" / "packages.txt").read_text().split()
    assert listed == sorted({package for signs in programs.PACKAGES.values() for package in signs})


def test_ci_installs_what_readme_names() -> None:
    [needed] = re.findall(r"need=\((.*?)\)", (REPOSITORY / ".ci" / "run").read_text())
    assert needed.split() == packages()


def test_a_missing_tool_is_said_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"go"}
    monkeypatch.setattr(programs, "_is_there", there.__contains__)
    assert programs.missing("go") == "needs go: apt-get install golang-google-grpc-dev"
    assert programs.missing("redis-cli", "redis-benchmark") == (
        "needs redis-cli and redis-benchmark: apt-get install redis-tools"
    )
    there.add("redis-cli")
    assert programs.missing("redis-cli") == ""
    with pytest.raises(pytest.skip.Exception, match="needs h2load: apt-get install nghttp2-client"):
        programs.require("h2load")
