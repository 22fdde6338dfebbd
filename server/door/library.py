"""The compiled library of the native door (door/door.h); nothing outside this folder touches it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from ctypes import c_bool, c_char_p, c_int, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import Any, NamedTuple

from gpkvs.batch import Batch
from gpkvs.config import ServerConfig
from gpkvs.errors import BackendError, InvalidArgumentError
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.native import installed_library
from gpkvs.server.bounds import Bounds
from gpkvs.server.door.left_batch import EngineBatch, Results, batch_of
from gpkvs.server.tls import TlsFilesError
from gpkvs.store import OpenTable

_NAME = "_door.so"

GRPC, RESP = 0, 1  # enum DoorProtocol


class Turn(IntEnum):
    """How a turn ended (``enum DoorTurn``)."""

    IDLE = 0  # nothing came
    INTERRUPTED = 1
    LEFT = 2  # a batch is left to Python
    DUE = 3  # the engine has something to do for Python
    STOPPED = 4


class Refusal(NamedTuple):
    """What a client is told of a request that was not executed."""

    code: int
    text: str
    full: str = ""
    is_refusal: bool = True


class _Config(ctypes.Structure):
    _fields_ = [
        (name, c_uint64)
        for name in (
            "threads",
            "connections_max",
            "clients_bytes_max",
            "message_bytes_max",
            "stream_bytes_max",
            "receive_bytes_max",
            "queue_requests_max",
            "batch_ops_max",
            "batch_bytes_max",
            "batch_result_bytes_max",
            "engine_bytes",
        )
    ]


class _Table(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("id", c_uint32),
        ("holds_numbers", c_uint32),
        ("key_bytes_max", c_uint64),
        ("value_bytes_max", c_uint64),
        ("request_ops_max", c_uint64),
        ("result_bytes_max", c_uint64),
    ]


class _Refusal(ctypes.Structure):
    _fields_ = [("code", c_int), ("text", c_char_p), ("full", c_char_p), ("is_refusal", c_bool)]


# Of each function: what it returns, and what it takes behind the door.
_Functions = dict[str, tuple[Any, list[Any]]]
_REFUSAL = ctypes.POINTER(_Refusal)
_SLOW: _Functions = {
    "delete": (None, []),
    "listen": (c_int, [c_char_p, c_uint16, c_int]),
    "drain": (None, []),
    "stop": (None, []),
    "turn": (c_int, [c_uint64]),
}
# These take microseconds and keep Python's lock: to get it back may take much longer.
_QUICK: _Functions = {
    "set_tables": (c_int, [ctypes.POINTER(_Table), c_uint64]),
    "open": (None, []),
    "shut": (None, [_REFUSAL]),
    "connections": (c_uint64, []),
    "set_engine": (None, [c_void_p]),
    "interrupt": (None, []),
    "left": (ctypes.POINTER(EngineBatch), []),
    "left_refused": (None, [c_uint64, _REFUSAL]),
    "left_done": (None, [c_uint64, *[c_void_p] * 4, c_uint64]),
    "left_failed": (None, [_REFUSAL]),
    "durable": (None, [c_uint64]),
    "set_tls": (c_int, [*[c_char_p, c_uint64] * 3, c_uint64, c_char_p, c_uint64]),
}
_ERROR_BYTES = 256


class Library:
    """One door; each method is the function of that name.

    Raises
    ------
    InvalidArgumentError
        If the library is not there.
    MemoryError
        If there is no memory for a door.
    """

    def __init__(self, config: ServerConfig, bounds: Bounds) -> None:
        path = _path()
        new = ctypes.CDLL(path).gpkvs_door_new
        new.argtypes, new.restype = [ctypes.POINTER(_Config)], c_void_p
        self._door = new(
            _Config(
                threads=0,
                connections_max=bounds.connections_max,
                clients_bytes_max=bounds.clients_bytes_max,
                message_bytes_max=bounds.config.message_bytes_max,
                stream_bytes_max=bounds.config.stream_bytes_max,
                receive_bytes_max=bounds.receive_bytes_max,
                queue_requests_max=config.queue_requests_max,
                batch_ops_max=bounds.config.batch_ops_max,
                batch_bytes_max=bounds.config.batch_bytes_max,
                batch_result_bytes_max=bounds.batch_result_bytes_max,
                engine_bytes=bounds.engine_bytes,
            )
        )
        if not self._door:
            raise MemoryError
        self._call = _functions(ctypes.CDLL(path), _SLOW) | _functions(ctypes.PyDLL(path), _QUICK)

    def delete(self) -> None:
        """Stop the door and free it; no other thread may come any more."""
        self._call["delete"](self._door)

    def listen(self, host: str, port: int, protocol: int = GRPC) -> int:
        """Open a port; return it.

        Raises
        ------
        OSError
            If the operating system refuses.
        """
        got: int = self._call["listen"](self._door, host.encode(), port, protocol)
        if got < 0:
            raise OSError(-got, os.strerror(-got))
        return got

    def set_tls(self, cert: bytes, key: bytes, client_ca: bytes | None, handshake_seconds: float) -> None:
        """Make the handshakes of new connections of this.

        Raises
        ------
        TlsFilesError
            If OpenSSL refuses it; all stays as it was.
        """
        files = [part for data in (cert, key, client_ca or b"") for part in (data, len(data))]
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if self._call["set_tls"](self._door, *files, int(1e9 * handshake_seconds), error, len(error)):
            raise TlsFilesError(error.value.decode())

    def set_tables(self, tables: Iterable[OpenTable]) -> None:
        """Serve these tables from now on."""
        rows = [
            _Table(
                table.name.encode(),
                table.id,
                table.layout == U64_LAYOUT.name,
                table.limits.key_bytes_max,
                table.limits.value_bytes_max,
                table.limits.request_ops_max,
                table.limits.result_bytes_max,
            )
            for table in tables
        ]
        if self._call["set_tables"](self._door, (_Table * len(rows))(*rows), len(rows)):
            raise MemoryError

    def open(self) -> None:
        """Take requests from now on."""
        self._call["open"](self._door)

    def shut(self, refusal: Refusal) -> None:
        """Take none any more; those that wait are refused."""
        self._call["shut"](self._door, _packed(refusal))

    def drain(self) -> None:
        """Take no new connections, and end those that are there when their clients have their answers."""
        self._call["drain"](self._door)

    def connections(self) -> int:
        """Return how many are open."""
        return int(self._call["connections"](self._door))

    def stop(self) -> None:
        """Close all connections and end the threads."""
        self._call["stop"](self._door)

    def turn(self, timeout_seconds: float) -> Turn:
        """Run batches until there is something to do for Python; in the engine's thread."""
        return Turn(self._call["turn"](self._door, int(1e9 * timeout_seconds)))

    def interrupt(self) -> None:
        """End the turn soon, or the next one at once."""
        self._call["interrupt"](self._door)

    def left(self) -> Batch:
        """Return the batch that the turn left; its columns are the door's, until that one is told the outcome."""
        return batch_of(self._call["left"](self._door).contents)

    def left_refused(self, request: int, refusal: Refusal) -> None:
        """Say that a request of it was not executed."""
        self._call["left_refused"](self._door, request, _packed(refusal))

    def left_done(self, covered: int, results: Results, gate: int) -> None:
        """Say that its first requests were executed, but for those that were refused."""
        status, versions, value_lengths, values = results
        self._call["left_done"](
            self._door,
            covered,
            status.ctypes.data,
            None if versions is None else versions.ctypes.data,
            value_lengths.ctypes.data,
            values.ctypes.data,
            gate,
        )

    def left_failed(self, refusal: Refusal) -> None:
        """Say that none of it was executed."""
        self._call["left_failed"](self._door, _packed(refusal))

    def durable(self, gate: int) -> None:
        """Say that everything up to a gate is durable."""
        self._call["durable"](self._door, gate)


def _path() -> str:
    try:
        return str(installed_library(_NAME))
    except BackendError:
        raise InvalidArgumentError(
            "the native door is not built: it needs the headers and libraries of nghttp2 and OpenSSL "
            "(libnghttp2-dev, libssl-dev) when gpkvs is installed; install them and gpkvs again, or take "
            "--door grpcio",
            field="door",
        ) from None


def _functions(library: ctypes.CDLL, functions: _Functions) -> dict[str, Any]:
    found = {}
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"gpkvs_door_{name}")
        function.restype, function.argtypes = result, [c_void_p, *arguments]
        found[name] = function
    return found


def _packed(refusal: Refusal) -> Any:
    return ctypes.byref(_Refusal(refusal.code, refusal.text.encode(), refusal.full.encode(), refusal.is_refusal))
