"""The Admin service: describes the server, makes and drops tables, and hears of backups."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from gpkvs.changes import Position
from gpkvs.config import Sizes
from gpkvs.errors import GpkvsError, InvalidArgumentError, NoSpaceError
from gpkvs.info import StoreInfo, TableInfo
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.proto.v1 import admin_pb2
from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.connections import end_of
from gpkvs.server.backup_notes import BackupNotes
from gpkvs.server.calls import StatusCode
from gpkvs.server.gate import Gate
from gpkvs.server.rpc import Call
from gpkvs.server.slow_log import PHASES, Entry, SlowLog
from gpkvs.server.status import status_of
from gpkvs.server.threads import begun_threads

_MILLISECOND_NS = 1_000_000
_CHANGES_MAX = 64  # tables that wait to be made or dropped
_BACKUP_STATES = {
    admin_pb2.BACKUP_BEGUN: "begun",
    admin_pb2.BACKUP_WHOLE: "whole",
    admin_pb2.BACKUP_FAILED: "failed",
}

Made = TypeVar("Made")


class AdminService:
    """The methods of ``gpkvs.v1.Admin``, by their names there.

    Parameters
    ----------
    gate
        Leads to the store.
    audit
        Notes the calls.
    slow_log
        Has the calls that took long.
    door
        What serves gRPC.
    notes
        Takes what clients say of their backups and archives.
    tables_changed
        Is told when a table was made or dropped, in any thread.
    """

    def __init__(
        self,
        gate: Gate,
        audit: AuditLog,
        slow_log: SlowLog,
        notes: BackupNotes,
        tables_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._gate = gate
        self._audit = audit
        self._slow_log = slow_log
        self._notes = notes
        self._tables_changed = tables_changed
        # Not the engine's thread: this one reserves files and counts records while batches run.
        self._thread = begun_threads("tables")
        self._changes = 0

    async def Info(  # noqa: N802
        self, _message: admin_pb2.InfoRequest, call: Call
    ) -> admin_pb2.InfoResponse:
        """Describe the store, the limits in force, and what serves."""
        self._audit.note("admin", **_fields(call))
        serving = self._gate.serving()
        message = to_message(serving.store.info(), serving.message_bytes_max)
        message.door = "native"
        if self._notes.last_backup:
            message.last_backup.CopyFrom(self._notes.last_backup)
        if self._notes.last_archive:
            message.last_archive.CopyFrom(self._notes.last_archive)
        return message

    async def SlowLog(  # noqa: N802
        self, message: admin_pb2.SlowLogRequest, call: Call
    ) -> admin_pb2.SlowLogResponse:
        """Return the last calls that took long."""
        self._audit.note("admin", **_fields(call), arguments={"clear": message.clear})
        found = self._slow_log.last(message.entries or None)
        if message.clear:
            self._slow_log.clear()
        return admin_pb2.SlowLogResponse(
            calls=map(_slow_call, found), over_ms=self._slow_log.over_ms, entries_max=self._slow_log.entries_max
        )

    async def CreateTable(  # noqa: N802
        self, message: admin_pb2.CreateTableRequest, call: Call
    ) -> admin_pb2.CreateTableResponse:
        """Make an empty table."""
        arguments: dict[str, Any] = {
            "layout": message.layout or BYTES_LAYOUT.name,
            "index_bytes": message.index_bytes or Sizes.index_bytes,
            "index_bytes_max": message.index_bytes_max,
        }
        create = partial(self._gate.serving().store.create_table, message.name, **arguments)
        made = await self._change(create, call, table=message.name, arguments=arguments)
        return admin_pb2.CreateTableResponse(table=_table(made))

    async def ListTables(  # noqa: N802
        self, _message: admin_pb2.ListTablesRequest, call: Call
    ) -> admin_pb2.ListTablesResponse:
        """Describe every table that the caller administers, or backs up."""
        self._audit.note("admin", **_fields(call))
        tables, rights = self._gate.serving().store.info().tables, call.caller.rights
        return admin_pb2.ListTablesResponse(
            tables=[_table(table) for table in tables if rights.backup or rights.may_admin(table.name)]
        )

    async def DropTable(  # noqa: N802
        self, message: admin_pb2.DropTableRequest, call: Call
    ) -> admin_pb2.DropTableResponse:
        """Remove a table with all it holds."""
        drop = partial(self._gate.serving().store.drop_table, message.name)
        await self._change(drop, call, table=message.name)
        return admin_pb2.DropTableResponse()

    async def NoteBackup(  # noqa: N802
        self, message: admin_pb2.NoteBackupRequest, call: Call
    ) -> admin_pb2.NoteBackupResponse:
        """Take note of a backup that a client makes."""
        if message.state not in _BACKUP_STATES or not 0 <= message.seconds < math.inf:
            raise InvalidArgumentError(
                "say BACKUP_BEGUN, BACKUP_WHOLE or BACKUP_FAILED, and how many seconds it took", field="state"
            )
        self._audit.note("backup", **_backup_fields(message, call))
        self._notes.backup(message)
        return admin_pb2.NoteBackupResponse()

    async def NoteArchive(  # noqa: N802
        self, message: admin_pb2.NoteArchiveRequest, call: Call
    ) -> admin_pb2.NoteArchiveResponse:
        """Take note of how far an archive is that a client writes."""
        self._notes.archive(
            Position.parse(message.position, "position"), message.time_ms, self._gate.serving().store.newest_change
        )
        self._audit.note("archive", **_caller_fields(call), position=message.position)
        return admin_pb2.NoteArchiveResponse()

    async def _change(self, change: Callable[[], Made], call: Call, **noted: object) -> Made:
        """Note a change of the tables and run it after those that wait; it counts until done, also without its call."""
        if self._changes >= _CHANGES_MAX:
            raise NoSpaceError("queue", f"{_CHANGES_MAX} tables wait to be made or dropped: try again later")
        loop, connection = asyncio.get_running_loop(), call.account.connection
        fields = _fields(call) | noted

        def run() -> Made:
            made = change()
            self._tables_changed()
            return made

        def forget() -> None:
            self._changes -= 1
            connection.change("requests", -call.message_bytes)

        def done(job: Future[Made]) -> None:
            forget()
            self._audit.note("admin_done", **fields, status=_status(job))

        def tell(job: Future[Made]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody counts any more
                loop.call_soon_threadsafe(done, job)

        self._changes += 1
        connection.change("requests", call.message_bytes)
        try:
            await self._audit.require("admin", **fields)
            job = self._thread.submit(run)
        except BaseException:
            forget()
            raise
        job.add_done_callback(tell)
        return await asyncio.wrap_future(job)


def _fields(call: Call) -> dict[str, object]:
    """Return which call this is and who makes it, for the audit log."""
    return {**_caller_fields(call), "rpc": call.method}


def _caller_fields(call: Call) -> dict[str, object]:
    return {"user": call.caller.name, "address": end_of(call.context.peer()).address}


def _backup_fields(message: admin_pb2.NoteBackupRequest, call: Call) -> dict[str, object]:
    """Return what the audit log has of a backup."""
    fields: dict[str, object] = {**_caller_fields(call), "state": _BACKUP_STATES[message.state]}
    if message.state != admin_pb2.BACKUP_BEGUN:
        fields["seconds"] = message.seconds
    if message.state == admin_pb2.BACKUP_WHOLE:
        fields |= {"keys": message.keys, "bytes": message.bytes}
    return fields


def _status(job: Future[Any]) -> str:
    """Return the name of the status with which a change ended."""
    if job.cancelled():  # its call ended before its turn came
        code = StatusCode.CANCELLED
    elif (error := job.exception()) is None:
        code = StatusCode.OK
    else:
        code = status_of(error)[0] if isinstance(error, GpkvsError) else StatusCode.INTERNAL
    return code.name


def to_message(info: StoreInfo, message_bytes_max: int) -> admin_pb2.InfoResponse:
    """Put the description of a store into a message."""
    return admin_pb2.InfoResponse(
        version=info.version,
        backend=info.backend,
        path=str(info.path),
        domain_found=info.domain_found,
        domain=info.domain,
        domain_note=info.domain_note,
        heap_bytes=info.heap_bytes,
        heap_bytes_max=info.heap_bytes_max,
        heap_growth_waits=info.heap_growth_waits,
        heap_given_back_bytes=info.heap_given_bytes,
        heap_live_bytes=info.heap_live_bytes,
        blobs_live_bytes=info.blobs_live_bytes,
        blobs_bytes=info.blobs_bytes,
        heap_charged_bytes=info.heap_charged_bytes,
        heap_charged_bytes_max=info.heap_charged_bytes_max,
        heap_segments=info.heap_segments,
        heap_free_segments=info.heap_free_segments,
        heap_moved_bytes=info.heap_moved_bytes,
        log_bytes=info.log_bytes,
        key_bytes_max=info.limits.key_bytes_max,
        value_bytes_max=info.limits.value_bytes_max,
        request_ops_max=info.limits.request_ops_max,
        message_bytes_max=message_bytes_max,
        next_version=info.next_version,
        tables=map(_table, info.tables),
        last_recovery=admin_pb2.RecoveryInfo(
            undone=info.recovery.undone,
            undone_entries=info.recovery.undone_entries,
            seconds=info.recovery.seconds,
            report=info.recovery.text,
            replayed_batches=info.recovery.replayed_batches,
            replayed_slots=info.recovery.replayed_slots,
            cut_batches=info.recovery.cut_batches,
        ),
        process_written_bytes=info.process_io.written_bytes if info.process_io else None,
        process_read_bytes=info.process_io.read_bytes if info.process_io else None,
        commit=info.commit,
        store_format=info.store_format,
        next_opening=info.next_opening,
        journal_bytes=info.journal_bytes,
        journal=admin_pb2.JournalInfo(**asdict(info.journal)) if info.journal else None,
    )


def _slow_call(entry: Entry) -> admin_pb2.SlowCall:
    fields = entry.call._asdict()
    phases = {f"{phase}_ms": fields.pop(f"{phase}_ns") / _MILLISECOND_NS for phase in PHASES}
    del fields["words"]
    return admin_pb2.SlowCall(number=entry.number, **phases, **fields)


def _table(table: TableInfo) -> admin_pb2.TableInfo:
    return admin_pb2.TableInfo(**asdict(table))
