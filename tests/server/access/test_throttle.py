"""Failed logins are slowed, and nobody can lock out somebody else."""

from __future__ import annotations

import pytest

from gpkvs.server.access import throttle as module
from gpkvs.server.access.throttle import Throttle

HOME, EVIL = "192.0.2.1", "203.0.113.66"


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> Throttle:
    return Throttle(clock)


def fail(throttle: Throttle, address: str, user: str, times: int = 1) -> None:
    for _ in range(times):
        throttle.begin(address, user)
        throttle.failed(address, user)


def log_in(throttle: Throttle, address: str, user: str) -> None:
    throttle.begin(address, user)
    throttle.succeeded(address, user)


def guess(throttle: Throttle, clock: Clock, seconds: float, attempts: list[tuple[str, str]]) -> int:
    """Try, whenever one may, for so long; return how often that was."""
    done, end = 0, clock.now + seconds
    while clock.now < end:
        for address, user in attempts:
            if not throttle.blocked_s(address, user):
                fail(throttle, address, user)
                done += 1
        wait = min(throttle.blocked_s(address, user) for address, user in attempts)
        clock.now = min(end, clock.now + wait)
    return done


def test_pauses_begin_after_three_failures_and_double(throttle: Throttle, clock: Clock) -> None:
    pauses = []
    for _ in range(13):
        pauses.append(throttle.blocked_s(EVIL, "bob"))
        clock.now += pauses[-1]
        assert throttle.blocked_s(EVIL, "bob") == 0
        fail(throttle, EVIL, "bob")
    assert pauses == [0, 0, 0, 0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    clock.now += 29
    assert throttle.blocked_s(EVIL, "bob") == 1


def test_very_many_failures(throttle: Throttle) -> None:
    fail(throttle, EVIL, "bob", 10_000)
    assert throttle.blocked_s(EVIL, "bob") == 30


def test_failures_are_forgotten(throttle: Throttle, clock: Clock) -> None:
    fail(throttle, EVIL, "bob", 12)
    clock.now += 899
    assert throttle.blocked_s(EVIL, "bob") == 0
    fail(throttle, EVIL, "bob")
    assert throttle.blocked_s(EVIL, "bob") == 30
    clock.now += 900
    fail(throttle, EVIL, "bob", 2)
    assert throttle.blocked_s(EVIL, "bob") == 0


def test_one_user_guessed_from_many_addresses(throttle: Throttle, clock: Clock) -> None:
    attempts = [(f"203.0.{number // 250}.{number % 250}", "bob") for number in range(500)]
    assert guess(throttle, clock, 600, attempts) < 35


def test_many_users_guessed_from_one_address(throttle: Throttle, clock: Clock) -> None:
    assert guess(throttle, clock, 600, [(EVIL, f"user{number}") for number in range(500)]) < 35


def test_a_network_of_ipv6_is_one_address(throttle: Throttle, clock: Clock) -> None:
    attempts = [(f"2001:db8:0:7::{number:x}", f"user{number}") for number in range(500)]
    assert guess(throttle, clock, 600, attempts) < 35
    assert throttle.blocked_s("2001:db8:0:8::1", "alice") == 0


def test_an_address_of_ipv4_is_one_however_it_is_written(throttle: Throttle) -> None:
    fail(throttle, EVIL, "bob", 3)
    assert throttle.blocked_s(f"::ffff:{EVIL}", "alice") > 0
    assert throttle.blocked_s("::ffff:192.0.2.7", "alice") == 0


def test_an_attacker_cannot_lock_a_user_out_at_home(throttle: Throttle, clock: Clock) -> None:
    log_in(throttle, HOME, "bob")
    guess(throttle, clock, 600, [(f"203.0.113.{number}", "bob") for number in range(250)])
    assert throttle.blocked_s(EVIL, "bob") > 0
    assert throttle.blocked_s("198.51.100.1", "bob") > 0  # an address without any failure
    assert throttle.blocked_s(HOME, "bob") == 0


def test_an_attacker_at_the_same_address_cannot_lock_a_user_out(throttle: Throttle) -> None:
    log_in(throttle, HOME, "bob")
    fail(throttle, HOME, "alice", 20)
    assert throttle.blocked_s(HOME, "carol") > 0
    assert throttle.blocked_s(HOME, "bob") == 0


def test_at_home_one_is_slowed_too(throttle: Throttle, clock: Clock) -> None:
    log_in(throttle, HOME, "bob")
    assert guess(throttle, clock, 600, [(HOME, "bob")]) < 35


def test_home_is_where_one_has_logged_in_lately(throttle: Throttle, clock: Clock) -> None:
    log_in(throttle, HOME, "bob")
    clock.now += 86_399
    fail(throttle, EVIL, "bob", 20)
    assert throttle.blocked_s(HOME, "bob") == 0
    clock.now += 1
    assert throttle.blocked_s(HOME, "bob") > 0


def test_a_login_forgives_its_own_failures_alone(throttle: Throttle, clock: Clock) -> None:
    fail(throttle, HOME, "bob", 2)
    log_in(throttle, HOME, "bob")
    fail(throttle, HOME, "alice", 2)
    assert throttle.blocked_s(HOME, "alice") == 0
    # Who has a user of his own cannot guess between two logins.
    done = 0
    for number in range(1000):
        log_in(throttle, EVIL, "mallory")
        done += guess(throttle, clock, 0.125, [(EVIL, f"user{number}")])
    assert done < 15


@pytest.mark.parametrize("users", [["bob"] * 40, [f"user{number}" for number in range(40)]], ids=["one", "many"])
def test_attempts_at_once_do_not_get_round_it(throttle: Throttle, clock: Clock, users: list[str]) -> None:
    """The first attempts of an address may be some; after its first failure it has three, then one at a time."""
    guesses = 0
    for _ in range(20):
        begun = []
        for user in users:
            if not throttle.blocked_s(EVIL, user):
                throttle.begin(EVIL, user)
                begun.append(user)
        for user in begun:
            throttle.failed(EVIL, user)
        assert len(begun) == 1 or clock.now == 0
        guesses += len(begun)
        clock.now += 30
    assert guesses <= 16 + 19
    assert len(set(users)) > 1 or guesses <= 3 + 19


def test_attempts_at_once_from_many_addresses(throttle: Throttle) -> None:
    addresses = [f"203.0.113.{number}" for number in range(100)]
    begun = 0
    for address in addresses:
        if not throttle.blocked_s(address, "bob"):
            throttle.begin(address, "bob")
            begun += 1
    assert begun == 3


def test_after_a_restart_the_users_of_an_address_come_at_once(throttle: Throttle) -> None:
    users = [f"service{number}" for number in range(16)]
    for user in users:
        assert throttle.blocked_s(HOME, user) == 0
        throttle.begin(HOME, user)
    assert throttle.blocked_s(HOME, "another") == 0.25
    for user in users:
        throttle.succeeded(HOME, user)
    assert all(throttle.blocked_s(HOME, user) == 0 for user in [*users, "another"])


def test_an_attempt_whose_end_nobody_said_is_forgotten(throttle: Throttle, clock: Clock) -> None:
    for _ in range(3):
        throttle.begin(HOME, "bob")
    assert throttle.blocked_s(HOME, "bob") == 0.25
    clock.now += 900
    assert throttle.blocked_s(HOME, "bob") == 0


def test_an_attempt_that_told_nothing_does_not_count(throttle: Throttle, clock: Clock) -> None:
    fail(throttle, HOME, "bob", 2)
    for _ in range(20):
        throttle.begin(HOME, "bob")
        assert throttle.blocked_s(HOME, "bob") == 0.25
        throttle.dropped(HOME, "bob")
        assert throttle.blocked_s(HOME, "bob") == 0
    fail(throttle, HOME, "bob")
    throttle.begin(HOME, "bob")
    throttle.dropped(HOME, "bob")
    assert throttle.blocked_s(HOME, "bob") == 0.25  # the failures that were there stay


def test_tables_are_bounded(throttle: Throttle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_MAX", 100)
    log_in(throttle, HOME, "bob")
    for number in range(500):
        fail(throttle, f"203.0.{number // 250}.{number % 250}", f"{number}" + "x" * 100_000)
    for number in range(500):
        assert throttle.blocked_s(f"198.51.{number // 250}.{number % 250}", "bob") == 0  # to ask makes no rows
    rows = [throttle._addresses._rows, throttle._users._rows, throttle._pairs._rows]
    assert [len(found) for found in rows] == [100] * 3
    assert max(len(name) for name in throttle._users._rows) == 64
    for number in range(500):
        log_in(throttle, f"203.0.{number // 250}.{number % 250}", "mallory")
    assert len(throttle._trusted) == 100


def test_what_is_no_address_is_one_too(throttle: Throttle) -> None:
    fail(throttle, "unix:" + "x" * 1000, "bob", 3)
    assert throttle.blocked_s("unix:" + "x" * 1000, "alice") > 0
