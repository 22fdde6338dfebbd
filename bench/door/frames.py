"""Frames of HTTP/2 by hand: what no gRPC library would send."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, ACK = 1, 4, 8, 1
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 1, 4
FRAME_BYTES = 16_384
_WINDOW_MAX, _WINDOW_USUAL = (1 << 31) - 1, (1 << 16) - 1


class Frame(NamedTuple):
    """One that came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one as it is sent."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def wide_open() -> bytes:
    """Return the frames that let the other side send as much as it likes, on all streams."""
    settings = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, _WINDOW_MAX))
    return settings + frame(WINDOW, 0, 0, struct.pack(">I", _WINDOW_MAX - _WINDOW_USUAL))


def headers(fields: Iterable[tuple[str | bytes, str | bytes]]) -> bytes:
    """Write headers as HPACK allows it without tables and codes."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)


def _text(text: str | bytes) -> bytes:
    """Write a text behind its length: in seven bits, or what is beyond them seven by seven, the lowest first."""
    data = text if isinstance(text, bytes) else text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, length = len(data) - 127, bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + data


def call_headers(path: str, more: Iterable[tuple[str | bytes, str | bytes]] = (), *, method: str = "POST") -> bytes:
    """Return the headers of a call, as they stand in a frame."""
    first = {":method": method, ":scheme": "http", ":path": path, ":authority": "hostile"}
    return headers([*first.items(), ("te", "trailers"), ("content-type", "application/grpc"), *more])


def message(data: bytes, *, size: int | None = None, is_compressed: bool = False) -> bytes:
    """Put the five bytes of gRPC before a message, or before a part of it."""
    return struct.pack(">BI", is_compressed, len(data) if size is None else size) + data


def frames_of(received: bytes) -> Iterator[Frame]:
    """Cut what came into frames; a part of one at the end is left out."""
    at = 0
    while at + 9 <= len(received) and (end := at + 9 + int.from_bytes(received[at : at + 3], "big")) <= len(received):
        kind, flags, stream = struct.unpack_from(">BBI", received, at + 3)
        yield Frame(kind, flags, stream, received[at + 9 : end])
        at = end
