"""The checkpoint that a close writes: after it nothing is left to replay; where it would take long, the journal is."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.engine.commit import checkpoint
from gpkvs.engine.commit.checkpoint import Checkpointer
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.info import StoreInfo
from gpkvs.media.image import Image
from tests.conftest import assert_clean

KIB, MIB = 1 << 10, 1 << 20
PAIRS = {b"key%d" % number: b"value%d" % number for number in range(3000)}


def opened(path: Path) -> gpkvs.Store:
    return gpkvs.open(path, commit="journal", index_bytes=512 * KIB, heap_bytes=4 * MIB, journal_bytes=1 * MIB)


def fill(store: gpkvs.Store) -> None:
    with store.batch() as batch:
        for key, value in PAIRS.items():
            batch.set(key, value)
    store.create_table("numbers", layout="u64", index_bytes=64 * KIB)
    store.table("numbers").set_many(np.arange(1000), np.arange(1000) + 7)


def require_all(store: gpkvs.Store) -> None:
    assert dict(store.scan()) == PAIRS
    assert store.table("numbers").get(999) == 1006
    assert [table.records for table in store.info().tables] == [3000, 1000]


def slow_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a checkpoint write one page after the other, and a close have time for none."""
    monkeypatch.setattr(checkpoint, "_STEP_PAGES", 1)
    monkeypatch.setattr(checkpoint, "CLOSING_SECONDS", 0.0)


def test_after_a_close_nothing_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        fill(store)
    for _ in range(2):
        assert_clean(path)
        with opened(path) as store:
            assert (store.recovery.replayed_batches, store.recovery.replayed_slots) == (0, 0)
            require_all(store)


def test_a_close_leaves_the_journal_if_its_checkpoint_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    slow_pages(monkeypatch)
    with opened(path) as store:
        fill(store)
        root = store._files.root
    assert_clean(path)
    with opened(path) as store:
        assert store._files.root.checkpoint.epoch == root.checkpoint.epoch
        assert store.recovery.replayed_slots == 4000
        require_all(store)


def test_a_checkpoint_that_is_going_to_take_long_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    image = type("", (), {"is_direct": True})()
    deadline = checkpoint._Deadline(1.0, 1000)
    now = 0.1
    assert not deadline.is_missed(image, 1)  # too early to tell
    now = 0.4
    assert not deadline.is_missed(image, 499)
    now = 0.6
    assert deadline.is_missed(image, 50)


def test_where_pages_go_through_the_page_cache_each_step_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would seem to be written at once, and the flush at the end would take as long as it takes."""
    synced = []
    monkeypatch.setattr(Image, "is_direct", False)
    monkeypatch.setattr(Image, "sync", lambda image: synced.append(image.path.name))
    monkeypatch.setattr(checkpoint, "_STEP_PAGES", 10)
    with opened(tmp_path / "store") as store:
        fill(store)
    assert synced.count("index-0-0") > 10


def test_the_checkpoint_of_a_growing_table(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, commit="journal", index_bytes=64 * KIB, heap_bytes=4 * MIB) as store:
        pairs = {b"%d" % number: b"v" for number in range(1400)}
        for key in pairs:
            store.set(key, b"v")
        assert store.info().tables[0].growing_blocks or store.info().tables[0].slots > 2048
    assert_clean(path)
    with gpkvs.open(path) as store:
        assert store.recovery.replayed_slots == 0
        assert dict(store.scan()) == pairs


def test_a_close_that_is_interrupted_is_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint goes on in its thread; the second call waits for it."""
    path = tmp_path / "store"
    store = opened(path)
    fill(store)
    stop, calls = Checkpointer.stop, []

    def interrupted(checkpointer: Checkpointer) -> None:
        calls.append(1)
        if len(calls) == 1:
            checkpointer._is_ending.set()
            raise KeyboardInterrupt
        stop(checkpointer)

    monkeypatch.setattr(Checkpointer, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    monkeypatch.undo()
    with opened(path) as store:
        assert store.recovery.replayed_batches == 0
        require_all(store)


def test_info_says_what_the_next_opening_will_do(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store._engine.committer.checkpointer.stop()  # type: ignore[attr-defined]
        fill(store)
        info = store.info()
        assert info.journal
        assert info.journal.dirty_bytes > 300 * KIB
        used, dirty = info.journal.used_bytes / MIB, info.journal.dirty_bytes / MIB
        assert info.next_opening == (
            f"reads and counts 0.6 MiB of index, replays {used:.1f} MiB of the journal; after a clean close it replays "
            f"nothing, if {dirty:.1f} MiB of the index can be written in a second"
        )
        committer = store._engine.committer
        assert isinstance(committer, JournalCommitter)
        committer.checkpointer.write(paced=False)
        after = store.info().journal
        assert after
        assert after.dirty_bytes == 0
    with gpkvs.open(tmp_path / "undo", commit="undo", index_bytes=512 * KIB) as store:
        assert store.info().next_opening == "reads and counts 0.5 MiB of index"


def test_info_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    """On a slow disk a checkpoint has the lock of the files for seconds, and metrics are to say so meanwhile."""
    with opened(tmp_path / "store") as store:
        fill(store)
        told: list[StoreInfo] = []
        asker = threading.Thread(target=lambda: told.append(store.info()))
        with store._files.changing:
            asker.start()
            asker.join(30)
            assert told, "it waits for the lock"
        asker.join()
        assert told[0].journal
        assert told[0].journal.dirty_bytes > 0
    assert_clean(tmp_path / "store")
