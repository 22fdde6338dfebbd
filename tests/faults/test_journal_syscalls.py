"""System calls that fail under a store with a journal: the process ends, or the step is refused, and nothing is lost.

A checkpoint runs as a step of its own here. The thread that writes checkpoints may come in between, so that the number
of calls in a life is not always the same.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpkvs.process.fatal import EXIT_FATAL
from tests.conftest import assert_clean
from tests.faults.conftest import Answer
from tests.faults.test_syscalls import RunCase, clear, failing, held, models

LIFE = [
    *("open", "batch", "batch", "create_table", "numbers", "checkpoint", "batch", "numbers", "drop_table"),
    *("checkpoint", "batch", "close", "open", "batch", "checkpoint", "batch", "close"),
]
# Calls of one file, by what its name begins with; all other files are left alone. "": of any file.
FAULTS = [
    ("", "write", errno.ENOSPC),
    ("", "fallocate", errno.ENOSPC),
    ("", "open", errno.EMFILE),
    ("", "open", errno.EROFS),
    ("", "mmap", errno.ENOMEM),
    ("", "rename", errno.EIO),
    ("", "unlink", errno.EIO),
    ("/data", "pwrite", errno.ENOSPC),
    ("/data", "pwrite", errno.EIO),
    ("/data", "fdatasync", errno.EIO),
    ("/data", "fdatasync", errno.ENOSPC),
    ("/data", "fsync", errno.EIO),
    ("/index-", "pwrite", errno.ENOSPC),
    ("/index-", "pwrite", errno.EIO),
    ("/index-", "fsync", errno.EIO),
    ("/index-", "fdatasync", errno.EIO),
    ("/root", "fdatasync", errno.EIO),
]


def check_life(
    run_case: RunCase, path: Path, fault: str, file: str = "", life: list[str] = LIFE, arm_at: int = 0
) -> Answer:
    clear(path)
    answer = run_case(
        path=path, fault=fault, file=file, steps=life, arm_at=arm_at, durability="msync", commit="journal"
    )
    assert answer["status"] in (0, EXIT_FATAL), f"{fault}: exit status {answer['status']}, {answer['steps']}"
    possible = models(answer, life)
    assert held(path) in possible, f"{fault}: {answer}"
    assert_clean(path)
    return answer


def count_calls(run_case: RunCase, path: Path, call: str, file: str) -> int:
    """Count a call in a life without faults."""
    answer = check_life(run_case, path, f"{call}:0:0", file)
    assert answer["status"] == 0
    assert not any(step["error"] for step in answer["steps"])  # type: ignore[attr-defined]
    return int(str(answer["calls"]))


@pytest.mark.parametrize("forever", ["", ":forever"], ids=["once", "forever"])
@pytest.mark.parametrize(
    ("file", "call", "error"), FAULTS, ids=[f"{f.strip('/-') or 'any'}-{c}-{errno.errorcode[e]}" for f, c, e in FAULTS]
)
def test_every_call_fails(run_case: RunCase, memory_path: Path, file: str, call: str, error: int, forever: str) -> None:
    path = memory_path / "store"
    count = count_calls(run_case, path, call, file)
    assert count > 0, f"{call} is never called for {file}: the test would prove nothing"
    reached = stopped = 0
    tried = failing(count)
    for nth in tried:
        answer = check_life(run_case, path, f"{call}:{nth}:{error}{forever}", file)
        reached += bool(answer["failed"])
        stopped += answer["status"] == EXIT_FATAL
    assert reached >= 0.3 * len(tried)  # which pages of an index are neighbours differs from store to store
    print(f"{file} {call}: {count} calls, {reached} failed, {stopped} ended the process")


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "fsync"])
def test_an_interrupted_call_is_made_again(run_case: RunCase, memory_path: Path, call: str) -> None:
    path = memory_path / "store"
    for nth in failing(count_calls(run_case, path, call, "")):
        answer = check_life(run_case, path, f"{call}:{nth}:{errno.EINTR}")
        assert not any(step["error"] for step in answer["steps"])  # type: ignore[attr-defined]
        assert answer["status"] == 0


def test_a_short_write_is_finished(run_case: RunCase, memory_path: Path) -> None:
    path = memory_path / "store"
    for nth in failing(count_calls(run_case, path, "pwrite", "")):
        answer = check_life(run_case, path, f"pwrite:{nth}:short")
        assert not any(step["error"] for step in answer["steps"])  # type: ignore[attr-defined]
        assert answer["status"] == 0


@pytest.mark.parametrize(("call", "error"), [("pwrite", errno.EIO), ("pwrite", errno.ENOSPC), ("fdatasync", errno.EIO)])
def test_the_thread_of_checkpoints_ends_the_process(
    run_case: RunCase, memory_path: Path, call: str, error: int
) -> None:
    """It does not try again: a second try might seem to succeed."""
    life = ["open", "batch", "await_checkpoint", "batch", "close"]
    answer = check_life(run_case, memory_path / "store", f"{call}:1:{error}", "/index-", life, arm_at=2)
    assert (answer["status"], answer["calls"], len(answer["steps"])) == (EXIT_FATAL, 1, 2)  # type: ignore[arg-type]
