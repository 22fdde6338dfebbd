"""System calls that fail, one after the other, from outside: the store stops or goes on, and always comes back whole.

A store's life, from its creation over batches and tables to its second opening, is run once for each call, error and
place. Whatever happens, no process ends by a signal or with an error that gpkvs did not mean; a step that ended well is
durable, one that ended with an error was not done, and what the process was at when it stopped is there whole or not.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.errors import UnknownTableError
from gpkvs.process.fatal import EXIT_FATAL
from tests.conftest import assert_clean
from tests.faults.conftest import Answer
from tests.faults.zygote import KEYS, NUMBERS, SIZES, Model, apply, key

STEPS = [
    *("open", "batch", "batch", "create_table", "numbers", "batch", "drop_table"),
    *("batch", "create_table", "numbers", "close", "open", "numbers", "batch", "close"),
]
FEW = 6  # calls
RunCase = Callable[..., Answer]

# Errors after which nothing was done for certain; after another one of a write, it may be.
NOTHING_DONE = (
    "NoSpaceError",
    "UnknownTableError",
    "GpkvsError",
    "TableExistsError",
    "MemoryError",
    "NoMemoryError",
    "StoreAccessError",
)


def models(answer: Answer, life: Sequence[str] = STEPS) -> list[Model]:
    """Return what the store may hold: what was done, with or without what the process was at when it stopped."""
    model: Model = {"": {}}
    steps = answer["steps"]
    assert isinstance(steps, list)
    for step in steps:
        assert step["error"] != "unexpected", step["text"]
        assert step["error"] in ("", *NOTHING_DONE), step
        if not step["error"]:
            model = apply(model, life[step["step"]], step["step"])
    if len(steps) == len(life):
        return [model]
    return [model, apply(model, life[len(steps)], len(steps))]


def held(path: Path) -> Model:
    """Return what the store holds, opened without faults."""
    found: Model = {}
    with gpkvs.open(path, threads=1, **SIZES) as store:
        for table in ("", NUMBERS):
            keys = [key(i) for i in range(KEYS)]
            try:
                result = store.execute(Batch.of([(Op.GET, k) for k in keys]), table=table)
            except UnknownTableError:
                continue
            there = result.status == Status.OK
            assert (there | (result.status == Status.NOT_FOUND)).all()
            found[table] = {k: v for k, v, is_there in zip(keys, result.value_list(), there, strict=True) if is_there}
    return found


def clear(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def check_case(run_case: RunCase, path: Path, fault: str, durability: str = "msync") -> Answer:
    clear(path)
    answer = run_case(path=path, fault=fault, steps=STEPS, durability=durability)
    assert answer["status"] in (0, EXIT_FATAL), f"{fault}: exit status {answer['status']}, {answer['steps']}"
    possible = models(answer)
    assert held(path) in possible, f"{fault}: {answer}"
    assert_clean(path)
    return answer


def calls(run_case: RunCase, path: Path, call: str) -> int:
    """Count a call in a life without faults."""
    answer = check_case(run_case, path, f"{call}:0:0")
    assert answer["status"] == 0
    assert not any(step["error"] for step in answer["steps"])  # type: ignore[attr-defined]
    assert answer["failed"] == 0
    return int(str(answer["calls"]))


def failing(count: int) -> range:
    """Return which calls fail, of so many: each, and in CI every third one of more than a few, others in each run."""
    if not os.environ.get("CI") or count <= FEW:
        return range(1, count + 1)
    tried = range(1 + secrets.randbelow(3), count + 1, 3)
    print(f"tried: {tried}")
    return tried


FAULTS = [
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("pwrite", errno.ENOSPC),
    ("fallocate", errno.ENOSPC),
    ("ftruncate", errno.EIO),
    ("fsync", errno.EIO),
    ("fdatasync", errno.EIO),
    ("open", errno.EMFILE),
    ("open", errno.EROFS),
    ("mmap", errno.ENOMEM),
    ("rename", errno.EIO),
    ("unlink", errno.EIO),
]


@pytest.mark.parametrize("forever", ["", ":forever"], ids=["once", "forever"])
@pytest.mark.parametrize(("call", "error"), FAULTS, ids=[f"{call}-{errno.errorcode[e]}" for call, e in FAULTS])
def test_every_call_fails(
    run_case: RunCase, tmp_path: Path, memory_path: Path, call: str, error: int, forever: str
) -> None:
    # Whether a file can be mapped synchronously is tried out on a disk only.
    path = (tmp_path if call == "ftruncate" else memory_path) / "store"
    count = calls(run_case, path, call)
    assert count > 1, f"{call} is never called: the test would prove nothing"
    reached, tried = 0, failing(count)
    for nth in tried:
        answer = check_case(run_case, path, f"{call}:{nth}:{error}{forever}")
        reached += bool(answer["failed"])
    assert reached == len(tried)


@pytest.mark.parametrize("call", ["write", "pwrite", "open", "fsync", "fdatasync", "fallocate"])
def test_an_interrupted_call_is_made_again(run_case: RunCase, memory_path: Path, call: str) -> None:
    for nth in failing(calls(run_case, memory_path / "store", call)):
        answer = check_case(run_case, memory_path / "store", f"{call}:{nth}:{errno.EINTR}")
        assert answer["failed"] == 1
        assert not any(step["error"] for step in answer["steps"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", ["write", "pwrite"])
@pytest.mark.parametrize("forever", ["", ":forever"], ids=["once", "forever"])
def test_a_short_write_is_finished(run_case: RunCase, memory_path: Path, call: str, forever: str) -> None:
    for nth in failing(calls(run_case, memory_path / "store", call)):
        answer = check_case(run_case, memory_path / "store", f"{call}:{nth}:short{forever}")
        assert answer["failed"]
        assert not any(step["error"] for step in answer["steps"])  # type: ignore[attr-defined]


def test_a_failed_fdatasync_stops_the_process_and_is_not_tried_again(run_case: RunCase, memory_path: Path) -> None:
    count = calls(run_case, memory_path / "store", "fdatasync")
    stopped = 0
    for nth in range(1, count + 1):
        answer = check_case(run_case, memory_path / "store", f"fdatasync:{nth}:{errno.EIO}")
        steps = answer["steps"]
        assert isinstance(steps, list)
        in_batch = len(steps) < len(STEPS) and STEPS[len(steps)] in ("batch", "numbers")
        assert not in_batch or answer["status"] == EXIT_FATAL
        if answer["status"] == EXIT_FATAL:
            assert answer["calls"] == nth, f"fdatasync was called again after it failed: {answer}"
            stopped += 1
        else:
            # Nothing of the store's own was stored to: it was being opened, or a new file was thrown away.
            assert next(step["step"] for step in steps if step["error"]) in (0, 3, 8, 11), steps
    assert stopped > count / 2


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_disk_that_fills_up_stays_usable(run_case: RunCase, memory_path: Path, commit: str) -> None:
    """All space is reserved when the store is made: a full disk stops new tables, not batches."""
    answer = run_case(
        path=memory_path / "store",
        fault=f"fallocate:1:{errno.ENOSPC}:forever",
        steps=STEPS,
        arm_at=1,
        durability="msync",
        commit=commit,
    )
    steps = answer["steps"]
    assert isinstance(steps, list)
    failed = {step["step"]: step["error"] for step in steps if step["error"]}
    assert failed == {
        **{i: "NoSpaceError" for i, step in enumerate(STEPS) if step == "create_table"},
        **{i: "UnknownTableError" for i, step in enumerate(STEPS) if step in ("numbers", "drop_table")},
    }
    assert held(memory_path / "store") in models(answer)
    assert_clean(memory_path / "store")


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_directory_that_is_read_only_is_told_and_can_be_checked(
    run_case: RunCase, memory_path: Path, commit: str
) -> None:
    path = memory_path / "store"
    run_case(path=path, fault="open:0:0", steps=["open", "batch", "close"], durability="msync", commit=commit)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    answer = run_case(path=path, fault=f"open:3:{errno.EROFS}:forever", steps=["open"], durability="msync")
    steps = answer["steps"]
    assert isinstance(steps, list)
    assert steps[0]["error"] == "StoreAccessError"
    assert "the file system is read-only" in steps[0]["text"]
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.name != "LOCK"} == {
        name: data for name, data in before.items() if name != "LOCK"
    }
    assert_clean(path)
