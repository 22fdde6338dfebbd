"""A batch that a GPU commits in chunks is all there after a kill, or nothing of it; damage in its log is refused."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, SHARDS, VARIABLE
from gpkvs.backends.cpu.backend import HOST_OPS_MAX
from gpkvs.batch import Batch, Op
from gpkvs.engine.commit.chunked_slots import ChunkedSlots
from gpkvs.errors import BackendError, CorruptStoreError, NoMemoryError
from gpkvs.media.layout import CHUNK_MARKER_BYTES, CHUNK_MARKERS_OFFSET, DESCRIPTOR_OFFSETS, LOG_ENTRIES_OFFSET
from gpkvs.media.transaction import renew_epochs
from gpkvs.recovery.copy.copy import CopySizes, copy_store
from gpkvs.recovery.proof.damage.bitflip import memory_parent
from gpkvs.recovery.startup.check import check
from tests.recovery.startup.harness import kill_at
from tests.recovery.startup.test_damage import flip

KEYS = 6000
OPTIONS: dict[str, Any] = {
    **{"index_bytes": 1 << 20, "heap_bytes": 1 << 22, "log_bytes": 4 << 20},
    **{"commit": "undo", "durability": "process"},  # on a disk, the host's threads would store all
}
LAYOUTS = ["u64", "bytes"]
# In their order; how much of the log has a marker then.
PLACES = {"before_log": 0.0, "mid_log": 0.5, "before_apply": 1.0, "mid_apply": 1.0, "mid_chunks": 0.5}
PLACES |= {"before_apply_persist": 1.0, "before_idle_flag": 1.0}


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def set_all(store: gpkvs.Store, first: int, last: int, add: int) -> None:
    operations = [(Op.SET, key(number), key(number + add)) for number in range(first, last)]
    store.execute(Batch.of(operations), table="t")


def child(path: Path, layout: str) -> None:
    """Store a batch, and a second one, which is killed: old keys get other values, others go, and some are new."""
    with gpkvs.open(path, **OPTIONS) as store:
        store.create_table("t", layout=layout, index_bytes=1 << 20)
        set_all(store, 0, KEYS, 1)
        changes = [(Op.SET, key(number), key(number + 2)) for number in range(KEYS // 2, KEYS + 1000)]
        changes += [(Op.DELETE, key(number)) for number in range(1000)]
        store.execute(Batch.of(changes), table="t")


CHANGED = KEYS // 2 + 1000 + 1000


def kill(path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, place: str, backend: str = PAIR) -> None:
    monkeypatch.setenv(VARIABLE, backend)
    # The transaction before the table is made goes by the flag, too.
    assert kill_at([Path(__file__), path, layout], f"{place}:{3 if place == 'before_idle_flag' else 2}")
    monkeypatch.setenv(VARIABLE, "cpu")


def assert_first_batch(path: Path) -> int:
    """Fail unless the store has the first batch alone; return how many slots were undone."""
    with gpkvs.open(path, create=False) as store:
        assert store.recovery.undone
        found = store.execute(Batch.of([(Op.GET, key(number)) for number in range(KEYS + 1000)]), table="t")
        assert found.value_list() == [key(n + 1) if n < KEYS else b"" for n in range(KEYS + 1000)]
        undone = store.recovery.undone_entries
    report = check(path)
    assert report.is_clean, report
    return undone


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", [PAIR, SHARDS, pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_killed_batch_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, place: str, backend: str
) -> None:
    if backend == "cuda":  # it stores to files in memory, not to those of a disk
        tmp_path = Path(tempfile.mkdtemp(prefix="gpkvs-test-", dir=memory_parent()))
        monkeypatch.setenv(HOST_OPS_MAX, "0")
    path = tmp_path / "store"
    kill(path, monkeypatch, layout, place, backend)
    report = check(path)
    assert report.needs_recovery
    assert report.violations == []
    copy_store(path, tmp_path / "copy", CopySizes(), lambda step, share: None)
    with gpkvs.open(tmp_path / "copy", create=False) as store:
        assert store.info().tables[-1].records == KEYS
        assert store.get(key(KEYS // 2), table="t") == key(KEYS // 2 + 1)
        assert store.get(key(7), table="t") == key(8)
        assert store.get(key(KEYS), table="t") is None
    undone = assert_first_batch(path)
    assert abs(undone - CHANGED * PLACES[place]) < 0.1 * CHANGED, undone


def marker_at(page: int, chunk: int) -> int:
    return DESCRIPTOR_OFFSETS[page] + CHUNK_MARKERS_OFFSET + chunk * CHUNK_MARKER_BYTES


def test_one_damaged_copy_of_a_marker_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    kill(path, monkeypatch, "u64", "mid_apply")
    for chunk in range(8):
        flip(path / "log", marker_at(chunk % 2, chunk) + 8 * chunk + 3)
    assert assert_first_batch(path) == CHANGED


@pytest.mark.parametrize("layout", LAYOUTS)
def test_damage_is_refused_before_anything_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    path = tmp_path / "store"
    kill(path, monkeypatch, layout, "mid_apply")
    log = (path / "log").read_bytes()

    def is_refused(*offsets: int) -> str:
        for offset in offsets:
            flip(path / "log", offset)
        before = {file.name: file.read_bytes() for file in path.iterdir() if file.name.startswith(("index", "heap"))}
        with pytest.raises(CorruptStoreError) as raised:
            gpkvs.open(path, create=False)
        assert raised.value.invariant == "undo-log"
        assert {name: (path / name).read_bytes() for name in before} == before
        (report,) = [violation for violation in check(path).violations if violation.invariant == "undo-log"]
        (path / "log").write_bytes(log)
        return report.message

    assert "chunk before chunk 7" in is_refused(marker_at(0, 2) + 9, marker_at(1, 2) + 17)
    for offset in (0, 300, 40_000):  # the number of a slot, a value
        assert "digest" in is_refused(LOG_ENTRIES_OFFSET + offset)
    assert "names no slot" in is_refused(LOG_ENTRIES_OFFSET + 6)
    assert_first_batch(path)


def test_markers_go_before_epochs_are_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would say of the log of another batch that it is whole."""
    path = tmp_path / "store"
    monkeypatch.setenv(VARIABLE, PAIR)
    with gpkvs.open(path, **OPTIONS) as store:
        store.create_table("t", layout="u64", index_bytes=1 << 20)
        set_all(store, 0, 2000, 1)
        log = store._files.log
        markers = [log.read(marker_at(page, 0), 8 * CHUNK_MARKER_BYTES) for page in (0, 1)]
        assert all(any(marker) for marker in markers)
        committer: Any = store._engine.committer
        committer.transaction._take(renew_epochs(store._files, committer.transaction.current))
        for page in (0, 1):
            assert not any(log.read(marker_at(page, 0), 4096 - CHUNK_MARKERS_OFFSET))
        set_all(store, 0, 2000, 2)
        assert store.get(key(5), table="t") == key(7)


