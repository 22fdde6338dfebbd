"""Files that are watched: every way to change one is seen, and nothing ends the watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue

import pytest

from gpkvs.server import watched_files
from gpkvs.server.watched_files import WatchedFiles, look_at

SEEN_SECONDS_MAX = 30
UNSEEN_SECONDS = 0.05  # some looks


class Watch:
    """Two watched files, one of them behind a link to its folder, as orchestrators mount them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "version-1").mkdir()
        (folder / "version-1" / "file").write_text("a")
        (folder / "now").symlink_to("version-1")
        self.file, self.linked = folder / "file", folder / "now" / "file"
        self.file.write_text("a")
        self.calls: Queue[None] = Queue()
        self.answers: list[Callable[[], bool]] = []
        self.watched = WatchedFiles([self.file, self.linked], self.changed, again_seconds=0.1)

    def changed(self) -> bool:
        self.calls.put(None)
        return self.answers.pop()() if self.answers else True

    def was_seen(self) -> bool:
        try:
            self.calls.get(timeout=SEEN_SECONDS_MAX)
        except Empty:
            return False
        return True


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "_LOOK_SECONDS", 0.005)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made = Watch(tmp_path)
    yield made
    made.watched.close()


def overwrite(file: Path) -> None:
    """Change a file once: to truncate and to write are two changes."""
    with file.open("r+b", buffering=0) as raw:
        raw.write(b"b")


def write_other(watch: Watch) -> None:
    (watch.folder / "version-2").mkdir()
    (watch.folder / "version-2" / "file").write_text("a")
    (watch.folder / "next").symlink_to("version-2")
    (watch.folder / "next").rename(watch.folder / "now")


@pytest.mark.parametrize(
    "change",
    [
        lambda watch: overwrite(watch.file),
        lambda watch: watch.file.unlink(),
        lambda watch: watch.file.chmod(0o640),
        lambda watch: overwrite(watch.folder / "version-1" / "file"),
        lambda watch: (watch.folder / "now").unlink(),
        write_other,
    ],
)
def test_every_change_is_seen_once(watch: Watch, change: Callable[[Watch], object]) -> None:
    change(watch)
    assert watch.was_seen()
    with pytest.raises(Empty):
        watch.calls.get(timeout=UNSEEN_SECONDS)


def test_a_file_that_is_gone_and_comes_back_is_seen_twice(watch: Watch) -> None:
    kept = watch.folder / "kept"
    watch.file.rename(kept)
    assert watch.was_seen()
    kept.rename(watch.file)
    assert watch.was_seen()
    with pytest.raises(Empty):
        watch.calls.get(timeout=UNSEEN_SECONDS)


def test_a_change_before_the_watch_is_seen(watch: Watch) -> None:
    seen = look_at([watch.file])
    watch.file.write_text("b")
    assert watch.was_seen()
    later = WatchedFiles([watch.file], watch.changed, seen=seen)
    try:
        assert watch.was_seen()
    finally:
        later.close()


def test_files_that_cannot_be_used_are_looked_at_again(watch: Watch) -> None:
    watch.answers = [lambda: False, lambda: False]
    overwrite(watch.file)
    assert all(watch.was_seen() for _ in range(3))
    with pytest.raises(Empty):
        watch.calls.get(timeout=UNSEEN_SECONDS)


def test_a_failure_does_not_end_the_watch(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    watch.answers = [lambda: bool(1 // 0)]
    overwrite(watch.file)
    assert watch.was_seen()
    assert watch.was_seen()  # again
    assert f"cannot read {watch.file}" in caplog.text
    watch.file.write_text("c")
    assert watch.was_seen()


def test_a_disk_that_hangs_holds_up_only_the_thread(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "_CLOSE_SECONDS_MAX", 0.05)
    hangs, goes_on = threading.Event(), threading.Event()

    def look(_path: Path) -> tuple[int, ...]:
        hangs.set()
        goes_on.wait(60)
        return ()

    monkeypatch.setattr(watched_files, "_look", look)
    assert hangs.wait(20)
    began = time.monotonic()
    watch.watched.close()
    assert time.monotonic() - began < 50
    goes_on.set()
    with pytest.raises(Empty):
        watch.calls.get(timeout=UNSEEN_SECONDS)


def test_a_look_without_memory_is_not_the_last_one(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    has_failed = threading.Event()

    def fails(_: object) -> object:
        has_failed.set()
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(watched_files, "look_at", fails)
        assert has_failed.wait(SEEN_SECONDS_MAX)
    overwrite(watch.file)
    assert watch.was_seen()
