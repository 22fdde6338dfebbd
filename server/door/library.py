"""The compiled library of the native door (door/door.h); nothing outside this folder touches it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_bool, c_char_p, c_int, c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from gpkvs.batch import Batch
from gpkvs.changes import Changes
from gpkvs.config import ServerConfig
from gpkvs.engine.seam.engine_batch import EngineBatch, EngineRefusal
from gpkvs.engine.seam.left import Left
from gpkvs.errors import BackendError, ConflictError, InvalidArgumentError
from gpkvs.media.layout import U64_LAYOUT
from gpkvs.server.account.bounds import Bounds
from gpkvs.server.account.memory import KINDS, Kind
from gpkvs.server.account.message_limits import requests_max
from gpkvs.server.call_types import Metadata, StatusCode
from gpkvs.server.calls.context import Opened
from gpkvs.server.calls.request_queue import Answer
from gpkvs.server.door.left_batch import Results, batch_of
from gpkvs.server.door_library import PACKAGES, library_path
from gpkvs.server.ports.tls import TlsFilesError
from gpkvs.server.redis.commands.scripts import Known
from gpkvs.store import OpenTable
from gpkvs.structs import describe

_EVENTS = 256  # that are taken at once
_SLOW_CALLS_MAX = 1024  # that wait until they are taken
_MILLISECOND_NS = 1_000_000
_TABLES_ROOM = 16  # there may be more
_NEVER = (1 << 64) - 1
_NO_TABLE = (1 << 32) - 1


class Protocol(IntEnum):
    """What a port speaks (``enum DoorProtocol``)."""

    GRPC = 0
    RESP = 1


class Turn(IntEnum):
    """How a turn ended (``enum DoorTurn``)."""

    IDLE = 0  # nothing came
    INTERRUPTED = 1
    LEFT = 2  # a batch is left: Python has it run
    DUE = 3  # the engine has something to do for Python
    STOPPED = 4


class Refusal(NamedTuple):
    """What a client is told of a request that was not executed."""

    code: int
    text: str
    full: str = ""
    is_refusal: bool = True
    conflict: ConflictError | None = None


class EventKind(IntEnum):
    """What happened to a call (``enum DoorEventKind``)."""

    OPEN = 0
    MESSAGE = 1
    HALF_CLOSED = 2
    SENT = 3
    OVER = 4  # nobody waits for it any more
    LOGIN = 5  # the door serves it: who makes it?
    ANSWER = 6  # to a request of a handler


class Event(NamedTuple):
    """What happened to a call that Python serves.

    Attributes
    ----------
    kind, call
        What happened, and the id of the call.
    opened
        Of a new call, and of one that is asked for its login.
    message
        That came.
    answer
        Of a request.
    """

    kind: EventKind
    call: int
    opened: Opened | None
    message: bytes
    answer: Answer | None = None


# Their fields are the library's (`_describe`).
class _Config(ctypes.Structure): ...


class _Table(ctypes.Structure): ...


class _Refusal(ctypes.Structure): ...


class Histogram(ctypes.Structure):
    """``struct DoorHistogram``."""


class Stats(ctypes.Structure):
    """``struct DoorStats``: what the door has counted since its start."""


class SlowCall(ctypes.Structure):
    """``struct DoorSlowCall``: a call that took long."""


class TableStats(ctypes.Structure):
    """``struct DoorTableStats``: what the door has counted of a table."""


class _Script(ctypes.Structure): ...


class _Event(ctypes.Structure): ...


# Of each function: what it returns, and what it takes behind the door.
_Functions = dict[str, tuple[Any, list[Any]]]
_REFUSAL = ctypes.POINTER(_Refusal)
_SLOW: _Functions = {
    "delete": (None, []),
    "listen": (c_int, [c_char_p, c_uint16, c_int]),
    "drain": (None, []),
    "stop": (None, []),
    "turn": (c_int, [c_uint64]),
    "left_lacks": (None, [c_uint32, _REFUSAL]),
    "run_left": (c_bool, []),
    "left_without": (c_uint64, [c_uint32]),
    "tell": (c_int, [c_uint64, c_uint64, *[c_void_p] * 3]),
}
# These take microseconds and keep Python's lock: to get it back may take much longer.
_QUICK: _Functions = {
    "set_tables": (c_int, [ctypes.POINTER(_Table), c_uint64]),
    "set_scripts": (c_int, [ctypes.POINTER(_Script), c_uint64]),
    "open": (None, []),
    "shut": (None, [_REFUSAL]),
    "held": (c_uint64, [c_int]),
    "waiting": (c_uint64, []),
    "requests": (c_uint64, []),
    "stats": (None, [ctypes.POINTER(Stats)]),
    "table_stats": (c_uint64, [ctypes.POINTER(TableStats), c_uint64]),
    "slow_calls": (c_uint64, [ctypes.POINTER(SlowCall), c_uint64]),
    "connections": (c_uint64, []),
    "set_engine": (None, [c_void_p]),
    "set_clock": (None, [c_void_p]),
    "interrupt": (None, []),
    "left": (ctypes.POINTER(EngineBatch), []),
    "left_done": (None, [c_uint64, *[c_void_p] * 4, c_uint64]),
    "left_failed": (c_uint64, [_REFUSAL]),
    "durable": (None, [c_uint64]),
    "events_file": (c_int, []),
    "events": (c_uint64, [ctypes.POINTER(_Event), c_uint64]),
    "ask": (c_int, [c_uint64]),
    "respond": (c_int, [c_uint64, c_char_p, c_uint64]),
    "finish": (c_int, [c_uint64, c_int, c_char_p, c_char_p]),
    "submit": (c_int, [c_uint64, c_uint64, c_uint32, c_uint64, c_char_p, c_uint64]),
    "withdraw": (c_int, [c_uint64, c_uint64]),
    "set_session": (c_int, [c_uint64, c_uint32, c_uint32, c_bool, c_bool]),
    "set_subscriptions": (c_int, [c_uint64, c_uint32, c_char_p]),
    "charge": (c_int, [c_uint64, c_int, c_int64]),
    "ask_for_logins": (None, []),
    "set_rights": (c_int, [c_uint64, ctypes.POINTER(c_uint32), c_char_p, c_uint64]),
    "logged_in": (c_int, [c_uint64] * 4),
    "end_caller": (c_int, [c_uint64]),
    "forget_certificates": (c_int, []),
    "close_answered": (c_int, [c_char_p]),
    "set_tls": (c_int, [*[c_char_p, c_uint64] * 3, c_uint64, c_char_p, c_uint64]),
}
_ERROR_BYTES = 256


class Library:
    """One door; each method is the function of that name.

    Parameters
    ----------
    config, bounds
        What the server grants its clients.
    threads
        Threads that have connections; 0: as many as suit the machine's cores.

    Raises
    ------
    InvalidArgumentError
        If the library is not there, or one that it needs.
    MemoryError
        If there is no memory for a door.

    Attributes
    ----------
    redis_commands
        The names of those that the door executes, in the order of their counters; one may come several times.
    """

    def __init__(self, config: ServerConfig, bounds: Bounds, threads: int = 0) -> None:
        path = _path()
        try:
            new = ctypes.CDLL(path).gpkvs_door_new
        except OSError as error:
            raise InvalidArgumentError(
                f"the door of the server cannot be loaded: {error}; install the library that is missing"
            ) from None
        _describe(path)
        new.argtypes, new.restype = [ctypes.POINTER(_Config)], c_void_p
        self._door = new(
            _Config(
                threads=threads,
                connections_max=bounds.connections_max,
                clients_bytes_max=bounds.clients_bytes_max,
                message_bytes_max=bounds.config.message_bytes_max,
                message_requests_max=requests_max(bounds.config.message_bytes_max),
                stream_requests_max=bounds.config.stream_requests_max,
                stream_bytes_max=bounds.config.stream_bytes_max,
                queue_requests_max=config.queue_requests_max,
                batch_ops_max=bounds.config.batch_ops_max,
                batch_bytes_max=bounds.config.batch_bytes_max,
                batch_result_bytes_max=bounds.batch_result_bytes_max,
                engine_bytes=bounds.engine_bytes,
                receive_seconds_max=config.receive_seconds_max,
                slow_ns=int(_MILLISECOND_NS * config.slow_log_over_ms) if config.slow_log_entries_max else _NEVER,
                slow_calls_max=min(config.slow_log_entries_max, _SLOW_CALLS_MAX),
            )
        )
        if not self._door:
            raise MemoryError
        self._events = (_Event * _EVENTS)()
        self._slow_calls_max = min(config.slow_log_entries_max, _SLOW_CALLS_MAX)
        self._call = _functions(ctypes.CDLL(path), _SLOW) | _functions(ctypes.PyDLL(path), _QUICK)
        names = ctypes.CDLL(path).gpkvs_door_redis_commands
        names.restype = c_char_p
        self.redis_commands: Sequence[str] = (names() or b"").decode().split()
        if not self.redis_commands:
            raise MemoryError

    def delete(self) -> None:
        """Stop the door and free it; no other thread may come any more."""
        self._call["delete"](self._door)

    def listen(self, host: str, port: int, protocol: Protocol = Protocol.GRPC) -> int:
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

    def ask_for_logins(self) -> None:
        """Ask Python who makes the calls whose caller the door does not know; before it listens."""
        self._call["ask_for_logins"](self._door)

    def set_rights(self, caller: int, tables: Sequence[int], rights: bytes) -> None:
        """Say which tables, by ascending ids, a caller may read (1), write (2) or both (3)."""
        _require(self._call["set_rights"](self._door, caller, (c_uint32 * len(tables))(*tables), rights, len(tables)))

    def logged_in(self, call: int, caller: int, end_ns: int, idle_ns: int) -> None:
        """Say who showed what a call shows, until a moment, and while the door sees it again within `idle_ns`."""
        _require(self._call["logged_in"](self._door, call, caller, end_ns, idle_ns))

    def end_caller(self, caller: int) -> None:
        """Forget a caller; the calls that it makes are handed to Python."""
        _require(self._call["end_caller"](self._door, caller))

    def forget_certificates(self) -> None:
        """Forget who showed which certificate."""
        _require(self._call["forget_certificates"](self._door))

    def close_answered(self, peers: Iterable[str]) -> None:
        """Close connections, by their names, as soon as their requests are answered."""
        for peer in peers:
            _require(self._call["close_answered"](self._door, peer.encode()))

    def set_tables(self, tables: Iterable[OpenTable]) -> None:
        """Serve these tables from now on."""
        rows = [
            _Table(
                table.name.encode(),
                table.id,
                table.layout == U64_LAYOUT.name,
                table.layout.encode(),
                table.limits.key_bytes_min,
                table.limits.key_bytes_max,
                table.limits.value_bytes_min,
                table.limits.value_bytes_max,
                table.limits.request_ops_max,
                table.limits.result_bytes_max,
            )
            for table in tables
        ]
        _require(self._call["set_tables"](self._door, (_Table * len(rows))(*rows), len(rows)))

    def set_scripts(self, scripts: Mapping[bytes, Known]) -> None:
        """Execute these scripts of Redis from now on, by the SHA-1 of their texts."""
        rows = [_Script(name, known.program, known.keys) for name, known in scripts.items()]
        _require(self._call["set_scripts"](self._door, (_Script * len(rows))(*rows), len(rows)))

    def open(self) -> None:
        """Take requests from now on."""
        self._call["open"](self._door)

    def shut(self) -> None:
        """Take none any more; those that wait are still executed."""
        self._call["shut"](self._door, None)

    def abandon(self, refusal: Refusal) -> None:
        """Refuse those that wait."""
        self._call["shut"](self._door, _packed(refusal))

    def waiting(self) -> int:
        """Return how many requests wait to get into a batch."""
        return int(self._call["waiting"](self._door))

    def requests(self) -> int:
        """Return how many requests are not answered."""
        return int(self._call["requests"](self._door))

    def stats(self) -> Stats:
        """Return what the door has counted."""
        stats = Stats()
        self._call["stats"](self._door, ctypes.byref(stats))
        return stats

    def table_stats(self) -> Sequence[TableStats]:
        """Return what the door has counted of each table."""
        room = _TABLES_ROOM
        while True:
            tables = (TableStats * room)()
            count = int(self._call["table_stats"](self._door, tables, room))
            if count <= room:
                return tables[:count]
            room = 2 * count

    def slow_calls(self) -> Sequence[SlowCall]:
        """Take the calls that took long, the oldest first."""
        calls = (SlowCall * self._slow_calls_max)()
        return calls[: self._call["slow_calls"](self._door, calls, len(calls))]

    def held_bytes(self, kind: Kind) -> int:
        """Return what clients make the server hold, of a kind."""
        return int(self._call["held"](self._door, KINDS.index(kind)))

    def clients_bytes(self) -> int:
        """Return what clients hold in all: all kinds but the batch."""
        return sum(self.held_bytes(kind) for kind in KINDS if kind != "batch")

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

    def set_engine(self, address: int) -> None:
        """Have turns run batches by the native engine at an address (`gpkvs.engine.host.native_engine`)."""
        self._call["set_engine"](self._door, address)

    def set_clock(self, address: int) -> None:
        """Have times to live count from the time that is kept at an address (`gpkvs.engine.tables.expiry`)."""
        self._call["set_clock"](self._door, address)

    def interrupt(self) -> None:
        """End the turn soon, or the next one at once."""
        self._call["interrupt"](self._door)

    def left(self) -> Batch:
        """Return the batch that the turn left; its columns are the door's, until that one is told the outcome."""
        return batch_of(self._call["left"](self._door).contents)

    def left_lacks(self, what: Left, refusal: Refusal) -> None:
        """Say what requests of it hear that lack something, before it runs again."""
        self._call["left_lacks"](self._door, what, _packed(refusal))

    def left_without(self, what: Left) -> int:
        """Return how many requests have heard that; nobody will any more."""
        return int(self._call["left_without"](self._door, what))

    def run_left(self) -> bool:
        """Have the native engine run that batch again; return whether it did, and all is done."""
        return bool(self._call["run_left"](self._door))

    def left_done(self, covered: int, results: Results, gate: int) -> None:
        """Say that its first requests were executed."""
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

    def left_failed(self, refusal: Refusal) -> int:
        """Say that none of it was executed; return how many requests hear that, but for those that Python counts."""
        return int(self._call["left_failed"](self._door, _packed(refusal)))

    def durable(self, gate: int) -> None:
        """Say that everything up to a gate is durable."""
        self._call["durable"](self._door, gate)

    def events_file(self) -> int:
        """Return a file that can be read while there are events."""
        return int(self._call["events_file"](self._door))

    def events(self) -> list[Event]:
        """Return what happened to the calls that Python serves; some of it, if it is much."""
        count = self._call["events"](self._door, self._events, len(self._events))
        return [_event_of(event) for event in self._events[:count]]

    def ask(self, call: int) -> None:
        """Let the next message of a call come."""
        _require(self._call["ask"](self._door, call))

    def respond(self, call: int, message: bytes) -> None:
        """Send a message."""
        _require(self._call["respond"](self._door, call, message, len(message)))

    def finish(self, call: int, code: int, text: str, trailers: Metadata) -> None:
        """End a call."""
        lines = "".join(f"{name}: {value}\n" for name, value in trailers)
        _require(self._call["finish"](self._door, call, code, _encoded(text), _encoded(lines)))

    def submit(self, connection: int, ticket: int, table: int, deadline_ns: int, message: bytes) -> None:
        """Queue a request of a handler, a `BatchRequest`; an `Answer` comes."""
        _require(self._call["submit"](self._door, connection, ticket, table, deadline_ns, message, len(message)))

    def withdraw(self, connection: int, ticket: int) -> None:
        """Execute it no more, if it is in no batch yet."""
        _require(self._call["withdraw"](self._door, connection, ticket))

    def set_session(
        self, call: int, table: int | None, protocol: int, *, hands_all: bool, is_silent: bool = False
    ) -> None:
        """Say how a connection that speaks RESP goes on; before the answer.

        Parameters
        ----------
        call
            Of the connection.
        table
            The id of its table; None: Python takes all commands on keys.
        protocol
            2 or 3: RESP2 or RESP3.
        hands_all
            Python takes all commands.
        is_silent
            The door answers nothing; what Python answers is sent.
        """
        found = _NO_TABLE if table is None else table
        _require(self._call["set_session"](self._door, call, found, protocol, hands_all, is_silent))

    def set_subscriptions(self, call: int, protocol: int, words: bytes) -> None:
        """Say to what such a connection has subscribed; before the answer, behind which it is told.

        Parameters
        ----------
        call, protocol
            As of `set_session`.
        words
            The channels, and then the patterns, as the door hands on the words of a command.
        """
        _require(self._call["set_subscriptions"](self._door, call, protocol, words))

    def tell(self, database: int, changes: Changes) -> None:
        """Tell those who have subscribed of keys of a database that changed; from one thread at a time."""
        columns = (column.ctypes.data for column in (changes.kinds, changes.keys, changes.key_lengths))
        _require(self._call["tell"](self._door, database, len(changes), *columns))

    def charge(self, connection: int, kind: Kind, size: int) -> None:
        """Count what Python holds for a connection; less, if the size is negative."""
        _require(self._call["charge"](self._door, connection, KINDS.index(kind), size))


