"""The descriptions of tables, to and from messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from gpkvs.client.operations import check_table
from gpkvs.columns.index_size import index_bytes_asked
from gpkvs.errors import TableExistsError
from gpkvs.info import TableInfo, require_layout
from gpkvs.proto.v1 import admin_pb2


def table_info(message: admin_pb2.TableInfo) -> TableInfo:
    """Return the description of a table."""
    return TableInfo(**{field.name: getattr(message, field.name) for field in fields(TableInfo)})


def create_request(
    name: str, layout: str, index_bytes: int, records: int | None, index_bytes_max: int
) -> admin_pb2.CreateTableRequest:
    """Return the request for a table; raises as `check_table` and `index_bytes_asked`."""
    check_table(name)
    asked = index_bytes_asked(index_bytes, records, layout)
    return admin_pb2.CreateTableRequest(name=name, layout=layout, index_bytes=asked, index_bytes_max=index_bytes_max)


def found_table(tables: Iterable[TableInfo], name: str, layout: str, error: TableExistsError) -> TableInfo:
    """Return the description of the table that is there already; raises if its layout is another one.

    `error` is what creating it raised: it is raised if somebody has dropped the table meanwhile.
    """
    for table in tables:
        if table.name == name:
            return require_layout(table, layout)
    raise error
