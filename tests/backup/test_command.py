"""`gpkvs backup`: of a real server, killed and interrupted anywhere, into one directory and into a folder of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner, Result

import gpkvs
from gpkvs.backup.place import claimed
from gpkvs.batch import Op
from gpkvs.cli.main import app
from gpkvs.client import Client
from gpkvs.errors import StoreError
from gpkvs.process import failpoint
from tests.accounts import Account, Accounts
from tests.backup.writers import held_by
from tests.conftest import assert_clean
from tests.recovery.startup.harness import kill_at
from tests.serving import COMMAND, Server

KEYS = 300
ELSEWHERE = ("mid_backup_apply", "mid_backup_removal")  # they have tests of their own


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with some keys."""
    folder = tmp_path_factory.mktemp("backup")
    server = Server(folder / "store", folder)
    try:
        with Client(server.target) as client:
            client.create_table("numbers", layout="u64", index_bytes=1 << 20)
            client.set_many([1, 2], [3, 4], table="numbers")
            client.batch([(Op.SET, b"%d" % key, b"value") for key in range(KEYS)])
            client.expire(b"7", 1000)
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


def run(server: Server, *words: str | Path) -> Result:
    return CliRunner().invoke(app, ["backup", *map(str, words), "--target", server.target])


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def assert_has_all(server: Server, backup: Path) -> None:
    """Fail unless a backup is what the server has; nobody writes."""
    found = held_by(backup)
    with Client(server.target) as client:
        for table in client.list_tables():
            rows = found.tables[table.name]
            for piece in client.scan_pieces(table=table.name):
                versions = piece.versions.tolist() or [0] * len(piece)
                columns = zip(piece.key_list(), piece.value_list(), versions, piece.expiry_list(), strict=True)
                for key, *row in columns:
                    assert rows.pop(key) == tuple(row)
            assert not rows


def test_a_server_goes_into_a_directory(server: Server, tmp_path: Path) -> None:
    done = run(server, tmp_path / "backup")
    assert done.exit_code == 0, done.output
    assert f"{KEYS + 2} keys in 2 tables of {server.target}, as of 20" in done.stdout
    assert_has_all(server, tmp_path / "backup")
    assert names(tmp_path) == ["backup"]
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700  # as the store that it came from
    described = json.loads((tmp_path / "backup" / "BACKUP.json").read_text())
    assert (described["format"], described["version"], described["keys"]) == ("gpkvs-backup", 1, KEYS + 2)
    assert len(described["tables"][1].pop("digest")) == 16
    assert described["tables"][1] == {"name": "numbers", "layout": "u64", "keys": 2}
    again = run(server, tmp_path / "backup")
    assert again.exit_code == 1
    assert "is there already" in again.stderr
    second = run(server, tmp_path / "second", "--json")
    assert {**json.loads(second.stdout), "removed": []}["directory"] == str(tmp_path / "second")


def test_a_backup_serves_and_is_copied(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path / "backup").exit_code == 0
    copied = CliRunner().invoke(app, ["copy", str(tmp_path / "backup"), str(tmp_path / "copy")])
    assert copied.exit_code == 0, copied.output
    for name in ("copy", "backup"):
        restored = Server(tmp_path / name, tmp_path)
        with Client(restored.target) as client, Client(server.target) as source:
            assert client.get_with_version(b"1") == source.get_with_version(b"1")
            assert client.set(b"new", b"value") > (1 << 40)
            assert 900 < (client.ttl(b"7") or 0) <= 1000
        restored.stop()


def test_writers_beside_it(server: Server, tmp_path: Path) -> None:
    """All that was acknowledged before the command is in the backup, in order, and no half of a transaction is."""
    with Client(server.target) as client:
        client.create_table("pairs", index_bytes=1 << 20)
        command = [*COMMAND, "backup", str(tmp_path / "backup"), "--target", server.target]
        written = 0
        with subprocess.Popen(command) as process:
            while process.poll() is None:
                written += 1
                value = b"%d" % written
                client.batch([(Op.SET, b"left", value), (Op.SET, b"right", value)], table="pairs")
        assert process.returncode == 0
    found = held_by(tmp_path / "backup").tables["pairs"]
    with Client(server.target) as client:
        client.drop_table("pairs")
    assert set(found) in (set(), {b"left", b"right"})
    if found:
        assert found[b"left"][0] == found[b"right"][0]
        assert 0 < int(found[b"left"][0]) <= written


