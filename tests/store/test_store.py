"""Opening, locking, creating; the embedded API."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.path_costs import ALL_OPS
from gpkvs.batch import Batch, Op, Status
from gpkvs.config import CommitName, Limits, Sizes
from gpkvs.engine.device.phase_planner import PhasePlanner
from gpkvs.engine.host.own_batch import OwnBatch
from gpkvs.engine.seam.write_set import WriteSet
from gpkvs.errors import (
    BackendError,
    InvalidArgumentError,
    NoMemoryError,
    NoSpaceError,
    StoreAccessError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
    StoreMissingError,
    UnknownTableError,
)
from gpkvs.media.directory import write_file
from gpkvs.operations import OperationList
from gpkvs.recovery.startup.check import check
from gpkvs.server.call_types import StatusCode
from gpkvs.server.calls.status import status_of
from tests.conftest import SMALL, assert_clean

HOLD = "import sys, time, gpkvs; gpkvs.open(sys.argv[1]); print('open', flush=True); time.sleep(60)"


def test_set_get_delete(store: gpkvs.Store) -> None:
    assert store.get(b"key") is None
    assert store.set(b"key", b"value") == 1
    assert store.get(b"key") == b"value"
    assert store.set(b"key", b"") == 2
    assert store.get(b"key") == b""
    assert store.delete(b"key") is True
    assert store.delete(b"key") is False
    assert store.get(b"key") is None


def test_a_batch_sees_its_own_writes_in_order(store: gpkvs.Store) -> None:
    result = store.execute(
        Batch.of([(Op.SET, b"k", b"1"), (Op.GET, b"k"), (Op.DELETE, b"k"), (Op.GET, b"k"), (Op.SET, b"k", b"2")])
    )
    assert result.status.tolist() == [Status.OK, Status.OK, Status.OK, Status.NOT_FOUND, Status.OK]
    assert result.versions.tolist() == [1, 1, 1, 0, 5]
    assert result.value_list() == [b"1", b""]
    assert store.get(b"k") == b"2"


def test_replies_are_gathered_once_and_before_the_commit(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a reply may be wanting; after the commit nothing may fail."""
    store.set(b"old", b"value")
    kernels: list[str] = []
    launch = store._backend.launch

    def listed(kernel: str, items: int, /, **arguments: Any) -> None:
        kernels.append(kernel)
        launch(kernel, items, **arguments)

    def committed(write_set: WriteSet) -> int:
        kernels.append("commit")
        return commit(write_set)

    commit = store._engine.committer.commit
    monkeypatch.setattr(store._engine.committer, "commit", committed)
    monkeypatch.setattr(store._backend, "launch", listed)
    monkeypatch.setattr(store._backend, "host_ops_max", 0)
    result = store.execute(Batch.of([(Op.GET, b"old"), (Op.SET, b"new", b"value")]))
    assert result.value_list() == [b"value"]
    assert kernels.count("gather_bytes") == 1
    assert kernels.index("gather_bytes") < kernels.index("commit")


def test_bytes_stored_are_counted_where_a_segment_begins_again(store: gpkvs.Store) -> None:
    before = store.meter.written_bytes["heap"]
    for _ in range(3):
        store.set(b"key", b"x" * 1000)
        store.delete(b"key")  # nothing in the tail's segment is live: the next record goes to its beginning
    assert store.meter.written_bytes["heap"] - before == 3 * 1040


def test_versions_are_never_reused(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL) as store:
        first = store.set(b"k", b"1")
        result = store.execute(Batch.of([(Op.SET, b"x", b"1"), (Op.DELETE, b"x")]))
        assert result.versions.tolist() == [first + 1, first + 1]
    with gpkvs.open(store_path) as store:
        assert store.set(b"k", b"2") > first + 1


def test_second_process_is_refused_with_the_pid_of_the_first(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL):
        with pytest.raises(StoreLockedError) as refused:
            gpkvs.open(store_path)
        assert refused.value.pid == os.getpid()
        with pytest.raises(StoreLockedError, match="is open in this process already: share that store"):
            check(store_path)


def test_removing_the_lock_file_lets_nobody_in(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL):
        (store_path / "LOCK").unlink()
        with pytest.raises(StoreLockedError):
            gpkvs.open(store_path)


