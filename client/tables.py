"""The descriptions of tables, out of messages."""

from __future__ import annotations

from gpkvs.info import TableInfo
from gpkvs.proto.v1 import admin_pb2


def table_info(message: admin_pb2.TableInfo) -> TableInfo:
    """Return the description of a table."""
    return TableInfo(
        name=message.name,
        layout=message.layout,
        records=message.records,
        slots=message.slots,
        index_bytes=message.index_bytes,
        load_factor=message.load_factor,
        bytes_per_key=message.bytes_per_key,
        growing_blocks=message.growing_blocks,
        moved_blocks=message.moved_blocks,
        growth_waits=message.growth_waits,
    )
