"""The commands that took long, as SLOWLOG shows them."""

from __future__ import annotations

import time
from collections import deque
from itertools import count, islice
from typing import NamedTuple

from gpkvs.server.redis.command import COMMANDS, Words

SLOWER_THAN_US = 10_000
ENTRIES_MAX = 128
_WORDS_MAX, _WORD_BYTES_MAX = 32, 128
# Passwords may be among their words.
_NEVER_NOTED = frozenset((b"auth", b"hello", b"config"))


class Entry(NamedTuple):
    """A command that took long.

    Attributes
    ----------
    number
        It grows from one to the next.
    timestamp
        When it ended, in seconds since 1970.
    duration_us
        How long it took.
    words
        Of the command; many and long ones are cut.
    peer, name
        Of the client.
    """

    number: int
    timestamp: int
    duration_us: int
    words: list[bytes]
    peer: bytes
    name: bytes


class SlowLog:
    """The last ones of all connections."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=ENTRIES_MAX)
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def last(self, entries: int) -> list[Entry]:
        """Return so many, the newest first."""
        return list(islice(reversed(self._entries), entries))

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()

    def note(self, words: Words, duration_us: int, peer: str, name: bytes) -> None:
        """Note a command if it took long; none with a password, and none that there is not."""
        called = words[0].lower()
        if duration_us > SLOWER_THAN_US and called in COMMANDS and called not in _NEVER_NOTED:
            now = int(time.time())
            self._entries.append(Entry(next(self._numbers), now, duration_us, _cut(words), peer.encode(), name))


def _cut(words: Words) -> list[bytes]:
    shown = [_cut_word(word) for word in words[:_WORDS_MAX]]
    if len(words) > _WORDS_MAX:
        shown[-1] = b"... (%d more arguments)" % (len(words) - _WORDS_MAX + 1)
    return shown


def _cut_word(word: bytes) -> bytes:
    more = len(word) - _WORD_BYTES_MAX
    return bytes(word) if more <= 0 else word[:_WORD_BYTES_MAX] + b"... (%d more bytes)" % more
