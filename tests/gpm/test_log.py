"""Logs: beside a plain model, full, damaged, killed in the middle, and recovered."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpkvs.errors import (
    BackendError,
    CorruptStoreError,
    FormatError,
    InvalidArgumentError,
    NoSpaceError,
    StoreLockedError,
)
from gpkvs.gpm import CoalescedLog, Kernels, PartitionedLog, PersistentArray, Place
from gpkvs.gpm.transaction import EPOCH_MAX, State

OTHER_SIZE = """
#include "gpm.cuh"
struct Old { u64 at, value, more; };

#define UPDATE_ARGS(F) F(const GpmLog*, log) F(u64*, table)
GPM_KERNEL(update, UPDATE_ARGS) {
    const Old old = {i, a.table[i], 0};
    if (gpm_log_insert(a.log, i, &old)) gpm_store(&a.table[i], 99ull);
}

GPM_KERNEL(undo, UPDATE_ARGS) {
    Old old;
    if (gpm_log_read(a.log, i, 0, &old)) gpm_store(&a.table[old.at], old.value);
}
"""
SOURCE = """
#include "gpm.cuh"
struct Old { u64 at, value; };

#define UPDATE_ARGS(F) F(const GpmLog*, log) F(u64*, table) F(const u64*, at) F(u64, value)
GPM_KERNEL(update, UPDATE_ARGS) {
    const Old old = {a.at[i], a.table[a.at[i]]};
    if (gpm_log_insert(a.log, i, &old)) gpm_store(&a.table[old.at], a.value + i);
}

#define UNDO_ARGS(F) F(const GpmLog*, log) F(u64*, table)
GPM_KERNEL(undo, UNDO_ARGS) {
    for (u64 n = gpm_log_count(a.log, i); n > 0; n--) {
        Old old;
        if (gpm_log_read(a.log, i, n - 1, &old)) gpm_store(&a.table[old.at], old.value);
    }
}

#define NOTE_ARGS(F) F(const GpmPartitions*, log) F(u64, partitions)
GPM_KERNEL(note, NOTE_ARGS) {
    const u64 entry[2] = {i, i * i};
    gpm_part_insert(a.log, i % a.partitions, entry, 1 + i % 2);
}