def _require(outcome: int) -> None:
    if outcome:
        raise MemoryError


def _event_of(event: _Event) -> Event:
    kind = EventKind(event.kind)
    opened = None
    if kind in (EventKind.OPEN, EventKind.LOGIN):
        opened = Opened(
            id=event.id,
            path=_text(event.path),
            connection=event.connection,
            peer=_text(event.peer),
            metadata=_metadata(event.metadata),
            deadline=None if event.deadline_ns == _NEVER else event.deadline_ns / 1e9,
            certificate=tuple(_text(event.names).split("\n")[:-1]),
            caller=event.caller,
            is_counted=bool(event.is_counted),
        )
    if kind is EventKind.ANSWER:
        return Event(kind, event.id, None, b"", _answer_of(event))
    message = ctypes.string_at(event.data, event.bytes) if event.data else b""
    return Event(kind, event.id, opened, message)


def _answer_of(event: Any) -> Answer:
    times_ns = event.submitted_ns, event.began_ns, event.planned_ns, event.durable_ns
    data, code = b"", event.code
    try:
        data = ctypes.string_at(event.data, event.bytes) if event.data else b""
    except MemoryError:  # whoever waits must hear of it
        code = (StatusCode.RESOURCE_EXHAUSTED if event.is_refusal else StatusCode.INTERNAL).value[0]
    return Answer(event.id, data, code, bool(event.is_refusal), *times_ns)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _encoded(text: str) -> bytes:
    """Return a text for a client, also where it has what no encoding has, such as a file's name: its call must end."""
    return text.encode(errors="replace")


