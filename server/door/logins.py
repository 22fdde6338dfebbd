"""Logins with the native door: Python decides who calls, and tells the door, which serves that call and the next ones.

The door asks Python who makes a call whose login it does not know, and hands it a call whose right it does not know. So
all that is refused is noted here, as without that door.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.caller import Caller
from gpkvs.server.access.login import Logins
from gpkvs.server.access.passwords import KNOWN_SECONDS
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import Rights, Users
from gpkvs.server.calls.context import Context
from gpkvs.server.signs.exporter import Metrics

MAY_READ, MAY_WRITE = 1, 2  # as in door/request/access.hpp
_NEVER_NS: Final = (1 << 64) - 1
_NANOSECONDS = 1e9
_GONE_SECONDS = 60.0


class AccessWire(Protocol):
    """What Python tells the door of callers, by ids that no other caller ever has."""

    def set_rights(self, caller: int, tables: Sequence[int], rights: bytes) -> None:
        """Say which tables, by ascending ids, a caller may read (1), write (2) or both (3)."""

    def logged_in(self, call: int, caller: int, end_ns: int, idle_ns: int) -> None:
        """Say who showed what a call shows, until a moment, and while the door sees it again within `idle_ns`."""

    def end_caller(self, caller: int) -> None:
        """Forget a caller; the calls that it makes are handed to Python."""

    def forget_certificates(self) -> None:
        """Forget who showed which certificate."""


class _Told(NamedTuple):
    """What the door was told of a caller."""

    id: int
    rights: Rights
    tables: Mapping[str, int]


class DoorLogins(Logins):
    """Logins that the native door is told of.

    Parameters
    ----------
    users, sessions, metrics, audit
        As for all logins.
    wire
        Takes what the door is told.
    """

    def __init__(
        self, users: Users | None, sessions: Sessions, metrics: Metrics, audit: AuditLog, wire: AccessWire
    ) -> None:
        super().__init__(users, sessions, metrics, audit)
        self._wire = wire
        self._tables: Mapping[str, int] = {}
        self._told: dict[Caller, _Told] = {}
        self._by_id: dict[int, Caller] = {}
        self._ids = itertools.count(1)

    def take_tables(self, tables: Mapping[str, int]) -> None:
        """Take the ids of the tables by their names: the door is told of rights to them with a caller's next call."""
        self._tables = tables

    def known(self, context: Context) -> Caller | None:
        """Return who makes a call: whom the door took it for, or as for all logins."""
        caller = self._by_id.get(context.caller)
        if caller is None:
            caller = super().known(context)
            if caller is not None:
                self._tell_login(context, caller)
        elif not caller.is_gone:
            self._tell_rights(caller)
        return caller

    def name_of(self, caller_id: int) -> str:
        """Return the name of a caller that the door was told of; empty if it is none, or was forgotten."""
        caller = self._by_id.get(caller_id)
        return caller.name if caller else ""

    async def log_in(self, context: Context) -> Caller:
        """Return who makes a call, and tell the door.

        Raises
        ------
        LoginError
            If it shows nothing that counts.
        """
        caller = await super().log_in(context)
        self._tell_login(context, caller)
        return caller

    def change(self, users: Users) -> None:
        """Let these users in from now on; the door serves nobody who is gone, and nothing that is no longer allowed."""
        super().change(users)
        for caller in self._told:
            self._tell_rights(caller)
        self._wire.forget_certificates()

    def end_gone(self) -> None:
        """Forget the callers who are gone, and end their calls and connections."""
        for caller in [caller for caller in self._told if caller.is_gone]:
            caller_id = self._told.pop(caller).id
            self._wire.end_caller(caller_id)
            # Its calls are about to come, to be refused.
            asyncio.get_running_loop().call_later(_GONE_SECONDS, self._by_id.pop, caller_id)
        super().end_gone()

    def _tell_login(self, context: Context, caller: Caller) -> None:
        if caller.is_gone:
            return
        self._tell_rights(caller)
        seconds = caller.ends - time.time()
        end_ns = _NEVER_NS if math.isinf(seconds) else time.monotonic_ns() + int(seconds * _NANOSECONDS)
        idle_ns = int(KNOWN_SECONDS * _NANOSECONDS) if caller.method == "password" else _NEVER_NS
        self._wire.logged_in(context.id, self._told[caller].id, end_ns, idle_ns)

    def _tell_rights(self, caller: Caller) -> None:
        told = self._told.get(caller)
        if told is not None and told.rights == caller.rights and told.tables is self._tables:
            return
        caller_id = next(self._ids) if told is None else told.id
        self._told[caller] = _Told(caller_id, caller.rights, self._tables)
        self._by_id[caller_id] = caller
        tables = sorted((table, name) for name, table in self._tables.items())
        allowed = [(table, _right(caller.rights, name)) for table, name in tables]
        self._wire.set_rights(caller_id, [table for table, _ in allowed], bytes(right for _, right in allowed))


def _right(rights: Rights, table: str) -> int:
    return MAY_READ * rights.may_read(table) | MAY_WRITE * rights.may_write(table)
