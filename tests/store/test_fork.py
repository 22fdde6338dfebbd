"""A store that was opened before a fork: the parent goes on, the child is told, and holds nothing."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs import Batch, Op
from gpkvs.errors import ForkedError
from gpkvs.following import Following
from tests.conftest import SMALL

_NUMBERS = np.arange(4, dtype=np.uint64)
METHODS: dict[str, Callable[[gpkvs.Store], Any]] = {
    "get": lambda store: store.get(b"key"),
    "set": lambda store: store.set(b"key", b"of the child"),
    "delete": lambda store: store.delete(b"key"),
    "execute": lambda store: store.execute(Batch.of([(Op.SET, b"key", b"of the child")])),
    "execute_requests": lambda store: store.execute_requests(Batch.of([(Op.SET, b"key", b"of the child")])),
    "begin_requests": lambda store: store.begin_requests(Batch.of([(Op.SET, b"key", b"of the child")])),
    "submit": lambda store: store.submit(Batch.of([(Op.SET, b"key", b"of the child")])),
    "submit_set_many": lambda store: store.submit_set_many(_NUMBERS, _NUMBERS, table="numbers"),
    "submit_get_many": lambda store: store.submit_get_many(_NUMBERS, table="numbers"),
    "submit_delete_many": lambda store: store.submit_delete_many(_NUMBERS, table="numbers"),
    "begin_turns": lambda store: store.begin_turns(lambda: None),
    "turn": lambda store: store.turn().__enter__(),
    "set_many": lambda store: store.set_many(_NUMBERS, _NUMBERS, table="numbers"),
    "get_many": lambda store: store.get_many(_NUMBERS, table="numbers"),
    "delete_many": lambda store: store.delete_many(_NUMBERS, table="numbers"),
    "scan_step": lambda store: store.scan_step(),
    "records": lambda store: store.records(),
    "table": lambda store: store.table("default"),
    "open_table": lambda store: store.open_table("default"),
    "open_tables": lambda store: store.open_tables(),
    "table_expiry": lambda store: store.table_expiry(0),
    "list_tables": lambda store: store.list_tables(),
    "get_with_version": lambda store: store.get_with_version(b"key"),
    "get_all": lambda store: store.get_all([]),
    "exists": lambda store: store.exists(b"key"),
    "incr": lambda store: store.incr(b"key"),
    "append": lambda store: store.append(b"key", b"more"),
    "expire": lambda store: store.expire(b"key", 1),
    "ttl": lambda store: store.ttl(b"key"),
    "batch": lambda store: store.batch([]),
    "transaction": lambda store: store.transaction(),
    "transact": lambda store: store.transact(lambda t: t.get(b"key")),
    "scan": lambda store: store.scan(),
    "scan_pieces": lambda store: store.scan_pieces(),
    "rows": lambda store: store.rows("float32[3]"),
    "count": lambda store: store.count(),
    "cursor_at": lambda store: store.cursor_at("default", 1),
    "position_of": lambda store: store.position_of("default", b""),
    "get_into": lambda store: store.get_into(b"key", bytearray(9)),
    "set_from": lambda store: store.set_from(b"key", b"of the child"),
    "incr_many": lambda store: store.incr_many(_NUMBERS, table="numbers"),
    "__getitem__": lambda store: store[b"key"],
    "__setitem__": lambda store: store.__setitem__(b"key", b"of the child"),
    "__delitem__": lambda store: store.__delitem__(b"key"),
    "__contains__": lambda store: b"key" in store,
    "create_table": lambda store: store.create_table("more", index_bytes=1 << 16),
    "drop_table": lambda store: store.drop_table("numbers"),
    "follow": lambda store: store.follow(),
    "watch": lambda store: store.watch(),
    "selection": lambda store: store.selection("default", b""),
    "backup": lambda store: store.backup(f"{store.path}-backup"),
    "end_making": lambda store: store.end_making(0),
    "info": lambda store: store.info(),
    "maintain": lambda store: store.maintain(),
    "reset_time": lambda store: store.reset_time(),
    "close": lambda store: store.close(),
    "__enter__": lambda store: store.__enter__(),
    "__exit__": lambda store: store.__exit__(None, None, None),
}


def _read_what_follows(following: Following, answers: Connection) -> None:
    try:
        following.read()
    except ForkedError as error:
        answers.send(str(error))
    answers.close()


def test_the_child_is_told_nothing(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL) as store, store.follow() as following:
        store.set(b"a", b"1")
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_read_what_follows, args=(following, theirs))
        child.start()
        theirs.close()
        assert "fork" in ours.recv()
        child.join(60)
        assert len(following.read()) == 1


def test_every_public_method_is_tried() -> None:
    public = {name for name in dir(gpkvs.Store) if callable(getattr(gpkvs.Store, name)) and not name.startswith("_")}
    assert public <= METHODS.keys()


def _try_all(store: gpkvs.Store, answers: Connection) -> None:
    """Run in the child: call every method and send what it raised."""
    raised = {}
    for name, call in METHODS.items():
        try:
            call(store)
            raised[name] = "nothing"
        except Exception as error:  # noqa: BLE001 - the parent looks at it
            raised[name] = f"{type(error).__name__}: {error}"
    answers.send(raised)


def test_every_method_raises_in_the_child_and_nothing_is_touched(store: gpkvs.Store) -> None:
    store.create_table("numbers", layout="u64", index_bytes=1 << 16)
    store.set(b"key", b"of the parent")
    answers, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_try_all, args=(store, theirs))
    child.start()
    assert answers.poll(30), "the child hangs"
    raised = answers.recv()
    child.join(30)
    assert child.exitcode == 0
    for name in METHODS:
        assert raised[name].startswith("ForkedError: the store at "), (name, raised[name])
    assert store.get(b"key") == b"of the parent"
    assert store.set(b"key", b"again") == 3  # the table has taken one, and none was given in the child


def test_writes_of_parent_and_child_at_the_same_time_lose_nothing(store: gpkvs.Store) -> None:
    """Without the check both took the same versions and the same room in the heap."""
    child = os.fork()
    if child == 0:
        refused = 0
        for number in range(200):
            try:
                store.set(b"child %d" % number, bytes(100))
            except ForkedError:
                refused += 1
        os._exit(0 if refused == 200 else 1)
    for number in range(200):
        store.set(b"parent %d" % number, b"%d" % number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [store.get(b"parent %d" % number) for number in range(200)] == [b"%d" % number for number in range(200)]


def _wait(go_on: Connection) -> None:
    """Run in the child: live, idle, until told to end."""
    go_on.send("alive")
    go_on.recv()


def test_an_idle_child_does_not_keep_the_store_locked(store_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    with gpkvs.open(store_path, **SMALL) as store:
        store.set(b"key", b"value")
        child = multiprocessing.get_context("fork").Process(target=_wait, args=(theirs,))
        child.start()
        assert ours.recv() == "alive"
    try:
        with gpkvs.open(store_path) as store:  # raised StoreLockedError while the child lived
            assert store.get(b"key") == b"value"
    finally:
        ours.send("end")
        child.join(30)
    assert child.exitcode == 0


def test_the_parent_keeps_its_lock_when_a_child_ends(store: gpkvs.Store) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(gpkvs.GpkvsError, match="open in this process already"):
        gpkvs.open(store.path)
