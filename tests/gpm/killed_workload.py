"""Runs a workload undisturbed, and again while it is killed: a program for tests/gpm/test_workloads.py.

It loads everything once and forks: a child that is killed costs no start of Python. Only children use a GPU.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpkvs.bench.gpm.workloads import workload

TRIES = 5  # for each kill


def forked(task: Callable[[], object], seconds: float | None = None) -> bool:
    """Run a task in a child, which is killed after some time; return whether it was."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            task()
            status = 0
        finally:
            os._exit(status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the child ended with status {status}"
    return status == signal.SIGKILL


def main(name: str, folder: Path, size: str, seed: int, kills: int, place: str) -> None:
    """Leave the results in `whole.npz` and `killed.npz`, and print how many of its children were killed in time."""
    kind, rng = workload(name), random.Random(seed)
    for each in ("first", "whole", "killed"):
        (folder / each).mkdir()

    def run(within: str, size: str) -> None:
        with kind(folder / within, kind.SIZES[size], place) as work:
            work.run()
            np.savez(folder / f"{within}.npz", **work.result())

    forked(lambda: run("first", "tiny"))  # the compiler's time is no part of the run
    begin = time.perf_counter()
    forked(lambda: run("whole", size))
    seconds = time.perf_counter() - begin
    killed = begun = 0
    while killed < kills and begun < TRIES * kills:
        begun += 1
        if forked(lambda: run("killed", size), rng.uniform(0, seconds)):
            killed += 1
        else:  # it was done before: begin anew
            shutil.rmtree(folder / "killed")
            (folder / "killed").mkdir()
    forked(lambda: run("killed", size))
    print(json.dumps({"killed": killed, "begun": begun, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
