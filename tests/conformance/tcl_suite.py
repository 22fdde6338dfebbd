"""Redis' own test suite, against a server that runs already."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tarfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.debian_source import source_archive

VERSION = "7.0.15"
UNITS = (
    "unit/type/string",
    "unit/type/incr",
    "unit/expire",
    "unit/scan",
    "unit/keyspace",
    "unit/multi",
    "unit/protocol",
    "unit/quit",
    "unit/introspection",
    "unit/introspection-2",
    "unit/other",
)
# Left out by the suite's own means: how Redis stores values, DEBUG, replicas, memory whose limit is set at run time.
OPTIONS = (
    "--ignore-encoding",
    "--ignore-digest",
    "--no-latency",
    "--durable",
    "--tags",
    "-needs:repl -needs:debug -needs:config-maxmemory",
)
SECONDS_MAX = 240  # a fifth of that on two cores with nothing beside it

_LINE = re.compile(r"(?m)^\[(?P<what>ok|err|skip|exception|\d+/\d+ done)\]: (?P<text>.*)")


@dataclass
class Outcome:
    """What the suite says.

    Attributes
    ----------
    passed
        How many tests passed, by unit.
    skipped
        The names of the tests that it was told to skip.
    failed
        What it says of the others.
    output
        All of it.
    """

    passed: Counter[str] = field(default_factory=Counter)
    skipped: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    output: str = ""


def run_suite(folder: Path, port: int, skips: Sequence[str], units: Sequence[str] = UNITS) -> Outcome:
    """Run units of the suite in a new folder; leave out the tests of these names."""
    with tarfile.open(source_archive("redis", VERSION)) as archive:
        archive.extractall(folder, [member for member in archive if "/tests/" in member.name])
    [root] = folder.glob("redis-*")
    (root / "skips").write_text("\n".join(skips))
    command = ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1", "--port", str(port), *OPTIONS]
    command += [word for unit in units for word in ("--single", unit)]
    command += ["--skipfile", "skips"]
    output = root / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=root, env={**os.environ, "TERM": "dumb"}, stdout=out, stderr=out, start_new_session=True
        )
    try:
        process.wait(SECONDS_MAX)
    except subprocess.TimeoutExpired:
        pass  # units are missing then
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the tests run in a child of it
        process.wait()
    return _outcome_of(output.read_text(errors="replace"), units)


def _outcome_of(output: str, units: Sequence[str]) -> Outcome:
    outcome = Outcome(output=output)
    passed = 0
    for found in _LINE.finditer(output):
        match found["what"], found["text"]:
            case "ok", _:
                passed += 1
            case "skip", name:
                outcome.skipped.add(name)
            case ("err" | "exception") as what, text:
                outcome.failed.append(f"{what}: {text}")
            case _, text:
                outcome.passed[text.split()[0]] = passed
                passed = 0
    outcome.failed += [f"{unit} did not end" for unit in units if unit not in outcome.passed]
    return outcome
