"""An opening that fails gives everything back: threads, also those that are not Python's, descriptors, the lock."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import gpkvs
from gpkvs import store as store_module
from gpkvs.engine.commit.checkpoint import Checkpointer
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.errors import CorruptStoreError, NoSpaceError, StoreAccessError, StoreError
from gpkvs.media import image
from gpkvs.recovery.startup import opening, recover
from tests.conftest import SMALL, assert_clean

Patch = pytest.MonkeyPatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a journal and a checkpoint that is not empty."""
    path = tmp_path / "store"
    with gpkvs.open(path, commit="journal", **SMALL) as store:
        store.set(b"key", b"value")
        committer = store._engine.committer
        assert isinstance(committer, JournalCommitter)
        committer.checkpointer.stop()
        committer.checkpointer.write(paced=False)
    return path


def held() -> tuple[int, list[str]]:
    """Return how many threads this process has, and its open files."""
    gc.collect()
    files = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing
            files.append(str(descriptor.readlink()))
    return len(list(Path("/proc/self/task").iterdir())), sorted(files)


def held_at_rest() -> tuple[int, list[str]]:
    """Return the same once nothing changes any more: threads of the tests before may still be ending."""
    before, now = None, held()
    while before != now:
        time.sleep(0.1)
        before, now = now, held()
    return now


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def no_memory(*_: object, **__: object) -> None:
    raise MemoryError


def damage_catalog(path: Path, _: Patch) -> None:
    (path / "catalog-0.json").write_bytes(b"x" * (path / "catalog-0.json").stat().st_size)


def lose_an_index(path: Path, _: Patch) -> None:
    (path / "index-0-0").rename(path / "elsewhere")


def damage_both_roots(path: Path, _: Patch) -> None:
    with (path / "root").open("r+b") as file:
        for offset in (100, 4096 + 100):
            os.pwrite(file.fileno(), b"damage", offset)


def too_little_memory(_: Path, patch: Patch) -> None:
    patch.setattr("gpkvs.recovery.startup.memory.free_bytes", lambda: 0)


def no_memory_for_an_image(_: Path, patch: Patch) -> None:
    patch.setattr(image, "map_memory", no_memory)


def start_a_thread_and_be_interrupted(_: Path, patch: Patch) -> None:
    start = Checkpointer.start

    def interrupted(self: Checkpointer) -> None:
        start(self)
        raise KeyboardInterrupt

    patch.setattr(Checkpointer, "start", interrupted)


def no_thread_for_checkpoints(_: Path, patch: Patch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr("threading.Thread.start", refuse)


Cause = Callable[[Path, Patch], None]
CAUSES: dict[str, tuple[Cause, type[BaseException]]] = {
    "catalog": (damage_catalog, CorruptStoreError),
    "index": (lose_an_index, CorruptStoreError),
    "roots": (damage_both_roots, CorruptStoreError),
    "memory": (too_little_memory, NoSpaceError),
    "image": (no_memory_for_an_image, MemoryError),
    # The journal's writer runs by now.
    "recount": (lambda _, patch: patch.setattr(recover, "recount", no_memory), MemoryError),
    "orphans": (lambda _, patch: patch.setattr(opening, "remove_orphans", interrupt), KeyboardInterrupt),
    "committer": (lambda _, patch: patch.setattr(store_module, "choose_committer", no_memory), MemoryError),
    "thread": (no_thread_for_checkpoints, StoreAccessError),
    # The thread of checkpoints too.
    "begin": (start_a_thread_and_be_interrupted, KeyboardInterrupt),
    "engine": (lambda _, patch: patch.setattr(store_module, "Engine", no_memory), MemoryError),
}
UNTIL_MENDED = {"catalog", "index", "roots"}  # these stores stay damaged


@pytest.mark.parametrize("name", CAUSES)
def test_nothing_is_left_of_an_opening_that_fails(path: Path, monkeypatch: Patch, name: str) -> None:
    cause, error = CAUSES[name]
    before = held_at_rest()
    with monkeypatch.context() as patch:
        cause(path, patch)
        with pytest.raises(error):
            gpkvs.open(path, create=False)
    patience = time.monotonic() + 10  # the system takes a moment to forget a thread that was joined
    while held() != before and time.monotonic() < patience:
        time.sleep(0.01)
    assert held() == before
    if name in UNTIL_MENDED:
        with pytest.raises(StoreError, match=str(path)) as refused:  # and not: it is in use
            gpkvs.open(path, create=False)
        assert isinstance(refused.value, CorruptStoreError)
        return
    (path / "meminfo").unlink(missing_ok=True)
    with gpkvs.open(path, create=False) as store:
        assert store.get(b"key") == b"value"
    assert_clean(path)
