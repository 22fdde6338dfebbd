"""Tells a server of the backups and archives that a command makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from gpkvs.backup.notes import BackupNote, BackupState
from gpkvs.changes import Position
from gpkvs.cli.options.channel import open_channel
from gpkvs.credentials import Access
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc

_SECONDS_MAX = 2.0  # of a call
# An alert asks for backups that nobody told of: so the server is told again, such as one that starts just now.
_AGAIN_MAX, _AGAIN_SECONDS = 4, 1.0
_FOR_GOOD = (
    grpc.StatusCode.UNIMPLEMENTED,  # an older server
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)


@contextmanager
def server_notes(target: str, access: Access, say: Callable[[str], None]) -> Iterator[ServerNotes]:
    """Have notes of a server, as long as this lasts.

    Parameters
    ----------
    target, access
        Of the server.
    say
        Tells people one line.
    """
    with open_channel(target, access) as channel:
        yield ServerNotes(admin_pb2_grpc.AdminStub(channel), say)


class ServerNotes:
    """Notes that a server takes (`gpkvs.backup.notes.Notes`).

    A server that does not take them, since it is older or away, hinders nothing.
    """

    def __init__(self, admin: admin_pb2_grpc.AdminStub, say: Callable[[str], None]) -> None:
        self._admin = admin
        self._say = say

    def backup(self, note: BackupNote) -> None:
        """Tell of a backup; of one that is whole again, until the server has heard it."""
        error = self._tell(note)
        if note.state is not BackupState.WHOLE:
            return
        for _ in range(_AGAIN_MAX):
            if error is None or error.code() in _FOR_GOOD:
                break
            time.sleep(_AGAIN_SECONDS)
            error = self._tell(note)
        if error is not None and error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            self._say(f"the backup is whole, but the server took no note of it: {error.details()}")

    def _tell(self, note: BackupNote) -> grpc.RpcError | None:
        """Tell of a backup once; return the error if there is one."""
        message = admin_pb2.NoteBackupRequest(
            state=f"BACKUP_{note.state.name}", keys=note.keys, bytes=note.size, seconds=note.seconds
        )
        if note.state is BackupState.WHOLE:
            message.age_ms = max(time.time_ns() // 1_000_000 - note.time_ms, 0)
        try:
            self._admin.NoteBackup(message, timeout=_SECONDS_MAX)
        except grpc.RpcError as error:
            return error
        return None

    def archive(self, position: Position, time_ms: int) -> None:
        """Tell how far an archive is; the next note says it again."""
        try:
            self._admin.NoteArchive(
                admin_pb2.NoteArchiveRequest(position=str(position), time_ms=time_ms), timeout=_SECONDS_MAX
            )
        except grpc.RpcError:
            return
