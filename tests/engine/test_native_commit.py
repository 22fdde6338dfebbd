"""A native committer and the steps that Python launches make the same trace: each store, write-back, fence and sync."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import numpy as np
import pytest

from gpkvs.native import TRACE_VARIABLE
from gpkvs.recovery.proof.damage.bitflip import memory_parent

# Runs the same batches on two copies of a store, and says how many events each of the two traces has.
TWINS = """
import shutil, sys
from pathlib import Path
from random import Random

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.undo_committer import UndoCommitter
from gpkvs.recovery.proof.powerfail.recorder import TraceRecorder
from gpkvs.recovery.proof.powerfail.state_judge import Disk
from gpkvs.recovery.proof.powerfail.trace import Kind

directory, durability, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
SIZES = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "log_bytes": 1 << 20}
TABLES = ("default", "numbers", "second")


def open_at(path):
    return gpkvs.open(path, backend="cpu", threads=1, durability=durability, commit="undo", **SIZES)


def batches(store):
    random = Random(seed)
    for _ in range(40):
        requests = []
        table = random.choice(TABLES)
        for _ in range(random.randrange(1, 6)):
            operations = []
            for _ in range(random.randrange(1, 40)):
                key = random.randrange(400).to_bytes(8, "little")
                op = random.choice((Op.GET, Op.SET, Op.SET, Op.SET, Op.DELETE))
                value = random.randbytes(8 if table == "numbers" else random.randrange(60))
                operations.append((op, key, value) if op == Op.SET else (op, key))
            requests.append(Batch.of(operations).on_table(store.table(table).id))
        yield Batch.concatenate(requests)


def trace_of(path, *, is_native):
    real = UndoCommitter._store_natively
    if not is_native:
        UndoCommitter._store_natively = UndoCommitter._store
    try:
        with open_at(path) as store:
            recorder = TraceRecorder(path, Disk(path).image().copy(), Random(seed), thread_items=7)
            with recorder:
                for batch in batches(store):
                    assert not store.execute_requests(batch).rejected
                    recorder.mark()
            counted = store.info().tables, store._engine.heap.tail, store.meter.written_bytes, store.meter.commits
            phases = store.meter.phase_seconds
            assert all(phases[phase] for phase in ("record", "log", "apply", "persist_index", "idle"))
    finally:
        UndoCommitter._store_natively = real
    events = [
        (event.kind.name, event.thread, event.file, event.at, event.words)
        for event in recorder.trace().events
        if event.kind is not Kind.RETURN
    ]
    return events, counted


with open_at(directory / "native") as store:
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    store.create_table("second", index_bytes=64 << 10)
shutil.copytree(directory / "native", directory / "launched")
native, launched = (trace_of(directory / name, is_native=name == "native") for name in ("native", "launched"))
for number, (one, other) in enumerate(zip(native[0], launched[0])):
    assert one == other, f"event {number}: {one} where Python has {other}"
assert len(native[0]) == len(launched[0])
assert native[1] == launched[1]
print(len(native[0]), sum(kind == "SYNC" for kind, *_ in native[0]))
"""


@pytest.mark.parametrize("durability", ["fence", "msync", "none"])
def test_the_same_trace_as_launched_from_python(durability: str) -> None:
    seed = int(np.random.default_rng().integers(1 << 32))
    print("seed", seed)
    with tempfile.TemporaryDirectory(prefix="gpkvs-test-", dir=memory_parent()) as directory:
        done = subprocess.run(
            [sys.executable, "-c", TWINS, directory, durability, str(seed)],
            env={TRACE_VARIABLE: "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    events, syncs = map(int, done.stdout.split())
    assert events > 10_000
    assert (syncs > 100) == (durability == "msync")
