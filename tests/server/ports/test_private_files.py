"""Who else may get at a store's files or the audit log is told at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpkvs.server.ports.private_files import warn_of_readers
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


def test_a_path_of_a_link_says_nothing(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    link = store.with_name("link")
    link.symlink_to(store)
    warn_of_readers(link)
    assert not caplog.records
    store.chmod(0o750)
    warn_of_readers(link)
    assert f"may get at {link} (its mode is 0750): chmod" in caplog.text


def test_a_file_that_goes_meanwhile(
    store: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / "gone"]))
    warn_of_readers(store)
    assert not caplog.records


def test_the_server_warns(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(0o755)
    audit_log = tmp_path / "audit.log"
    audit_log.touch(0o640)
    log = start_server("--audit-log", str(audit_log)).log.read_text()
    assert f"WARNING the group or others may get at {tmp_path / 'store'} (its mode is 0755): chmod -R" in log
    assert f"may get at {audit_log} (its mode is 0640): chmod go= {audit_log}" in log
