"""Persistence domains: found, forced and shown; what `flush` writes back."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gpkvs
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import Batch, Op
from gpkvs.errors import BackendError
from gpkvs.native import library
from gpkvs.pm import domain, region
from gpkvs.pm.domain import MAP_SHARED_VALIDATE_SYNC, Domain, DomainName, find_domain, maps_synchronously
from gpkvs.pm.region import Region
from tests.conftest import SMALL

LINE_WORDS = 8
FORCED_FLUSH = Domain(DomainName.MSYNC, DomainName.FLUSH)

needs_write_back = pytest.mark.skipif(
    not domain.can_write_back(), reason="this processor has no known instruction to write a cache line back"
)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (["cpu_cache"], "fence"),
        (["memory_controller"], "flush"),
        (["cpu_cache", "memory_controller"], "flush"),
        (["cpu_cache", ""], "msync"),
        (["something new"], "msync"),
        ([None], "msync"),
        ([], "msync"),
    ],
)
def test_the_platform_promises_what_its_weakest_region_does(tmp_path: Path, said: list[str | None], found: str) -> None:
    for number, word in enumerate(said):
        (tmp_path / f"region{number}").mkdir()
        if word is not None:
            (tmp_path / f"region{number}" / "persistence_domain").write_text(f"{word}\n")
    assert domain.platform_domain(tmp_path.glob("region*")) == found


def test_only_map_sync_makes_the_platform_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither DAX nor a region can be had here: the answers of the kernel are replaced, the decision is real."""
    (tmp_path / "LOCK").touch()
    region = tmp_path / "region0"
    region.mkdir()
    monkeypatch.setattr(domain, "_REGIONS", tmp_path)
    monkeypatch.setattr(domain, "_MEMORY_FILESYSTEMS", set[int]())
    for promise, found in (("cpu_cache", "fence"), ("memory_controller", "flush")):
        (region / "persistence_domain").write_text(promise)
        monkeypatch.setattr(domain, "maps_synchronously", lambda _: True)
        assert find_domain(tmp_path, "auto") == Domain(DomainName(found), DomainName(found))
        assert find_domain(tmp_path, "auto").survives_power_loss
        assert find_domain(tmp_path, "auto").maps_synchronously
        monkeypatch.setattr(domain, "maps_synchronously", lambda _: False)
        assert find_domain(tmp_path, "auto").name == "msync"
        assert not find_domain(tmp_path, "auto").maps_synchronously


def test_a_probe_agrees_with_a_mapping_and_leaves_nothing(tmp_path: Path) -> None:
    works = maps_synchronously(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(bytes(mmap.PAGESIZE))
    with (tmp_path / "file").open("r+b") as file:
        if works:
            mmap.mmap(file.fileno(), mmap.PAGESIZE, MAP_SHARED_VALIDATE_SYNC).close()
        else:
            with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
                mmap.mmap(file.fileno(), mmap.PAGESIZE, MAP_SHARED_VALIDATE_SYNC)


def test_regions_are_mapped_synchronously_where_the_domain_was_found_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(mmap.PAGESIZE))
    flags: list[int] = []
    real = region.map_file

    def note(file: int, size: int, given: int, access: int, offset: int) -> NDArray[np.uint8]:
        flags.append(given)
        return real(file, size, mmap.MAP_SHARED, access, offset)

    monkeypatch.setattr(region, "map_file", note)
    for found in (DomainName.FENCE, DomainName.FLUSH, DomainName.MSYNC, DomainName.PROCESS):
        Region(tmp_path / "file", Domain(found, DomainName.FENCE)).close()
    assert flags == [MAP_SHARED_VALIDATE_SYNC] * 2 + [mmap.MAP_SHARED] * 2


@pytest.mark.parametrize(
    ("found", "forced", "word", "survives"),
    [
        ("msync", "fence", "forced, unverified", False),
        ("msync", "flush", "forced, unverified", False),
        ("flush", "fence", "forced, unverified", False),
        ("process", "msync", "forced, unverified", False),
        ("fence", "flush", "forced: survives power loss", True),
        ("fence", "msync", "forced: survives power loss", True),
        ("msync", "process", "forced: survives a crash of the process, NOT power loss", False),
        ("fence", "none", "UNSAFE", False),
    ],
)
def test_a_forced_domain_says_what_it_is_worth(found: str, forced: str, word: str, survives: bool) -> None:
    shown = Domain(DomainName(found), DomainName(forced))
    assert shown.note.startswith(word)
    assert shown.survives_power_loss is survives


