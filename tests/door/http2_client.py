"""An HTTP/2 client that sends what no gRPC client would, and returns what came back as it came."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple

import h2.config
import h2.connection
import h2.events

Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """What came back on a stream.

    Attributes
    ----------
    headers, trailers
        In the order in which they came. An answer without a message may have one block only.
    data
        All messages, each behind its five bytes.
    reset
        The error code with which the server ended the stream; None if it ended in order.
    is_closed
        Whether the connection ended before the stream did.
    """

    headers: tuple[tuple[str, str], ...]
    trailers: tuple[tuple[str, str], ...]
    data: bytes
    reset: int | None
    is_closed: bool


def framed(message: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """Put gRPC's five bytes before a message."""
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big") + message


class Http2Client:
    """One connection.

    Parameters
    ----------
    target
        ``host:port``.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(
                header_encoding="latin-1",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
            )
        )
        self._connection.initiate_connection()
        self._flush()
        self._answers: dict[int, list[h2.events.Event]] = {}
        self.is_closed = False

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def call(self, headers: Headers, chunks: Sequence[bytes], *, ends_with_headers: bool = False) -> Answer:
        """Make a call, a DATA frame for each chunk, and wait for its end."""
        stream = self.begin(headers, ends=ends_with_headers)
        if not ends_with_headers:
            self.send_all(stream, chunks)
        return self.answer(stream)

    def begin(self, headers: Headers, *, ends: bool = False) -> int:
        """Send the headers of a call; return its stream."""
        stream = self._connection.get_next_available_stream_id()
        self._answers[stream] = []
        self._connection.send_headers(stream, list(headers), end_stream=ends)
        self._flush()
        return stream

    def send(self, stream: int, chunk: bytes, *, ends: bool = False) -> None:
        """Send bytes of a call, as the server's windows allow, unless the server has ended it."""
        while not self._has_ended(stream):
            room = self._connection.local_flow_control_window(stream)
            size = min(room, self._connection.max_outbound_frame_size, len(chunk))
            if size or not chunk:
                self._connection.send_data(stream, chunk[:size], end_stream=ends and size == len(chunk))
                self._flush()
                chunk = chunk[size:]
                if not chunk:
                    return
            else:
                self._receive()

    def send_all(self, stream: int, chunks: Sequence[bytes]) -> None:
        """Send all of a call, a DATA frame for each chunk."""
        for number, chunk in enumerate(chunks or [b""]):
            self.send(stream, chunk, ends=number >= len(chunks) - 1)

    def message(self, stream: int, number: int) -> bytes | None:
        """Wait for a message of a call, by its number; return its bytes, or None if the call has ended before."""
        while True:
            data, at = self._data(stream), 0
            for _ in range(number):
                at += 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            if len(data) >= max(end, at + 5):
                return data[at:end]
            if self._has_ended(stream):
                return None
            self._receive()

    def answer(self, stream: int) -> Answer:
        """Wait for the end of a call."""
        while not self._has_ended(stream):
            self._receive()
        return self.so_far(stream)

    def so_far(self, stream: int) -> Answer:
        """Return what came of a call; nothing more is kept of it."""
        events = self._answers.pop(stream)
        blocks = [event.headers for event in events if isinstance(event, h2.events.ResponseReceived)]
        trailers = [event.headers for event in events if isinstance(event, h2.events.TrailersReceived)]
        resets = [event.error_code for event in events if isinstance(event, h2.events.StreamReset)]
        return Answer(
            tuple(blocks[0]) if blocks else (),
            tuple(trailers[0]) if trailers else (),
            b"".join(event.data for event in events if isinstance(event, h2.events.DataReceived)),
            int(resets[0]) if resets else None,
            self.is_closed and not any(isinstance(event, h2.events.StreamEnded) for event in events),
        )

    def reset(self, stream: int) -> None:
        """End a call that the client no longer wants."""
        if not self._has_ended(stream):
            self._connection.reset_stream(stream)
            self._flush()

    def _data(self, stream: int) -> bytes:
        return b"".join(event.data for event in self._answers[stream] if isinstance(event, h2.events.DataReceived))

    def _has_ended(self, stream: int) -> bool:
        ends = (h2.events.StreamEnded, h2.events.StreamReset)
        return self.is_closed or any(isinstance(event, ends) for event in self._answers[stream])

    def _receive(self) -> None:
        """Read what is there; wait until there is something."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed = True
            return
        for event in self._connection.receive_data(data):
            match event:
                case h2.events.DataReceived():
                    self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.ConnectionTerminated():
                    self.is_closed = True
            stream = getattr(event, "stream_id", None)
            if stream in self._answers:
                self._answers[stream].append(event)
        self._flush()

    def _flush(self) -> None:
        try:
            self._socket.sendall(self._connection.data_to_send())
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed = True
