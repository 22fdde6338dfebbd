"""What a served store does while nobody asks for anything."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import gpkvs
from gpkvs.server.door import turns
from gpkvs.server.door.turns import Turns
from tests.door.resp_door import command, connect, resp_door

STEPS = 3


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "waited 10 s in vain"
        time.sleep(0.002)


def test_maintenance_is_done_to_its_end_and_again(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as nothing is asked for, step by step, then once in a while; requests come between."""
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(turns, "_IDLE_AGAIN_SECONDS", 0.05)
    steps: list[float] = []

    def maintain() -> bool:
        steps.append(time.monotonic())
        return len(steps) % STEPS != 0  # so many are due each time

    monkeypatch.setattr(store, "maintain", maintain)
    with resp_door(store, lambda _: b"") as (_, port), connect(port) as redis:
        wait_until(lambda: len(steps) >= 2 * STEPS)
        assert steps[STEPS] - steps[STEPS - 1] >= 0.05  # nothing was due: it is asked for again later
        redis.sendall(command(b"SET", b"k", b"v"))
        assert redis.recv(10) == b"+OK\r\n"
        count = len(steps)
        wait_until(lambda: len(steps) > count + STEPS)


def test_a_step_that_fails_is_tried_again(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(turns, "_IDLE_AGAIN_SECONDS", 0.02)
    steps = 0

    def maintain() -> bool:
        nonlocal steps
        steps += 1
        raise OSError("the disk")

    monkeypatch.setattr(store, "maintain", maintain)
    with resp_door(store, lambda _: b""):
        wait_until(lambda: steps >= 3)


def test_none_is_begun_once_the_server_stops(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    def maintain() -> bool:
        nonlocal steps
        steps += 1
        return True

    monkeypatch.setattr(store, "maintain", maintain)
    made: list[Turns] = []
    begin = Turns.__init__

    def note(self: Turns, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        self.maintains = False
        made.append(self)

    monkeypatch.setattr(Turns, "__init__", note)
    with resp_door(store, lambda _: b""):
        time.sleep(0.3)
    assert made
    assert steps == 0
