"""Keys and values as people type them: text, numbers, or rows, by the layout of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import grpc

from gpkvs.config import DEFAULT_TABLE
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

BYTES: Final = "bytes"
U64: Final = "u64"
Typed = bytes | int | list[Any]
"""A key or a value as people read it; a row is lists of numbers, as many as it has dimensions."""

_NUMBER = re.compile(r"[0-9]{1,20}|0x[0-9a-f]{1,16}", re.IGNORECASE)
_MAX = (1 << 64) - 1
_REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)
_NO_LAYOUT = "?"
_OF_TABLE = "table:"
_TOLD = re.compile(rf"{_OF_TABLE} .* has the layout (\S+), not '\{_NO_LAYOUT}'")


@dataclass(frozen=True)
class Form:
    """How a table's keys and values are written."""

    table: str
    layout: str = BYTES

    def key(self, text: bytes) -> bytes:
        """Return the bytes of a key that somebody has typed; raises `InvalidArgumentError` if the table has no such."""
        return text if self.layout == BYTES else self._number(text, "key")

    def value(self, text: bytes) -> bytes:
        """Return the bytes of a value, as `key`."""
        if self.layout == BYTES:
            return text
        if self.layout == U64:
            return self._number(text, "value")
        from gpkvs.cli.options.typed_rows import bytes_of_row  # noqa: PLC0415 - it loads NumPy

        return bytes_of_row(self.layout, text, self.table)

    def require_no_rows(self) -> None:
        """Raise `InvalidArgumentError` if the values are rows, which are neither incremented nor appended to."""
        if self.layout not in (BYTES, U64):
            raise InvalidArgumentError(
                f"table {self.table!r} has the layout {self.layout}: its values are rows, which are neither "
                "incremented nor appended to. gpkvs set stores a row",
                field="table",
            )

    def _number(self, text: bytes, field: str) -> bytes:
        typed = text.decode(errors="replace").strip()
        number = int(typed, 16 if typed[:2] in ("0x", "0X") else 10) if _NUMBER.fullmatch(typed) else _MAX + 1
        if number > _MAX:
            which = "keys and values" if self.layout == U64 else "keys"
            raise InvalidArgumentError(
                f"table {self.table!r} has the layout {self.layout}: its {which} are numbers from 0 to {_MAX}, "
                "such as 42 or 0x2a. For text make a table of the layout bytes: gpkvs table create NAME",
                field=field,
            )
        return number.to_bytes(8, "little")

    def shown_key(self, key: bytes) -> bytes | int:
        """Return a stored key as people read it."""
        return key if self.layout == BYTES else int.from_bytes(key, "little")

    def shown_value(self, value: bytes) -> Typed:
        """Return a stored value as people read it."""
        if self.layout == BYTES:
            return value
        if self.layout == U64:
            return int.from_bytes(value, "little")
        from gpkvs.cli.options.typed_rows import row_of_bytes  # noqa: PLC0415 - it loads NumPy

        return row_of_bytes(self.layout, value)


def form_of(channel: grpc.Channel, table: str, timeout: float) -> Form:
    """Ask the server for a table's layout; any refusal is left to the next call, which says why.

    The default table needs no call: it holds bytes.
    """
    if table in ("", DEFAULT_TABLE):
        return Form(table)
    try:
        return Form(table, layout_of(channel, table, timeout))
    except grpc.RpcError as error:
        if error.code() not in _REFUSED:
            raise
        return Form(table)


def layout_of(channel: grpc.Channel, table: str, timeout: float) -> str:
    """Ask the server for the layout of a table: it takes the right to read, or that to write.

    A request without operations, for a layout that no table has, is refused, and what is said of it names the table's.

    Raises
    ------
    grpc.RpcError
        If there is no such table, or the server gives no response.
    """
    stub = kv_pb2_grpc.KVStub(channel)
    refused = _refusal(stub, kv_pb2.BatchRequest(table=table, layout=_NO_LAYOUT), timeout)
    if told := _TOLD.match(refused.details()):
        return told[1]
    if refused.details().startswith(_OF_TABLE):
        raise refused
    # An older server, which has no rows, refuses that there are no operations.
    refused = _refusal(stub, kv_pb2.BatchRequest(table=table, numbers=True), timeout)
    return BYTES if refused.details().startswith(_OF_TABLE) else U64


def _refusal(stub: kv_pb2_grpc.KVStub, request: kv_pb2.BatchRequest, timeout: float) -> grpc.RpcError:
    """Return why a request without operations is refused."""
    try:
        stub.Batch(request, timeout=timeout)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return error
        raise
    raise AssertionError("a request without operations was executed")
