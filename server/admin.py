"""The Admin service: what a server says about itself, and its tables."""

from __future__ import annotations

import asyncio

from gpkvs.config import Sizes
from gpkvs.info import StoreInfo, TableInfo
from gpkvs.layout import BYTES
from gpkvs.proto.v1 import admin_pb2
from gpkvs.server.gate import Gate
from gpkvs.server.rpc import Call


class AdminService:
    """The methods of ``gpkvs.v1.Admin``, by their names there."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def Info(  # noqa: N802
        self, _message: admin_pb2.InfoRequest, _call: Call
    ) -> admin_pb2.InfoResponse:
        """Describe the store and the limits in force."""
        serving = self._gate.serving()
        return to_message(serving.store.info(), serving.message_bytes_max)

    async def CreateTable(  # noqa: N802
        self, message: admin_pb2.CreateTableRequest, _call: Call
    ) -> admin_pb2.CreateTableResponse:
        """Make an empty table. Its space is reserved beside the engine's thread, so that batches run meanwhile."""
        serving = self._gate.serving()
        made = await asyncio.to_thread(
            serving.store.create_table,
            message.name,
            layout=message.layout or BYTES.name,
            index_bytes=message.index_bytes or Sizes.index_bytes,
        )
        return admin_pb2.CreateTableResponse(table=_table(made))

    async def ListTables(  # noqa: N802
        self, _message: admin_pb2.ListTablesRequest, _call: Call
    ) -> admin_pb2.ListTablesResponse:
        """Describe every table."""
        return admin_pb2.ListTablesResponse(tables=map(_table, self._gate.serving().store.info().tables))

    async def DropTable(  # noqa: N802
        self, message: admin_pb2.DropTableRequest, _call: Call
    ) -> admin_pb2.DropTableResponse:
        """Remove a table with all it holds. Its records are counted beside the engine's thread, as above."""
        serving = self._gate.serving()
        await asyncio.to_thread(serving.store.drop_table, message.name)
        return admin_pb2.DropTableResponse()


def to_message(info: StoreInfo, message_bytes_max: int) -> admin_pb2.InfoResponse:
    """Put what a store says about itself into a message."""
    return admin_pb2.InfoResponse(
        version=info.version,
        backend=info.backend,
        path=str(info.path),
        domain_found=info.domain_found,
        domain=info.domain,
        domain_note=info.domain_note,
        heap_bytes=info.heap_bytes,
        heap_live_bytes=info.heap_live_bytes,
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
        ),
        process_written_bytes=info.process_io.written_bytes if info.process_io else None,
        process_read_bytes=info.process_io.read_bytes if info.process_io else None,
    )


def _table(table: TableInfo) -> admin_pb2.TableInfo:
    return admin_pb2.TableInfo(
        name=table.name,
        layout=table.layout,
        records=table.records,
        slots=table.slots,
        index_bytes=table.index_bytes,
        load_factor=table.load_factor,
        bytes_per_key=table.bytes_per_key,
    )
