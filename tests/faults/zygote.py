"""Runs a store's life in forked processes, one for each fault that the preloaded shim injects (shim.c).

Started once with the shim preloaded, so that a fault costs some milliseconds and not the start of an interpreter. It
reads one case a line, forks, and answers with how the child ended. No gRPC here: forking is safe.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.commit import checkpoint as checkpoints
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.errors import GpkvsError
from gpkvs.process.fatal import stop_process
from gpkvs.store import Store

SIZES = {"index_bytes": 64 << 10, "heap_bytes": 256 << 10, "log_bytes": 128 << 10, "journal_bytes": 1 << 20}
NUMBERS = "numbers"
KEYS = 40
HUNG_SECONDS = 60  # whatever else the machine does: a life takes milliseconds

shim = ctypes.CDLL(None)


def write(store: Store, step: int, table: str = "") -> None:
    """Run one batch of a step: keys change, come and go."""
    if table:
        store.execute(Batch.of([(Op.SET, key(i), value(step, i)) for i in range(KEYS)]), table=table)
        return
    operations: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = [
        (Op.SET, key(i), value(step, i)) for i in range(step % 3, KEYS, 2)
    ]
    store.execute(Batch.of([*operations, (Op.DELETE, key(step))]))


def key(i: int) -> bytes:
    return b"key%05d" % i


def value(step: int, i: int) -> bytes:
    return b"%04d%04d" % (step, i)


Model = dict[str, dict[bytes, bytes]]  # by table


def apply(model: Model, step: str, number: int) -> Model:
    """Return what tables hold after a step."""
    after = {table: dict(pairs) for table, pairs in model.items()}
    if step == "batch":
        after[""].update({key(i): value(number, i) for i in range(number % 3, KEYS, 2)})
        after[""].pop(key(number), None)
    elif step == "numbers" and NUMBERS in after:
        after[NUMBERS].update({key(i): value(number, i) for i in range(KEYS)})
    elif step == "create_table":
        after[NUMBERS] = {}
    elif step == "drop_table":
        after.pop(NUMBERS, None)
    return after


def checkpoint(store: Store) -> None:
    """Write a checkpoint, of a store with a journal; as its thread does, but now."""
    committer = store._engine.committer
    assert isinstance(committer, JournalCommitter)
    try:
        committer.checkpointer.write(paced=False)
    except OSError as error:
        stop_process("a checkpoint could not be written", error)


def await_checkpoint(store: Store) -> None:
    """Have the thread write a checkpoint."""
    committer = store._engine.committer
    assert isinstance(committer, JournalCommitter)
    checkpoints.BEGIN_SHARE = 0.0
    before = committer.checkpointer.checkpoints
    while committer.checkpointer.checkpoints == before:
        time.sleep(0.001)
    checkpoints.BEGIN_SHARE = 1.0


def run_step(step: str, number: int, store: Store | None, case: dict[str, Any]) -> Store | None:
    """Do one step; return the store that is open after it."""
    if step == "open":
        how = {"durability": case["durability"], "commit": case.get("commit", "undo")}
        return gpkvs.open(Path(case["path"]), threads=1, **how, **SIZES)
    if store is None:
        raise GpkvsError("the store is not open")
    actions: dict[str, Callable[[], None]] = {
        "batch": lambda: write(store, number),
        "numbers": lambda: write(store, number, NUMBERS),
        "create_table": lambda: store.create_table(NUMBERS, layout="u64", index_bytes=64 << 10),
        "drop_table": lambda: store.drop_table(NUMBERS),
        "checkpoint": lambda: checkpoint(store),
        "await_checkpoint": lambda: await_checkpoint(store),
        "close": store.close,
    }
    actions[step]()
    return None if step == "close" else store


def live(case: dict[str, Any], report: Callable[[dict[str, object]], None]) -> None:
    """Do all steps; each may end well or with an error that gpkvs means, after which the next one is tried."""
    store: Store | None = None
    steps = case["steps"]
    assert isinstance(steps, list)
    for number, step in enumerate(steps):
        if number == case.get("arm_at", 0):
            shim.shim_arm(str(case["fault"]).encode())
        try:
            store = run_step(step, number, store, case)
        except GpkvsError as error:
            outcome = {"step": number, "error": type(error).__name__, "text": str(error)}
        except (MemoryError, SystemError) as error:
            # NumPy reports some allocations that fail as "error return without exception set": Python's SystemError.
            outcome = {"step": number, "error": MemoryError.__name__, "text": str(error)}
        except BaseException as error:
            shim.shim_arm(b"")
            report({"step": number, "error": "unexpected", "text": f"{type(error).__name__}: {error}"})
            raise
        else:
            outcome = {"step": number, "error": ""}
        report(outcome)


def run_case(case: dict[str, Any]) -> dict[str, object]:
    """Run one case in a child; return how it ended and what it reported.

    ``file`` is what the names of the files begin with whose calls count; all do without it.
    """
    shim.shim_path(f"{case['path']}{case.get('file', '')}".encode())
    shim.shim_arm(b"")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(HUNG_SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

        def report(outcome: dict[str, object]) -> None:
            os.write(write_end, json.dumps(outcome).encode() + b"\n")

        try:
            live(case, report)
        except BaseException:  # noqa: BLE001 - it was reported
            os._exit(4)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as reports:
        steps = [json.loads(line) for line in reports]
    _, status = os.waitpid(child, 0)
    fault = str(case["fault"]).partition(":")[0]
    return {
        "status": os.waitstatus_to_exitcode(status),
        "steps": steps,
        "calls": shim.shim_calls(fault.encode()),
        "failed": shim.shim_failed(),
    }


def main() -> None:
    """Answer until there are no more cases."""
    np.zeros(1)
    for line in sys.stdin:
        print(json.dumps(run_case(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
