"""Where the file of an image has data: pages that were only reserved are not read."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest

from gpkvs.media.image import Image
from gpkvs.media.layout import PAGE_BYTES

PAGES = 16


def file_with(path: Path, pages: list[int]) -> Path:
    """Make a file of 16 pages that has data in some, and holes between."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), PAGES * PAGE_BYTES)
        for page in pages:
            os.pwrite(file.fileno(), bytes([page + 1]) * PAGE_BYTES, page * PAGE_BYTES)
    return path


@pytest.mark.parametrize("pages", [[], [0], [PAGES - 1], [1, 2, 7], list(range(PAGES))])
def test_an_image_is_loaded_with_all_data_of_its_file(tmp_path: Path, pages: list[int]) -> None:
    image = Image(file_with(tmp_path / "index-0-0", pages), write=False)
    try:
        image.load()
        assert image.read(0, PAGES * PAGE_BYTES) == (tmp_path / "index-0-0").read_bytes()
        assert sum(last - first for first, last in image.extents()) >= len(pages) * PAGE_BYTES
    finally:
        image.close()


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ([(1, 2)], [(0, 1)]),
        ([(5, 6), (7, 8)], [(1, 2)]),
        ([(3, 5), (10, 12)], [(0, 2), (2, 3)]),
        ([(63, 64)], [(15, 16)]),
    ],
)
def test_a_file_system_with_blocks_of_a_quarter_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    """Data may begin inside a page: the hole before it is not the end of the data."""
    image = Image(file_with(tmp_path / "index-0-0", []), write=False)
    block_bytes = PAGE_BYTES // 4
    has_data = [any(first <= block < last for first, last in used) for block in range(4 * PAGES)]

    def seek(_file: int, at: int, whence: int) -> int:
        """Look for a block with data, or without, as the system does."""
        wanted = whence == os.SEEK_DATA
        for block in range(at // block_bytes, 4 * PAGES):
            if has_data[block] == wanted:
                return max(at, block * block_bytes)
        if wanted:
            raise OSError(6, os.strerror(6))
        return image.bytes

    monkeypatch.setattr(os, "lseek", seek)
    try:
        found = list(islice(image.extents(), 4 * PAGES))
    finally:
        image.close()
    assert [(first // PAGE_BYTES, last // PAGE_BYTES) for first, last in found] == expected