def test_a_forced_domain_is_shown(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", durability="fence", **SMALL) as store:
        info = store.info()
        assert (info.domain, info.domain_found) == ("fence", store.domain.found)
        assert "forced, unverified" in info.domain_note


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_directory_that_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    assert not maps_synchronously(tmp_path)


def test_flush_without_an_instruction_for_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "LOCK").touch()
    monkeypatch.setattr(domain, "can_write_back", lambda: False)
    with pytest.raises(BackendError, match="needs clwb"):
        find_domain(tmp_path, "flush")


@pytest.fixture
def lines() -> Callable[[], int]:
    """Return a function that says how many cache lines were written back since it was last called."""
    before = library.gpkvs_lines_written_back()

    def since() -> int:
        nonlocal before
        earlier, before = before, library.gpkvs_lines_written_back()
        return int(before - earlier)

    return since


@pytest.mark.machine
@needs_write_back
def test_a_store_of_the_host_writes_back_each_line_once(tmp_path: Path, lines: Callable[[], int]) -> None:
    (tmp_path / "file").write_bytes(bytes(64 << 10))
    region = Region(tmp_path / "file", FORCED_FLUSH)
    lines()
    for words, expected in ((1, 1), (LINE_WORDS, 1), (LINE_WORDS + 1, 2), (64 * LINE_WORDS, 64), (8000, 1000)):
        region.store(0, bytes(8 * words))
        assert lines() == expected
    region.store(64 - 8, bytes(16))
    assert lines() == 2
    region.close()


@pytest.mark.machine
@needs_write_back
@pytest.mark.parametrize("how", range(1, library.gpkvs_write_back_best() + 1))
def test_every_instruction_that_the_processor_has(tmp_path: Path, lines: Callable[[], int], how: int) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    region = Region(tmp_path / "file", FORCED_FLUSH)
    library.gpkvs_write_back_on(how)
    try:
        lines()
        region.store(0, bytes(range(256)) * 16)
        assert lines() == 64
        assert region.read(0, 4096) == bytes(range(256)) * 16
    finally:
        library.gpkvs_write_back_on(library.gpkvs_write_back_best())
        region.close()


@pytest.mark.machine
@needs_write_back
@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_writes_back_all_that_it_stores(tmp_path: Path, lines: Callable[[], int], threads: int) -> None:
    """One slot in each of 20,000 lines, and a log whose entries are striped over lines."""
    count = 20_000
    (tmp_path / "index").write_bytes(bytes(64 * count))
    (tmp_path / "log").write_bytes(bytes(32 * count))
    index, log = (Region(tmp_path / name, FORCED_FLUSH) for name in ("index", "log"))
    backend = CpuBackend(threads)
    slots = np.arange(count, dtype=np.uint64) * np.uint64(4)
    contents = np.full((count, 2), 7, np.uint64)
    lines()
    backend.launch("apply_u64", count, changed_slot=slots, contents=contents, index=index.address)
    assert lines() == count
    digest = np.empty(count, np.uint64)
    backend.launch(
        "log_undo_u64",
        count,
        changed_slot=slots,
        index=index.address,
        epoch=1,
        first=0,
        log=log.address,
        digest=digest,
    )
    assert lines() == 32 * count // 64
    backend.close()
    index.close()
    log.close()


@pytest.mark.machine
@needs_write_back
def test_a_mark_of_a_page_is_not_written_back(tmp_path: Path, lines: Callable[[], int]) -> None:
    """Marks lie in memory that another kernel may not touch when it writes back: it may be gone by then."""
    (tmp_path / "index").write_bytes(bytes(4096))
    index = Region(tmp_path / "index", FORCED_FLUSH)
    backend = CpuBackend(1)
    slots, contents = np.zeros(1, np.uint64), np.ones((1, 2), np.uint64)
    backend.launch("mark_pages_u64", 1, changed_slot=slots, epoch=7, marks=(marks := np.zeros(1, np.uint64)))
    assert marks[0] == 7
    lines()
    backend.launch("apply_u64", 1, changed_slot=slots, contents=contents, index=index.address)
    assert lines() == 1
    backend.close()
    index.close()


@pytest.mark.machine
@needs_write_back
@pytest.mark.undo
def test_a_batch_in_flush_writes_back_every_line_that_changed(tmp_path: Path, lines: Callable[[], int]) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, durability="flush", threads=2, **SMALL) as store:
        files = [path / name for name in ("root", "log", "heap", "index-0-0")]
        before = [file.read_bytes() for file in files]
        lines()
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"value" * 20) for i in range(5000)]))
        written = lines()
        after = [file.read_bytes() for file in files]
    changed = sum(
        int((np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8)).reshape(-1, 64).any(axis=1).sum())
        for old, new in zip(before, after, strict=True)
    )
    assert changed > 10_000
    assert written >= changed
