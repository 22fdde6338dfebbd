"""The users' file of a server: the newest users are in force, however many threads have read it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path

import pytest

from gpkvs.server import watched_files
from gpkvs.server.access.audit import NO_AUDIT
from gpkvs.server.access.users import Users
from gpkvs.server.access.users_file import UsersFile
from gpkvs.server.signs.exporter import Metrics
from tests.accounts import Account, Accounts


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    accounts = Accounts(tmp_path / "users.toml", alice=Account())
    accounts.save()
    return accounts


async def given_by_two_readings(accounts: Accounts, *, is_closed: bool) -> list[list[str]]:
    """Return whom a server is given by a reading of a file with a user, and one of a file without."""
    file, given = UsersFile(accounts.path, Metrics(), NO_AUDIT), list[list[str]]()
    file.begin(lambda users: given.append(list(users.by_name)))
    file.reload()
    accounts.users.clear()
    accounts.save()
    file.reload()
    if is_closed:
        file.close()
    await asyncio.sleep(0)
    file.close()
    return given


def test_a_reading_that_comes_late_brings_no_older_users(accounts: Accounts) -> None:
    assert asyncio.run(given_by_two_readings(accounts, is_closed=False)) == [[], []]


def test_nothing_is_given_to_a_server_that_stops(accounts: Accounts) -> None:
    assert asyncio.run(given_by_two_readings(accounts, is_closed=True)) == []


def test_users_who_vanish_are_a_warning(accounts: Accounts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpkvs.server")

    async def change() -> None:
        file = UsersFile(accounts.path, Metrics(), NO_AUDIT)
        file.begin(lambda _: None)
        accounts.users["bob"] = accounts.users["carol"] = Account()
        accounts.save()
        file.reload()
        accounts.users = {"dave": Account()}
        accounts.save()
        file.reload()
        file.close()

    asyncio.run(change())
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "users read again: 3 users"),
        ("WARNING", "users read again: 1 user, 3 users removed: their calls end"),
    ]


def test_the_metric_of_tokens_is_of_the_next_one_that_ends(accounts: Accounts) -> None:
    metrics, day = Metrics(), 86_400

    def end() -> float:
        return metrics.registry.get_sample_value("gpkvs_token_end_timestamp_seconds") or 0

    assert end() == math.inf
    began = time.time()
    for days in (20, -1, 10):
        accounts.token("alice", seconds=days * day)
    accounts.save()
    file = UsersFile(accounts.path, metrics, NO_AUDIT)
    assert 0 <= end() - began - 10 * day + 1 < 60
    file.users = Users(())  # as after a change
    assert end() == math.inf


def test_a_change_before_the_server_is_ready_counts(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "_LOOK_SECONDS", 0.005)

    async def first_given() -> Users:
        file, given = UsersFile(accounts.path, Metrics(), NO_AUDIT), asyncio.Queue[Users]()
        accounts.users.clear()
        accounts.save()
        file.begin(given.put_nowait)
        try:
            return await asyncio.wait_for(given.get(), 20)
        finally:
            file.close()

    assert not asyncio.run(first_given()).by_name


def test_a_signal_before_the_server_is_ready_is_no_failure(accounts: Accounts) -> None:
    assert UsersFile(accounts.path, Metrics(), NO_AUDIT).reload()
