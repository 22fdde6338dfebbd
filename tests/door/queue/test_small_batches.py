"""A small batch runs in the thread of the connection that brought it, while the engine's thread sleeps in its turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.library import Turn
from tests.door.held_door import HeldDoor
from tests.door.toy_engine import DONE, DUE, LEFT, ToyEngine
from tests.server.wire import EXISTS, batch

_SMALL, _LARGE = 32, 33


class Turning:
    """Runs one turn in a thread of its own: the engine's."""

    def __init__(self, door: HeldDoor, seconds: float = 20) -> None:
        self.id = 0
        self._door, self._seconds = door, seconds
        self._ended: list[Turn] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        time.sleep(0.02)  # it falls asleep

    def _run(self) -> None:
        self.id = threading.get_native_id()
        self._ended.append(self._door.library.turn(self._seconds))

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Turn:
        """Wait until it has ended; return how."""
        self._thread.join(10)
        return self._ended[0]

    def interrupt(self) -> None:
        self._door.library.interrupt()
        assert self.end() is Turn.INTERRUPTED


@pytest.fixture
def door() -> Iterator[HeldDoor]:
    with HeldDoor() as made:
        yield made


@pytest.fixture
def kv(door: HeldDoor) -> Iterator[Any]:
    with door.client() as made:
        yield made


def exists(kv: Any, count: int = 1) -> Any:
    return kv.Batch.future(batch([(EXISTS, b"k")] * count, id=1), timeout=20)


def runs_elsewhere(engine: ToyEngine, turning: Turning, kv: Any, count: int) -> bool:
    """Return whether one of some batches ran in another thread than the engine's; one may come before that sleeps."""
    for _ in range(20):
        exists(kv, count).result()
        if engine.threads[-1] != turning.id:
            return True
        time.sleep(0.005)
    return False


def test_a_small_batch_wakes_no_other_thread(door: HeldDoor, kv: Any) -> None:
    engine, turning = ToyEngine(door.library), Turning(door)
    assert runs_elsewhere(engine, turning, kv, _SMALL)
    assert turning.goes_on
    turning.interrupt()


@pytest.mark.parametrize(("count", "never_waits"), [(_LARGE, True), (1, False)])
def test_what_takes_long_is_the_engines_threads(door: HeldDoor, kv: Any, count: int, never_waits: bool) -> None:
    engine, turning = ToyEngine(door.library, never_waits=never_waits), Turning(door)
    assert not runs_elsewhere(engine, turning, kv, count)
    turning.interrupt()


def test_large_values_are_the_engines_threads(door: HeldDoor, kv: Any) -> None:
    engine, turning = ToyEngine(door.library), Turning(door)
    for _ in range(5):
        kv.Set(kv_pb2.SetRequest(key=b"k", value=bytes(65536)), timeout=20)
        assert engine.threads[-1] == turning.id
    turning.interrupt()


def test_a_turn_ends_when_python_is_wanted(door: HeldDoor, kv: Any) -> None:
    engine, turning = ToyEngine(door.library), Turning(door)
    engine.ends = DUE
    exists(kv).result()
    assert turning.end() is Turn.DUE


def test_a_turn_ends_with_what_is_left(door: HeldDoor, kv: Any) -> None:
    engine, turning = ToyEngine(door.library), Turning(door)
    engine.ends = LEFT
    call = exists(kv)
    assert turning.end() is Turn.LEFT
    door.execute()  # the same batch
    assert len(call.result().status) == 1


def test_what_is_left_may_run_again(door: HeldDoor, kv: Any) -> None:
    engine, turning = ToyEngine(door.library), Turning(door)
    engine.ends = LEFT
    call = exists(kv, 3)
    assert turning.end() is Turn.LEFT
    assert not door.library.run_left()
    assert len(door.library.left()) == 3, "it is still left"
    engine.ends = DONE
    assert door.library.run_left()
    assert engine.request_ops == [[3]] * 3
    assert len(call.result().status) == 3
    turning = Turning(door)
    assert len(exists(kv).result().status) == 1
    turning.interrupt()


def test_nothing_runs_between_turns(door: HeldDoor, kv: Any) -> None:
    engine, turning = ToyEngine(door.library), Turning(door)
    turning.interrupt()
    call = exists(kv)
    door.wait_for_requests(1)
    time.sleep(0.02)
    assert engine.request_ops == []
    door.drop_all()
    assert len(call.result().status) == 1


def test_a_turn_is_not_idle_while_batches_run(door: HeldDoor, kv: Any) -> None:
    engine, turning = ToyEngine(door.library), Turning(door, 0.5)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        exists(kv).result()
        assert turning.goes_on
        time.sleep(0.01)
    assert turning.end() is Turn.IDLE
    assert turning.id not in engine.threads[10:]
