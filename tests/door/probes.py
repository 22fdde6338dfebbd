"""The native door's library, for tests that look into it (door/python/probes.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpkvs.config import Limits
from gpkvs.engine.seam.engine_batch import EngineRefusal
from gpkvs.errors import ConflictError
from gpkvs.server.door.library import _describe, _Refusal, _Table
from gpkvs.server.door_library import library_path

METHODS = GET, SET, DELETE, INCREMENT, MULTI_GET, BATCH = range(6)

_door = ctypes.CDLL(library_path())
_describe(library_path())

_Bytes, _Address, _U64 = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64


_COLUMNS = (
    "table",
    "ops",
    "keys",
    "key_lengths",
    "values",
    "value_lengths",
    "request_ops",
    "expiries",
    "ttls",
    "conditions",
    "expected",
)
_NUMBERS = ("id", "n", "returning", "with_value", "key_size", "value_size")


class _Parsed(ctypes.Structure):
    _fields_ = [
        *((name, _U64) for name in _NUMBERS),
        *((name + part, kind) for name in _COLUMNS for part, kind in (("_at", _Address), ("_size", _U64))),
    ]


class _Results(ctypes.Structure):
    _fields_ = [
        ("n", _U64),
        ("returning", _U64),
        ("value_bytes", _U64),
        ("status", _Bytes),
        ("versions", _Bytes),
        ("value_lengths", _Bytes),
        ("values", _Bytes),
    ]


_door.gpkvs_door_parse.argtypes = [ctypes.c_int, _Bytes, _U64, ctypes.POINTER(_Table), ctypes.POINTER(_Parsed)]
_door.gpkvs_door_parse.restype = ctypes.c_bool
_door.gpkvs_door_response.argtypes = [ctypes.c_int, _U64, ctypes.POINTER(_Results), _Address, _U64]
_door.gpkvs_door_response.restype = _U64
_door.gpkvs_door_failed_response.argtypes = [_U64, ctypes.POINTER(_Refusal), _Address, _U64]
_door.gpkvs_door_failed_response.restype = _U64


class Parsed(NamedTuple):
    """What the door finds in a plain message."""

    id: int
    n: int
    returning: int
    with_value: int
    key_size: int
    value_size: int
    table: bytes
    ops: bytes
    keys: bytes
    key_lengths: bytes
    values: bytes
    value_lengths: bytes
    request_ops: bytes
    expiries: bytes
    ttls: bytes
    conditions: bytes
    expected: bytes


def parse(method: int, message: bytes, limits: Limits, layout: str) -> Parsed | None:
    """Return what a message asks for; None if it is not plain for a table of a layout with these limits."""
    table = _Table(
        b"t",
        7,
        layout == "u64",
        layout.encode(),
        limits.key_bytes_min,
        limits.key_bytes_max,
        limits.value_bytes_min,
        limits.value_bytes_max,
        limits.request_ops_max,
        limits.result_bytes_max,
    )
    parsed = _Parsed()
    if not _door.gpkvs_door_parse(method, message, len(message), table, parsed):
        return None
    columns = [
        ctypes.string_at(getattr(parsed, name + "_at"), size) if (size := getattr(parsed, name + "_size")) else b""
        for name in _COLUMNS
    ]
    return Parsed(*(getattr(parsed, name) for name in _NUMBERS), *columns)


def response(
    method: int, request_id: int, status: bytes, versions: bytes, value_lengths: bytes = b"", values: bytes = b""
) -> bytes:
    """Return the response to a request with these results."""
    results = _Results(
        len(status), len(value_lengths) // 4, len(values), status, versions or None, value_lengths, values
    )
    return _written(_door.gpkvs_door_response, method, request_id, results, room=100 + 32 * len(status) + len(values))


def failed_response(request_id: int, code: int, text: str, full: str, conflict: ConflictError | None = None) -> bytes:
    """Return the response of a stream to a request that failed."""
    told = ctypes.pointer(EngineRefusal.of(conflict)) if conflict else None
    refusal = _Refusal(code, text.encode(), full.encode(), True, told)
    return _written(_door.gpkvs_door_failed_response, request_id, refusal, room=100 + 4 * len(text))


class _Block(ctypes.Structure):
    _fields_ = [("at", _Bytes), ("size", _U64)]


def headers(blocks: Sequence[bytes]) -> list[dict[str, str]]:
    """Decode the headers that a connection has sent."""
    room = 1000 + 5000 * len(blocks)
    to = ctypes.create_string_buffer(room)
    rows = (_Block * len(blocks))(*((block, len(block)) for block in blocks))
    assert _door.gpkvs_door_headers(rows, _U64(len(blocks)), to, _U64(room))
    return [
        {name: value for name, _, value in (line.partition(": ") for line in block.split("\n"))}
        for block in to.value.decode().split("\n\n")[:-1]
    ]


def hurry(door: int, times: int) -> None:
    """Let a door wait so many times shorter for clients."""
    _door.gpkvs_door_hurry(_Address(door), _U64(times))


def _written(function: Any, *arguments: Any, room: int) -> bytes:
    to = ctypes.create_string_buffer(room)
    size = function(*arguments, to, room)
    return to.raw[:size]
