"""Power failures while a backup is made: what is not finished is refused, and what has its name is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from random import Random

import pytest

from gpkvs.recovery.proof.diskfail.recorder import LIBRARY
from gpkvs.recovery.proof.powerfail.campaign import memory_directory
from tests.recovery.proof.diskfail.making import MISTAKES

SECONDS_MAX = 800
PLACES = 60
pytestmark = pytest.mark.timeout(900)


def explored(*options: str) -> subprocess.CompletedProcess[str]:
    """Explore a backup in memory: on a disk, to lay a state there and flush it takes as long as all else."""
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY)}
    with memory_directory() as memory:
        folder = memory / "made"
        folder.mkdir()
        command = [sys.executable, "-m", "tests.recovery.proof.diskfail.making", str(folder), *options]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=SECONDS_MAX
        )


def test_a_backup_is_refused_until_it_is_whole() -> None:
    seed = os.environ.get("GPKVS_SEED", str(Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    done = explored(seed, f"--places={PLACES}")
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    counts = json.loads(done.stdout)
    assert counts["unfinished"] > 0
    assert counts["published"] > 0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_backup_that_is_not_durable_in_order_is_found(mistake: str) -> None:
    places = [] if mistake == "mark-not-durable" else ["--places=0"]  # it shows at the end
    done = explored("1", f"--mistake={mistake}", *places)
    assert done.returncode == 1
    assert ("between: " if mistake == "mark-not-durable" else "published: ") in done.stderr