def _metadata(lines: bytes) -> Metadata:
    return [(name, value) for name, _, value in (line.partition(": ") for line in _text(lines).split("\n") if line)]


def _path() -> str:
    try:
        return library_path()
    except BackendError:
        raise InvalidArgumentError(
            "this build of gpkvs has no server, only the embedded store: it was built without nghttp2 or OpenSSL. "
            f"Install them ({PACKAGES}), then install gpkvs again"
        ) from None


@cache
def _describe(path: str) -> None:
    """Give the structs their fields."""
    structs = ctypes.CDLL(path).gpkvs_door_structs
    structs.restype = c_char_p
    describe(
        structs(),
        EngineRefusal=EngineRefusal,
        DoorConfig=_Config,
        DoorTable=_Table,
        DoorScript=_Script,
        DoorRefusal=_Refusal,
        DoorSlowCall=SlowCall,
        DoorEvent=_Event,
        DoorHistogram=Histogram,
        DoorStats=Stats,
        DoorTableStats=TableStats,
    )


def _functions(library: ctypes.CDLL, functions: _Functions) -> dict[str, Any]:
    found = {}
    for name, (result, arguments) in functions.items():
        function = getattr(library, f"gpkvs_door_{name}")
        function.restype, function.argtypes = result, [c_void_p, *arguments]
        found[name] = function
    return found


def _packed(refusal: Refusal) -> Any:
    conflict = ctypes.pointer(EngineRefusal.of(refusal.conflict)) if refusal.conflict else None
    texts = _encoded(refusal.text), _encoded(refusal.full)
    return ctypes.byref(_Refusal(refusal.code, *texts, refusal.is_refusal, conflict))
