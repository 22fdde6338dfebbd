"""What a backup says of itself while it is made, and to servers that do not hear it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import gpkvs
from gpkvs.backup.copier import back_up
from gpkvs.backup.notes import BackupNote, BackupState
from gpkvs.backup.source import Source
from gpkvs.changes import Position
from gpkvs.errors import StoreError
from gpkvs.media.directory import disk_bytes
from gpkvs.store import Store
from tests.backup.steps import at_step
from tests.conftest import SMALL, assert_clean
from tests.serving import Server, run_gpkvs


class Heard:
    """Notes, as they come."""

    def __init__(self) -> None:
        self.notes: list[BackupNote] = []

    def backup(self, note: BackupNote) -> None:
        self.notes.append(note)

    def archive(self, position: Position, time_ms: int) -> None:
        raise AssertionError

    def states(self) -> list[BackupState]:
        return [note.state for note in self.notes]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[gpkvs.Store]:
    with gpkvs.open(tmp_path / "store", **SMALL) as opened:
        opened.set(b"a", b"value")
        opened.set(b"b", b"value")
        yield opened


def make(store: gpkvs.Store, backup: Path, heard: Heard, on_progress: Any = lambda _step, _share: None) -> None:
    back_up(Source("source", store, store.follow, heard), backup, Store, on_progress)


def test_a_whole_backup(store: gpkvs.Store, tmp_path: Path) -> None:
    heard, before = Heard(), time.time_ns() // 1_000_000

    def look(step: str, _share: float) -> None:
        assert heard.states() == [BackupState.BEGUN, *[BackupState.WHOLE] * (step == "backed up")]

    make(store, tmp_path / "backup", heard, look)
    _, whole = heard.notes
    assert before <= whole.time_ms <= time.time_ns() // 1_000_000
    assert whole.keys == 2
    assert whole.size == disk_bytes(tmp_path / "backup")
    assert 0 < whole.seconds < 60


@pytest.mark.parametrize("point", ["mid_backup_scan", "before_backup_check", "before_backup_rename"])
def test_a_backup_that_fails(store: gpkvs.Store, tmp_path: Path, point: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    heard = Heard()
    with pytest.raises(KeyboardInterrupt), at_step(point, interrupt):
        make(store, tmp_path / "backup", heard)
    assert heard.states() == [BackupState.BEGUN, BackupState.FAILED]
    assert 0 < heard.notes[1].seconds < 60


def test_a_backup_that_is_whole_before_it_is_interrupted(store: gpkvs.Store, tmp_path: Path) -> None:
    def interrupt(step: str, _share: float) -> None:
        if step == "backed up":
            raise KeyboardInterrupt

    heard = Heard()
    with pytest.raises(KeyboardInterrupt):
        make(store, tmp_path / "backup", heard, interrupt)
    assert heard.states() == [BackupState.BEGUN, BackupState.WHOLE]


def test_a_backup_that_never_begins_is_not_told(store: gpkvs.Store, tmp_path: Path) -> None:
    heard = Heard()
    (tmp_path / "backup").mkdir()
    with pytest.raises(StoreError, match="is there already"):
        make(store, tmp_path / "backup", heard)
    assert heard.notes == []


OLD = ("/gpkvs.v1.Admin/NoteBackup", "/gpkvs.v1.Admin/NoteArchive")


class _Older(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Hands each call on to a server, but those that an older one does not have."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.refused: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method in OLD:
            self.refused.append(details.method)
            return None
        call = self._channel.stream_stream(details.method)

        def run(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            responses = call(requests)
            context.add_callback(responses.cancel)
            return responses  # type: ignore[no-any-return]

        return grpc.stream_stream_rpc_method_handler(run)


@contextmanager
def older(server: Server) -> Iterator[tuple[str, _Older]]:
    """Return the address of a server that is older than notes are, in front of one."""
    with ThreadPoolExecutor(32) as threads, grpc.insecure_channel(server.target) as channel:
        handler = _Older(channel)
        front = grpc.server(threads, handlers=[handler])
        port = front.add_insecure_port("127.0.0.1:0")
        front.start()
        try:
            yield f"127.0.0.1:{port}", handler
        finally:
            front.stop(0).wait()


def test_a_server_that_is_older(server: Server, tmp_path: Path) -> None:
    with older(server) as (target, handler):
        done = run_gpkvs("backup", str(tmp_path / "backup"), "--target", target)
        assert (done.returncode, done.stderr) == (0, b"")
        assert handler.refused == [OLD[0], OLD[0]]
        assert_clean(tmp_path / "backup")
    assert server.metric("gpkvs_backups_total") == 0
