"""What a server notes in its audit log, and what it refuses when it cannot."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.accounts import Account, Accounts, basic
from tests.server.access.guarded import Guarded
from tests.server.wire import Refused
from tests.serving import error_line, run_gpkvs

OLD = b'{"event": "of an earlier life"}\n' * 2000  # larger than the server's log: see `full_disk`


class Audited(Guarded):
    """A server with an audit log."""

    def __init__(self, accounts: Accounts, folder: Path) -> None:
        self.log = folder / "audit.log"
        self.log.write_bytes(OLD)
        super().__init__(accounts, folder, "--audit-log", str(self.log), "--commit", "undo")

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """Return what was noted by this server of some kinds of events, or of all."""
        noted = map(json.loads, self.log.read_bytes()[len(OLD) :].splitlines())
        return [line for line in noted if not events or line["event"] in events]

    def wait_for(self, count: int, *events: str) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.lines(*events)) >= count)
        return self.lines(*events)

    def create(self, table: str, user: str = "root") -> None:
        request = admin_pb2.CreateTableRequest(name=table, index_bytes=64 << 10)
        self.server.admin.CreateTable(request, metadata=self.headers[user])

    def drop(self, table: str) -> None:
        self.server.admin.DropTable(admin_pb2.DropTableRequest(name=table), metadata=self.headers["root"])

    def fill_disk(self) -> None:
        """Let the audit log take not one byte more; all other files that the server appends to are smaller."""
        size = self.log.stat().st_size
        resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
        resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, unlimited)


def wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audit")
    users = {"root": Account(admin=("*",), write=("*",)), "alice": Account(read=("*",))}
    accounts = Accounts(folder / "users.toml", **users)
    audited = Audited(accounts, folder)
    yield audited
    audited.close()
    noted = audited.log.read_text()
    assert not [secret for secret in audited.secrets if secret in noted]
    events = [line["event"] for line in audited.lines()]
    assert (events[0], events[-1]) == ("start", "stop")


def test_a_change_of_tables_is_noted_before_and_after(audited: Audited) -> None:
    audited.create("a")
    with Refused(grpc.StatusCode.ALREADY_EXISTS, "a"):
        audited.create("a")
    audited.drop("a")
    before = audited.wait_for(3, "admin")
    assert [(line["user"], line["address"], line["rpc"], line["table"]) for line in before] == [
        ("root", "127.0.0.1", "gpkvs.v1.Admin.CreateTable", "a"),
        ("root", "127.0.0.1", "gpkvs.v1.Admin.CreateTable", "a"),
        ("root", "127.0.0.1", "gpkvs.v1.Admin.DropTable", "a"),
    ]
    assert before[0]["arguments"] == {"layout": "bytes", "index_bytes": 64 << 10, "index_bytes_max": 0}
    after = audited.wait_for(3, "admin_done")
    assert [line["status"] for line in after] == ["OK", "ALREADY_EXISTS", "OK"]
    assert [line["event"] for line in audited.lines("admin", "admin_done")] == ["admin", "admin_done"] * 3


def test_logins_and_refusals_are_noted_once(audited: Audited) -> None:
    began = time.monotonic()
    for _ in range(3):
        audited.get(*audited.headers["alice"])
        with Refused(grpc.StatusCode.PERMISSION_DENIED, "alice"):
            audited.create("b", "alice")
        with Refused(grpc.StatusCode.UNAUTHENTICATED):
            audited.get(*basic("m\nallory", "guess"))
    logins = [line for line in audited.wait_for(1, "login") if line["user"] == "alice"]
    assert [(line["method"], line["address"]) for line in logins] == [("token", "127.0.0.1")]
    refused = [line for line in audited.wait_for(2, "refused") if "count" not in line]
    found = [(line["user"], line["reason"], line["method"], line["rpc"], line["table"]) for line in refused]
    if time.monotonic() - began > 1:  # they are folded for a second: on a busy machine some come later
        found = list(dict.fromkeys(found))
    assert found == [
        ("alice", "may not administer", "token", "gpkvs.v1.Admin.CreateTable", "b"),
        ("m\nallory", "wrong", "password", "gpkvs.v1.KV.Get", None),
    ]


def test_the_name_of_nobody_is_cut(audited: Audited) -> None:
    """Somebody may have given a token, nearly right, or a password as the user."""
    before = len(audited.lines("refused"))
    with Refused(grpc.StatusCode.UNAUTHENTICATED):
        audited.get(*basic("gpjvs_3f9a0c12_a0peDBy7zQ", ""))
    assert audited.wait_for(before + 1, "refused")[before]["user"] == "gpjvs_3f9a0c12..."


def test_descriptions_are_noted_once(audited: Audited) -> None:
    admin, header = audited.server.admin, audited.headers["root"]
    for _ in range(3):
        admin.Info(admin_pb2.InfoRequest(), metadata=header)
        admin.ListTables(admin_pb2.ListTablesRequest(), metadata=header)
    audited.create("noted")  # after the others
    rpcs = [line["rpc"] for line in audited.lines("admin")]
    assert [rpcs.count(f"gpkvs.v1.Admin.{name}") for name in ("Info", "ListTables")] == [1, 1]


def test_a_change_of_users_is_noted(audited: Audited) -> None:
    audited.accounts.users["bob"] = Account(write=("*",))
    audited.accounts.save()
    (line,) = audited.wait_for(1, "users_changed")
    assert (line["added"], line["removed"], line["changed"]) == (["bob"], [], {})


def test_a_full_disk_stops_changes_of_tables_and_no_data(audited: Audited) -> None:
    server = audited.server
    audited.create("c")
    audited.wait_for(1, "admin_done")
    audited.fill_disk()
    try:
        refusal = f"the audit log {audited.log} cannot be written (File too large)"
        for _ in range(2):
            with Refused(grpc.StatusCode.UNAVAILABLE, refusal):
                audited.drop("c")
        audited.get(*audited.headers["alice"])
        server.kv.Set(kv_pb2.SetRequest(table="c", key=b"k", value=b"v"), metadata=audited.headers["root"])
        assert server.metric("gpkvs_audit_log_good") == 0
        lost = int(server.metric("gpkvs_audit_lost_total"))
        assert lost >= 2
    finally:
        audited.free_disk()
    audited.wait_for(1, "lost")
    wait_until(lambda: server.metric("gpkvs_audit_log_good") == 1)
    assert sum(line["count"] for line in audited.lines("lost")) >= lost  # those of the last call come a moment later
    assert sum(line["count"] for line in audited.lines("lost")) == server.metric("gpkvs_audit_lost_total")
    audited.drop("c")
    log = server.log.read_text()
    assert (log.count("cannot write the audit log"), log.count("audit log is written again")) == (1, 1)


def test_a_log_that_was_renamed_is_made_anew(audited: Audited) -> None:
    old = audited.log.with_name("renamed")
    audited.log.rename(old)
    audited.server.process.send_signal(signal.SIGHUP)

    def is_made_anew() -> bool:
        audited.create("d")
        audited.drop("d")
        return audited.log.exists()

    wait_until(is_made_anew)
    # What was folded before may come first, and "d" may have been noted in the old one.
    rpcs = {json.loads(line).get("rpc") for line in audited.log.read_text().splitlines()}
    assert rpcs & {"gpkvs.v1.Admin.CreateTable", "gpkvs.v1.Admin.DropTable"}
    # For the tests and the end of this module, the log is one again.
    audited.log.rename(audited.log.with_name("new"))
    old.write_bytes(old.read_bytes() + audited.log.with_name("new").read_bytes())
    old.rename(audited.log)
    audited.server.process.send_signal(signal.SIGHUP)


def test_a_log_that_cannot_be_written_is_no_start(tmp_path: Path) -> None:
    path = tmp_path / "none" / "audit.log"
    result = run_gpkvs("serve", "--data", str(tmp_path / "store"), "--audit-log", str(path))
    assert f"audit_log: cannot write {path}: No such file or directory" in error_line(result, 2)


def test_a_log_of_tiny_files_is_no_start(tmp_path: Path) -> None:
    result = run_gpkvs("serve", "--data", str(tmp_path / "store"), "--audit-bytes-max", "65535")
    refusal = "audit_bytes_max: 65,535 bytes, at least 65,536 are needed"
    assert refusal in error_line(result, 2)


def test_a_start_that_fails_half_way_is_noted_with_its_end(tmp_path: Path) -> None:
    path, data = tmp_path / "audit.log", tmp_path / "store"
    data.write_text("no store")
    options = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--audit-log", str(path))
    error_line(run_gpkvs("serve", "--data", str(data), *options), 1)
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["start", "stop"]
