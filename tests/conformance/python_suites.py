"""The tests of Python libraries, as their source distributions have them, against a server that runs already."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance.debian_source import CACHE

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
VERSIONS = {"redis": "8.1.0", "valkey": "6.2.0", "fakeredis": "2.40.0"}
# What these tests need beside what ours need; fakeredis asks for the version that is installed of it.
INSTALLED = ("pytest-asyncio==1.5.0", f"fakeredis=={VERSIONS['fakeredis']}")
SECONDS_MAX = 150

LeftOut = Mapping[str, Sequence[str]]


@dataclass
class Outcome:
    """What a suite says.

    Attributes
    ----------
    passed
        How many tests passed.
    failed
        The names of those that did not.
    skipped
        Why others did not run, one line for each.
    output
        All that it printed.
    """

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    output: str = ""

    def left_out(self) -> set[str]:
        """Return the names that were found of those to leave out."""
        return set(re.findall(r"(?m)^left out: (\w+)", "\n".join(self.skipped)))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder of the cache, so that two tests do not fill it at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pip(*arguments: str) -> None:
    """Run pip; raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip failed:\n{done.stdout}{done.stderr}")


def fetched() -> Path:
    """Return the folder with the source distributions, and ``installed`` in it; pip fetches what is not there."""
    folder = CACHE / "python"
    with alone(folder):
        archives = [folder / f"{name}-{version}.tar.gz" for name, version in VERSIONS.items()]
        if not all(archive.exists() for archive in archives):
            wanted = [f"{name}=={version}" for name, version in VERSIONS.items()]
            pip("download", "--no-deps", "--no-binary", ",".join(VERSIONS), "--dest", str(folder), *wanted)
        if not (folder / "installed").exists():
            pip("install", "--no-deps", "--target", str(folder / "installing"), *INSTALLED)
            (folder / "installing").rename(folder / "installed")
    return folder


def unpacked(library: str, folder: Path, replaced: Mapping[str, str]) -> Path:
    """Return where a library's source is now, in a new folder; its tests' configuration with some texts replaced."""
    with tarfile.open(fetched() / f"{library}-{VERSIONS[library]}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has Python 3.11.2, without it
        archive.extractall(folder)
    root = folder / f"{library}-{VERSIONS[library]}"
    [configuration] = (path for path in root.glob("test*/conftest.py"))
    text = configuration.read_text()
    for old, new in replaced.items():
        assert old in text, f"{configuration} has no {old}"
        text = text.replace(old, new)
    configuration.write_text(text)
    return root


def outside(redis_commands: Sequence[str]) -> list[str]:
    """Return the commands of Redis that are not on the list of docs/redis.md."""
    document = (REPOSITORY / "docs" / "redis.md").read_text()
    words = set(re.findall(r"\b[A-Z][A-Z-]+\b", document.partition("All commands:")[2].partition("Anything else")[0]))
    return [name for name in redis_commands if not words.issuperset(name.upper().split("|"))]


def run_suite(
    root: Path, library: str, outside: Sequence[str], left_out: LeftOut, *arguments: str, path: Sequence[Path] = ()
) -> Outcome:
    """Run a library's tests with pytest's arguments; skip those that send a command outside, or that are left out."""
    report = root / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "what_applies", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-o", "filterwarnings=", "--timeout=20", f"--junitxml={report}", *arguments]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, fetched() / "installed", *path))),
        "GPKVS_LIBRARY": library,
        "GPKVS_OUTSIDE": " ".join(outside),
        "GPKVS_LEFT_OUT": json.dumps(left_out),
    }
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    outcome = Outcome(output=done.stdout + done.stderr)
    assert report.exists(), outcome.output
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if (skipped := case.find("skipped")) is not None:
            outcome.skipped.append(skipped.get("message", ""))
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(name)
        else:
            outcome.passed += 1
    return outcome
