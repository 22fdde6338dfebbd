"""Keys and values as people type them: text, or numbers in a table of the layout u64."""

from __future__ import annotations

import re
from dataclasses import dataclass

import grpc

from gpkvs.config import DEFAULT_TABLE
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

_NUMBER = re.compile(r"[0-9]{1,20}|0x[0-9a-f]{1,16}", re.IGNORECASE)
_MAX = (1 << 64) - 1
_REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)


@dataclass(frozen=True)
class Form:
    """How a table's keys and values are written."""

    table: str
    is_u64: bool

    def encode(self, text: bytes, field: str) -> bytes:
        """Return the bytes that the table stores.

        Raises
        ------
        InvalidArgumentError
            If the table holds numbers and the text is not a number; the error names the field.
        """
        if not self.is_u64:
            return text
        typed = text.decode(errors="replace").strip()
        number = int(typed, 16 if typed[:2] in ("0x", "0X") else 10) if _NUMBER.fullmatch(typed) else _MAX + 1
        if number > _MAX:
            raise InvalidArgumentError(
                f"table {self.table!r} has the layout u64: its keys and values are numbers from 0 to {_MAX}, "
                "such as 42 or 0x2a. For text make a table of the layout bytes: gpkvs table create NAME",
                field=field,
            )
        return number.to_bytes(8, "little")

    def decode(self, value: bytes) -> bytes | int:
        """Return stored bytes as people read them."""
        return int.from_bytes(value, "little") if self.is_u64 else value


def form_of(channel: grpc.Channel, table: str, timeout: float) -> Form:
    """Ask the server for a table's layout; any refusal is left to the next call, which says why.

    The default table needs no call: it holds bytes.
    """
    if table in ("", DEFAULT_TABLE):
        return Form(table, is_u64=False)
    try:
        return Form(table, is_u64=is_u64(channel, table, timeout))
    except grpc.RpcError as error:
        if error.code() not in _REFUSED:
            raise
        return Form(table, is_u64=False)


def is_u64(channel: grpc.Channel, table: str, timeout: float) -> bool:
    """Ask the server whether a table has the layout u64: it takes the right to read, or that to write.

    Raises
    ------
    grpc.RpcError
        If there is no such table, or the server gives no response.
    """
    stub = kv_pb2_grpc.KVStub(channel)
    question = kv_pb2.BatchRequest(table=table, ops=bytes([kv_pb2.OP_EXISTS]), keys=bytes(8), key_size=8)
    try:
        return not stub.Batch(question, timeout=timeout).versions  # such a table has none
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
            raise
    return _takes_numbers(stub, table, timeout)


def _takes_numbers(stub: kv_pb2_grpc.KVStub, table: str, timeout: float) -> bool:
    """Ask the same by a request without operations, which either right allows: what is refused of it tells."""
    try:
        stub.Batch(kv_pb2.BatchRequest(table=table, numbers=True), timeout=timeout)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return not error.details().startswith("table:")
    return True
