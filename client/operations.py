"""Operations and results as Python objects; operations are checked before they are sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from gpkvs.batch import Op, RequestResult, Status
from gpkvs.client.codec import encode_lists
from gpkvs.config import Limits
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.request_checks import check_key_bytes, check_request_ops, check_value_bytes

Operation: TypeAlias = tuple[Op, bytes] | tuple[Op, bytes, bytes]
Result: TypeAlias = bytes | int | bool | None
"""A GET's value or None, a SET's version, whether a DELETE found its key."""

_TABLE_NAME_MAX = 64


def check_key(key: bytes, limits: Limits) -> None:
    """Check one key before it is sent.

    Raises
    ------
    TypeError
        If it is not `bytes`.
    InvalidArgumentError
        If it is empty or over the limit.
    """
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}{_hint(key)}")
    check_key_bytes(len(key), limits)


def check_value(value: bytes, limits: Limits) -> None:
    """Check one value before it is sent; raises as `check_key` does."""
    if not isinstance(value, bytes):
        raise TypeError(f"a value is bytes, not {type(value).__name__}{_hint(value)}")
    check_value_bytes(len(value), limits)


def check_table(name: str) -> None:
    """Check a table's name before it is sent; "" is the default table.

    Raises
    ------
    TypeError
        If it is not `str`.
    InvalidArgumentError
        If it is too long for a name; the server checks the rest.
    """
    if not isinstance(name, str):
        raise TypeError(f"a table's name is str, not {type(name).__name__}")
    if len(name) > _TABLE_NAME_MAX:
        raise InvalidArgumentError(
            f"a name of {len(name):,} characters, allowed are 1 to {_TABLE_NAME_MAX}", field="table"
        )


def _hint(given: object) -> str:
    return ": encode it first, as in 'text'.encode()" if isinstance(given, str) else ": convert it with bytes(...)"


def check_message_bytes(size_bytes: int, message_bytes_max: int) -> None:
    """Check a request's size before it is sent: over the server's limit it would be refused."""
    if size_bytes > message_bytes_max:
        raise InvalidArgumentError(
            f"a request of {size_bytes:,} bytes, the limit of a message is {message_bytes_max:,} "
            "(message_bytes_max): split it",
            field="message",
        )


class OperationList:
    """Operations in order, checked as they are added: one atomic request.

    Parameters
    ----------
    operations
        The first ones: ``(Op.GET, key)``, ``(Op.SET, key, value)``, ``(Op.DELETE, key)``.
    limits, message_bytes_max
        The server's limits.

    Attributes
    ----------
    results
        After the request was executed, one for each operation in order: a GET's value or None, a SET's
        version, whether a DELETE found its key.
    """

    def __init__(self, operations: Iterable[Operation], limits: Limits, message_bytes_max: int) -> None:
        self.results: list[Result] = []
        self._limits = limits
        self._message_bytes_max = message_bytes_max
        self._ops = bytearray()
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        for operation in operations:
            self._add(*operation)

    def __len__(self) -> int:
        return len(self._ops)

    def get(self, key: bytes) -> None:
        """Read a key."""
        self._add(Op.GET, key)

    def set(self, key: bytes, value: bytes) -> None:
        """Write a key."""
        self._add(Op.SET, key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self._add(Op.DELETE, key)

    def _add(self, op: Op, key: bytes, *value: bytes) -> None:
        if op not in tuple(Op) or len(value) != (op == Op.SET):
            raise InvalidArgumentError(
                "an operation is (Op.GET, key), (Op.SET, key, value) or (Op.DELETE, key)",
                index=len(self),
                field="ops",
            )
        check_key(key, self._limits)
        if value:
            check_value(value[0], self._limits)
            self._values.append(value[0])
        self._ops.append(op)
        self._keys.append(key)

    def message(self, table: str) -> kv_pb2.BatchRequest:
        """Return the request as it is sent; raises InvalidArgumentError if it is over a limit."""
        check_request_ops(len(self), self._limits)
        message = encode_lists(bytes(self._ops), self._keys, self._values, table)
        check_message_bytes(message.ByteSize(), self._message_bytes_max)
        return message

    @property
    def has_writes(self) -> bool:
        """Whether any operation is a SET or a DELETE."""
        return self._ops.count(Op.GET) < len(self)


def results_of(ops: bytes, result: RequestResult) -> list[Result]:
    """Return one Python object for each operation of a small request.

    Raises
    ------
    CorruptRecordError
        If a GET met a record that fails its checksum. The request's writes are done all the same.
    """
    corrupt = result.status == Status.CORRUPT
    if corrupt.any():
        raise CorruptRecordError(
            f"operation {int(corrupt.argmax())}: the record fails its checksum, so no value is returned; "
            "the writes of the request, if any, are done"
        )
    values = iter(result.value_list())
    found = (result.status == Status.OK).tolist()
    results: list[Result] = []
    for op, is_found, version in zip(ops, found, result.versions.tolist(), strict=True):
        if op == Op.GET:
            value = next(values)
            results.append(value if is_found else None)
        else:
            results.append(version if op == Op.SET else is_found)
    return results