#define TWO_ARGS(F) F(const GpmLog*, log) F(u64*, was_inserted)
GPM_KERNEL(insert_two, TWO_ARGS) {
    const u64 entries[4] = {i, 1, i, 2};
    a.was_inserted[i] = gpm_log_insert_several(a.log, i, entries, 2);
}
"""


@pytest.fixture(scope="module")
def kernels(place: Place) -> Kernels:
    return Kernels(SOURCE, place)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_as_lists(tmp_path_factory: pytest.TempPathFactory, place: Place, data: st.DataObject) -> None:
    """Every thread is a list of entries; a log that is opened again is the same."""
    threads, words, depth = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    path = Path("/dev/shm") / f"{tmp_path_factory.mktemp('log').name}.{threads}.gpm"
    model: list[list[list[int]]] = [[] for _ in range(threads)]
    log = CoalescedLog.create(path, threads, 8 * words, entries=depth, place=place, replace=True)
    try:
        for step in range(data.draw(st.integers(1, 8))):
            action = data.draw(st.sampled_from(["insert", "insert", "insert", "remove", "clear", "reopen"]))
            if action == "reopen":
                log.close()
                log = CoalescedLog.open(path, place=place)
            elif action == "clear":
                log.clear()
                model = [[] for _ in range(threads)]
            else:
                first = data.draw(st.integers(0, threads - 1))
                last = data.draw(st.integers(first, threads))
                if action == "remove":
                    log.remove(first, last)
                    for entries in model[first:last]:
                        del entries[-1:]
                else:
                    new = np.arange(1, 1 + (last - first) * words, dtype=np.uint64).reshape(-1, words) + 1000 * step
                    is_full = any(len(entries) == depth for entries in model[first:last])
                    try:
                        log.insert(place.xp.asarray(new), first)
                        assert not is_full
                    except NoSpaceError:
                        assert is_full
                    for entries, entry in zip(model[first:last], new.tolist(), strict=True):
                        if len(entries) < depth:
                            entries.append(entry)
                    if is_full:
                        log.clear()
                        model = [[] for _ in range(threads)]
            counts, found = log.read()
            assert counts.tolist() == log.counts().tolist() == [len(entries) for entries in model]
            assert [rows[:count].tolist() for rows, count in zip(found, counts, strict=True)] == model
            log.verify()
    finally:
        log.close()
        path.unlink()


def test_several_entries_are_inserted_together_or_not(kernels: Kernels, place: Place, memory: Path) -> None:
    with CoalescedLog.create(memory / "l.gpm", 40, 16, entries=3, place=place) as log:
        for expected in (True, False):
            was_inserted = place.xp.full(40, 9, "u8")
            kernels.launch("insert_two", 40, log=log, was_inserted=was_inserted)
            assert (place.to_host(was_inserted) == expected).all()
            counts, entries = log.read()
            assert (counts == 2).all()
            assert entries.tolist() == [[[i, 1], [i, 2], [0, 0]] for i in range(40)]
        with pytest.raises(NoSpaceError):
            log.require_room()
    with CoalescedLog.open(memory / "l.gpm", readonly=True) as log:
        assert log.read()[1].tolist() == entries.tolist()


def test_partitions(kernels: Kernels, place: Place, memory: Path) -> None:
    path = memory / "p.gpm"
    with PartitionedLog.create(path, 3, 8 * 4000, place=place) as log:
        kernels.launch("note", 1000, log=log, partitions=3)
        for partition in range(3):
            entries = {int(entry[0]): entry.tolist() for entry in log.read(partition)}
            assert entries == {i: [i, i * i][: 1 + i % 2] for i in range(partition, 1000, 3)}
        before = log.read(1)
        log.remove(1)
        assert [entry.tolist() for entry in log.read(1)] == [entry.tolist() for entry in before[:-1]]
        xp = place.xp
        log.insert(xp.asarray([2, 2], dtype="u8"), xp.asarray([[7, 8, 9]] * 2, dtype="u8"))
        assert log.read(2)[-1].tolist() == [7, 8, 9]
    with PartitionedLog.open(path, place=place) as log:
        assert log.read(2)[-1].tolist() == [7, 8, 9]
        log.verify()
        log.clear()
        assert log.read(0) == log.read(1) == log.read(2) == []
        kernels.launch("note", 20_000, log=log, partitions=3)
        with pytest.raises(NoSpaceError, match="partition_bytes"):
            log.require_room()
        with pytest.raises(InvalidArgumentError, match="there are 3"):
            log.read(3)
        with pytest.raises(InvalidArgumentError, match="a partition that the log has not"):
            log.insert(xp.asarray([3], dtype="u8"), xp.asarray([[7]], dtype="u8"))
        log.clear()
        log.insert(xp.asarray([2, 2], dtype="u8"), xp.asarray([[7, 8, 9]] * 2, dtype="u8"))
        entries_at = log._file.data_at + 4096 + 2 * log.partition_bytes
        log._file.region.store(entries_at + 8 * 7, (1 << 20).to_bytes(8, "little"))  # how long the last one is
        for use in (log.verify, lambda: log.read(2), lambda: log.remove(2)):
            with pytest.raises(CorruptStoreError, match="gpm-log-tail"):
                use()
        assert log._counted().tolist() == [0, 0, 8]


def updated(kernels: Kernels, log: CoalescedLog, table: PersistentArray, at: Any, value: int) -> None:
    with log.transaction():
        kernels.launch("update", len(at), log=log, table=table, at=at, value=value)


def undo(kernels: Kernels, table: PersistentArray) -> Any:
    return lambda log: kernels.launch("undo", log.threads, log=log, table=table)


def test_a_transaction_that_fails_is_undone(kernels: Kernels, place: Place, memory: Path) -> None:
    with (
        PersistentArray.create(memory / "t.gpm", 1000, "u8", place=place) as table,
        CoalescedLog.create(memory / "l.gpm", 100, 16, place=place) as log,
    ):
        at = place.xp.asarray(np.random.default_rng(3).permutation(1000)[:100], dtype="u8")
        updated(kernels, log, table, at, 5)
        before = table.host.copy()
        assert before.any()

        def fail() -> None:
            with log.transaction():
                kernels.launch("update", 100, log=log, table=table, at=at, value=77)
                raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            fail()
        assert log.is_active
        assert (table.host != before).any()
        for wrong in (log.clear, log.transaction().__enter__):
            with pytest.raises(InvalidArgumentError, match="recover"):
                wrong()
        assert log.recover(undo(kernels, table))
        assert np.array_equal(table.host, before)
        assert not log.recover(undo(kernels, table))
        updated(kernels, log, table, at, 9)
        assert not log.is_active


def test_entries_of_another_size_are_refused(kernels: Kernels, place: Place, memory: Path) -> None:
    """A struct in a kernel and `entry_bytes` differ: neither is an entry inserted, nor one read and undone."""
    wrong, at = Kernels(OTHER_SIZE, place), place.xp.arange(40, dtype="u8")
    with (
        PersistentArray.create(memory / "t.gpm", 40, "u8", place=place) as table,
        CoalescedLog.create(memory / "l.gpm", 40, 16, place=place) as log,
    ):
        with pytest.raises(InvalidArgumentError, match="another size than the log's"), log.transaction():
            wrong.launch("update", 40, log=log, table=table)
        assert not table.host.any()
        assert not log.counts().any()
        assert log.recover(lambda log: None)
        with suppress(InterruptedError), log.transaction():
            kernels.launch("update", 40, log=log, table=table, at=at, value=5)
            raise InterruptedError
        before = table.host.copy()
        with pytest.raises(InvalidArgumentError, match="another size than the log's"):
            log.recover(lambda log: wrong.launch("undo", 40, log=log, table=table))
        assert np.array_equal(table.host, before)
        assert log.is_active
        assert log.recover(lambda log: kernels.launch("undo", 40, log=log, table=table))
        assert not table.host.any()
        assert not log.counts().any()
        log.insert(place.xp.zeros((40, 2), "u8"))  # there is room again


def test_what_does_not_fit_is_not_stored(kernels: Kernels, place: Place, memory: Path) -> None:
    with (
        PersistentArray.create(memory / "t.gpm", 1000, "u8", place=place) as table,
        CoalescedLog.create(memory / "l.gpm", 100, 16, place=place) as log,
    ):
        at = place.xp.arange(101, dtype="u8")
        with pytest.raises(InvalidArgumentError, match=r"a thread that the log has not \(threads=100"):
            updated(kernels, log, table, at, 5)
        assert table.host[100] == 0
        log.recover(undo(kernels, table))
        log.require_room()
        assert not table.host.any()
        updated(kernels, log, table, at[:100], 5)
        log.clear()
        log.insert(place.xp.zeros((40, 2), "u8"), 60)
        with pytest.raises(NoSpaceError, match="threads=100"):
            log.insert(place.xp.zeros((2, 2), "u8"), 59)
        log.insert(place.xp.zeros((10, 2), "u8"))  # which was told once, and is not told of these


LIFE = """
import os, random, signal, sys, threading, time
import numpy as np
from gpkvs.gpm import CoalescedLog, Kernels, PersistentArray
from tests.gpm.test_log import SOURCE, undo, updated
folder, seed, is_gpu = sys.argv[1], int(sys.argv[2]), sys.argv[3]
random.seed(seed)
kernels = Kernels(SOURCE, is_gpu)
xp = kernels.place.xp
with (
    PersistentArray.open(folder + "/t.gpm", place=is_gpu) as table,
    CoalescedLog.open(folder + "/l.gpm", place=is_gpu) as log,
):
    threading.Thread(target=lambda: (time.sleep(random.random() / 30), os.kill(os.getpid(), signal.SIGKILL))).start()
    log.recover(undo(kernels, table))
    values = set((table.host - np.arange(len(table.host), dtype="u8")).tolist())
    assert len(values) == 1, values
    value = values.pop()
    while True:
        value += 1
        updated(kernels, log, table, xp.arange(len(table.host), dtype="u8"), value)
