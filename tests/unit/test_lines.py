"""Lines of requests: the order of each connection is kept, and none waits behind all of another's."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import islice

import pytest

from gpkvs.server.lines import TURN_BYTES, TURN_REQUESTS, Lines

Item = tuple[str, int, int]  # connection, number, bytes


def lines_of(*items: Item) -> Lines[Item]:
    lines: Lines[Item] = Lines(lambda item: item[0], lambda item: item[2])
    for item in items:
        lines.append(item)
    return lines


def test_a_connection_alone_keeps_its_order() -> None:
    items = [("a", number, 10) for number in range(1000)]
    lines = lines_of(*items)
    assert len(lines) == 1000
    assert list(lines.take()) == items
    assert len(lines) == 0


def test_connections_take_turns_by_requests() -> None:
    lines = lines_of(*[("busy", number, 1) for number in range(500)], ("lone", 0, 1))
    assert list(islice(lines.take(), TURN_REQUESTS + 1))[-1] == ("lone", 0, 1)


def test_connections_take_turns_by_bytes() -> None:
    lines = lines_of(*[("busy", number, TURN_BYTES) for number in range(50)], ("lone", 0, 1))
    assert list(islice(lines.take(), 2)) == [("busy", 0, TURN_BYTES), ("lone", 0, 1)]


def test_after_a_cut_the_others_come_first() -> None:
    """Two connections send what is cut after one request each time: the third waits for one of each, not for all."""
    lines = lines_of(
        *[("slow", number, 1) for number in range(100)],
        *[("slower", number, 1) for number in range(100)],
        ("lone", 0, 1),
    )
    done = []
    while ("lone", 0, 1) not in done:
        batch = list(lines.take())
        done.append(batch[0])
        lines.put_back(batch[1:], batch[0])
    assert done == [("slow", 0, 1), ("slower", 0, 1), ("lone", 0, 1)]


def test_what_is_put_back_is_before_what_came_later() -> None:
    lines = lines_of(("a", 0, 1), ("a", 1, 1), ("b", 0, 1))
    batch = list(lines.take())
    lines.append(("a", 2, 1))
    lines.put_back(batch[1:], batch[0])
    assert list(lines.take()) == [("b", 0, 1), ("a", 1, 1), ("a", 2, 1)]


def test_clear_takes_everything() -> None:
    lines = lines_of(("a", 0, 1), ("b", 0, 1))
    assert sorted(lines.clear()) == [("a", 0, 1), ("b", 0, 1)]
    assert list(lines.take()) == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_connection_is_served_in_order_and_nothing_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    lines = lines_of()
    given: dict[str, list[int]] = defaultdict(list)
    served: dict[str, list[int]] = defaultdict(list)
    for _ in range(300):
        for _ in range(rng.randrange(10)):
            name = rng.choice("abcd")
            given[name].append(len(given[name]))
            lines.append((name, given[name][-1], rng.choice([1, TURN_BYTES // 3, TURN_BYTES])))
        batch: list[Item] = []
        for item in lines.take():
            if len(batch) >= 5:
                lines.put_back([item])
                break
            batch.append(item)
        kept = rng.randrange(1, len(batch) + 1) if batch else 0
        for name, number, _ in batch[:kept]:
            served[name].append(number)
        if batch:
            lines.put_back(batch[kept:], batch[kept - 1])
        assert len(lines) == sum(map(len, given.values())) - sum(map(len, served.values())), f"seed {seed}"
    for name, number, _ in lines.clear():
        served[name].append(number)
    assert served == given, f"seed {seed}"
