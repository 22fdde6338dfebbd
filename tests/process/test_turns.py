"""Turns of the engine: one thread has the store for long, and whoever wants it gets it soon."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import gpkvs
from gpkvs.errors import StoreClosedError
from gpkvs.process.turn_mutex import TurnMutex
from tests.conftest import SMALL


class _Turns:
    """A thread that takes turn after turn; each lasts until somebody wants the engine."""

    def __init__(self, store: gpkvs.Store) -> None:
        self._store = store
        self._wanted = threading.Event()
        self._is_stopping = False
        self.count = 0
        store.begin_turns(self._wanted.set)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopping:
            with self._store.turn() as engine:
                assert engine.next_sequence
                self.count += 1
                assert self._wanted.wait(10)
                self._wanted.clear()

    def stop(self) -> None:
        self._is_stopping = True
        self._wanted.set()
        self._thread.join()


def test_others_use_the_store_between_turns(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        turns = _Turns(store)
        for number in range(100):
            store.set(b"key", b"%d" % number)
            assert store.get(b"key") == b"%d" % number
        store.create_table("other")
        assert len(store.scan_step("other").key_list()) == 0
        turns.stop()
        assert turns.count > 1


def test_a_turn_comes_where_others_always_wait() -> None:
    mutex, done = TurnMutex(lambda: None), threading.Event()

    def want() -> None:
        while not done.is_set():
            with mutex:
                time.sleep(0.001)

    def take_turns() -> None:
        for _ in range(10):
            with mutex.turn():
                pass
        done.set()

    threads = [threading.Thread(target=work) for work in (want, want, want, take_turns)]
    for thread in threads:
        thread.start()
    in_time = done.wait(60)
    done.set()
    for thread in threads:
        thread.join()
    assert in_time


def test_a_turn_waits_until_all_have_had_the_mutex() -> None:
    mutex, order = TurnMutex(lambda: None), []

    def want(number: int) -> None:
        with mutex:
            order.append(number)
            time.sleep(0.01)

    with mutex.turn():
        threads = [threading.Thread(target=want, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        while mutex._waiting < 5:
            time.sleep(0.001)
    with mutex.turn():
        assert sorted(order) == [0, 1, 2, 3, 4]
    for thread in threads:
        thread.join()


def test_no_turn_of_a_closed_store(tmp_path: Path) -> None:
    store = gpkvs.open(tmp_path / "store", **SMALL)
    store.begin_turns(lambda: None)
    store.close()
    with pytest.raises(StoreClosedError), store.turn():
        pass
