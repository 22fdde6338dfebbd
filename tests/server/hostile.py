"""Clients that mean harm, by hand over HTTP/2: what no gRPC library would send.

Run as a process: it attacks until its standard input ends, then prints what became of its calls, as JSON.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping

from gpkvs.bench.door.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RST,
    SETTINGS,
    WINDOW,
    call_headers,
    frame,
    frames_of,
    message,
)
from gpkvs.proto.v1 import kv_pb2
from tests.server.wire import DELETE

MIB = 1 << 20

_STREAMS_MAX = 100

# The trailers' names, as they are and in the Huffman code of HPACK.
_EXECUTED = b"gpkvs-executed", bytes.fromhex("9abebdd0b17c9496a4b27f")
_FULL = b"gpkvs-full", bytes.fromhex("9abebdd0b4b6d147")


def connection_with_call(path: str, more: Mapping[str, str | bytes]) -> bytes:
    """Return the bytes of a connection with one call of an empty message, with more headers."""
    return connection_with(call_headers(path, more.items()), message(b""))


def connection_with(headers: bytes, data: bytes) -> bytes:
    """Return the bytes of a connection with one call, whose headers take as many frames as they need."""
    out = PREFACE + frame(SETTINGS, 0, 0)
    for at in range(0, len(headers), FRAME_BYTES):
        kind, end = CONTINUATION if at else HEADERS, at + FRAME_BYTES
        out += frame(kind, END_HEADERS if end >= len(headers) else 0, 1, headers[at:end])
    return out + frame(DATA, END_STREAM, 1, data)


def is_answered(received: bytes) -> bool:
    """Return whether the only call of a connection has ended, by what the server sent."""
    return any(
        kind in (RST, GOAWAY) or (kind == HEADERS and flags & END_STREAM) for kind, flags, *_ in frames_of(received)
    )


class Hostile:
    """One connection; it opens no window, so that no response can be sent to it."""

    def __init__(self, target: str, outcomes: Counter[str]) -> None:
        host, port = target.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._outcomes = outcomes
        self._received = bytearray()
        self._next = 1
        self._window = 65_535  # of the connection, then of each stream
        self._first_window = 65_535
        self._windows: dict[int, int] = {}
        self._unsent: dict[int, memoryview] = {}
        self._ends: dict[int, bool] = {}
        settings = struct.pack(">HIHI", HEADER_TABLE_SIZE, 0, INITIAL_WINDOW_SIZE, 0)
        self._out = bytearray(PREFACE + frame(SETTINGS, 0, 0, settings))

    @property
    def open_calls(self) -> int:
        return len(self._windows)

    @property
    def unsent_bytes(self) -> int:
        return len(self._out) + sum(map(len, self._unsent.values()))

    def call(self, path: str, data: bytes | memoryview, *, ends: bool = True, encoding: str = "identity") -> None:
        """Begin a call that will send this, and say that it is all, or not."""
        stream, self._next = self._next, self._next + 2
        self._out += frame(HEADERS, END_HEADERS, stream, call_headers(path, [("grpc-encoding", encoding)]))
        self._windows[stream] = self._first_window
        self._unsent[stream] = memoryview(data)
        self._ends[stream] = ends

    def step(self) -> None:
        """Send what the windows allow, and take in what came."""
        for stream in list(self._unsent):
            while len(self._out) < MIB and self._send_some(stream):
                pass
        readable, writable, _ = select.select([self._socket], [self._socket] if self._out else [], [], 0.01)
        if writable:
            del self._out[: self._socket.send(self._out)]
        if readable:
            data = self._socket.recv(MIB)
            if not data:
                raise ConnectionError("closed by the server")
            self._received += data
            self._take_frames()

    def _send_some(self, stream: int) -> bool:
        unsent = self._unsent[stream]
        size = min(len(unsent), self._window, self._windows[stream], FRAME_BYTES)
        if size <= 0:
            return False
        is_last = size == len(unsent)
        self._out += frame(DATA, END_STREAM if is_last and self._ends[stream] else 0, stream, bytes(unsent[:size]))
        self._window -= size
        self._windows[stream] -= size
        self._unsent[stream] = unsent[size:]
        if is_last:
            del self._unsent[stream]
        return not is_last

    def _take_frames(self) -> None:
        received, start = self._received, 0
        while len(received) - start >= 9:
            size = int.from_bytes(received[start : start + 3], "big")
            if len(received) - start < 9 + size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", received, start + 3)
            self._take(kind, flags, stream, bytes(received[start + 9 : start + 9 + size]))
            start += 9 + size
        del received[:start]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == INITIAL_WINDOW_SIZE:
                    for number in self._windows:
                        self._windows[number] += value - self._first_window
                    self._first_window = value
            self._out += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._out += frame(PING, ACK, 0, payload)
        elif kind == WINDOW:
            size = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += size
            elif stream in self._windows:
                self._windows[stream] += size
        elif kind == RST:
            self._ended(stream, f"reset {int.from_bytes(payload, 'big')}")
        elif kind == HEADERS and flags & END_STREAM:
            executed = any(name + b"\x02no" in payload for name in _EXECUTED)
            full = any(name in payload for name in _FULL)
            self._ended(stream, ("not executed" if executed else "unnamed") + (", full" if full else ""))

    def _ended(self, stream: int, outcome: str) -> None:
        if self._windows.pop(stream, None) is not None:
            self._outcomes[outcome] += 1
            self._unsent.pop(stream, None)

    def close(self) -> None:
        self._socket.close()


def missing_deletes(count: int, key_bytes: int = 1) -> bytes:
    """Return a request whose response is larger than itself."""
    return kv_pb2.BatchRequest(
        ops=bytes([DELETE]) * count, keys=bytes(count * key_bytes), key_size=key_bytes
    ).SerializeToString()


def _attack(
    target: str, connections: int, call: Callable[[Hostile], None], calls_each: int, stop: threading.Event
) -> Counter[str]:
    """Keep so many calls open on each connection, until it is enough."""
    outcomes: Counter[str] = Counter()
    hostiles: list[Hostile] = []
    while not stop.is_set():
        while len(hostiles) < connections:
            hostiles.append(Hostile(target, outcomes))
        for hostile in list(hostiles):
            while hostile.open_calls < calls_each:
                call(hostile)
            try:
                hostile.step()
            except OSError:
                outcomes["connection closed"] += 1
                hostile.close()
                hostiles.remove(hostile)
                time.sleep(0.05)
    for hostile in hostiles:
        hostile.close()
    return outcomes


def main(kind: str, target: str, message_bytes: int) -> None:
    batch = "/gpkvs.v1.KV/Batch"
    deletes = message(missing_deletes(min(message_bytes // 64, 80_000)))
    zeros = kv_pb2.SetRequest(key=b"k", value=bytes(message_bytes - 100)).SerializeToString()
    packer = zlib.compressobj(9, wbits=31)
    bomb = message(packer.compress(zeros) + packer.flush(), is_compressed=True)
    large = message(missing_deletes(message_bytes // 2 // 4096, 4096))
    part = message(bytes(message_bytes - 1001), size=message_bytes - 1000)
    attacks: dict[str, tuple[int, int, Callable[[Hostile], None]]] = {
        "answers": (2, _STREAMS_MAX, lambda hostile: hostile.call(batch, deletes)),
        "bombs": (2, _STREAMS_MAX, lambda hostile: hostile.call("/gpkvs.v1.KV/Set", bomb, encoding="gzip")),
        "queue": (2, _STREAMS_MAX, lambda hostile: hostile.call(batch, large)),
        "streams": (2, _STREAMS_MAX, lambda hostile: hostile.call(batch, part, ends=False)),
        "connections": (20, 5, lambda hostile: hostile.call(batch, part, ends=False)),
        "health": (2, _STREAMS_MAX, lambda hostile: hostile.call("/grpc.health.v1.Health/Check", part, ends=False)),
        "pipelines": (2, _STREAMS_MAX, lambda hostile: hostile.call("/gpkvs.v1.KV/Pipeline", part, ends=False)),
    }
    connections, calls_each, call = attacks[kind]
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()
    print(json.dumps(_attack(target, connections, call, calls_each, stop)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
