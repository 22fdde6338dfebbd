"""Clients that come back while the server recovers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from gpkvs.config import Limits
from gpkvs.errors import UnknownTableError
from gpkvs.server.access.caller import ANYONE, Caller
from gpkvs.server.account.memory import Account
from gpkvs.server.gate import Gate, Serving
from gpkvs.server.redis.execution.executor import Executor
from gpkvs.server.redis.protocol.reply import OK, Error
from gpkvs.server.redis.service import Service
from gpkvs.server.redis.sessions.session import Session
from gpkvs.store import OpenTable
from tests.server.counted import Counted


def session_of(gate: Gate) -> Session:
    service = cast(Service, SimpleNamespace(asks_for_logins=False, executor=Executor(gate), gate=gate))
    account = Account(Counted().connection())

    async def log_in(_user: bytes | None, _password: bytes) -> Caller:
        return ANYONE

    return Session(service, "peer", account, log_in, lambda: None)


def test_a_database_is_selected_before_the_store_is_open() -> None:
    """ioredis selects at once, ignores a refusal, and sends its commands when INFO is answered."""

    async def within() -> None:
        gate = Gate()
        session = session_of(gate)
        assert await session.execute([b"SELECT", b"9"]) == OK
        assert isinstance(await session.execute([b"SELECT", b"-1"]), Error)
        assert session.number == 9
        assert session.state()[0] is None, "the door would answer from the table of database 0"
        for words in ([b"GET", b"k"], [b"PING"]):
            refused = await session.execute(words)
            assert isinstance(refused, Error)
            assert str(refused).startswith("LOADING ")
        tables = {"default": 0, "9": 7}

        def open_table(name: str) -> OpenTable:
            if name not in tables:
                raise UnknownTableError(name)
            return OpenTable(id=tables[name], name=name, layout="bytes", limits=Limits())

        gate.open(cast(Serving, SimpleNamespace(store=SimpleNamespace(open_table=open_table))))
        assert session.state()[0] == 7
        assert await session.execute([b"PING", b"hello"]) == b"hello"
        assert isinstance(await session.execute([b"SELECT", b"8"]), Error)
        assert session.number == 9
        del tables["9"]
        assert session.state()[0] is None
        gone = await session.execute([b"GET", b"k"])
        assert str(gone) == "ERR DB index is out of range"

    asyncio.run(within())
