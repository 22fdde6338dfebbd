"""Changes of tables whose calls end before their turn."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from gpkvs.proto.v1 import admin_pb2
from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.caller import ANYONE
from gpkvs.server.account.memory import Account
from gpkvs.server.calls.admin import AdminService
from gpkvs.server.calls.rpc import Call
from gpkvs.server.signs.backup_notes import BackupNotes
from gpkvs.server.signs.slow_log import SlowLog
from tests.server.counted import Counted


class Noted(AuditLog):
    def __init__(self) -> None:
        self.status: dict[object, object] = {}

    def note(self, event: str, **fields: object) -> None:
        self.status[fields["table"]] = fields["status"]


class SlowStore:
    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.dropped: list[str] = []

    def drop_table(self, name: str) -> None:
        self.begun.set()
        assert self.goes_on.wait(20)
        self.dropped.append(name)


async def change_and_leave(store: SlowStore, noted: Noted) -> None:
    """Drop two tables; the second call ends while the first is under way."""
    gate: Any = SimpleNamespace(serving=lambda: SimpleNamespace(store=store))
    context: Any = SimpleNamespace(peer=lambda: "ipv4:192.0.2.1:5000")
    counted = Counted()
    service = AdminService(gate, noted, SlowLog(10.0, 128), BackupNotes())
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))

    def drop(name: str) -> asyncio.Task[admin_pb2.DropTableResponse]:
        call = Call("gpkvs.v1.Admin.DropTable", context, ANYONE, Account(counted.connection()), 10)
        return asyncio.create_task(service.DropTable(admin_pb2.DropTableRequest(name=name), call))

    first, second = drop("a"), drop("b")
    assert await asyncio.to_thread(store.begun.wait, 20)
    second.cancel()
    await asyncio.wait([second])
    store.goes_on.set()
    await first
    for _ in range(1000):
        if len(noted.status) == 2:
            break
        await asyncio.sleep(0.01)
    assert not problems
    assert counted.held["requests"] == 0


def test_a_change_whose_call_ended_before_its_turn_is_not_made_and_noted() -> None:
    store, noted = SlowStore(), Noted()
    asyncio.run(asyncio.wait_for(change_and_leave(store, noted), 30))
    assert noted.status == {"a": "OK", "b": "CANCELLED"}
    assert store.dropped == ["a"]
