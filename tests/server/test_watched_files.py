"""Files are looked at: each change is told once, also through the links that Kubernetes swaps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.server import watched_files as module
from gpkvs.server.watched_files import WatchedFiles


class Told:
    """Counts what is told."""

    def __init__(self) -> None:
        self._changes = threading.Semaphore(0)

    def __call__(self) -> None:
        self._changes.release()

    def wait(self) -> None:
        assert self._changes.acquire(timeout=20)

    def is_silent(self) -> bool:
        return not self._changes.acquire(timeout=0.05)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.005)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def mounted(tmp_path: Path, told: Told) -> Iterator[Path]:
    """Watch two files as Kubernetes mounts them: links into a folder behind a link, which it swaps."""
    (tmp_path / "data").symlink_to("version-1")
    for version in ("version-1", "version-2"):
        (tmp_path / version).mkdir()
        for name in ("cert", "key"):
            (tmp_path / version / name).write_text(version)
    for name in ("cert", "key"):
        (tmp_path / name).symlink_to(f"data/{name}")
    watched = WatchedFiles((tmp_path / "cert", tmp_path / "key"), told)
    yield tmp_path
    watched.close()


def test_a_swapped_link_is_one_change(mounted: Path, told: Told) -> None:
    assert told.is_silent()
    (mounted / "new").symlink_to("version-2")
    (mounted / "new").replace(mounted / "data")
    told.wait()
    assert told.is_silent()


def test_a_file_that_goes_and_comes_back(mounted: Path, told: Told) -> None:
    (mounted / "version-1" / "key").rename(mounted / "away")
    told.wait()
    assert told.is_silent()
    (mounted / "away").rename(mounted / "version-1" / "key")
    told.wait()
    (mounted / "version-1" / "key").write_text("other key")
    told.wait()


def test_a_disk_that_hangs_holds_up_only_the_thread(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS_MAX", 0.05)
    hangs, goes_on = threading.Event(), threading.Event()
    watched = WatchedFiles((tmp_path / "file",), told)

    def look(path: Path) -> tuple[int, ...]:
        hangs.set()
        goes_on.wait(20)
        return ()

    monkeypatch.setattr(module, "_look", look)
    assert hangs.wait(20)
    begin = time.monotonic()
    watched.close()
    assert time.monotonic() - begin < 5
    goes_on.set()
    assert told.is_silent()
