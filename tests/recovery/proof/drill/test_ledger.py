"""The ledger of a drill finds each kind of bad history, and accepts the good ones."""

from __future__ import annotations

import pytest

from gpkvs.recovery.proof.drill.ledger import Attempt, Cell, Ledger, State

SIZE = 60


class Store:
    """A hand-made store: gives versions as an honest server would, and can be made to lie."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.version = 0

    def versions(self, attempt: Attempt) -> tuple[int, ...]:
        given = []
        for value in attempt.state:
            self.version += 1
            given.append(self.version if value is not None else 0)
        return tuple(given)

    def write(self, cell: Cell, *sizes: int | None) -> Attempt:
        attempt = self.ledger.begin(cell, sizes)
        self.ledger.acknowledge(attempt, self.versions(attempt))
        return attempt

    def settle(self, cell: Cell, state: State, versions: tuple[int, ...] | None) -> None:
        self.ledger.settle(cell, state, versions)

    @property
    def found(self) -> list[str]:
        return [violation.invariant for violation in self.ledger.violations]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def one(store: Store) -> Cell:
    return store.ledger.add_cell([b"a"])


@pytest.fixture
def three(store: Store) -> Cell:
    return store.ledger.add_cell([b"x", b"y", b"z"])


def test_acknowledged_write_that_is_there_is_fine(store: Store, three: Cell) -> None:
    attempt = store.write(three, SIZE, None, SIZE)
    assert attempt.versions is not None
    store.settle(three, attempt.state, attempt.versions)
    assert store.found == []
    assert store.ledger.keys_present == 2


def test_write_of_unknown_outcome_may_be_there_or_not(store: Store, one: Cell) -> None:
    first = store.write(one, SIZE)
    store.ledger.begin(one, [SIZE])
    store.settle(one, first.state, first.versions or ())
    last = store.ledger.begin(one, [SIZE])
    store.settle(one, last.state, store.versions(last))
    assert store.found == []
    assert one.newest is last


def test_delete_of_unknown_outcome_may_be_there_or_not(store: Store, one: Cell) -> None:
    store.write(one, SIZE)
    store.ledger.begin(one, [None])
    store.settle(one, (None,), (0,))
    assert store.found == []
    assert store.ledger.keys_present == 0
    after = store.write(one, SIZE)
    assert one.newest is after


def test_concurrent_writes_are_ordered_by_version_not_by_response(store: Store, three: Cell) -> None:
    a, b = (store.ledger.begin(three, [SIZE] * 3) for _ in range(2))
    first, second = store.versions(a), store.versions(b)
    store.ledger.acknowledge(b, second)
    store.ledger.acknowledge(a, first)
    store.settle(three, b.state, second)
    assert store.found == []


def test_lost_acknowledged_write(store: Store, one: Cell) -> None:
    older = store.write(one, SIZE)
    store.write(one, SIZE)
    store.settle(one, older.state, older.versions or ())
    assert store.found == ["lost"]


def test_lost_key(store: Store, one: Cell) -> None:
    store.write(one, SIZE)
    store.settle(one, (None,), (0,))
    assert store.found == ["lost"]


def test_lost_delete(store: Store, one: Cell) -> None:
    older = store.write(one, SIZE)
    store.ledger.acknowledge(store.ledger.begin(one, [None]))
    store.settle(one, older.state, older.versions or ())
    assert store.found == ["lost"]


def test_half_batch(store: Store, three: Cell) -> None:
    older = store.write(three, SIZE, SIZE, SIZE)
    newer = store.ledger.begin(three, [SIZE, SIZE, SIZE])
    versions = store.versions(newer)
    mixed = (newer.state[0], older.state[1], older.state[2])
    store.settle(three, mixed, (versions[0], *(older.versions or ())[1:]))
    assert store.found == ["half batch"]


def test_half_batch_over_nothing(store: Store, three: Cell) -> None:
    newer = store.ledger.begin(three, [SIZE, SIZE, SIZE])
    store.settle(three, (newer.state[0], None, None), (1, 0, 0))
    assert store.found == ["half batch"]


def test_half_batch_seen_by_a_read(store: Store, three: Cell) -> None:
    older = store.write(three, SIZE, SIZE, SIZE)
    newer = store.ledger.begin(three, [SIZE, SIZE, SIZE])
    store.ledger.read(three, three.newest, (newer.state[0], older.state[1], older.state[2]), (4, 2, 3))
    assert store.found == ["half batch"]


@pytest.mark.parametrize("value", [b"rubbish", b"attempt 77 key 0|attempt 77 key 0|", b""])
def test_phantom_in_a_key_that_nobody_wrote(store: Store, one: Cell, value: bytes) -> None:
    store.settle(one, (value,), (9,))
    assert store.found == ["phantom"]


def test_phantom_value_of_another_key(store: Store, one: Cell, three: Cell) -> None:
    elsewhere = store.write(three, SIZE, SIZE, SIZE)
    store.write(one, SIZE)
    store.settle(one, elsewhere.state[:1], (1,))
    assert store.found == ["phantom"]


def test_phantom_damaged_value(store: Store, one: Cell) -> None:
    attempt = store.write(one, SIZE)
    value = attempt.state[0]
    assert value is not None
    store.settle(one, (value[:-1] + b"?",), attempt.versions or ())
    assert len(store.found) == 1


def test_phantom_refused_write(store: Store, one: Cell) -> None:
    attempt = store.ledger.begin(one, [SIZE])
    store.ledger.refuse(attempt)
    store.settle(one, attempt.state, (1,))
    assert store.found == ["phantom"]


def test_phantom_write_that_a_crash_took_back(store: Store, one: Cell) -> None:
    attempt = store.ledger.begin(one, [SIZE])
    store.settle(one, (None,), (0,))
    assert store.found == []
    store.settle(one, attempt.state, (1,))
    assert store.found == ["phantom"]


def test_write_that_was_read_may_not_be_taken_back(store: Store, one: Cell) -> None:
    older = store.write(one, SIZE)
    newer = store.ledger.begin(one, [SIZE])
    store.ledger.read(one, one.newest, newer.state, store.versions(newer))
    assert store.found == []
    store.settle(one, older.state, older.versions or ())
    assert store.found == ["lost"]


def test_read_of_an_older_state(store: Store, three: Cell) -> None:
    older = store.write(three, SIZE, SIZE, SIZE)
    store.write(three, SIZE, SIZE, SIZE)
    store.ledger.read(three, three.newest, older.state, older.versions or ())
    assert store.found == ["lost"]


def test_read_that_overlaps_a_write_may_see_either(store: Store, three: Cell) -> None:
    older = store.write(three, SIZE, SIZE, SIZE)
    before = three.newest
    newer = store.write(three, SIZE, SIZE, SIZE)
    store.ledger.read(three, before, older.state, older.versions or ())
    store.ledger.read(three, before, newer.state, newer.versions or ())
    assert store.found == []
    assert three.newest is newer


def test_read_of_nothing_that_overlaps_the_first_write(store: Store, three: Cell) -> None:
    before = three.newest
    first = store.write(three, SIZE, SIZE, SIZE)
    store.ledger.read(three, before, (None, None, None), (0, 0, 0))
    assert store.found == []
    assert three.newest is first


def test_reused_version(store: Store, one: Cell, three: Cell) -> None:
    concurrent = store.ledger.begin(one, [SIZE])
    attempt = store.write(three, SIZE, SIZE, SIZE)
    store.ledger.acknowledge(concurrent, (attempt.versions or ())[:1])
    assert store.found == ["version"]


def test_version_that_goes_back(store: Store, one: Cell) -> None:
    store.version = 100
    store.write(one, SIZE)
    store.version = 50
    store.write(one, SIZE)
    assert store.found == ["version"]


def test_version_given_again_after_a_restart(store: Store, one: Cell, three: Cell) -> None:
    lost_response = store.ledger.begin(one, [SIZE])
    store.settle(one, lost_response.state, (7,))
    store.version = 6
    store.write(three, SIZE, SIZE, SIZE)
    assert "version" in store.found


def test_value_with_another_version_than_acknowledged(store: Store, one: Cell) -> None:
    attempt = store.write(one, SIZE)
    store.settle(one, attempt.state, (99,))
    assert store.found == ["version"]


def test_unanswered_write_below_the_newest_version(store: Store, three: Cell) -> None:
    unanswered = store.ledger.begin(three, [SIZE] * 3)
    versions = store.versions(unanswered)
    store.write(three, SIZE, SIZE, SIZE)
    store.settle(three, unanswered.state, versions)
    assert store.found == ["version"]


def test_a_violation_names_key_expected_and_found(store: Store, one: Cell) -> None:
    store.write(one, SIZE)
    store.settle(one, (None,), (0,))
    assert str(store.ledger.violations[0]) == (
        "lost: key b'a': expected attempt 1 (acknowledged, version 1), found nothing"
    )


def test_old_values_can_be_forgotten(store: Store, one: Cell) -> None:
    older = store.write(one, SIZE)
    state = older.state
    newest = store.write(one, SIZE)
    store.settle(one, newest.state, newest.versions or ())
    store.ledger.forget_values()
    store.settle(one, newest.state, newest.versions or ())
    assert store.found == []
    store.settle(one, state, older.versions or ())
    assert store.found == ["lost"]


def test_numbers_without_versions(store: Store, three: Cell) -> None:
    older = store.ledger.begin(three, [8, 8, None])
    store.ledger.acknowledge(older)
    newer = store.ledger.begin(three, [8, None, 8])
    store.ledger.acknowledge(newer)
    store.ledger.read(three, newer, newer.state, None)
    store.settle(three, newer.state, None)
    assert store.found == []
    store.ledger.read(three, newer, older.state, None)
    store.settle(three, older.state, None)
    assert store.found == ["lost", "lost"]
    assert newer.state[0] == (newer.number << 16).to_bytes(8, "little")


def test_number_of_another_key(store: Store, three: Cell) -> None:
    newest = store.ledger.begin(three, [8, 8, 8])
    store.ledger.acknowledge(newest)
    store.settle(three, (newest.state[1], newest.state[1], newest.state[2]), None)
    assert store.found == ["phantom"]


def test_forgotten_attempts(store: Store, one: Cell, three: Cell) -> None:
    older = store.write(one, SIZE)
    newest = store.write(one, SIZE)
    unknown = store.ledger.begin(three, [SIZE] * 3)
    store.ledger.forget_attempts(store.ledger.attempts_begun + 1)
    assert list(store.ledger.attempts) == [newest.number, unknown.number]
    store.settle(three, unknown.state, store.versions(unknown))
    store.settle(one, newest.state, newest.versions or ())
    assert store.found == []
    store.settle(one, older.state, older.versions or ())
    assert store.found == ["lost"]
    store.version = 0
    store.write(one, SIZE)  # a version that was given long ago
    assert store.found == ["lost", "version"]