@pytest.mark.parametrize("point", [name for name in failpoint.BACKUP if name not in ELSEWHERE])
def test_a_killed_backup(server: Server, tmp_path: Path, point: str) -> None:
    backup = tmp_path / "backup"
    command: list[str | Path] = ["-m", "gpkvs.cli", "backup", backup, "--target", server.target]
    assert kill_at(command, point)
    if point == "after_backup_rename":
        assert names(tmp_path) == ["backup", "backup.partial"]
        assert_has_all(server, backup)
        backup.rename(tmp_path / "first")
    else:
        assert names(tmp_path) == ["backup.partial"]
    left = tmp_path / "backup.partial" / "store"
    if point in ("mid_backup_scan", "before_backup_apply"):
        with pytest.raises(StoreError, match="not finished"):
            gpkvs.open(left)
    assert run(server, backup).exit_code == 0
    assert names(tmp_path) == ["backup", *["first"] * (point == "after_backup_rename")]
    assert_has_all(server, backup)


EMBEDDED = """
import sys, gpkvs
with gpkvs.open(sys.argv[1]) as store:
    store.set(b"first", b"value")
    store.backup(sys.argv[2], on_progress=lambda step, _: store.set(step.encode(), b"meanwhile"))
"""


@pytest.mark.parametrize("point", ["mid_backup_apply", "before_backup_check"])
def test_a_killed_process_whose_own_store_is_backed_up(tmp_path: Path, point: str) -> None:
    assert kill_at(["-c", EMBEDDED, tmp_path / "store", tmp_path / "backup"], point)
    assert names(tmp_path) == ["backup.partial", "store"]
    with gpkvs.open(tmp_path / "store") as store:
        assert store.get(b"first") == b"value"
        store.backup(tmp_path / "backup")
    assert names(tmp_path) == ["backup", "store"]
    assert_clean(tmp_path / "store")
    assert held_by(tmp_path / "backup").tables["default"][b"scanning table default"][0] == b"meanwhile"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal(server: Server, tmp_path: Path, number: int, status: int) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    command = [*COMMAND, "backup", str(tmp_path / "backup"), "--target", server.target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "backup.partial").exists():
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(Random(seed).random() * 0.3)
        process.send_signal(number)
        _, errors = process.communicate()
    held = "a whole backup" if (tmp_path / "backup").exists() else "no backup"
    assert names(tmp_path) == ["backup"] * (held == "a whole backup"), (process.returncode, errors)
    if process.returncode == status:
        assert f"stopped: {tmp_path / 'backup'} holds {held}" in errors
    else:  # it was done: the process ends by itself, or by the signal
        assert process.returncode in (0, -number), errors
        assert held == "a whole backup"


def test_two_commands_at_once(server: Server, tmp_path: Path) -> None:
    with claimed(tmp_path / "backup"):
        refused = run(server, tmp_path / "backup")
        assert refused.exit_code == 3
        assert "backup.partial is in use by another process" in refused.stderr
        assert run(server, tmp_path / "other").exit_code == 0
    assert names(tmp_path) == ["other"]


def test_no_server(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "backup"), "--target", "127.0.0.1:1", "--timeout", "0.2"])
    assert done.exit_code == 1
    # On a busy machine the time is over before the system has refused the connection.
    assert "is the server running there?" in done.stderr or "deadline of the call has passed" in done.stderr
    assert names(tmp_path) == []


def test_a_server_that_is_started_again(tmp_path: Path) -> None:
    """Its changes are told of one life: the backup of two would lack what came between."""
    first = Server(tmp_path / "store", tmp_path)
    options = ["--listen", first.target]
    with Client(first.target) as client:
        client.batch([(Op.SET, b"%d" % key, bytes(5000)) for key in range(2000)])
    command = [*COMMAND, "backup", str(tmp_path / "backup"), "--target", first.target]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "backup.partial" / "changes").exists():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        first.kill()
        second = Server(tmp_path / "store", tmp_path, *options)
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=120)
    second.stop()
    if process.returncode == 0:  # it had all before the stop
        assert_clean(tmp_path / "backup")
        return
    assert process.returncode == 1, errors
    assert "gpkvs: " in errors
    assert not (tmp_path / "backup").exists()
    assert not (tmp_path / "backup.partial").exists()


