"""The descriptions of tables, out of messages."""

from __future__ import annotations

from dataclasses import fields

from gpkvs.info import TableInfo
from gpkvs.proto.v1 import admin_pb2


def table_info(message: admin_pb2.TableInfo) -> TableInfo:
    """Return the description of a table."""
    return TableInfo(**{field.name: getattr(message, field.name) for field in fields(TableInfo)})
