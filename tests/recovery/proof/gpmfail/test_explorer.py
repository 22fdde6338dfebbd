"""The explorer of gpkvs.gpm finds nothing wrong, and each fence, write-back and sync that is left out."""

from __future__ import annotations

import json
import subprocess

from gpkvs.recovery.proof.gpmfail.workloads import WORKLOADS
from gpkvs.recovery.proof.servers.server_process import GPKVS


def crash(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*GPKVS, "crash", "--gpm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_no_state_breaks_a_promise() -> None:
    done = crash("--json")
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert done.returncode == 0, found["violations"][:3]
    assert found["workloads"].keys() == {workload.name for workload in WORKLOADS}
    assert found["states_distinct"] > 7000


def test_every_fence_is_needed() -> None:
    done = crash("--mutate", "--json")
    assert done.stdout, done.stderr
    mutants = json.loads(done.stdout)["mutants"]
    assert done.returncode == 0, [name for name, caught in mutants.items() if not caught]
    assert len(mutants) >= 19


def test_what_is_not_there_is_named() -> None:
    done = crash("--workload", "nothing")
    assert done.returncode == 1
    assert "there are creation" in done.stderr
    assert "leave it out" in crash("--part", "3").stderr
