"""A new store: sizes that the format cannot hold are refused by name, and its files are for its owner only."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import gpkvs
from gpkvs.config import INDEX_BYTES_MAX, JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, Sizes
from gpkvs.errors import InvalidArgumentError
from gpkvs.media.directory import checked_sizes, journal_segment_bytes_for
from gpkvs.media.journal import Ring
from gpkvs.media.layout import BLOCK_BYTES, HEAP_UNITS_MAX, UNIT_BYTES
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from tests.conftest import SMALL

SIZES = Sizes(index_bytes=1 << 20, heap_bytes=16 << 20, log_bytes=1 << 20, journal_bytes=8 << 20)
LEAST_AND_MOST = {
    "index_bytes": (BLOCK_BYTES, INDEX_BYTES_MAX),
    "heap_bytes": (128 << 10, HEAP_UNITS_MAX * UNIT_BYTES),
    "log_bytes": (128 << 10, 1 << 40),
    "journal_bytes": (JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX),
}


@pytest.mark.parametrize("name", LEAST_AND_MOST)
def test_a_size_out_of_range_is_refused_by_its_name(name: str) -> None:
    least, most = LEAST_AND_MOST[name]
    for size in (least, most):
        assert getattr(checked_sizes(replace(SIZES, **{name: size})), name) == size
    for size in (least - 1, most + 1):
        with pytest.raises(InvalidArgumentError, match="allowed are") as refused:
            checked_sizes(replace(SIZES, **{name: size}))
        assert refused.value.field == name


@pytest.mark.parametrize("name", ["index_bytes", "heap_bytes"])
def test_the_journal_of_the_largest_store_is_one_that_may_be_asked_for(name: str) -> None:
    """Its size follows the others; nobody asked for one that is refused."""
    largest = replace(SIZES, journal_bytes=0, **{name: LEAST_AND_MOST[name][1]})
    journal_bytes = checked_sizes(largest).journal_bytes
    assert JOURNAL_BYTES_MIN <= journal_bytes <= JOURNAL_BYTES_MAX
    assert checked_sizes(replace(largest, journal_bytes=journal_bytes)).journal_bytes == journal_bytes


@pytest.mark.parametrize("journal_bytes", [JOURNAL_BYTES_MIN, JOURNAL_BYTES_MIN + 1, 3 << 20, 100 << 20])
def test_a_journal_is_whole_segments_with_room_for_four_frames(journal_bytes: int) -> None:
    rounded = checked_sizes(replace(SIZES, journal_bytes=journal_bytes)).journal_bytes
    segment_bytes = journal_segment_bytes_for(rounded)
    assert journal_bytes <= rounded < journal_bytes + segment_bytes
    assert rounded % segment_bytes == 0
    ring = Ring.of_size(segment_bytes, rounded)
    assert ring.segments >= 16
    assert ring.frame_words_max > 0


@pytest.mark.parametrize("commit", ["journal", "undo"])
def test_a_new_store_is_for_its_owner_only(tmp_path: Path, commit: str) -> None:
    path, before = tmp_path / "above" / "store", os.umask(0)
    try:
        with gpkvs.open(path, commit=commit, **SMALL) as store:
            store.create_table("other")
            store.set(b"k", b"v")
        copy_store(path, tmp_path / "copy", CopySizes(), lambda _step, _share: None)
    finally:
        os.umask(before)
    for made in (path, tmp_path / "copy"):
        assert made.stat().st_mode & 0o777 == 0o700
        modes = {file.name: file.stat().st_mode & 0o777 for file in made.iterdir()}
        assert set(modes.values()) == {0o600}, modes
    assert path.parent.stat().st_mode & 0o777 == 0o777  # not the store's own
