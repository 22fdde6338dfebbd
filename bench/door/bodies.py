"""The bodies of calls, as h2load sends them from a file: messages with gRPC's prefix."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from gpkvs.batch import Batch, Condition, Op
from gpkvs.bench.engine.workload import mixed
from gpkvs.bench.peers.embedded_gpkvs import TABLE
from gpkvs.client.codec import encode
from gpkvs.columns.numbers import gets_of, sets_of
from gpkvs.proto.v1 import kv_pb2

_KEY = mixed(np.zeros(1, np.uint64)).tobytes()  # of the first record

ANSWERS = {
    "SET": kv_pb2.SetResponse().SerializeToString(),
    "GET": kv_pb2.GetResponse(found=True, value=_KEY).SerializeToString(),
}
"""The messages that answer single calls; a table of numbers has no versions."""


def frame(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return struct.pack(">BI", 0, len(message)) + message


def write_single(folder: Path) -> dict[str, Path]:
    """Write the bodies of single calls to files, and return these; all calls are of one key."""
    requests: dict[str, Message] = {
        "SET": kv_pb2.SetRequest(table=TABLE, key=_KEY, value=_KEY),
        "GET": kv_pb2.GetRequest(table=TABLE, key=_KEY),
    }
    return {
        operation: _write(folder / f"{operation}.single", frame(request.SerializeToString()))
        for operation, request in requests.items()
    }


def write_methods(folder: Path) -> dict[str, tuple[str, Path, int]]:
    """Write bodies of single calls on a table of bytes; return methods, files and operations, those of a SET first."""
    checked = kv_pb2.BatchRequest(ops=bytes([Op.CHECK, Op.SET]), conditions=bytes([Condition.PRESENT, Condition.NONE]))
    checked.keys, checked.key_size, checked.values, checked.value_size = 2 * _KEY, len(_KEY), _KEY, len(_KEY)
    calls: dict[str, tuple[str, Message, int]] = {
        "SET": ("Set", kv_pb2.SetRequest(key=_KEY, value=_KEY), 1),
        "GET": ("Get", kv_pb2.GetRequest(key=_KEY), 1),
        "INCREMENT": ("Increment", kv_pb2.IncrementRequest(key=b"counter", delta=1), 1),
        "SET if present": ("Set", kv_pb2.SetRequest(key=_KEY, value=_KEY, condition=kv_pb2.CONDITION_PRESENT), 1),
        "CHECK, SET": ("Batch", checked, 2),
        "GET of 4 keys": ("MultiGet", kv_pb2.MultiGetRequest(keys=[_KEY] * 4), 4),
    }
    found = {}
    for name, (method, message, operations) in calls.items():
        body = _write(folder / f"{name}.method", frame(message.SerializeToString()))
        found[name] = f"/gpkvs.v1.KV/{method}", body, operations
    return found


def write_streams(folder: Path, records: int, message: int, count: int) -> dict[str, Path]:
    """Write the bodies of streams: so many messages, each of so many operations on records drawn at random."""
    random = np.random.default_rng(1)
    found = {}
    for operation, batch_of in (("SET", lambda keys: sets_of(keys, keys)), ("GET", gets_of)):
        drawn = (mixed(random.integers(records, size=message, dtype=np.uint64)) for _ in range(count))
        found[operation] = write_messages(folder / f"{operation}.stream", map(batch_of, drawn))
    return found


def write_messages(file: Path, requests: Iterable[Batch]) -> Path:
    """Write the body of one stream to a file: a message for each request."""
    return _write(file, b"".join(frame(encode(request, TABLE).SerializeToString()) for request in requests))


def _write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file
