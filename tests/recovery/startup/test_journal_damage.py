"""Damage to a store with a journal that is not open: told from the tail of a crash, and refused or served around."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.errors import CorruptStoreError
from gpkvs.media.files import open_files
from gpkvs.media.frame import HEADER_BYTES, FrameHeader
from gpkvs.media.journal import Ring
from gpkvs.media.layout import PAGE_BYTES, UNIT_BYTES, BadBytesError, reference_offset
from gpkvs.recovery.startup.check import check

KEYS = [b"key%d" % i for i in range(300)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store of three batches that was closed in order, and whose journal was never emptied."""
    path = tmp_path / "store"
    with gpkvs.open(path, commit="journal", index_bytes=1 << 18, heap_bytes=1 << 20, journal_bytes=1 << 20) as store:
        for part in range(3):
            store.execute(Batch.of([(Op.SET, key, key * 3) for key in KEYS[part::3]]))
        store._engine.committer.checkpointer.stop()  # type: ignore[attr-defined]
    return path


def frames(path: Path) -> list[int]:
    """Return where the frames of the journal begin in the file of data."""
    files = open_files(path, None)
    ring, key = Ring.of(files.root), files.root.hash_keys
    files.close()
    data = (path / "data").read_bytes()
    found, position = [], 0
    while True:
        at = ring.page_offset(position)
        try:
            header, _ = FrameHeader.unpack(data[at : at + HEADER_BYTES], key)
        except BadBytesError:
            return found
        found.append(at)
        position += header.pages


def flip(path: Path, offset: int) -> None:
    """Change one bit of the file of data."""
    with (path / "data").open("r+b") as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), offset)


def test_a_record_that_rots_after_a_close_costs_its_key_alone(path: Path) -> None:
    with gpkvs.open(path) as store:
        slots = store._files.indexes[0].region.words(0, store._files.indexes[0].entry.slots * 4).reshape(-1, 4)
        references = slots[slots[:, 3] != 0][:, 2]
        heap_at = store._files.root.journal_bytes
        rotten = heap_at + int(reference_offset(references).max()) * UNIT_BYTES + 40
    flip(path, rotten)
    assert {violation.invariant for violation in check(path).violations} == {"record-checksum"}
    with gpkvs.open(path) as store:
        result = store.execute(Batch.of([(Op.GET, key) for key in KEYS]))
        assert np.bincount(result.status, minlength=3).tolist() == [299, 0, 1]
        assert result.status.tolist().count(Status.CORRUPT.value) == 1


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("inside", [0, HEADER_BYTES + 8, PAGE_BYTES + 8])
def test_a_frame_that_rots_is_refused_and_nothing_is_written(path: Path, number: int, inside: int) -> None:
    flip(path, frames(path)[number] + inside)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(CorruptStoreError, match="is damaged") as refused:
        gpkvs.open(path)
    assert refused.value.invariant == "journal"
    assert [violation.invariant for violation in check(path).violations][:1] == ["journal"]
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.name != "LOCK"} == {
        name: data for name, data in before.items() if name != "LOCK"
    }


def test_the_last_frame_is_taken_for_the_tail_of_a_crash(path: Path) -> None:
    last = frames(path)[-1]  # it is empty, and covers the batches before
    flip(path, last)
    with gpkvs.open(path) as store:
        assert store.execute(Batch.of([(Op.GET, key) for key in KEYS])).value_list() == [key * 3 for key in KEYS]
    assert check(path).is_clean


def test_a_journal_that_is_cut_short_is_refused(path: Path) -> None:
    os.truncate(path / "data", (path / "data").stat().st_size - PAGE_BYTES)
    with pytest.raises(CorruptStoreError, match="file-size"):
        gpkvs.open(path)
