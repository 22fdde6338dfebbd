"""Tables made and dropped: beside running batches, within quotas, on a full disk, and when memory is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpkvs
from gpkvs import store as store_module
from gpkvs.config import StoreConfig
from gpkvs.engine.tables import schema
from gpkvs.errors import NoSpaceError, UnknownTableError
from gpkvs.process.fatal import EXIT_FATAL
from gpkvs.store import Store
from tests.conftest import SMALL

BLOCK = 64 << 10


class Held:
    """A function that says when it was called, and goes on when it may."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self.called, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, *arguments: object) -> object:
        self.called.set()
        assert self.may_go_on.wait(30)
        return self._function(*arguments)


def run_beside(held: Held, change: Callable[[], object], meanwhile: Callable[[], None]) -> None:
    """Run a change in a thread, and something else while the change is held."""
    thread = threading.Thread(target=change)
    thread.start()
    other = threading.Thread(target=meanwhile, daemon=True)
    try:
        assert held.called.wait(30)
        other.start()
        other.join(10)
        assert not other.is_alive(), "the batch waits for the table"
    finally:
        held.may_go_on.set()
        thread.join(30)
        other.join(30)


def test_batches_run_while_the_space_of_a_table_is_reserved(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(schema.reserve_file)
    monkeypatch.setattr(schema, "reserve_file", held)
    run_beside(held, lambda: store.create_table("new", index_bytes=BLOCK), lambda: _sets(store))
    store.set(b"key", b"in the new table", table="new")
    assert store.get(b"meanwhile") == b"value"


def _sets(store: gpkvs.Store) -> None:
    store.set(b"meanwhile", b"value")
    assert store.get(b"meanwhile") == b"value"


def test_batches_run_while_the_records_of_a_dropped_table_are_counted(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine counts step by step; batches run between two steps."""
    store.create_table("old", index_bytes=4 * BLOCK)
    before = store.info().heap_live_bytes
    for i in range(10):
        store.set(b"key%d" % i, bytes(1000), table="old")
    held = Held(time.sleep)
    monkeypatch.setattr(store_module, "_STEP_BYTES", BLOCK)
    monkeypatch.setattr(store_module, "time", SimpleNamespace(sleep=held, perf_counter=time.perf_counter))
    run_beside(held, lambda: store.drop_table("old"), lambda: _sets(store))
    assert [table.name for table in store.info().tables] == ["default"]
    assert store.info().heap_live_bytes - before == 48  # of the record that came meanwhile


def test_a_table_made_and_dropped_again_and_again_by_two_leaves_one_catalogue(store: gpkvs.Store) -> None:
    failures: list[Exception] = []

    def change() -> None:
        for _ in range(30):
            for call in (lambda: store.create_table("both", index_bytes=BLOCK), lambda: store.drop_table("both")):
                try:
                    made = call()
                    assert made is None or made.name == "both"
                except gpkvs.GpkvsError as error:
                    if "both" not in str(error):
                        failures.append(error)

    threads = [threading.Thread(target=change) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_more_tables_than_allowed_are_refused_by_name(store_path: Path) -> None:
    gpkvs.open(store_path, **SMALL).close()
    with Store(store_path, StoreConfig(tables_max=3)) as store:
        store.create_table("a", index_bytes=BLOCK)
        store.create_table("b", index_bytes=BLOCK)
        with pytest.raises(NoSpaceError, match="tables_max") as refused:
            store.create_table("c", index_bytes=BLOCK)
        assert refused.value.resource == "tables"
        store.drop_table("a")
        store.create_table("c", index_bytes=BLOCK)


def test_more_bytes_of_tables_than_allowed_are_refused_by_name(store_path: Path) -> None:
    gpkvs.open(store_path, **SMALL).close()
    with Store(store_path, StoreConfig(tables_bytes_max=SMALL["index_bytes"] + 2 * BLOCK)) as store:
        store.create_table("a", index_bytes=BLOCK)
        with pytest.raises(NoSpaceError, match="tables_bytes_max") as refused:
            store.create_table("b", index_bytes=2 * BLOCK)
        assert refused.value.resource == "tables_bytes"
        store.create_table("b", index_bytes=BLOCK)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_table_takes_one_open_file(store: gpkvs.Store) -> None:
    before = open_files()
    for name in ("a", "b", "c"):
        store.create_table(name, index_bytes=BLOCK)
    assert open_files() - before == 3
    for name in ("a", "b", "c"):
        store.drop_table(name)
    assert open_files() == before


UNTIL_REFUSED = """
import json, resource, sys, gpkvs
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with gpkvs.open(sys.argv[1]) as store:
    made, resource_name, message = 0, "", ""
    try:
        while made < 1000:
            store.create_table(f"table{made}", index_bytes=65536)
            made += 1
    except gpkvs.GpkvsError as error:
        resource_name, message = error.resource, str(error)
    store.set(b"key", b"value")
    with open("/dev/null"):
        print(json.dumps([made, resource_name, message]))
"""


def test_tables_are_refused_by_name_before_files_cannot_be_opened(store_path: Path) -> None:
    gpkvs.open(store_path, **SMALL).close()
    done = subprocess.run(
        [sys.executable, "-c", UNTIL_REFUSED, str(store_path)], capture_output=True, text=True, check=True
    )
    made, resource_name, message = json.loads(done.stdout)
    assert resource_name == "open_files"
    assert "ulimit -n" in message
    assert made > 120  # with two descriptors a table it would be 90
    with gpkvs.open(store_path) as store:
        assert len(store.info().tables) == made + 1


MEMORY_REFUSED = """
import sys, gpkvs
from gpkvs.engine.tables import schema
def refuse(path): raise MemoryError
with gpkvs.open(sys.argv[1]) as store:
    schema._remove = refuse  # called when the new roots are durable
    store.create_table("new", index_bytes=65536)
"""


def test_memory_that_is_refused_when_the_roots_are_durable_takes_no_table_back(store_path: Path) -> None:
    """The index that the root named was removed; the store did not open any more."""
    gpkvs.open(store_path, **SMALL).close()
    done = subprocess.run([sys.executable, "-c", MEMORY_REFUSED, str(store_path)], capture_output=True, check=False)
    assert done.returncode == EXIT_FATAL
    with gpkvs.open(store_path) as store:
        assert [table.name for table in store.info().tables] == ["default", "new"]
        store.set(b"key", b"value", table="new")


# In a file system of its own, of 12 MiB; a file fills what the store leaves.
ON_A_FULL_DISK = """
import errno, os, sys, gpkvs
from gpkvs.errors import NoSpaceError, UnknownTableError
path = sys.argv[1]
with gpkvs.open(path + "/store", index_bytes=65536, heap_bytes=1 << 20, log_bytes=131072) as store:
    for number in range(60):
        store.create_table(f"table{number}", index_bytes=65536)
    with open(path + "/filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    try:
        store.create_table("more", index_bytes=65536)
        raise SystemExit("there was room")
    except NoSpaceError as error:
        assert error.resource == "disk"
    store.set(b"key", b"value")
    for number in range(60):
        store.drop_table(f"table{number}")
    store.create_table("more", index_bytes=65536)
os.remove(path + "/filler")
assert gpkvs.open(path + "/store").get(b"key") == b"value"
print("done")
"""


def test_tables_can_be_dropped_on_a_full_disk(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=12m none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", mount, "sh"]
    done = subprocess.run(
        [*command, str(tmp_path), sys.executable, ON_A_FULL_DISK], capture_output=True, text=True, check=False
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system of its own may be mounted here: {done.stderr}")
    assert done.stdout == "done\n", done.stderr


def test_an_empty_table_and_one_of_numbers_are_dropped_without_reading_them(
    store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the index is read")

    store.create_table("empty", index_bytes=BLOCK)
    store.create_table("numbers", layout="u64", index_bytes=BLOCK)
    store.set_many(np.arange(10, dtype=np.uint64), np.arange(10, dtype=np.uint64), table="numbers")
    with monkeypatch.context() as patched:  # whoever checks the store reads it
        patched.setattr("gpkvs.engine.space.recount.recount_blocks", fail)
        store.drop_table("empty")
        store.drop_table("numbers")


def test_a_table_that_is_not_there_is_told_while_others_come_and_go(store: gpkvs.Store) -> None:
    """The names of the tables were looked through while another thread changed them: an internal error."""
    for number in range(40):
        store.create_table(f"table{number}", index_bytes=BLOCK)
    done = threading.Event()

    def change() -> None:
        for _ in range(15):
            store.create_table("comes", index_bytes=BLOCK)
            store.drop_table("comes")
        done.set()

    thread = threading.Thread(target=change)
    thread.start()
    asked = 0
    while not done.is_set():
        with pytest.raises(UnknownTableError):
            store.table("tabel")
        asked += 1
    thread.join()
    assert asked > 100


def test_a_drop_that_is_interrupted_is_counted_no_further(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index is unmapped: a later drop, which counts its own, must not read it."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    for name in ("first", "second"):
        store.create_table(name, index_bytes=4 * BLOCK)
        store.set(b"key", bytes(1000), table=name)
    monkeypatch.setattr(store_module, "_STEP_BYTES", BLOCK)
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "time", SimpleNamespace(sleep=interrupt, perf_counter=time.perf_counter))
        with pytest.raises(KeyboardInterrupt):
            store.drop_table("first")
    assert not store._engine.maintain(BLOCK), "it would go on with the first table"
    store.drop_table("second")
    assert [table.name for table in store.info().tables] == ["default"]


def test_a_drop_that_cannot_count_is_done_all_the_same(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is out of the catalogue then: its file goes, and what it had in the heap at the next opening."""

    def refuse(*_: object) -> None:
        raise MemoryError

    before = open_files()
    store.create_table("old", index_bytes=BLOCK)
    store.set(b"key", bytes(1000), table="old")
    with monkeypatch.context() as patched:
        patched.setattr("gpkvs.engine.space.recount.recount_blocks", refuse)
        store.drop_table("old")
    assert [table.name for table in store.info().tables] == ["default"]
    assert open_files() == before
    assert store.info().heap_live_bytes > 0
    store.close()
    with gpkvs.open(store.path) as opened:
        assert opened.info().heap_live_bytes == 0
