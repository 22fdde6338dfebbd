"""The users' file of a server: the newest users are in force, however many threads have read it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpkvs.server.access.audit import NO_AUDIT
from gpkvs.server.access.users_file import UsersFile
from gpkvs.server.exporter import Metrics
from tests.accounts import Account, Accounts


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    accounts = Accounts(tmp_path / "users.toml", alice=Account())
    accounts.save()
    return accounts


async def given_by_two_readings(accounts: Accounts, *, is_closed: bool) -> list[list[str]]:
    """Return whom a server is given by a reading of a file with a user, and one of a file without."""
    file, given = UsersFile(accounts.path, Metrics(), NO_AUDIT), list[list[str]]()
    with ThreadPoolExecutor() as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        file.begin(lambda users: given.append(list(users.by_name)))  # it reads the file once more
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
