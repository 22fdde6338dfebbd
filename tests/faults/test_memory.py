"""Memory and threads that the system does not give: a clean error, nothing changed, and never a signal."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.process.fatal import EXIT_FATAL
from tests.conftest import assert_clean
from tests.faults.conftest import ROOT, Answer
from tests.faults.test_syscalls import clear, held
from tests.faults.zygote import Model, apply

STEPS = ["open", "batch", "create_table", "numbers", "batch", "batch", "numbers", "batch", "close"]
ARM_AT = 4  # when everything has been loaded and run once
ALL_ALLOCATIONS = "GPKVS_ALL_ALLOCATIONS"  # in the environment: each of them fails once; `make nightly` does
RunCase = Callable[..., Answer]


def some(count: int, at_most: int) -> list[int]:
    """Return the numbers of allocations that fail, of so many: others in each run."""
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    places = np.random.default_rng(seed).permutation(np.arange(1, count + 1))
    return [int(place) for place in (places if os.environ.get(ALL_ALLOCATIONS) else places[:at_most])]


@pytest.mark.parametrize("commit", ["undo", "journal"])
@pytest.mark.parametrize("forever", ["", ":forever"], ids=["once", "forever"])
def test_allocations_of_a_batch_fail(run_case: RunCase, memory_path: Path, forever: str, commit: str) -> None:
    path = memory_path / "store"
    how = {"steps": STEPS, "arm_at": ARM_AT, "durability": "process", "commit": commit}
    without = run_case(path=path, fault="malloc:0:0", **how)
    count = int(str(without["calls"]))
    assert without["status"] == 0
    assert count > 20
    refused = 0
    for nth in some(count, 40):
        clear(path)
        fault = f"malloc:{nth}:{errno.ENOMEM}{forever}"
        answer = run_case(path=path, fault=fault, **how)
        assert answer["status"] in (0, EXIT_FATAL), f"{fault}: {answer}"
        steps = answer["steps"]
        assert isinstance(steps, list)
        model: Model = {"": {}}
        for step in steps:
            assert step["error"] in ("", "MemoryError", "NoMemoryError"), f"{fault}: {step}"
            refused += bool(step["error"])
            if not step["error"]:
                model = apply(model, STEPS[step["step"]], step["step"])
        stopped = len(steps) < len(STEPS)
        possible = [model, apply(model, STEPS[len(steps)], len(steps))] if stopped else [model]
        assert held(path) in possible, f"{fault}: {answer}"
        assert_clean(path)
    assert refused > 3


# The C library ends a process in which a thread that begins gets no storage of its own (docs/decisions/kernels.md).
NO_THREAD_STORAGE = 127


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_allocations_of_an_opening_fail(run_case: RunCase, memory_path: Path, commit: str) -> None:
    """Of the native threads too: an exception that nobody catches there would end the process by a signal."""
    path = memory_path / "store"
    steps = ["open", "batch", "close", "open", "batch", "close"]
    how = {"steps": steps, "arm_at": 3, "durability": "process", "commit": commit}
    count = int(str(run_case(path=path, fault="malloc:0:0", **how)["calls"]))
    refused = 0
    for turn, nth in enumerate(some(count, 60)):
        clear(path)
        answer = run_case(path=path, fault=f"malloc:{nth}:{errno.ENOMEM}", **how)
        assert answer["status"] in (0, EXIT_FATAL, NO_THREAD_STORAGE), f"{nth}: {answer}"
        reported = answer["steps"]
        assert isinstance(reported, list)
        for step in reported:
            errors = ("", "MemoryError", "NoMemoryError", "NoSpaceError", "StoreAccessError", "GpkvsError")
            assert step["error"] in errors, f"{nth}: {step}"
        refused += bool(reported[-1]["error"])
        if turn % 10 == 0:
            assert held(path).keys() == {""}
            assert_clean(path)
    assert refused > 10


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_system_that_gives_no_threads(tmp_path: Path, commit: str) -> None:
    """A pool of kernels' threads is then smaller, and works. A journal needs a thread: the store is not opened."""
    program = (
        "import resource, sys, gpkvs\n"
        "resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)\n"
        "store = gpkvs.open(sys.argv[1], threads=400, index_bytes=1 << 16, heap_bytes=1 << 20, log_bytes=1 << 18, \n"
        "    commit=sys.argv[3])\n"
        "store.set(b'key', b'value')\n"
        "print(store.get(b'key'))\n"
        "store.close()\n"
    )
    # A thread takes 1 GiB of address space for its stack, so of 400 one or two get it. What is left is much more than
    # the store needs, and too little for a thread.
    stack_kib, limit = 1 << 20, 3 << 30
    # By a shell: a `preexec_fn` runs in a fork, and a fork of gRPC's threads may end there.
    shell = ["sh", "-c", f'ulimit -s {stack_kib}; exec "$0" "$@"']
    done = subprocess.run(
        [*shell, sys.executable, "-c", program, str(tmp_path / "store"), str(limit), commit],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    if commit == "undo":
        assert done.returncode == 0, done.stderr
        assert done.stdout == "b'value'\n"
    else:
        assert "StoreAccessError" in done.stderr.splitlines()[-1], done.stderr
        assert "the system gives no thread" in done.stderr
        with gpkvs.open(tmp_path / "store", create=False) as store:
            assert store.get(b"key") is None
    assert_clean(tmp_path / "store")
