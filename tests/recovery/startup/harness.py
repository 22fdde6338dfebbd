"""Running and killing a process that has a store open."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import gpkvs
from gpkvs.process.failpoint import VARIABLE
from tests import warm

CHILD = Path(__file__).with_name("child.py")
Operation = list[str]
Model = dict[bytes, bytes]


@dataclass(frozen=True)
class ChildOutcome:
    """How a child ended, and what it had acknowledged."""

    killed: bool
    opened: bool
    acknowledged: int
    errors: str


def run_child(store: Path, batches: list[list[Operation]], failpoint: str = "") -> ChildOutcome:
    """Run batches in a process of their own, with a failpoint armed."""
    done = warm.run([CHILD, store, json.dumps(batches)], env={**os.environ, VARIABLE: failpoint})
    lines = done.stdout.decode().splitlines()
    errors = done.stderr.decode()
    outcome = ChildOutcome(
        killed=done.returncode == -signal.SIGKILL,
        opened="open" in lines,
        acknowledged=sum(line.startswith("ack") for line in lines),
        errors=errors,
    )
    assert outcome.killed or done.returncode == 0, errors
    return outcome


def kill_at(command: list[str | Path], failpoint: str) -> bool:
    """Run ``python COMMAND`` with a failpoint armed; return whether it was killed there."""
    done = warm.run(command, env={**os.environ, VARIABLE: failpoint})
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode == -signal.SIGKILL


def apply(model: Model, batch: list[Operation]) -> Model:
    """Return what a dictionary holds after a batch."""
    after = dict(model)
    for kind, key, *value in batch:
        if kind == "set":
            after[key.encode()] = value[0].encode()
        elif kind == "delete":
            after.pop(key.encode(), None)
    return after


def contents(path: Path, keys: set[bytes]) -> Model:
    """Open (and so recover) a store; return those of `keys` that are there, after checking the record count."""
    with gpkvs.open(path, create=False) as store:
        found = {key: store.get(key) for key in keys}
        held = {key: value for key, value in found.items() if value is not None}
        assert store.info().tables[0].records == len(held), "there are keys that nobody asked about"
    return held
