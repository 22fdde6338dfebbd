"""What the native door is told of callers: who showed what, what they may do, and who is gone."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpkvs.server.access.audit import NO_AUDIT
from gpkvs.server.access.caller import LoginError
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import load_users
from gpkvs.server.door.context import Context, Opened
from gpkvs.server.door.logins import DoorLogins
from gpkvs.server.exporter import Metrics
from tests.accounts import Account, Accounts, Header

NEVER_NS = (1 << 64) - 1
PASSWORD = "correct horse"
CERTIFICATE = ("DNS:unknown.example", "URI:spiffe://example/billing")


class Wire:
    """Keeps what the door is told."""

    def __init__(self) -> None:
        self.rights: dict[int, dict[int, int]] = {}
        self.logins: dict[int, tuple[int, int, int]] = {}
        self.ended: list[int] = []
        self.has_ended = asyncio.Event()
        self.forgotten = 0

    def set_rights(self, caller: int, tables: Sequence[int], rights: bytes) -> None:
        assert list(tables) == sorted(tables)
        self.rights[caller] = dict(zip(tables, rights, strict=True))

    def logged_in(self, call: int, caller: int, end_ns: int, idle_ns: int) -> None:
        assert caller in self.rights, "the door does not know it yet"
        self.logins[call] = caller, end_ns, idle_ns

    def end_caller(self, caller: int) -> None:
        self.ended.append(caller)
        self.has_ended.set()

    def forget_certificates(self) -> None:
        self.forgotten += 1


class Place:
    """Logins of a users' file, and the calls that the door hands to Python."""

    def __init__(self, folder: Path) -> None:
        self.accounts = Accounts(
            folder / "users.toml",
            reads=Account(read=("*",), write=("b",)),
            named=Account(password=PASSWORD, certificates=(CERTIFICATE[1],)),
        )
        self.header = self.accounts.token("reads")
        self.accounts.save()
        self.wire = Wire()
        users = load_users(self.accounts.path)
        self.logins = DoorLogins(users, Sessions(lambda _: False, lambda _: None), Metrics(), NO_AUDIT, self.wire)
        self.logins.take_tables({"b": 7, "a": 3})
        self._calls = 0

    def change(self) -> None:
        self.accounts.save()
        self.logins.change(load_users(self.accounts.path))

    def call(self, header: Header = (), certificate: tuple[str, ...] = (), caller: int = 0) -> Context:
        self._calls += 1
        opened = Opened(self._calls, "/a/b", 1, "ipv4:127.0.0.1:5000", header, None, certificate, caller)
        wire: Any = None
        return Context(wire, opened)

    async def log_in(self, *shown: Any) -> tuple[int, int, int]:
        """Make a call; return what the door was told of it."""
        call = self.call(*shown)
        await self.logins.caller(call)
        return self.wire.logins[call.id]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_door_is_told_who_calls_and_what_the_caller_may_do(place: Place) -> None:
    async def run() -> None:
        caller, end_ns, idle_ns = await place.log_in(place.header)
        assert place.wire.rights == {caller: {3: 1, 7: 3}}
        assert end_ns == pytest.approx(time.monotonic_ns() + 3600e9, abs=60e9)
        assert idle_ns == NEVER_NS
        assert (await place.log_in(place.header))[0] == caller
        basic = (("authorization", f"Basic {base64.b64encode(f'named:{PASSWORD}'.encode()).decode()}"),)
        assert await place.log_in(basic) == (caller + 1, NEVER_NS, 300 * 10**9)
        assert await place.log_in((), CERTIFICATE) == (caller + 2, NEVER_NS, NEVER_NS)

    asyncio.run(run())


def test_whoever_is_refused_stays_unknown(place: Place) -> None:
    async def run() -> None:
        for shown in [((("authorization", "Bearer wrong"),),), ((), CERTIFICATE[:1]), (place.header * 2,), ()]:
            with pytest.raises(LoginError):
                await place.log_in(*shown)
        assert not place.wire.logins
        assert not place.wire.rights

    asyncio.run(run())


def test_a_new_table_counts_with_the_next_call(place: Place) -> None:
    async def run() -> None:
        caller, *_ = await place.log_in(place.header)
        place.logins.take_tables({"b": 9})
        assert place.wire.rights == {caller: {3: 1, 7: 3}}
        known = place.logins.known(place.call(place.header, (), caller))
        assert known
        assert known.name == "reads"
        assert place.wire.rights == {caller: {9: 3}}
        assert len(place.wire.logins) == 1, "the door knows who showed it"

    asyncio.run(run())


def test_a_change_of_the_file_counts_at_once(place: Place) -> None:
    async def run() -> None:
        caller, *_ = await place.log_in(place.header)
        place.accounts.users["reads"].write = ()
        place.change()
        assert place.wire.rights == {caller: {3: 1, 7: 1}}
        assert place.wire.forgotten == 1
        assert not place.wire.ended
        del place.accounts.users["reads"]
        place.change()
        assert place.wire.ended == [caller]
        gone = await place.logins.caller(place.call(place.header, (), caller))
        with pytest.raises(LoginError, match="this token of user reads no longer counts: log in again"):
            gone.require()
        with pytest.raises(LoginError, match="wrong user, password or token"):
            await place.log_in(place.header)

    asyncio.run(run())


def test_a_token_that_ends_is_known_no_longer(place: Place) -> None:
    async def run() -> None:
        header = place.accounts.token("reads", seconds=0.2)
        place.change()
        place.logins.begin((), lambda: None)
        caller, end_ns, _ = await place.log_in(header)
        assert end_ns <= time.monotonic_ns() + 0.2e9
        await asyncio.wait_for(place.wire.has_ended.wait(), 10)
        assert place.wire.ended == [caller]
        await place.logins.stop()

    asyncio.run(run())
