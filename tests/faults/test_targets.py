"""The disk on which a backup or an archive is made fails or is slow: the server and its clients do not notice."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from itertools import count
from pathlib import Path

import pytest

from gpkvs.batch import Op
from gpkvs.client import Client
from tests.backup.writers import held_by
from tests.conftest import assert_clean
from tests.serving import COMMAND, Server

KEYS = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with some keys; its own disk is right."""
    folder = tmp_path_factory.mktemp("targets")
    server = Server(folder / "store", folder)
    try:
        with Client(server.target) as client:
            client.batch([(Op.SET, b"%d" % key, b"value") for key in range(KEYS)])
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


@contextmanager
def running(shim: Path, fault: str, below: Path, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command whose calls for files below a directory fail or are slow."""
    env = {**os.environ, "LD_PRELOAD": str(shim), "GPKVS_SHIM": fault, "GPKVS_SHIM_PATH": str(below)}
    command = [*COMMAND, *map(str, words)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def back_up(server: Server, directory: Path) -> None:
    done = subprocess.run([*COMMAND, "backup", directory, "--target", server.target], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["pwrite:20", "write:1", "fallocate:1", "fdatasync:3", "fsync:4", "rename:1"])
def test_a_disk_that_fails_under_a_backup(server: Server, shim: Path, tmp_path: Path, call: str) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    ended = server.metric("gpkvs_backups_total")
    fault = f"{call}:{EIO}:forever"
    with running(shim, fault, folder, "backup", folder / "backup", "--target", server.target) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode in (1, 70), errors  # 70: it was amid a write of the new store, and says where
    assert process.returncode == 70 or "Traceback" not in errors
    assert os.strerror(EIO) in errors
    assert not (folder / "backup").exists()
    if process.returncode == 1:
        assert server.metric("gpkvs_backups_total", result="failed") > 0
        assert server.metric("gpkvs_backups_total") == ended + 1
    back_up(server, folder / "backup")
    assert [path.name for path in folder.iterdir()] == ["backup"]
    assert len(held_by(folder / "backup").tables["default"]) == KEYS


def test_a_slow_disk_under_a_backup(server: Server, shim: Path, tmp_path: Path) -> None:
    """Clients write meanwhile as ever."""
    backup, times = tmp_path / "backup", list[float]()
    with (
        Client(server.target) as client,
        running(shim, "slow:5", tmp_path, "backup", backup, "--target", server.target) as process,
    ):
        while process.poll() is None:
            client.set(b"0", b"%d" % len(times))
            times.append(time.monotonic())
    assert process.returncode == 0
    assert len(times) > 10
    found = held_by(backup).tables["default"]
    assert len(found) == KEYS
    assert found[b"0"][0] in {b"value", *(b"%d" % at for at in range(len(times)))}


def test_a_disk_that_fails_under_an_archive(server: Server, shim: Path, tmp_path: Path) -> None:
    """What it has until then can be restored, and the next archiver goes on."""
    folder = tmp_path / "archive"
    words = ("archive", folder, "--target", server.target)
    with Client(server.target) as client, running(shim, "none:0", folder, *words) as first:
        while not list(folder.glob("*Z")):
            assert first.poll() is None
            time.sleep(0.01)
        client.set(b"1", b"archived")
        first.terminate()
        assert first.wait(60) == 0
    with Client(server.target) as client, running(shim, f"fdatasync:2:{EIO}:forever", folder, *words) as second:
        while second.poll() is None:
            client.set(b"1", b"later")
            time.sleep(0.01)
        assert second.stderr
        errors = second.stderr.read()
    assert second.returncode == 1, errors
    assert os.strerror(EIO) in errors
    assert "Traceback" not in errors
    with Client(server.target) as client, running(shim, "none:0", folder, *words) as third:
        client.set(b"2", b"last")
        found = b""
        for number in count():
            new = tmp_path / f"new {number}"  # one that was restored too early stays
            done = subprocess.run([*COMMAND, "restore", folder, new], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found = held_by(new).tables["default"][b"2"][0]
            if found == b"last":
                break
            time.sleep(0.1)
        third.terminate()
        assert third.wait(60) == 0
