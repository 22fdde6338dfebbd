"""The gathering clients of the examples, driven from here: a process that makes the calls of its standard input."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.examples.node import node_tools
from tests.programs import require

REPOSITORY = Path(__file__).parents[2]
PROTO = REPOSITORY / "proto" / "v1" / "kv.proto"
_DRIVERS = Path(__file__).parent / "drivers"
_WAIT_SECONDS_MAX = 60
# Debian's packages of Go libraries lie there, and nothing is fetched.
_GO = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}

Call = tuple[str, bytes] | tuple[str, bytes, bytes]
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Programs:
    """The programs of one language: commands and their environment.

    Parameters
    ----------
    driver
        The client, driven by lines of JSON; its argument are options.
    load
        The example's command line.
    load_ends
        What the command line takes at its end.
    """

    driver: tuple[str, ...]
    load: tuple[str, ...]
    load_ends: tuple[str, ...]
    environment: dict[str, str]


def nodejs_programs(folder: Path) -> Programs:
    """Install the packages of the example in Node.js."""
    here = folder / "nodejs"
    shutil.copytree(REPOSITORY / "examples" / "nodejs", here, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copy(_DRIVERS / "driver.js", here)
    environment = os.environ | {"PATH": f"{node_tools(folder / 'tools')}:{os.environ['PATH']}"}
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], here, environment)
    return Programs(("node", str(here / "driver.js")), ("node", str(here / "load.js")), (str(PROTO),), environment)


def go_programs(folder: Path) -> Programs:
    """Build the example in Go, with Debian's packages."""
    require("go")
    here = folder / "go"
    shutil.copytree(REPOSITORY / "examples" / "go", here)
    shutil.copy(_DRIVERS / "driver.go", here)
    environment = os.environ | _GO | {"GOCACHE": str(folder / "cache")}
    for name in ("driver", "load"):
        _run(["go", "build", "-o", name, "gather.go", f"{name}.go"], here, environment)
    return Programs((str(here / "driver"),), (str(here / "load"),), (), dict(os.environ))


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr.decode()


class Driver:
    """One client in a process of its own; its calls are concurrent."""

    def __init__(self, programs: Programs, target: str, options: dict[str, str]) -> None:
        text = json.dumps({"target": target, "proto": str(PROTO), **options})
        self._process = subprocess.Popen(
            [*programs.driver, text], env=programs.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._outcomes: dict[int, Outcome] = {}
        self._changed = threading.Condition()
        self._asked = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ask(self, call: Call, timeout_ms: float = 30_000) -> int:
        """Begin a call; return its number."""
        op, *given = call
        key, value = (base64.b64encode(part).decode() for part in (*given, b"")[:2])
        asked = {"id": self._asked, "op": op, "key": key, "timeout_ms": timeout_ms}
        if op == "set":
            asked["value"] = value
        assert self._process.stdin
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        self._asked += 1
        return self._asked - 1

    def outcome(self, number: int) -> Outcome:
        """Wait for the outcome of a call."""
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._outcomes, _WAIT_SECONDS_MAX), f"call {number} hangs"
            return self._outcomes[number]

    def do(self, calls: Iterable[Call], timeout_ms: float = 30_000) -> list[Outcome]:
        """Make calls at the same time; return their outcomes in order."""
        return [self.outcome(number) for number in [self.ask(call, timeout_ms) for call in calls]]

    def one(self, *call: Any) -> Outcome:
        """Make one call."""
        return self.do([call])[0]

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            found = json.loads(line)
            if "value" in found:
                found["value"] = base64.b64decode(found["value"])
            with self._changed:
                self._outcomes[found.pop("id")] = found
                self._changed.notify_all()

    def close(self) -> None:
        """Close the client; it must end by itself."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            assert self._process.wait(_WAIT_SECONDS_MAX) == 0
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout
            self._process.stdout.close()


@contextmanager
def driven(programs: Programs, target: str, **options: str) -> Iterator[Driver]:
    """Start a client, and close it."""
    driver = Driver(programs, target, options)
    try:
        yield driver
    finally:
        driver.close()
