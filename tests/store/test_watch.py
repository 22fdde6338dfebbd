"""Which changes somebody wants, how long entries are cut for messages, and what comes of them one by one."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.changes import ChangeKind, Changes, Position
from gpkvs.client.watch import decode_response
from gpkvs.errors import InvalidArgumentError, UnknownTableError
from gpkvs.server.calls.watch import bytes_of, responses_of
from gpkvs.watch import Change, Selected, Selection, changes_of
from tests.conftest import SMALL

START = Position(9, 100)


@pytest.fixture
def pick() -> random.Random:
    seed = int(os.environ.get("GPKVS_SEED", random.randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return random.Random(seed)


def entry_of(pick: random.Random, number: int, keys: list[bytes], name: str) -> Changes:
    """Return an entry about keys."""
    kinds = [pick.choice(list(ChangeKind)) for _ in keys]
    values = [pick.randbytes(pick.choice((0, 3, 90))) if kind is ChangeKind.SET else b"" for kind in kinds]
    has_expiries = pick.random() < 0.5
    return Changes(
        number=number,
        time_ms=1000 + number,
        table=len(name),
        name=name,
        kinds=np.array(kinds, np.uint8),
        keys=np.frombuffer(b"".join(keys), np.uint8),
        key_lengths=np.array([len(key) for key in keys], np.uint32),
        values=np.frombuffer(b"".join(values), np.uint8),
        value_lengths=np.array([len(value) for value in values], np.uint32),
        versions=np.array([number * (kind is ChangeKind.SET) for kind in kinds], np.uint64),
        expiries=np.array([pick.randrange(3) for _ in keys] if has_expiries else [], np.uint64),
    )


def entries_of(pick: random.Random, count: int) -> list[Changes]:
    letters = (b"a", b"b", b"")
    number, entries = START.number, []
    for _ in range(count):
        number += pick.randrange(1, 4)
        keys = [b"k" + b"".join(pick.choices(letters, k=4)) for _ in range(pick.choice((1, 1, 2, 7, 30)))]
        entries.append(entry_of(pick, number, keys, pick.choice(("t", "other"))))
    return entries


def plain(changes: list[Change]) -> list[tuple[object, ...]]:
    return [(*(getattr(change, name) for name in Change.__slots__[:-1]), str(change.position)) for change in changes]


class Given:
    """Follows what it is given."""

    def __init__(self, entries: list[Changes], pick: random.Random) -> None:
        self._entries = entries
        self._pick = pick
        self.position = START
        self.is_closed = False

    def read(self, bytes_max: int = 0, timeout: float | None = 0.0) -> list[Changes]:
        taken = self._pick.randrange(1, 5)
        found, self._entries = self._entries[:taken], self._entries[taken:]
        return found

    def close(self) -> None:
        self.is_closed = True


def read_all(selected: Selected) -> list[Changes]:
    found: list[Changes] = []
    while (entries := selected.step()) is not None:
        found += entries
    return found


@pytest.mark.parametrize("prefix", [b"", b"k", b"ka", b"kab", b"kaaaaa", b"x", b"k" * 40])
@pytest.mark.parametrize("table", [None, "t"])
def test_only_what_is_wanted(pick: random.Random, table: str | None, prefix: bytes) -> None:
    entries = entries_of(pick, 60)
    selected = Selected(Given(entries, pick), Selection(table, prefix))
    found = [change for entry in read_all(selected) for change in changes_of([entry], START)]
    expected = [
        change
        for entry in entries
        for change in changes_of([entry], START)
        if table in (None, change.table) and change.key.startswith(prefix)
    ]
    assert [row[:-1] for row in plain(found)] == [row[:-1] for row in plain(expected)]
    assert selected.position == Position(START.timeline, entries[-1].number)


def test_a_dropped_table_is_the_end(pick: random.Random) -> None:
    entries = entries_of(pick, 20)
    dropped = replace(entry_of(pick, 500, [], "t"), is_dropped=True)
    behind = entry_of(pick, 501, [b"k"], "t")
    given = Given([*entries, dropped, behind], pick)
    selected = Selected(given, Selection("t"))
    found: list[Changes] = []
    while not found or not found[-1].is_dropped:
        found += selected.step() or []
    assert selected.position == Position(START.timeline, 500)
    for _ in range(2):
        with pytest.raises(UnknownTableError, match="table 't' was dropped"):
            selected.read()
    every = Selected(Given([dropped, behind], pick), Selection(None))
    assert [entry.number for entry in read_all(every)] == [500, 501]
    selected.close()
    assert given.is_closed


@pytest.mark.parametrize("bytes_max", [1, 300, 900, 1 << 20])
def test_messages_bring_what_they_were_made_of(pick: random.Random, bytes_max: int) -> None:
    entries = entries_of(pick, 40)
    behind = Position(START.timeline, entries[-1].number + 7)
    told, found = START, []
    for response in responses_of(entries, START, behind, bytes_max):
        arrival = decode_response(response)
        sizes = [bytes_of(entry) for entry in arrival.entries]
        assert sum(sizes) <= max(bytes_max, sizes[0])
        assert len(arrival.entries) == 1 or bytes_max > 300
        for entry in arrival.entries:
            told = Position(told.timeline, entry.number) if entry.is_whole else told
        assert arrival.position in (told, behind)
        last = arrival.entries[-1]  # what is not whole yet comes with nothing else: a reader may stop before it
        assert last.is_whole or {entry.number for entry in arrival.entries} == {last.number}
        found += arrival.entries
    assert arrival.position == behind
    assert plain(list(changes_of(found, START))) == plain(list(changes_of(entries, START)))
    (empty,) = responses_of([], START, behind, bytes_max)
    assert decode_response(empty) == ([], behind)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 50])
def test_long_prefixes(pick: random.Random, length: int) -> None:
    long = pick.randbytes(60)
    keys = [long[:at] + bytes([long[at] ^ 1]) + long[at + 1 :] for at in range(0, 60, 3)]
    keys += [long[:at] for at in (1, 33)]
    prefix = long[:length]
    found = Selection("t", prefix).of(entry_of(pick, 101, keys, "t"))
    wanted = [key for key in keys if key.startswith(prefix)]
    assert (found.key_list() if found else []) == wanted


def test_no_prefix_is_longer_than_a_key(tmp_path: Path) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL) as store:
        store.watch(bytes(store.limits.key_bytes_max)).close()
        with pytest.raises(InvalidArgumentError, match="a prefix of 4,097 bytes, and keys have 4,096 at most"):
            store.watch(bytes(store.limits.key_bytes_max + 1))


def test_what_is_cut_comes_alone(pick: random.Random) -> None:
    """A reader stops at a position that it waits for: what lies behind that in the response would be half an entry."""
    small, long = entry_of(pick, 101, [b"a"], "t"), entry_of(pick, 102, [b"%01000d" % key for key in range(9)], "t")
    responses = [decode_response(response) for response in responses_of([small, long], START, START, 2000)]
    assert [entry.number for entry in responses[0].entries] == [101]
    assert responses[0].position.number == 101
    assert all({entry.number for entry in response.entries} == {102} for response in responses[1:])


def test_a_position_is_behind_what_was_taken_whole(pick: random.Random) -> None:
    first = entry_of(pick, 103, [b"a", b"b", b"c"], "t")
    second = replace(entry_of(pick, 107, [b"d", b"e"], "t"), is_whole=False)
    third = entry_of(pick, 107, [b"f"], "t")
    changes = list(changes_of([first, second, third], START))
    assert [change.position.number for change in changes] == [100, 100, 103, 103, 103, 107]
