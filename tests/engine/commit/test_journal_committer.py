"""The committer of a store with a journal: what an interrupt, or a lack of memory, leaves of a step."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.seam.write_set import TableWrites
from gpkvs.engine.state.table import Table
from gpkvs.errors import NoMemoryError
from gpkvs.process.fatal import EXIT_FATAL
from gpkvs.recovery.proof.damage.bitflip import memory_parent
from tests.conftest import SMALL, assert_clean
from tests.engine.commit.interrupted import INTERRUPTED, WHOLE

INTERRUPTED_CHILD = Path(__file__).with_name("interrupted.py")


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """Return a directory in memory, where a store's life takes milliseconds."""
    with tempfile.TemporaryDirectory(prefix="gpkvs-test-", dir=memory_parent()) as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    ("step", "names", "ends"),
    [
        ("close", ["_append_empty", "begin", "append", "end"], True),
        ("close", ["close", "cover", "_cover", "reserve"], False),
        ("batch", ["commit", "_commit_natively"], False),
        ("columns", ["begin_requests", "run_batch", "_begin", "begin_turn", "end_turn", "result", "_part"], False),
        ("set", ["_run_natively", "run", "begin_turn", "end_turn", "_answer"], False),
        ("set-in-steps", ["_store", "_describe", "begin", "append", "end", "_count"], True),
        ("set-in-steps", ["commit", "_commit_in_steps", "reserve"], False),
    ],
    ids=["empty-frame", "close", "batch", "columns", "set", "batch-in-steps", "room-for-a-batch-in-steps"],
)
def test_an_interrupt_leaves_the_store_usable_or_ends_the_process(
    memory_path: Path, step: str, names: list[str], *, ends: bool
) -> None:
    """Half a step would leave a hole in the chain of frames: what is written later would be lost."""
    command = [sys.executable, str(INTERRUPTED_CHILD), str(memory_path), step, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    statuses = [int(line) for line in done.stdout.split()]
    assert len(statuses) > 5
    assert statuses[-1] == WHOLE
    assert set(statuses[:-1]) <= {INTERRUPTED, EXIT_FATAL}, done.stderr
    assert (EXIT_FATAL in statuses) == ends
    for nth, status in enumerate(statuses, 1):
        path = memory_path / str(nth)
        with gpkvs.open(path, create=False) as store:
            assert store.get(b"before") == b"value"
            assert store.get(b"during") in (None, b"value")
            if step != "close":
                assert store.get(b"after") == (None if status == EXIT_FATAL else b"value")
        assert_clean(path)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "in-steps"])
def test_a_batch_that_gets_no_memory_has_begun_nothing(
    store_path: Path, by_phases: None, monkeypatch: pytest.MonkeyPatch, *, is_native: bool
) -> None:
    with gpkvs.open(store_path, backend="cpu", commit="journal", **SMALL) as store:
        committer = store._engine.committer
        assert isinstance(committer, JournalCommitter)
        committer.is_native = is_native
        store.set(b"key", b"value")

        def refuse(*_: object) -> None:
            raise MemoryError

        def begin_commit(writes: TableWrites, table: Table, file: int) -> None:
            real(writes, table, file)
            writes.set(entry_bytes=1 << 50)  # no frame is so large

        real = TableWrites.begin_commit
        committer.checkpointer.stop()
        begun, used = committer.begun, committer.journal.used_pages
        with monkeypatch.context() as patch:
            patch.setattr(TableWrites, "begin_commit", begin_commit)
            patch.setattr(np, "zeros_like", refuse)
            with pytest.raises(NoMemoryError):
                store.execute(Batch.of([(Op.SET, b"key", b"other")]))
        assert (committer.begun, committer.journal.used_pages) == (begun, used)
        assert not store._engine.heap.freed_epoch
        assert store.get(b"key") == b"value"
        store.set(b"key", b"third")
    with gpkvs.open(store_path) as store:
        assert store.get(b"key") == b"third"
