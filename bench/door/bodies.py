"""The bodies of calls, as h2load sends them from a file: messages with gRPC's prefix."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from google.protobuf.message import Message

from gpkvs.batch import Batch
from gpkvs.bench.engine.workload import mixed
from gpkvs.bench.peers.embedded_gpkvs import TABLE
from gpkvs.client.codec import encode
from gpkvs.numbers import gets_of, sets_of
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
