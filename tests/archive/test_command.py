"""`gpkvs archive` and `gpkvs restore`: real processes, killed anywhere, beside a server that is killed, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner, Result

from gpkvs.archive.contents import read_contents
from gpkvs.archive.moment import format_time
from gpkvs.batch import Op
from gpkvs.cli.main import app
from gpkvs.client import Client
from gpkvs.client.errors import ClientError
from gpkvs.process import failpoint
from tests.accounts import Account, Accounts
from tests.archive.told import Remote, Told, archiving, assert_holds, bases, restored, segments
from tests.backup.writers import Model, held_by
from tests.conftest import assert_clean
from tests.recovery.startup.harness import kill_at
from tests.serving import COMMAND, Server


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "store", tmp_path)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(tmp_path / "store")


@contextmanager
def archiver(folder: Path, target: str, *options: str, point: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run `gpkvs archive` meanwhile; stop it in order if it still runs."""
    command = [*COMMAND, "archive", str(folder), "--target", target, "--timeout", "1", *options]
    env = {**os.environ, failpoint.VARIABLE: point}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        except BaseException:
            process.kill()
            raise


def wait_until(process: subprocess.Popen[str], folder: Path, *, has_bases: int = 1) -> None:
    """Wait until an archive has so many bases."""
    give_up = time.monotonic() + 60
    while len(bases(folder)) < has_bases:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < give_up
        time.sleep(0.01)


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def listed(folder: Path) -> list[dict[str, object]]:
    """Return the runs that `gpkvs restore --list` names."""
    done = run("restore", folder, "--list", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["damaged"] == []
    runs: list[dict[str, object]] = found["runs"]
    return runs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_from_a_server_to_a_moment(server: Server, tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "archive"
    with Client(server.target) as client, archiver(folder, server.target) as process:
        wait_until(process, folder)
        for value in (b"early", b"late"):
            client.set(b"key", value)
            time.sleep(0.05)
        again = run("archive", folder, "--target", server.target)
        assert again.exit_code == 3
        assert "in use by another process" in again.stderr
        assert process.stderr
        deadline = time.monotonic() + 60
        while read_contents(folder).runs[0].end.number - read_contents(folder).runs[0].first.number < 2:
            assert time.monotonic() < deadline
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"stopped: {folder} holds what was told" in errors
    [found] = listed(folder)
    assert found["not_sealed"] is None
    first_ms = found["first_time_ms"]
    assert isinstance(first_ms, int)
    done = run("restore", folder, tmp_path / "early", "--until", format_time(first_ms))
    assert done.exit_code == 0, done.output
    assert f"1 key, position {read_contents(folder).runs[0].first.timeline:016x}-" in done.stdout
    assert held_by(tmp_path / "early").tables["default"][b"key"][0] == b"early"
    done = run("restore", folder, tmp_path / "late", "--json")
    assert json.loads(done.stdout)["position"] == found["last_position"]
    assert held_by(tmp_path / "late").tables["default"][b"key"][0] == b"late"
    assert format_time(first_ms) in run("restore", folder, "--list").stdout
    refused = run("restore", folder, tmp_path / "new", "--until", "2000-01-01T00:00:00Z")
    assert refused.exit_code == 1
    assert f"the nearest after it is {format_time(first_ms)}" in refused.stderr
    restarted = Server(tmp_path / "late", tmp_path)
    with Client(restarted.target) as client:
        assert client.set(b"key", b"new") > 1 << 40
    restarted.stop()


def write_pairs(target: str, is_over: threading.Event, written: list[int]) -> None:
    """Write one pair after the other, as long as the server is there."""
    with Client(target, timeout=1) as client:
        while not is_over.is_set():
            value = b"%d" % (len(written) + 1)
            with suppress(ClientError):
                client.batch([(Op.SET, b"left " + value, value), (Op.SET, b"right", value)])
                written.append(int(value))
            time.sleep(0.002)  # pairs of one millisecond may be told together, and then nobody knows what lies between


def assert_whole(new: Path, wanted_at_least: int = 0) -> int:
    """Fail unless a store has the first pairs, and no half of one; return how many."""
    rows = held_by(new).tables["default"]
    count = int(rows.pop(b"right", (b"0", 0, 0))[0])
    assert {int(row[0]) for row in rows.values()} == set(range(1, count + 1))
    assert count >= wanted_at_least
    return count


POINTS = ["mid_archive", "mid_archive:9", "mid_backup_scan", "after_backup_rename", ""]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_archiver(server: Server, tmp_path: Path, pick: Random, point: str) -> None:
    """What the list names is what was; started again, it goes on, and nothing is missing in between."""
    folder = tmp_path / "archive"
    with Remote(server.target) as client:
        told, is_over = Told(client), threading.Event()
        written: list[int] = []
        writer = threading.Thread(target=write_pairs, args=(server.target, is_over, written))
        writer.start()
        try:
            options = ("--base-every", "1s")
            with archiver(folder, server.target, *options, point=point) as process:
                if point:
                    process.wait(60)
                    assert process.returncode == -signal.SIGKILL
                else:
                    wait_until(process, folder)
                    time.sleep(pick.random())
                process.kill()
            runs = listed(folder) if segments(folder) else []
            if runs and runs[-1]["bases"]:
                report = restored(folder, tmp_path / "killed")
                assert str(report.position) == runs[-1]["last_position"] or not report.entries
                assert_whole(tmp_path / "killed")
            with archiver(folder, server.target, *options) as process:
                wait_until(process, folder, has_bases=1 + len(bases(folder)))
        finally:
            is_over.set()
            writer.join()
        told.finish()
    [found] = read_contents(folder).runs
    report = restored(folder, tmp_path / "new")
    assert report.position == found.end
    assert_holds(tmp_path / "new", report, told.at(found.end))


OF_SMALL_SEGMENTS = """
import sys
from pathlib import Path
from tests.archive.test_refusals import OF_FEW
from tests.archive.told import Remote, archiving, wait_for

with Remote(sys.argv[1]) as client, archiving(client, Path(sys.argv[2]), OF_FEW) as archiver:
    for at in range(20):
        client.set(b"%d" % at, b"value")
        wait_for(archiver, client)
"""


def test_a_kill_between_two_segments(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    assert kill_at(["-c", OF_SMALL_SEGMENTS, server.target, folder], "between_segments:2")
    killed = restored(folder, tmp_path / "killed")
    with Remote(server.target) as client:
        client.set(b"meanwhile", b"value")
        with archiving(client, folder, has_base=True):
            pass
        wanted = Model.of(client)
    [run_] = read_contents(folder).runs
    assert len(run_.segments) == 3
    assert 0 < killed.keys < len(wanted.tables["default"])
    restored(folder, tmp_path / "new")
    assert held_by(tmp_path / "new").tables == wanted.tables


def wait_until_archived(process: subprocess.Popen[str], folder: Path, target: str) -> None:
    """Wait until what a server tells is archived, in a run that has a base."""
    with Remote(target) as client, client.follow() as following:
        timeline = following.position.timeline
    give_up = time.monotonic() + 120
    while True:
        runs = read_contents(folder).runs if segments(folder) else []
        if runs and runs[-1].bases and runs[-1].end.timeline == timeline:
            return
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_server_that_is_killed(tmp_path: Path, pick: Random) -> None:
    """The archive begins anew, unless it was told everything; each run ends in a state that the server had, whole."""
    server = Server(tmp_path / "store", tmp_path)
    target, folder, is_over = server.target, tmp_path / "archive", threading.Event()
    written: list[int] = []
    writer = threading.Thread(target=write_pairs, args=(target, is_over, written))
    try:
        writer.start()
        with archiver(folder, target) as process:
            for _ in range(3):
                wait_until_archived(process, folder, target)
                time.sleep(pick.random())
                server.kill()
                server = Server(tmp_path / "store", tmp_path, "--listen", target)
            wait_until_archived(process, folder, target)
            is_over.set()
            writer.join()
            with Remote(target) as client:
                client.set(b"last", b"0")
                newest = Model.of(client)
                with client.follow() as following:
                    position = following.position
            while read_contents(folder).runs[-1].end != position:
                time.sleep(0.01)
        server.stop()
    finally:
        is_over.set()
        writer.join()
        server.kill()
    runs = read_contents(folder).runs
    assert 1 <= len(runs) <= 4
    assert all(not run.loss for run in runs)
    counts = []
    for at, run_ in enumerate(runs[:-1]):
        restored(folder, tmp_path / f"{at}", run_.end)
        counts.append(assert_whole(tmp_path / f"{at}"))
        refused = run("restore", folder, tmp_path / "no", "--until", str(run_.last_ms + 1))
        assert refused.exit_code == 1
        assert "and the nearest after it is" in refused.stderr
    assert counts == sorted(counts)
    restored(folder, tmp_path / "new")
    assert held_by(tmp_path / "new").tables == newest.tables


@pytest.mark.parametrize("point", [*failpoint.RESTORE, "before_copy_publish", "before_backup_rename"])
def test_a_killed_restore(server: Server, tmp_path: Path, point: str) -> None:
    folder = tmp_path / "archive"
    with archiver(folder, server.target) as process, Client(server.target) as client:
        wait_until(process, folder)
        client.set(b"key", b"value")
        first = read_contents(folder).runs[0].first.number
        while read_contents(folder).runs[0].end.number == first:
            time.sleep(0.01)
    command: list[str | Path] = ["-m", "gpkvs.cli", "restore", folder, tmp_path / "new"]
    assert kill_at(command, point)
    assert not (tmp_path / "new").exists()
    assert run("restore", folder, tmp_path / "new").exit_code == 0
    assert held_by(tmp_path / "new").tables["default"][b"key"][0] == b"value"
    assert not (tmp_path / "new.partial").exists()


def test_a_removal_that_is_killed(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    with Client(server.target) as client:
        client.set(b"key", b"value")
    options = ("--base-every", "1s", "--keep", "0.000001")
    with archiver(folder, server.target, *options, point="mid_archive_removal") as process:
        process.wait(60)
    assert process.returncode == -signal.SIGKILL
    assert restored(folder, tmp_path / "killed").keys == 1
    with archiver(folder, server.target, *options) as process:
        made = {*bases(folder)}
        while len({*bases(folder)} - made) < 2:
            assert process.poll() is None
            made |= {*bases(folder)} & made
            time.sleep(0.01)
    assert len(bases(folder)) <= 3
    assert restored(folder, tmp_path / "new").keys == 1


def test_a_server_that_comes_later(tmp_path: Path) -> None:
    first = Server(tmp_path / "store", tmp_path)
    first.stop()
    with archiver(tmp_path / "archive", first.target) as process:
        assert process.stderr
        assert "nothing is archived until the server is there" in process.stderr.readline()
        server = Server(tmp_path / "store", tmp_path, "--listen", first.target)
        try:
            wait_until(process, tmp_path / "archive")
            server.stop()
        finally:
            server.kill()
    assert process.returncode == 0


def test_the_right_to_archive(tmp_path: Path) -> None:
    accounts = Accounts(
        tmp_path / "users.toml",
        keeper=Account("keeper's password", backup=True),
        reader=Account("reader's password", read=("*",)),
    )
    accounts.save()
    server = Server(tmp_path / "store", tmp_path, "--users", str(accounts.path))
    try:
        for name in ("reader", "keeper"):
            password = tmp_path / name
            password.touch(0o600)
            password.write_text(f"{name}'s password")
            options = ("--user", name, "--password-file", str(password))
            with archiver(tmp_path / "archive", server.target, *options) as process:
                if name == "keeper":
                    wait_until(process, tmp_path / "archive")
                    process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=60)
            assert process.returncode == (name == "reader"), errors
            assert name == "keeper" or "reader may not back up" in errors
        server.stop()
    finally:
        server.kill()


def test_wrong_options(tmp_path: Path) -> None:
    for words in (
        ("restore", tmp_path),
        ("restore", tmp_path, tmp_path / "new", "--list"),
        ("restore", tmp_path, "--list", "--until", "1"),
        ("archive", tmp_path, "--base-every", "soon"),
        ("archive", tmp_path, "--base-every", "0s"),
    ):
        assert run(*words).exit_code == 2, words
