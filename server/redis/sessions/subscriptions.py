"""To what a session has subscribed: keys that change, and nothing else."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final

from gpkvs.server.redis.protocol.pattern import pattern_of
from gpkvs.server.redis.protocol.reply import Error, shown

EVENTS: Final = (b"set", b"del", b"expired")

# The door looks at all of them for each key that changes.
_COUNT_MAX, _PATTERN_BYTES_MAX = 1024, 1024
# What one takes beside its bytes, here and in the door; and these are in so many places.
_ENTRY_BYTES, _COPIES = 512, 3

_NUMBER = rb"(0|[1-9][0-9]{0,17})"
_CHANNEL = re.compile(rb"__key(space|event)@%b__:(.+)" % _NUMBER, re.DOTALL)
_PATTERN = re.compile(rb"__key(?:(space|event|\*)@(?:%b|\*)|\*)__:(.*)" % _NUMBER, re.DOTALL)

Database = int | None
"""A number; None: all of them."""


class Subscriptions:
    """The channels and patterns of one session.

    Attributes
    ----------
    channels, patterns
        Each with its database.
    version
        Another one after each change.
    """

    def __init__(self) -> None:
        self.channels: dict[bytes, Database] = {}
        self.patterns: dict[bytes, Database] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self.channels) + len(self.patterns)

    @property
    def databases(self) -> set[Database]:
        """Of which they tell."""
        return {*self.channels.values(), *self.patterns.values()}

    @property
    def held_bytes(self) -> int:
        """What they take in memory."""
        return sum(_ENTRY_BYTES + _COPIES * len(name) for name in (*self.channels, *self.patterns))

    def with_more(self, channels: dict[bytes, Database], patterns: dict[bytes, Database]) -> Subscriptions:
        """Return these and others.

        Raises
        ------
        Error
            If these are too many.
        """
        more = Subscriptions()
        more.channels, more.patterns = self.channels | channels, self.patterns | patterns
        more.version = self.version + 1
        if len(more) > _COUNT_MAX:
            raise Error(
                f"ERR {len(more):,} channels and patterns of one connection, allowed are {_COUNT_MAX:,}: subscribe to "
                "a pattern such as __keyspace@0__:user:*"
            )
        size = sum(map(len, more.patterns))
        if size > _PATTERN_BYTES_MAX:
            raise Error(f"ERR patterns of {size:,} bytes on one connection, allowed are {_PATTERN_BYTES_MAX:,}")
        return more

    def without(self, channels: Sequence[bytes] = (), patterns: Sequence[bytes] = ()) -> Subscriptions:
        """Return these without some."""
        fewer = Subscriptions()
        fewer.channels = {name: self.channels[name] for name in self.channels.keys() - set(channels)}
        fewer.patterns = {name: self.patterns[name] for name in self.patterns.keys() - set(patterns)}
        fewer.version = self.version + 1
        return fewer

    def message(self) -> bytes:
        """Return them as the door takes them."""
        return _message(list(self.channels)) + _message(list(self.patterns))


def _message(words: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{1 + len(words)}I", len(words), *map(len, words)) + b"".join(words)


def channel_database(name: bytes) -> tuple[int, bytes | None]:
    """Return of which database a channel tells, and of which key; None: of all keys to which an event happens.

    Raises
    ------
    Error
        If there is no such channel.
    """
    found = _CHANNEL.fullmatch(name)
    if found is None:
        raise _no_channel(name)
    if found[1] == b"event" and found[3] not in EVENTS:
        raise _no_event(name)
    return int(found[2]), found[3] if found[1] == b"space" else None


def pattern_database(pattern: bytes) -> Database:
    """Return of which database a pattern tells.

    Raises
    ------
    Error
        If it fits nothing that there can be.
    """
    found = _PATTERN.fullmatch(pattern)
    if found is None:
        raise _no_channel(pattern)
    if found[1] == b"event" and not any(map(pattern_of(found[3]).fullmatch, EVENTS)):
        raise _no_event(pattern)
    return None if found[2] is None else int(found[2])


def _no_channel(name: bytes) -> Error:
    return Error(
        f"ERR there is no channel '{shown(name)}': clients are told of keys that change, and send each other nothing. "
        "Channels are __keyspace@0__:KEY and __keyevent@0__:EVENT, with the number of a database; patterns begin so, "
        "or with __keyspace@*__:, __keyevent@*__: or __key*__:"
    )


def _no_event(name: bytes) -> Error:
    return Error(
        f"ERR there is no event '{shown(name)}': events are set, del and expired. Whatever a key holds then, also "
        "after EXPIRE, RENAME or INCR, is told as set"
    )
