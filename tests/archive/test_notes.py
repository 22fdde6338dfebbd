"""Up to where an archive says that it can be restored: never further than is durable, and behind a base."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpkvs
from gpkvs.archive import recorder
from gpkvs.archive.archiver import ArchiveConfig, Archiver
from gpkvs.archive.recorder import SegmentBounds
from gpkvs.archive.segment import Synced
from gpkvs.backup.notes import BackupNote, BackupState
from gpkvs.backup.source import Source
from gpkvs.changes import Position
from gpkvs.config import StoreConfig
from gpkvs.store import Store
from tests.archive.told import archiving, segments, take_base, wait_for
from tests.conftest import SMALL

AT_ONCE = ArchiveConfig(1000, bounds=SegmentBounds(sync_seconds=0.0), note_seconds=0.01)
NEVER_DURABLE = ArchiveConfig(1000, bounds=SegmentBounds(sync_seconds=1e6))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[gpkvs.Store]:
    with gpkvs.open(tmp_path / "store", **SMALL) as opened:
        yield opened


def restorable(archiver: Archiver, store: gpkvs.Store) -> Synced:
    """Wait until moments can be restored up to what the store has now."""
    give_up = time.monotonic() + 60
    with store.follow() as following:
        newest = following.position
    while not ((found := archiver.restorable()) and found.position.reaches(newest)):
        archiver.recorder.require_going()
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return found


def test_without_a_base_no_moment_can_be_restored(store: gpkvs.Store, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with archiving(store, folder, AT_ONCE, has_base=True) as archiver:
        store.set(b"key", b"value")
        wait_for(archiver, store)
        assert archiver.restorable() is None
        take_base(archiver, folder)
        store.set(b"key", b"other")
        before = time.time_ns() // 1_000_000
        assert before - 60_000 < restorable(archiver, store).time_ms <= time.time_ns() // 1_000_000
    assert archiver.restorable() is None, "nothing is followed"
    with archiving(store, folder, AT_ONCE, has_base=True) as archiver:  # it goes on, and has its base already
        restorable(archiver, store)


def test_behind_lost_changes_it_begins_anew(tmp_path: Path) -> None:
    folder, said = tmp_path / "archive", list[str]()
    with (
        Store(tmp_path / "store", StoreConfig(**SMALL, changes_bytes=1 << 16)) as store,
        archiving(store, folder, AT_ONCE, say=said.append) as archiver,
    ):
        restorable(archiver, store)
        while "begins anew" not in "".join(said):
            store.set(b"large", bytes(1 << 17))  # more than is held
        store.set(b"key", b"value")
        wait_for(archiver, store)
        assert archiver.restorable() is None
        take_base(archiver, folder)
        restorable(archiver, store)


def test_what_is_not_durable_does_not_count(store: gpkvs.Store, tmp_path: Path) -> None:
    with archiving(store, tmp_path / "archive", NEVER_DURABLE) as archiver:
        before = archiver.restorable()
        store.set(b"key", b"value")
        wait_for(archiver, store)
        assert archiver.restorable() == before


def test_the_archive_says_so(store: gpkvs.Store, tmp_path: Path) -> None:
    class Heard:
        def __init__(self) -> None:
            self.positions: list[Position] = []
            self.states: list[BackupState] = []

        def backup(self, note: BackupNote) -> None:
            self.states.append(note.state)

        def archive(self, position: Position, _time_ms: int) -> None:
            self.positions.append(position)

    heard, folder = Heard(), tmp_path / "archive"
    source = Source("source", store, store.follow, heard)
    with Archiver(folder, source, store.follow, AT_ONCE, print) as archiver:
        take_base(archiver, folder)
        store.set(b"key", b"value")
        found = restorable(archiver, store)
        give_up = time.monotonic() + 60
        while not (heard.positions and heard.positions[-1].reaches(found.position)):
            assert time.monotonic() < give_up
            time.sleep(0.01)
    assert heard.states == [BackupState.BEGUN, BackupState.WHOLE]


def test_what_a_killed_archiver_wrote_is_made_durable(
    store: gpkvs.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive"
    with archiving(store, folder, NEVER_DURABLE):
        store.set(b"key", b"value")
    [last] = segments(folder)
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 1)  # it has no end
    synced = list[Path]()
    monkeypatch.setattr(recorder, "sync_path", synced.append)
    with archiving(store, folder, AT_ONCE, has_base=True):
        assert synced == [last]


def test_it_goes_on_behind_an_opening_of_the_store(tmp_path: Path) -> None:
    """What an archive had all of before, it has all of behind a restart: no new base is needed."""
    folder = tmp_path / "archive"
    for life in range(2):
        with (
            gpkvs.open(tmp_path / "store", **SMALL, store_format="4") as store,
            archiving(store, folder, AT_ONCE, has_base=life > 0) as archiver,
        ):
            restorable(archiver, store)
            store.set(b"key", b"%d" % life)
            restorable(archiver, store)
