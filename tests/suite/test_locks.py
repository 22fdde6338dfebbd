"""What `make` installs: every lock has what pyproject.toml asks for, within its bounds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
LOCKS = sorted((REPOSITORY / "requirements").glob("*.txt"))
PIN = re.compile(r"([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")
EXTRAS = {"run": ("build",), "test": ("build", "test"), "dev": ("dev", "site"), "wheel": ("build", "wheel")}


def pins(lock: Path) -> dict[str, str]:
    """Return the version of each package; fail if a line is anything but a version with hashes."""
    text = re.sub(r"^#.*\n", "", lock.read_text(), flags=re.MULTILINE)
    assert PIN.sub("", text) == ""
    found = PIN.findall(text)
    versions = {name: version for name, version, _ in found}
    assert len(versions) == len(found)
    return versions


def wanted(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Yield what gpkvs requires with some extras."""
    yield from map(Requirement, PROJECT["dependencies"])
    for extra in extras:
        for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
            if requirement.name == "gpkvs":
                yield from wanted(tuple(requirement.extras))
            else:
                yield requirement


def test_there_is_a_lock_for_each_set_and_version() -> None:
    versions = [name.removeprefix("Programming Language :: Python :: ") for name in PROJECT["classifiers"]]
    names = {f"{kind}-{version}.txt" for kind in EXTRAS for version in versions if re.fullmatch(r"3\.\d+", version)}
    assert {lock.name for lock in LOCKS} == names


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_what_the_project_requires(lock: Path) -> None:
    versions = pins(lock)
    wrong = [
        f"{requirement}, locked {versions.get(canonicalize_name(requirement.name))}"
        for requirement in wanted(EXTRAS[lock.stem.partition("-")[0]])
        if not requirement.specifier.contains(versions.get(canonicalize_name(requirement.name), "0"))
    ]
    assert wrong == [], "run make lock"


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock.stem.startswith("run")], ids=lambda lock: lock.stem)
def test_what_runs_is_what_is_tested(lock: Path) -> None:
    assert pins(lock).items() <= pins(lock.with_name(lock.name.replace("run", "test"))).items()
