"""The file of an image: what a checkpoint does with it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from gpkvs.media.image import Image
from gpkvs.media.layout import PAGE_BYTES
from gpkvs.pm.mapping import map_memory

PAGES = 16


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """Return the image of an empty file."""
    path = tmp_path / "index"
    path.write_bytes(bytes(PAGES * PAGE_BYTES))
    return Image(path, write=True)


def write_page(image: Image, number: int) -> None:
    """Write a page of ones."""
    page = map_memory(PAGE_BYTES)
    page[:] = 1
    image.write_pages(np.array([number], np.uint64), page)


def test_a_truncated_file_is_not_written_to(image: Image) -> None:
    write_page(image, 3)
    image.sync()
    assert image.path.read_bytes() == bytes(3 * PAGE_BYTES) + b"\1" * PAGE_BYTES + bytes((PAGES - 4) * PAGE_BYTES)
    os.truncate(image.path, 4 * PAGE_BYTES)
    with pytest.raises(OSError, match=r"truncated.*index"):  # else the pages before it would come back as zeros
        write_page(image, PAGES - 1)
    assert image.path.stat().st_size == 4 * PAGE_BYTES
    image.close()


def test_a_file_may_be_closed_while_it_is_flushed(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    flushing, closed = threading.Event(), threading.Event()
    fdatasync, files = os.fdatasync, []

    def slow(file: int) -> None:
        flushing.set()
        assert closed.wait(10)
        files.append(Path(f"/proc/self/fd/{file}").readlink())
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", slow)
    thread = threading.Thread(target=image.sync)
    thread.start()
    assert flushing.wait(10)
    image.close()  # its table is dropped: does not wait for the disk
    closed.set()
    thread.join()
    assert files == [image.path]
    open_files = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert image.path not in open_files
    image.sync()  # does nothing any more
    assert files == [image.path]


def test_an_image_grows_with_its_file(image: Image) -> None:
    write_page(image, 3)
    image.load()
    image.marks[3] = image.copied[5] = 7
    os.truncate(image.path, 1 << 30)
    image.grow(1 << 30)  # far larger: it moves
    assert image.bytes == 1 << 30
    assert image.read(3 * PAGE_BYTES, 2) == b"\1\1"
    assert not any(image.read(image.bytes - PAGE_BYTES, PAGE_BYTES))
    assert len(image.marks) == len(image.copied) == (1 << 30) // PAGE_BYTES
    assert (image.marks[3], image.copied[5], image.marks.sum(), image.copied.sum()) == (7, 7, 7, 7)
    image.close()


def test_an_image_with_free_addresses_grows_where_it_is(image: Image) -> None:
    assert image._view is not None
    image._view[-8:] = 7
    image.reserve(1 << 30)
    at, size = image.address, 3 * PAGES * PAGE_BYTES
    image.grow(size)
    assert image.address == at
    assert image.bytes == size
    assert len(image.marks) == len(image.copied) == 3 * PAGES
    assert image.read(PAGES * PAGE_BYTES - 8, 16) == b"\7" * 8 + bytes(8)
    image._view[-8:] = 9
    assert image.read(size - 8, 8) == b"\t" * 8
    image.close()