def test_another_process_of_the_same_number_is_not_taken_for_this_one(store_path: Path) -> None:
    """Two containers that share a volume both begin with process 1."""
    gpkvs.open(store_path, **SMALL).close()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(store_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        (store_path / "LOCK").write_text(f"{os.getpid()}\n")
        with pytest.raises(StoreLockedError, match=f"is in use by process {os.getpid()}: stop it first"):
            gpkvs.open(store_path)
        process.kill()


def test_lock_left_by_a_kill_does_not_hinder(store_path: Path) -> None:
    gpkvs.open(store_path, **SMALL).close()
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(store_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with pytest.raises(StoreLockedError) as refused:
        gpkvs.open(store_path)
    assert refused.value.pid == process.pid
    process.send_signal(signal.SIGKILL)
    process.wait()
    gpkvs.open(store_path).close()


def test_a_process_that_ended_is_not_named(store_path: Path) -> None:
    """`gpkvs check` locks a store without writing its number: the one that is there may be of a process long gone."""
    gpkvs.open(store_path, **SMALL).close()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (store_path / "LOCK").write_text(f"{ended.pid:<20}\n")
    directory = os.open(store_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        with pytest.raises(StoreLockedError, match="another process") as refused:
            gpkvs.open(store_path)
        assert refused.value.pid is None
    finally:
        os.close(directory)


def test_a_small_file_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "catalog-7.json"
    synced: list[tuple[str, bool]] = []

    def fsync(file: int) -> None:
        synced.append((Path(f"/proc/self/fd/{file}").readlink().name, path.exists()))

    monkeypatch.setattr("gpkvs.media.directory.os.fsync", fsync)
    write_file(path, b"all of it")
    assert path.read_bytes() == b"all of it"
    (content, had_name), *names = synced
    assert content != path.name
    assert not had_name
    assert names == [(tmp_path.name, True)]


def test_closed_store(store_path: Path) -> None:
    store = gpkvs.open(store_path, **SMALL)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.get(b"key")
    with pytest.raises(StoreClosedError):
        store.info()


def test_no_store_without_create(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StoreMissingError, match="there is no store"):
            gpkvs.open(path, create=False)
        with pytest.raises(StoreMissingError):
            check(path)


def test_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    files = {"thesis.txt": "do not lose", "LOCK": "of another program"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(StoreError, match="holds no store"):
        gpkvs.open(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files
    (tmp_path / "LOCK").unlink()
    with pytest.raises(StoreError, match="holds no store"):
        gpkvs.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_interrupted_creation_begins_again(store_path: Path) -> None:
    store_path.mkdir()
    (store_path / "CREATING").touch()
    (store_path / "heap").write_bytes(b"half")
    with gpkvs.open(store_path, **SMALL) as store:
        assert store.get(b"key") is None
    assert not (store_path / "CREATING").exists()


def test_path_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(StoreAccessError):
        gpkvs.open(path)


def test_no_write_permission(tmp_path: Path) -> None:
    """As a user without rights: root is refused nothing."""
    home = tmp_path / "closed"
    home.mkdir(mode=0o755)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder not in (Path("/"), Path("/tmp")):
            folder.chmod(0o755)
    code = (
        "import os, sys, gpkvs.store\n"
        "from gpkvs.errors import StoreAccessError\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "else: os.chmod(sys.argv[1], 0o555)\n"
        "try: gpkvs.open(sys.argv[1] + '/store')\n"
        "except StoreAccessError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, check=False)
    assert "give this user read and write permission" in done.stdout, done.stderr
    assert list(home.iterdir()) == []


def test_disk_full_at_creation_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match=r"disk full: a store of .* choose smaller --index-bytes"):
        gpkvs.open(tmp_path / "store", heap_bytes=1 << 43)
    assert [file.name for file in (tmp_path / "store").iterdir()] == ["LOCK"]
    gpkvs.open(tmp_path / "store", **SMALL).close()
    assert_clean(tmp_path / "store")


@pytest.mark.parametrize("size", [{"index_bytes": 1}, {"heap_bytes": 1}, {"log_bytes": 1}, {"heap_bytes": 1 << 60}])
def test_sizes_out_of_range(tmp_path: Path, size: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(size))):
        gpkvs.open(tmp_path / "store", **size)


@pytest.mark.parametrize(
    "error", [MemoryError(), SystemError("<ufunc> returned NULL without setting an exception")], ids=type
)
@pytest.mark.parametrize(
    ("where", "name"), [(PhasePlanner, "_plan_transaction"), (OwnBatch, "__init__"), (OperationList, "_check")]
)
def test_memory_that_is_not_given_is_a_refusal(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch, where: type, name: str, error: Exception
) -> None:
    def refuse(*_: object, **_named: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(where, name, refuse)
        if where is not OperationList:
            patched.setattr(store._backend, "host_ops_max", 0 if where is PhasePlanner else ALL_OPS)
        is_of_engine = where is not OperationList  # of which a `set` asks native code first
        call = partial(store.execute, Batch.of([(Op.SET, b"key", b"value")])) if is_of_engine else None
        with pytest.raises(NoMemoryError, match="nothing was written") as refused:
            call() if call else store.set(b"key", b"value")
    assert isinstance(refused.value, MemoryError)
    assert status_of(refused.value) == (StatusCode.RESOURCE_EXHAUSTED, "memory_full")
    assert store.get(b"key") is None
    assert store.set(b"key", b"value") == 1


def test_another_error_of_the_interpreter_is_not_taken_for_a_want_of_memory(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_named: object) -> None:
        raise SystemError("bad argument to internal function")

    monkeypatch.setattr(store._backend, "host_ops_max", ALL_OPS)
    monkeypatch.setattr(OwnBatch, "__init__", fail)
    with pytest.raises(SystemError, match="bad argument"):
        store.execute(Batch.of([(Op.SET, b"key", b"value")]))


def test_a_size_that_an_existing_store_has_not_is_said(store_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpkvs.open(store_path, **SMALL).close()
    gpkvs.open(store_path).close()
    gpkvs.open(store_path, **{**SMALL, "log_bytes": SMALL["log_bytes"] - 1}).close()  # rounded up, it is the same
    assert "has no effect" not in caplog.text
    gpkvs.open(store_path, index_bytes=Sizes.index_bytes, heap_bytes=1 << 20).close()
    for name, asked in (("index_bytes", Sizes.index_bytes), ("heap_bytes", 1 << 20)):
        told = f"{name}={asked} has no effect: it counts when a store is created, and this one has {SMALL[name]}"
        assert told in caplog.text
    assert "log_bytes" not in caplog.text
    with pytest.raises(InvalidArgumentError, match="log_bytes"):
        gpkvs.open(store_path, log_bytes=1)


MI = 1 << 20
GROWING: list[dict[str, Any]] = [
    {},
    {"heap_bytes": 4 * MI},
    {"heap_bytes_max": 64 * MI},
    {"heap_bytes": 4 * MI, "heap_bytes_max": 64 * MI},
    {"commit": "undo", "log_bytes": MI},
    {"commit": "undo", "log_bytes": MI, "log_bytes_max": 8 * MI, "index_bytes": MI},
    {"commit": "journal", "journal_bytes": 2 * MI, "index_bytes": MI},
]


@pytest.mark.parametrize("given", GROWING, ids=str)
def test_who_gives_the_same_sizes_again_is_told_nothing(
    store_path: Path, caplog: pytest.LogCaptureFixture, given: dict[str, Any]
) -> None:
    """Also when what may grow has grown."""
    with gpkvs.open(store_path, **given) as store:
        before = store.info()
        for number in range(200 if before.heap_bytes_max > before.heap_bytes else 8):
            store.set(b"%d" % number, bytes(60_000))
        if given.get("log_bytes_max"):
            store.batch([(Op.SET, b"%d" % number, b"") for number in range(40_000)])
            assert store.info().log_bytes > before.log_bytes
        if before.heap_bytes_max > before.heap_bytes:
            assert store.info().heap_bytes > before.heap_bytes
    gpkvs.open(store_path, **given).close()
    assert "has no effect" not in caplog.text


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_size_of_a_store_that_grows_is_not_taken_back_in_silence(
    store_path: Path, caplog: pytest.LogCaptureFixture, commit: CommitName
) -> None:
    gpkvs.open(store_path, commit=commit).close()
    gpkvs.open(store_path, heap_bytes=32 * MI).close()
    assert f"heap_bytes={32 * MI} has no effect: it counts when a store is created, and this one has {4 * MI}" in (
        caplog.text
    )
    assert f"gpkvs copy OLD NEW --heap-bytes {32 * MI} makes a store of this size, and heap_bytes_max" in caplog.text
    for given, told in (
        ({"heap_bytes": MI}, True),
        ({"heap_bytes": 32 * MI, "heap_bytes_max": 64 * MI}, True),
        ({"heap_bytes": MI, "heap_bytes_max": 64 * MI}, False),  # it may have grown
        ({"heap_bytes_max": 32 * MI}, False),  # it counts
    ):
        caplog.clear()
        gpkvs.open(store_path, **given).close()
        assert ("has no effect" in caplog.text) is told, given


def test_a_size_of_what_the_store_has_not_is_said(store_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gpkvs.open(store_path, **SMALL, commit="journal").close()
    for name in ("log_bytes", "log_bytes_max"):
        caplog.clear()
        gpkvs.open(store_path, **{name: Sizes.log_bytes}).close()
        assert f"{name} has no effect: the store commits by journal, whose size is journal_bytes" in caplog.text


def test_a_backend_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "gpkvs.backends.cuda.backend", raising=False)
    with pytest.raises(BackendError, match="--backend cpu"):
        gpkvs.open(tmp_path / "store", backend="cuda")


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("commit", "jurnal", "commit: it must be one of 'auto', 'undo', 'journal', not 'jurnal'"),
        ("store_format", 4, "store_format: it must be one of 'auto', '3', '4', not 4"),
        ("backend", "gpu", "backend: it must be one of 'auto', 'cpu', 'cuda', not 'gpu'"),
        ("heap_bytes", "1G", "heap_bytes: it must be a whole number, not '1G'"),
        ("index_bytes", 1.5e6, "index_bytes: it must be a whole number, not 1500000.0"),
        ("records", -1, "records: it must be at least 0, not -1"),
        ("threads", -1, "threads: it must be at least 0, not -1"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_setting_that_means_nothing(tmp_path: Path, setting: str, value: object, said: str, is_new: bool) -> None:
    if not is_new:
        gpkvs.open(tmp_path / "store", **SMALL).close()
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(InvalidArgumentError) as raised:
        gpkvs.open(tmp_path / "store", **settings)
    assert (str(raised.value), raised.value.field) == (said, setting)
    assert (tmp_path / "store").exists() is not is_new


def test_all_settings_that_mean_nothing_are_named_at_once(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"commit": "jurnal", "threads": 1.5, "index_bytes": 1, "gpus": "0", "backend": "cpu"}
    with pytest.raises(InvalidArgumentError) as raised:
        gpkvs.open(tmp_path / "store", **wrong, limits=Limits(key_bytes_max=0))
    said = str(raised.value)
    assert said.startswith("5 settings are wrong:\n  ")
    for words in ("commit: it must", "threads: it must", "index_bytes: 1 bytes", "key_bytes_max: 0", "gpus=0 is of"):
        assert words in said
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Client", ": from gpkvs.client import Client"),
        ("NoSpaceError", ": from gpkvs.errors import NoSpaceError"),
        ("os", ""),
        ("connect", ""),
    ],
)
def test_a_name_that_is_elsewhere(name: str, told: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(gpkvs, name)
    assert str(raised.value) == f"module 'gpkvs' has no attribute '{name}'{told}"
    if told:
        exec(told.removeprefix(": "))


def test_unknown_table(store: gpkvs.Store) -> None:
    with pytest.raises(UnknownTableError, match="no table 'users'; there are default"):
        store.get(b"key", table="users")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (Batch.of([]), "at least one operation"),
        (Batch.of([(Op.GET, b"")]), "operation 0, keys: a key of 0 bytes"),
        (Batch.of([(Op.GET, b"ok"), (Op.GET, b"x" * 4097)]), "operation 1, keys: a key of 4,097 bytes"),
    ],
)
def test_bad_batches(store: gpkvs.Store, batch: Batch, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        store.execute(batch)


def test_msync_domain_is_found_on_a_disk_and_process_on_tmpfs(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", durability="msync", **SMALL) as store:
        store.set(b"k", b"v")
        assert store.domain.name == "msync"
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    path = shared / f"gpkvs-test-{os.getpid()}"
    try:
        with gpkvs.open(path, **SMALL) as store:
            assert store.domain.found == "process"
            assert "NOT power loss" in store.info().domain_note
        with gpkvs.open(path, durability="msync") as store:
            assert "forced, unverified" in store.info().domain_note
        assert_clean(path)
    finally:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()


def test_lengths_that_are_one_number_are_those_written_out(tmp_path: Path) -> None:
    """A SET and a GET in one batch of records: every kernel that reads lengths."""
    keys, values = np.frombuffer(b"aabbaa", np.uint8), np.frombuffer(b"xyz123", np.uint8)
    constant = np.broadcast_to(np.uint32(2), 3), np.broadcast_to(np.uint32(3), 2)
    ops = np.array([Op.SET, Op.SET, Op.GET], np.uint8)
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        assert store.execute(Batch(ops, keys, constant[0], values, constant[1])).value_list() == [b"xyz"]
        assert store.get(b"bb") == b"123"


@pytest.mark.parametrize("name", ["keys", "values"])
def test_a_column_with_gaps_is_refused_and_the_process_lives(tmp_path: Path, name: str) -> None:
    wide = np.frombuffer(b"a_b_a_", np.uint8)
    columns = {"keys": np.frombuffer(b"aba", np.uint8), "values": np.frombuffer(b"xyz", np.uint8), name: wide[::2]}
    ones = np.ones(3, np.uint32)
    batch = Batch(np.full(3, Op.SET, np.uint8), columns["keys"], ones, columns["values"], ones)
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        with pytest.raises(InvalidArgumentError, match=f"{name}: its elements do not lie side by side"):
            store.execute(batch)
        assert store.get(b"a") is None
