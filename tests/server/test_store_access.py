"""Who else may read a store's files is told at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpkvs.server.store_access import warn_of_readers
from tests.serving import StartServer


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a directory and two files, as a store has them."""
    path = tmp_path / "store"
    path.mkdir(0o700)
    for name in ("heap", "root"):
        (path / name).touch(0o600)
    return path


def test_a_store_of_its_owner_only(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_readers(store)
    assert not caplog.records


@pytest.mark.parametrize("mode", [0o740, 0o720, 0o704, 0o702])
def test_a_directory_that_others_may_enter(store: Path, caplog: pytest.LogCaptureFixture, mode: int) -> None:
    store.chmod(mode)
    warn_of_readers(store)
    assert f"the group or others may get at {store} (its mode is {mode:04o}): chmod -R go= {store}" in caplog.text


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602])
def test_a_file_that_others_may_open(store: Path, caplog: pytest.LogCaptureFixture, mode: int) -> None:
    (store / "root").chmod(mode)
    warn_of_readers(store)
    assert f"the group or others may get at {store / 'root'} (its mode is {mode:04o}): chmod -R" in caplog.text


def test_the_server_warns(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(0o755)
    server = start_server()
    assert f"WARNING the group or others may get at {server.data} (its mode is 0755): chmod" in server.log.read_text()