def test_the_right_to_make_backups(tmp_path: Path) -> None:
    accounts = Accounts(
        tmp_path / "users.toml",
        keeper=Account("keeper's password", backup=True),
        reader=Account("reader's password", read=("*",)),
    )
    accounts.save()
    server = Server(tmp_path / "store", tmp_path, "--users", str(accounts.path))
    try:
        for name, status in (("reader", 1), ("keeper", 0)):
            password = tmp_path / name
            password.touch(0o600)
            password.write_text(f"{name}'s password")
            done = run(server, tmp_path / "backup", "--user", name, "--password-file", password)
            assert done.exit_code == status, done.output
            assert name == "keeper" or "user reader may not back up the server" in done.stderr
        server.stop()
    finally:
        server.kill()
    assert_clean(tmp_path / "backup")


def test_the_last_ones_are_kept(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "backups"
    named = [f"2026-11-{day}T00-00-00Z" for day in range(10, 16)]
    new_names = iter(named[1:])
    monkeypatch.setattr("gpkvs.backup.kept.new_name", lambda: next(new_names))
    (folder / named[0]).mkdir(parents=True)  # no backup: it stays
    (folder / "mine").mkdir()
    for at in range(1, 5):
        done = run(server, folder, "--keep", "2", "--json")
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert report["directory"] == str(folder / named[at])
        assert report["removed"] == [str(folder / named[at - 2])] * (at > 2)
        assert names(folder) == [named[0], *named[max(at - 1, 1) : at + 1], "mine"]
    assert_has_all(server, folder / named[3])
    assert_has_all(server, folder / named[4])
    with gpkvs.open(folder / named[3]):  # somebody uses it
        assert run(server, folder, "--keep", "1").exit_code == 0
    assert names(folder) == [named[0], named[3], named[5], "mine"]


def test_an_old_one_that_cannot_be_removed_stays(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one is whole, so the command has done what it was asked for."""
    new_names = iter([f"2026-11-{day}T00-00-00Z" for day in (27, 28, 29)])
    monkeypatch.setattr("gpkvs.backup.kept.new_name", lambda: next(new_names))
    assert run(server, tmp_path, "--keep", "2").exit_code == 0
    os.link(tmp_path / "2026-11-27T00-00-00Z" / "root", tmp_path / "another name of its root")
    for removed in (0, 1):
        done = run(server, tmp_path, "--keep", "1")
        assert done.exit_code == 0
        assert "an old backup could not be removed" in done.stderr
        assert done.stdout.count("removed ") == removed
    assert names(tmp_path) == ["2026-11-27T00-00-00Z", "2026-11-29T00-00-00Z", "another name of its root"]


def test_the_new_one_is_kept_if_the_clock_was_set_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_names = iter(("2026-11-29T00-00-00Z", "2026-11-28T00-00-00Z"))
    monkeypatch.setattr("gpkvs.backup.kept.new_name", lambda: next(new_names))
    for _ in range(2):
        assert run(server, tmp_path, "--keep", "1").exit_code == 0
    assert names(tmp_path) == ["2026-11-28T00-00-00Z"]


def test_old_backups_stay_until_the_new_one_is_whole(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path, "--keep", "1").exit_code == 0
    [old] = names(tmp_path)
    time.sleep(1.1)
    command: list[str | Path] = ["-m", "gpkvs.cli", "backup", tmp_path, "--keep", "1", "--target", server.target]
    assert kill_at(command, "before_backup_rename")
    assert old in names(tmp_path)
    assert_has_all(server, tmp_path / old)
    time.sleep(1.1)
    assert kill_at(command, "mid_backup_removal")
    [new] = [name for name in names(tmp_path) if not name.endswith(".partial")]
    assert new > old  # the half of the old one has another name
    assert_has_all(server, tmp_path / new)
    time.sleep(1.1)
    assert run(server, tmp_path, "--keep", "1").exit_code == 0
    [last] = names(tmp_path)
    assert last > new


def test_a_backup_that_fails_removes_no_other(server: Server, tmp_path: Path) -> None:
    assert run(server, tmp_path, "--keep", "1").exit_code == 0
    before = names(tmp_path)
    done = CliRunner().invoke(
        app, ["backup", str(tmp_path), "--keep", "1", "--target", "127.0.0.1:1", "--timeout", "0.2"]
    )
    assert done.exit_code == 1
    assert names(tmp_path) == before
