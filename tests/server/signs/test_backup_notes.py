"""What a server knows of the backups and archives of it: no more than clients tell, and the last of each."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.changes import Position
from gpkvs.client import Client
from gpkvs.errors import ChangesLostError
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.server.signs.backup_notes import BackupNotes
from tests.accounts import Account, Accounts
from tests.server.access.guarded import Guarded
from tests.server.wire import Refused
from tests.serving import COMMAND, Server, run_gpkvs

BEGUN, WHOLE, FAILED = admin_pb2.BACKUP_BEGUN, admin_pb2.BACKUP_WHOLE, admin_pb2.BACKUP_FAILED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
OF_BACKUP = ("gpkvs_backup_last_timestamp_seconds", "gpkvs_backup_last_seconds", "gpkvs_backup_last_bytes")
OF_ARCHIVE = "gpkvs_archive_synced_timestamp_seconds"
NOW_MS = 1_000_000_000


def whole(age_ms: int, keys: int = 1) -> admin_pb2.NoteBackupRequest:
    return admin_pb2.NoteBackupRequest(state=WHOLE, age_ms=age_ms, keys=keys, bytes=4096, seconds=2.5)


def names(server: Server) -> set[str]:
    return {sample.name for sample in server.samples()}


def info(server: Server) -> str:
    return run_gpkvs("info", "--target", server.target, env={"COLUMNS": "200"}).stdout.decode()


def top(server: Server) -> str:
    return run_gpkvs("top", "--metrics", server.metrics_address, "--interval", "0.1", "--once").stdout.decode()


def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_the_time_of_a_backup_is_by_the_clock_of_the_server() -> None:
    notes = BackupNotes(lambda: NOW_MS)
    notes.backup(whole(5000, keys=7))
    assert notes.last_backup == admin_pb2.LastBackup(time_ms=NOW_MS - 5000, keys=7, bytes=4096, seconds=2.5)
    notes.backup(whole(1 << 63))  # before 1970
    assert notes.last_backup.time_ms == NOW_MS - 5000


def test_the_last_backup_is_the_one_of_the_latest_moment() -> None:
    notes = BackupNotes(lambda: NOW_MS)
    notes.backup(whole(100, keys=1))
    notes.backup(whole(90_000, keys=2))  # it was begun before the other one, and took longer
    assert notes.last_backup
    assert notes.last_backup.keys == 1
    notes.backup(admin_pb2.NoteBackupRequest(state=FAILED, seconds=1.0))
    notes.backup(admin_pb2.NoteBackupRequest(state=BEGUN))
    assert notes.last_backup.keys == 1
    samples = {
        sample.labels["result"]: sample.value
        for family in notes.collect()
        for sample in family.samples
        if sample.name == "gpkvs_backups_total"
    }
    assert samples == {"whole": 2, "failed": 1}


@pytest.mark.parametrize(
    ("number", "time_ms", "synced_ms"),
    [
        pytest.param(17, 1000, NOW_MS, id="it has all"),
        pytest.param(16, NOW_MS - 50, NOW_MS - 50, id="it lacks something"),
        pytest.param(16, NOW_MS + 50, NOW_MS, id="the clock was set back"),
        pytest.param(16, 0, None, id="nobody knows"),
    ],
)
def test_how_far_an_archive_is(number: int, time_ms: int, synced_ms: int | None) -> None:
    notes = BackupNotes(lambda: NOW_MS)
    notes.archive(Position(1, number), time_ms, Position(1, 17))
    assert (notes.last_archive.synced_ms if notes.last_archive else None) == synced_ms


def test_an_archive_of_another_life_says_nothing() -> None:
    notes = BackupNotes(lambda: NOW_MS)
    with pytest.raises(ChangesLostError):
        notes.archive(Position(1, 17), 1, Position(2, 17))
    assert notes.last_archive is None


def test_of_two_archives_the_one_that_is_further_counts() -> None:
    notes = BackupNotes(lambda: NOW_MS)
    for time_ms in (100, 200, 150):
        notes.archive(Position(1, 1), time_ms, Position(1, 2))
    assert notes.last_archive == admin_pb2.LastArchive(synced_ms=200)


def test_what_the_commands_tell(server: Server, tmp_path: Path) -> None:
    assert not {*OF_BACKUP, OF_ARCHIVE} & names(server)
    assert server.metric("gpkvs_backups_total", result="whole") == 0
    assert len(re.findall(r"(last backup|archive) +nobody has told of one since the server started", info(server))) == 2
    described = json.loads(run_gpkvs("info", "--target", server.target, "--json").stdout)
    assert (described["last_backup"], described["last_archive"]) == (None, None)
    assert re.search(r"last backup +-", top(server))

    with Client(server.target) as client:
        client.set(b"key", b"value")
    before = time.time()
    assert run_gpkvs("backup", str(tmp_path / "backup"), "--target", server.target).returncode == 0
    assert before - 0.01 < server.metric(OF_BACKUP[0]) <= time.time()
    assert 0 < server.metric(OF_BACKUP[1]) < time.time() - before
    assert server.metric(OF_BACKUP[2]) > 1 << 20
    assert server.metric("gpkvs_backups_total", result="whole") == 1
    shown = re.search(
        r"last backup +as of 20\S+Z \(.+ ago\): 1 key, [\d.]+ MiB of disk; it took [\d.]+ s", info(server)
    )
    assert shown
    assert re.search(r"last backup +.+ s ago", top(server))
    assert OF_ARCHIVE not in names(server)


def test_what_an_archive_tells(server: Server, tmp_path: Path) -> None:
    """When there is a base, it has all up to now, also if nothing changes."""
    command = [*COMMAND, "archive", str(tmp_path / "archive"), "--target", server.target]
    with Client(server.target) as client, subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: OF_ARCHIVE in names(server))
            first = server.metric(OF_ARCHIVE)
            assert time.time() - 60 < first <= time.time()
            assert list((tmp_path / "archive").glob("*Z"))
            until(lambda: server.metric(OF_ARCHIVE) > first)  # nobody writes
            client.set(b"key", b"value")
            written = time.time()
            until(lambda: server.metric(OF_ARCHIVE) >= written)
        finally:
            process.terminate()
    assert process.returncode == 0
    assert re.search(r"archive +it has all that was executed up to 20\S+Z \(.+ ago\)", info(server))
    assert server.metric("gpkvs_backups_total", result="whole") == 1, "a base is a backup"


def test_wrong_notes(server: Server) -> None:
    for state, seconds in ((0, 1.0), (9, 1.0), (WHOLE, -1.0), (WHOLE, float("nan")), (WHOLE, float("inf"))):
        with Refused(INVALID, "state"):
            server.admin.NoteBackup(admin_pb2.NoteBackupRequest(state=state, seconds=seconds))  # type: ignore[arg-type]
    with Refused(INVALID, "position"):
        server.admin.NoteArchive(admin_pb2.NoteArchiveRequest(position="newest"))
    foreign = admin_pb2.NoteArchiveRequest(position=str(Position(1, 1)), time_ms=1)
    with Refused(grpc.StatusCode.OUT_OF_RANGE, "another opening"):
        server.admin.NoteArchive(foreign)
    assert not {*OF_BACKUP, OF_ARCHIVE} & names(server)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    accounts = Accounts(tmp_path / "users.toml", root=Account(metrics=True), keeper=Account(backup=True))
    guarded = Guarded(accounts, tmp_path, "--audit-log", str(tmp_path / "audit.log"))
    yield guarded
    guarded.close()


def test_the_audit_log_has_backups_and_archives(guarded: Guarded, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(guarded.headers["keeper"][0][1].removeprefix("Bearer "))
    done = run_gpkvs("backup", str(tmp_path / "backup"), "--target", guarded.server.target, "--token-file", str(token))
    assert done.returncode == 0, done.stderr
    admin, header = guarded.server.admin, guarded.headers["keeper"]
    admin.NoteBackup(admin_pb2.NoteBackupRequest(state=FAILED, seconds=1.5), metadata=header)
    watch = guarded.server.kv.Watch(kv_pb2.WatchRequest(all_tables=True), metadata=header)
    position = next(watch).position
    for _ in range(3):
        admin.NoteArchive(admin_pb2.NoteArchiveRequest(position=position), metadata=header)
    watch.cancel()
    log = tmp_path / "audit.log"

    def lines() -> list[dict[str, Any]]:
        found = map(json.loads, log.read_text().splitlines())
        return [line for line in found if line["event"] in ("backup", "archive")]

    until(lambda: len(lines()) == 4)
    begun, ended, failed, archived = lines()
    who = {"user": "keeper", "address": "127.0.0.1"}
    assert begun == begun | who | {"event": "backup", "state": "begun"}
    assert ended == ended | who | {"event": "backup", "state": "whole", "keys": 0}
    assert (ended["seconds"] > 0, ended["bytes"] > 1 << 20) == (True, True)
    assert failed == failed | who | {"event": "backup", "state": "failed", "seconds": 1.5}
    assert archived == archived | who | {"event": "archive", "position": position}
    assert "keys" not in failed
