"""A segment of a disk's heap is read when a batch goes on to it: its pages come from the disk before records do."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.cpu.backend import address_of
from gpkvs.media.files import HEAP_FILE
from tests.conftest import SMALL, assert_clean

_PAGE = mmap.PAGESIZE
_SECONDS_MAX = 60.0


def pages_in_memory(path: Path) -> list[bool]:
    """Return of each page of a file whether the page cache has it."""
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        pages = np.zeros(-(-len(mapped) // _PAGE), np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        assert not libc.mincore(ctypes.c_void_p(address_of(mapped)), ctypes.c_size_t(len(mapped)), pages.ctypes)
        return [bool(page & 1) for page in pages]


def forget(path: Path) -> None:
    """Have the page cache forget a file that nobody uses."""
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


@pytest.mark.undo
@pytest.mark.format3
def test_the_next_segment_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    heap = path / HEAP_FILE
    with gpkvs.open(path, backend="cpu", commit="undo", **SMALL) as store:
        segment_bytes = store._files.root.segment_bytes
        if not store._files.heap.is_paged:
            pytest.skip("temporary files are no disk's here")
        for _ in range(3):  # so that the first segments were used
            store.set(b"key", b"v" * (segment_bytes * 3 // 4))
    forget(heap)
    with gpkvs.open(path, create=False, backend="cpu") as store:
        tail = store._engine.heap.tail.segment
        store.set(b"other", b"v" * (segment_bytes * 3 // 4))
        after = store._engine.heap.tail.segment
        assert after != tail
        last = (after + 1) * segment_bytes // _PAGE - 1
        end = time.monotonic() + _SECONDS_MAX
        while not pages_in_memory(heap)[last]:  # the disk is not waited for
            assert time.monotonic() < end, "the end of the segment is not read"
            time.sleep(0.01)
        assert not all(pages_in_memory(heap)), "what needs no records is not read"
    assert_clean(path)
