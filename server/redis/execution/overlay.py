"""The keys of a command as it finds and leaves them: it reads and writes here, and nothing is stored meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from gpkvs.batch import Condition
from gpkvs.config import Limits
from gpkvs.server.account.memory import Room
from gpkvs.server.redis.protocol.reply import Error


@dataclass(frozen=True, slots=True)
class Record:
    """What a key holds.

    Attributes
    ----------
    value
        None: the key is not there.
    expiry_ms
        When it expires, in milliseconds since 1970; 0: never.
    version
        Of the record that was read; 0: none.
    """

    value: bytes | None = None
    expiry_ms: int = 0
    version: int = 0


ABSENT = Record()

# What a key takes that is written, beside itself and its value: its record, and the rows of its operations.
_WRITTEN_BYTES = 512
# A value is there twice: by itself, and in the column of its request.
_VALUE_COPIES = 2


def is_key(key: bytes, limits: Limits) -> bool:
    """Return whether a table with these limits can have a key."""
    return limits.key_bytes_min <= len(key) <= limits.key_bytes_max


def require_key(key: bytes, limits: Limits) -> None:
    """Refuse a key that a table with these limits cannot have.

    Raises
    ------
    Error
        Naming the limit.
    """
    if not is_key(key, limits):
        raise Error(
            f"ERR a key of {len(key):,} {'byte' if len(key) == 1 else 'bytes'}, allowed are "
            f"{limits.key_bytes_min:,} to {limits.key_bytes_max:,} (key_bytes_max)"
        )


class UnreadError(Exception):
    """A command wants to know what a key holds, and no key was read."""


class Overlay:
    """Some keys of a table.

    Parameters
    ----------
    found
        What was read of each key that the commands name, as of one moment; None: nothing was read.
    now_ms
        That moment; times to live count from here.
    limits
        Of the table.
    room
        Counts what commands make.
    """

    def __init__(self, found: dict[bytes, Record] | None, now_ms: int, limits: Limits, room: Room) -> None:
        self.found = found
        self.now_ms = now_ms
        self._limits = limits
        self._room = room
        self.value_bytes_max = limits.value_bytes_max
        self.written: dict[bytes, Record] = {}
        self.supposed: dict[bytes, Condition] = {}  # what `fits` took for true
        self._before: dict[bytes, Record | None] = {}  # of `written`, since a command has begun

    def begin(self) -> None:
        """Begin a command."""
        self._before = {}

    def undo(self) -> None:
        """Let what the command has written not count."""
        for key, record in self._before.items():
            if record is None:
                del self.written[key]
            else:
                self.written[key] = record

    def _write(self, key: bytes, record: Record) -> None:
        before = self.written.get(key)
        more = _held_bytes(key, record) - (_held_bytes(key, before) if before else 0)
        if more > 0:
            self._room.take(more)
        self._before.setdefault(key, before)
        self.written[key] = record

    def require_room(self, value_bytes: int) -> None:
        """Refuse to make a value of this length, or a part of one.

        Raises
        ------
        Error
            If it is too long.
        NoSpaceError
            If there is no room for it.
        """
        if value_bytes > self.value_bytes_max:
            raise _too_long()
        self._room.require(value_bytes)

    def record(self, key: bytes) -> Record:
        """Return what a key holds now.

        Raises
        ------
        Error
            If the table cannot have the key.
        UnreadError
            If it must be read first.
        """
        require_key(key, self._limits)
        if key in self.written:
            return self.written[key]
        if self.found is None:
            raise UnreadError
        return self.found[key]

    def fits(self, key: bytes, condition: Condition) -> bool:
        """Return whether a key is there, or absent, as a condition says; where nothing was read, suppose so.

        Raises
        ------
        Error
            If the table cannot have the key.
        """
        require_key(key, self._limits)
        if self.found is None and key not in self.written:
            self.supposed[key] = condition
            return True
        return (self.get(key) is None) == (condition is Condition.ABSENT)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it is not there."""
        return self.record(key).value

    def set(self, key: bytes, value: bytes, expiry_ms: int = 0) -> None:
        """Give a key a value and an expiry; what has expired already is deleted.

        Raises
        ------
        Error
            If the value is too long, or the table cannot have the key.
        """
        require_key(key, self._limits)
        if len(value) > self.value_bytes_max:
            raise _too_long()
        self._write(key, ABSENT if 0 < expiry_ms <= self.now_ms else Record(value, expiry_ms))

    def change(self, key: bytes, value: bytes) -> None:
        """Give a key another value; it keeps its expiry."""
        self.set(key, value, self.record(key).expiry_ms)

    def expire(self, key: bytes, expiry_ms: int) -> None:
        """Have a key that is there expire; at once, if that moment has passed."""
        if expiry_ms <= self.now_ms:
            self.delete(key)
        else:
            self.set(key, self._value(key), expiry_ms)

    def persist(self, key: bytes) -> None:
        """Have a key that is there never expire."""
        self.set(key, self._value(key))

    def _value(self, key: bytes) -> bytes:
        value = self.get(key)
        assert value is not None, "the key is not there"
        return value

    def delete(self, key: bytes) -> bool:
        """Remove a key; return whether it was there."""
        was_there = self.get(key) is not None
        if was_there:
            self._write(key, ABSENT)
        return was_there


def _held_bytes(key: bytes, record: Record) -> int:
    return _WRITTEN_BYTES + len(key) + _VALUE_COPIES * len(record.value or b"")


def _too_long() -> Error:
    return Error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
