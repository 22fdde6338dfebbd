"""The slow log: the last calls that took long, whoever served them, and what their time went into.

The native door notes those that it answers in a ring of its own; once a second, and before anybody reads, they are
taken from there. Python's handlers note theirs here. Both are numbered by their ends. The log holds no value, and of
keys only the first bytes of one. Who may read it is decided elsewhere: an administrator of the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count, islice
from typing import Final, NamedTuple

from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.store import Store

KEY_BYTES_MAX: Final = 32
PHASES: Final = ("waiting", "executing", "durable", "answering")

_NANOSECONDS = 1_000_000
_NUMBER_BYTES = 8


class SlowCall(NamedTuple):
    """A call that took long, or a message of a stream, or a command of the Redis protocol.

    Attributes
    ----------
    ended_us
        When it was answered, in microseconds since 1970.
    waiting_ns, executing_ns, durable_ns, answering_ns
        How long it waited for the engine; was executed, with all that Python did for it; waited until what it wrote, or
        what it read, was durable; and was answered. They are all its time.
    user, peer
        Who made it: the user, empty without logins, and the client's address and port.
    protocol
        ``grpc`` or ``redis``.
    command
        The method, or the command with its subcommand.
    table
        Its name; empty if there was none.
    key, key_bytes
        The beginning of its first key, and the length of all of it; 0 without a key. In a table whose keys are numbers
        it is decimal.
    operations, bytes_in, bytes_out
        What it asked for; of keys and values.
    words
        Of a command of the Redis protocol; else 0.
    request_id
        That the client gave, or the server; over the Redis protocol only of a command that was answered by an error
        with an id.
    """

    ended_us: int
    waiting_ns: int
    executing_ns: int
    durable_ns: int
    answering_ns: int
    user: str
    peer: str
    protocol: str
    command: str
    table: str
    key: bytes
    key_bytes: int
    operations: int
    bytes_in: int
    bytes_out: int
    words: int
    request_id: str

    @property
    def total_ns(self) -> int:
        """All its time."""
        return self.waiting_ns + self.executing_ns + self.durable_ns + self.answering_ns


class Entry(NamedTuple):
    """A slow call and its number, which grows from one to the next."""

    number: int
    call: SlowCall


class SlowLog:
    """The last ones of a server.

    Parameters
    ----------
    over_ms
        A call that takes so long is slow.
    entries_max
        So many are kept; 0: none is noted.
    noted
        Is told of each.
    """

    def __init__(self, over_ms: float, entries_max: int, noted: Callable[[], None] = lambda: None) -> None:
        self.over_ms = over_ms
        self.entries_max = entries_max
        self._over_ns = int(over_ms * _NANOSECONDS)
        self._noted = noted
        self._sources: list[Callable[[], Iterable[SlowCall]]] = []
        self._new: deque[SlowCall] = deque(maxlen=entries_max)
        self._entries: deque[Entry] = deque(maxlen=entries_max)
        self._numbers = count()
        self._store: Store | None = None

    def follow(self, source: Callable[[], Iterable[SlowCall]]) -> None:
        """Take over what is noted elsewhere, and counted there; the function gives each call once."""
        self._sources.append(source)

    def attach(self, store: Store | None) -> None:
        """Name tables of this store from now on; None: of none, since it is about to be closed."""
        self._store = store

    def named(self, table_id: int, key: bytes) -> tuple[str, bytes]:
        """Return the name of a table, empty if there is none of that number, and a key of it, or its beginning."""
        tables = self._store.open_tables() if self._store else []
        table = next((table for table in tables if table.id == table_id), None)
        if table is None:
            return "", key
        is_number = table.layout != BYTES_LAYOUT.name and len(key) == _NUMBER_BYTES
        return table.name, b"%d" % int.from_bytes(key, "little") if is_number else key

    def is_slow(self, total_ns: int) -> bool:
        """Return whether a call that took so long is noted."""
        return self.entries_max > 0 and total_ns >= self._over_ns

    def note(self, call: SlowCall) -> None:
        """Note a call that was slow."""
        self._new.append(call)
        self._noted()

    def last(self, entries: int | None = None, protocol: str = "") -> list[Entry]:
        """Return so many, or all, the newest first; of one protocol, or of all."""
        self._settle()
        found = (entry for entry in reversed(self._entries) if protocol in ("", entry.call.protocol))
        return list(islice(found, entries))

    def clear(self, protocol: str = "") -> None:
        """Forget all, or those of one protocol."""
        self._settle()
        kept = [entry for entry in self._entries if protocol not in ("", entry.call.protocol)]
        self._entries.clear()
        self._entries.extend(kept)

    def _settle(self) -> None:
        """Give numbers to what is new, by the ends of the calls."""
        new = [*self._new, *(call for source in self._sources for call in source())]
        self._new.clear()
        for call in sorted(new, key=lambda call: call.ended_us):
            self._entries.append(Entry(next(self._numbers), call))
