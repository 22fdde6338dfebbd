"""What a result says about its machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpkvs.bench.report.machine import describe_run, kernel_version

REPOSITORY = Path(__file__).parents[2]
KERNEL = re.compile(r'(?:"kernel": "|\bLinux )(\d[^",; ]*)')
VERSION = re.compile(r"\d+(\.\d+)+")


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.1.0-18-cloud-amd64", "6.1.0"),
        ("6.18.44-some.builder-v7", "6.18.44"),
        ("5.15.167.4-microsoft-standard-WSL2", "5.15.167.4"),
        ("6.12.9", "6.12.9"),
        ("6.13-rc2", "6.13"),
        ("", "unknown"),
    ],
)
def test_a_kernel_is_named_by_its_version_alone(release: str, version: str) -> None:
    assert kernel_version(release) == version


def test_a_result_names_the_kernel_by_its_version(tmp_path: Path) -> None:
    machine = describe_run(tmp_path)["machine"]
    assert isinstance(machine, dict)
    assert VERSION.fullmatch(machine["kernel"])


def test_what_is_recorded_does_so_too() -> None:
    results = [*REPOSITORY.glob("bench/results/**/*.json"), REPOSITORY / "bench/results/README.md"]
    files = [*results, *REPOSITORY.glob("docs/*.md"), REPOSITORY / "README.md"]
    named = [(file.name, kernel) for file in files for kernel in KERNEL.findall(file.read_text())]
    assert len(named) > 10
    assert [(name, kernel) for name, kernel in named if not VERSION.fullmatch(kernel)] == []
