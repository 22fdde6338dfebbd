"""Passwords that are tried at the same time, or while the users' file changes; none is really verified."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from gpkvs.server.access.audit import NO_AUDIT
from gpkvs.server.access.caller import LoginError
from gpkvs.server.access.login import Logins, Shown
from gpkvs.server.access.passwords import Passwords
from gpkvs.server.access.rights import RightsError
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import Rights, User, Users
from gpkvs.server.exporter import Metrics
from tests.accounts import basic

RIGHT = "right"


def users(*, password: str = "a hash", metrics: bool = True) -> Users:
    return Users([User("alice", password, (), {}, Rights(metrics=metrics))])


def logins_that_verify(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Logins], None]) -> Logins:
    """Return the logins of a server with one user; something happens while it verifies a password."""
    logins = Logins(users(), Sessions(lambda _: False, lambda _: None), Metrics(), NO_AUDIT)

    async def verify(_self: Passwords, _user: User | None, _name: str, password: str) -> bool:
        await asyncio.sleep(0)
        meanwhile(logins)
        return password == RIGHT

    monkeypatch.setattr(Passwords, "verify", verify)
    return logins


async def outcome(logins: Logins, password: str) -> str:
    """Try a password; return why it was refused."""
    try:
        await logins.require_metrics(Shown([basic("alice", password)[0][1]], (), "192.0.2.1"))
    except LoginError as error:
        return error.reason
    return ""


def test_guesses_of_one_moment_are_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = logins_that_verify(monkeypatch, lambda _: None)

    async def guess() -> list[str]:
        return await asyncio.gather(*(outcome(logins, str(number)) for number in range(40)))

    assert Counter(asyncio.run(guess())) == {"wrong": 3, "slowed": 37}


def test_calls_that_show_one_password_share_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = logins_that_verify(monkeypatch, lambda _: None)

    async def log_in() -> list[str]:
        return await asyncio.gather(*(outcome(logins, RIGHT) for _ in range(40)))

    assert asyncio.run(log_in()) == [""] * 40


def test_another_change_of_the_file_refuses_no_right_password(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = logins_that_verify(monkeypatch, lambda logins: logins.change(users()))
    assert asyncio.run(outcome(logins, RIGHT)) == ""


@pytest.mark.parametrize("changed", [Users([]), users(password="another hash")])
def test_a_password_that_is_taken_away_meanwhile_is_wrong(monkeypatch: pytest.MonkeyPatch, changed: Users) -> None:
    logins = logins_that_verify(monkeypatch, lambda logins: logins.change(changed))
    assert asyncio.run(outcome(logins, RIGHT)) == "wrong"


def test_rights_that_are_taken_away_meanwhile_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = logins_that_verify(monkeypatch, lambda logins: logins.change(users(metrics=False)))
    with pytest.raises(RightsError, match="may not read the metrics"):
        asyncio.run(outcome(logins, RIGHT))
