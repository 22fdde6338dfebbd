"""The judge of a watcher: it accepts what is right, and names each mistake that is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpkvs.changes import ChangeKind, Position
from tests.watched.judge import Judge
from tests.watched.record import Fate, Request, Written
from tests.watched.told import Began, Change, Entry, Heard, Keeper, Lost, Reader, Told, WentOn

SET, DELETED = ChangeKind.SET, ChangeKind.DELETED


def at(number: int) -> Position:
    return Position(7, number)


def told(number: int, *changes: Change, is_whole: bool = True) -> Told:
    return Told(at(number), (Entry(number, is_whole, changes),))


def change(key: bytes, value: bytes, version: int) -> Change:
    return Change(SET, key, value, version)


def gone(key: bytes) -> Change:
    return Change(DELETED, key, b"", 0)


def writers() -> list[Written]:
    """Return two writers: seconds 0 to 9; the last request of the first one had no answer, and was not done."""
    first, second = Written(0), Written(1)
    for one, sent_s, effects, versions in (
        (first, 0.0, {b"0-a": b"old"}, {b"0-a": 1}),
        (first, 2.0, {b"0-a": b"1", b"0-b": b"2"}, {b"0-a": 2, b"0-b": 3}),
        (second, 2.1, {b"1-a": b"3"}, {b"1-a": 4}),
        (first, 3.0, {b"0-b": None}, {}),
        (second, 4.0, {b"1-a": b"4"}, {b"1-a": 5}),
    ):
        request = Request(sent_s, dict(effects))
        one.requests.append(request)
        one.acknowledge(request, versions, sent_s + 0.5)
    lost = Request(5.0, {b"0-a": b"lost"})
    first.requests.append(lost)
    first.settle({b"0-a": (b"1", 2)})
    assert lost.fate is Fate.NOT_DONE
    return [first, second]


RIGHT: list[Heard] = [
    Began(at(1), 1.0, 1.1, {b"0-a": (b"old", 1)}),
    told(3, change(b"1-a", b"3", 4), change(b"0-b", b"2", 3), change(b"0-a", b"1", 2)),
    WentOn(at(3)),
    told(4, gone(b"0-b")),
    told(5, change(b"1-a", b"4", 5)),
]


def problems(heard: list[Heard], *, has_all: bool = True) -> list[str]:
    judge = Judge(writers())
    judge.hear(heard)
    if has_all:
        judge.require_all()
    return judge.problems


def test_what_is_right_is_accepted() -> None:
    assert problems(RIGHT) == []
    # A part that comes again after the connection was lost, and a process that was killed amid an entry.
    parts = told(3, change(b"0-a", b"1", 2), is_whole=False), told(3, change(b"0-b", b"2", 3), change(b"1-a", b"3", 4))
    before = [RIGHT[0], replace(parts[0], position=at(1))]
    for between in ([], [replace(parts[0], position=at(1))], [WentOn(at(1)), replace(parts[0], position=at(1))]):
        assert problems([*before, *between, parts[1], *RIGHT[2:]]) == []


def test_what_was_not_done_may_be_sent_again() -> None:
    both = writers()
    again = Request(6.0, {b"0-a": b"lost"})
    both[0].requests.append(again)
    both[0].acknowledge(again, {b"0-a": 6}, 6.5)
    judge = Judge(both)
    judge.hear([*RIGHT, told(6, change(b"0-a", b"lost", 6))])
    judge.require_all()
    assert judge.problems == []


def test_whoever_hears_that_changes_are_lost_may_miss_the_last() -> None:
    for end in range(1, len(RIGHT)):
        assert problems([*RIGHT[:end], Lost("begin anew")], has_all=False) == []
    anew = Began(at(9), 9.0, 9.1, {b"0-a": (b"1", 2), b"1-a": (b"4", 5)})
    assert problems([*RIGHT[:2], Lost("begin anew"), anew]) == []


@pytest.mark.parametrize(
    ("rule", "plant"),
    [
        ("all", lambda heard: heard[:4]),
        ("all", lambda heard: [*heard, Lost("begin anew")]),
        ("all", lambda heard: heard[1:]),
        ("order", lambda heard: [heard[0], *heard[2:]]),  # of one writer, a later one comes
        ("order", lambda heard: [heard[0], heard[1], heard[1], *heard[2:]]),
        ("taken back", lambda heard: [*heard, told(6, change(b"0-a", b"lost", 6))]),
        ("taken back", lambda heard: [*heard, told(6, change(b"0-a", b"nobody's", 6))]),
        ("taken back", lambda heard: [*heard[:3], told(4, change(b"0-b", b"2", 3)), *heard[3:]]),  # told again
        ("taken back", lambda heard: [heard[0], told(3, change(b"0-a", b"1", 2), change(b"1-a", b"3", 4)), *heard[2:]]),
        ("taken back", lambda heard: [heard[0], told(3, change(b"0-a", b"1", 9), change(b"0-b", b"2", 3))]),
        ("real time", lambda heard: [heard[0], told(5, change(b"1-a", b"3", 4), change(b"1-a", b"4", 5)), Lost("")]),
        ("state", lambda heard: [replace(heard[0], rows={b"0-c": (b"gone", 1)}), *heard[1:]]),
    ],
)
def test_what_is_wrong_is_named(rule: str, plant: Callable[[list[Heard]], list[Heard]]) -> None:
    heard = plant(RIGHT)
    found = problems(heard, has_all=not (heard and isinstance(heard[-1], Lost)) or rule == "all")
    assert any(problem.startswith(f"{rule}:") for problem in found), found


def test_half_a_request_in_a_store_is_named() -> None:
    one = Written(0)
    request = Request(0.0, {b"0-a": b"1", b"0-b": b"2"})
    one.requests.append(request)
    assert one.undecided == [b"0-a", b"0-b"]
    assert "a part of a request" in one.settle({b"0-a": (b"1", 2), b"0-b": None})
    assert one.settle({b"0-a": (b"1", 2), b"0-b": (b"2", 3)}) == ""
    assert (request.fate, request.versions, one.undecided) == (Fate.DONE, {b"0-a": 2, b"0-b": 3}, [])


def test_what_a_kill_has_cut_was_never_kept(tmp_path: Path) -> None:
    path, reader = tmp_path / "told", Reader(tmp_path / "told")
    assert list(reader.news()) == []
    keeper = Keeper(path)
    for heard in RIGHT:
        keeper.keep(heard)
    assert list(reader.news()) == RIGHT
    whole = path.read_bytes()
    for cut in range(1, len(whole) - whole[:-1].rfind(b"\n") - 1):
        path.write_bytes(whole[:-cut])
        assert Keeper(path).position == at(4)
    Keeper(path).keep(Lost("begin anew"))
    assert Keeper(path).position is None
    assert list(reader.news()) == [Lost("begin anew")] or path.stat().st_size < len(whole)