@pytest.mark.parametrize("error", [MemoryError(), BackendError("CUDA: out of memory")])
def test_without_memory_for_its_chunks_a_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Before the flag says that it is in progress: the store goes on."""

    def none(*_: object) -> None:
        raise error

    monkeypatch.setenv(VARIABLE, PAIR)
    with gpkvs.open(tmp_path / "store", **OPTIONS) as store:
        store.create_table("t", layout="bytes", index_bytes=1 << 20)
        set_all(store, 0, 2000, 1)
        room = ChunkedSlots._room_on_host
        monkeypatch.setattr(ChunkedSlots, "_room_on_host", none)
        with pytest.raises((NoMemoryError, BackendError)):
            set_all(store, 0, 2000, 2)
        monkeypatch.setattr(ChunkedSlots, "_room_on_host", room)
        assert store.get(key(5), table="t") == key(6)
        set_all(store, 0, 2000, 3)
        assert store.get(key(5), table="t") == key(8)
    report = check(tmp_path / "store")
    assert report.is_clean, report


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("durability", ["none", "msync"])
def test_other_domains_keep_what_a_gpu_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, durability: Any
) -> None:
    """Without a log, by chunks that have none; on a disk, by the host's threads."""
    monkeypatch.setenv(VARIABLE, PAIR)
    path = tmp_path / "store"
    with gpkvs.open(path, **{**OPTIONS, "durability": durability}) as store:
        store.create_table("t", layout=layout, index_bytes=1 << 20)
        set_all(store, 0, KEYS, 1)
        set_all(store, KEYS // 2, KEYS + 1000, 2)
        store.execute(Batch.of([(Op.DELETE, key(number)) for number in range(1000)]), table="t")
    report = check(path)
    assert report.is_clean, report
    with gpkvs.open(path, create=False) as store:
        found = store.execute(Batch.of([(Op.GET, key(number)) for number in range(KEYS + 1000)]), table="t")
        added = [key(n + (1 if n < KEYS // 2 else 2)) if n >= 1000 else b"" for n in range(KEYS + 1000)]
        assert found.value_list() == added


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2])