"""


def test_killed_again_and_again(place: Place, memory: Path) -> None:
    """Each transaction stores one number plus its own to every element: half of one would be seen."""
    PersistentArray.create(memory / "t.gpm", 20_000, "u8").close()
    CoalescedLog.create(memory / "l.gpm", 20_000, 16).close()
    with PersistentArray.open(memory / "t.gpm") as table:
        table.host[:] = np.arange(20_000, dtype="u8")
        table.persist()
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    active = 0
    for life in range(4):
        arguments = [sys.executable, "-c", LIFE, str(memory), str(seed + life), place.name]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        assert done.returncode == -signal.SIGKILL, done.stderr
        with CoalescedLog.open(memory / "l.gpm") as log:
            log.verify()
            active += log.is_active
    print(f"{active} of 4 were killed in a transaction")


def test_epochs_begin_anew(kernels: Kernels, place: Place, memory: Path) -> None:
    with CoalescedLog.create(memory / "l.gpm", 40, 16, place=place) as log:
        entries = place.xp.ones((40, 2), "u8")
        log.insert(entries)  # of an epoch that comes again
        log._flag.set(EPOCH_MAX - 1, State.IDLE)
        log.clear()
        log.insert(entries)
        assert log.counts().sum() == 40
        log.clear()
        assert log._flag.epoch == 1
        assert not log.counts().any()
        log.verify()


def test_sizes_of_numpy_do_not_overflow(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"threads": np.int32(1 << 10), "entry_bytes": np.int32(1 << 12), "entries": np.int32(1 << 11)}
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(NoSpaceError, match="8,589,9"):
        CoalescedLog.create(memory / "l.gpm", **sizes)  # type: ignore[arg-type]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def test_refusals(place: Place, memory: Path, tmp_path: Path, kernels: Kernels) -> None:
    path = memory / "l.gpm"
    with pytest.raises(InvalidArgumentError, match="multiple of 8"):
        CoalescedLog.create(path, 10, 12)
    with pytest.raises(InvalidArgumentError, match="threads: it must be at least 1"):
        CoalescedLog.create(path, 0, 8)
    with pytest.raises(InvalidArgumentError, match="multiple of 8"):
        PartitionedLog.create(path, 1, 12)
    with pytest.raises(BackendError, match="ordinary disk"):
        CoalescedLog.create(memory / "m.gpm", 10, 8, durability="msync")
    assert not (memory / "m.gpm").exists()
    with CoalescedLog.create(path, 10, 16, place=place) as log:
        with pytest.raises(StoreLockedError):
            CoalescedLog.open(path)
        with pytest.raises(InvalidArgumentError, match="10 threads"):
            log.insert(place.xp.zeros((11, 2), "u8"))
        with pytest.raises(InvalidArgumentError, match="16 bytes"):
            log.insert(place.xp.zeros(3, "u8"))
    with pytest.raises(FormatError, match="a partitioned log is asked for"):
        PartitionedLog.open(path)
    with CoalescedLog.open(path, readonly=True) as log:
        assert not log.counts().any()
        with pytest.raises(InvalidArgumentError, match="readonly"):
            log.clear()
    data = bytearray(path.read_bytes())
    with CoalescedLog.open(path) as log:
        state_at, tails_at = log._file.state_at, log._file.data_at
    for at, invariant in ((state_at, "gpm-log-flag"), (tails_at, "gpm-log-tail")):
        path.write_bytes(data[:at] + b"\x07" + data[at + 1 :])
        with pytest.raises(CorruptStoreError, match=invariant):
            CoalescedLog.open(path)
    path.write_bytes(data[:state_at] + bytes(8) + data[state_at + 8 :])
    with pytest.raises(CorruptStoreError, match="gpm-log-flag"):
        CoalescedLog.open(path)
    path.write_bytes(data)
    with CoalescedLog.open(path) as log:
        log._file.region.store(tails_at, (7).to_bytes(8, "little"))
        with pytest.raises(CorruptStoreError, match="gpm-log-tail"):
            log.verify()
