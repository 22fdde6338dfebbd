"""Scripts: those of well-known locks are known by their text, and run here; no other script runs.

A script is known by the SHA-1 of its text without comments, with double quotes, and with spaces between words only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from gpkvs.server.redis.execution.command import Keys, Words, of_session, over_keys
from gpkvs.server.redis.execution.overlay import Overlay
from gpkvs.server.redis.protocol.reply import OK, Error, Reply
from gpkvs.server.redis.protocol.words import expiry_of, is_flush_option, long_of
from gpkvs.server.redis.sessions.session import Session

Script = Callable[[Overlay, Sequence[bytes], Sequence[bytes]], Reply]

_COMMENT, _SPACE, _NO_WORD = re.compile(rb"--[^\n]*"), re.compile(rb"\s+"), re.compile(rb" ?([^\w ]) ?")
_NUMKEYS, _FIRST_KEY = 2, 3  # words of EVAL
_SHA1_LETTERS = 40
_DIGITS_MAX = 20


class _CountedKeys(Keys):
    """The keys of EVAL, whose number is one of its words."""

    @property
    def exist(self) -> bool:
        """Whether the command has any."""
        return True

    def of(self, words: Words) -> list[bytes]:
        """Return them; none, if their number is wrong."""
        count = words[_NUMKEYS]
        is_number = count.isdigit() and len(count) <= _DIGITS_MAX
        return list(words[_FIRST_KEY : _FIRST_KEY + int(count)]) if is_number else []


_KEYS = _CountedKeys()


def _release(db: Overlay, keys: Sequence[bytes], args: Sequence[bytes]) -> Reply:
    """Delete the keys that hold a token; return how many."""
    return sum([db.delete(key) for key in keys if db.get(key) == args[0]])


def _acquire(db: Overlay, keys: Sequence[bytes], args: Sequence[bytes]) -> Reply:
    """Give all keys a token for a while, if none is there; return how many."""
    if any(db.get(key) is not None for key in keys):
        return 0
    for key in keys:
        db.set(key, args[0], _end(db, args[1]))
    return len(keys)


def _extend(db: Overlay, keys: Sequence[bytes], args: Sequence[bytes]) -> Reply:
    """Give all keys another while, if all hold a token; return how many."""
    if any(db.get(key) != args[0] for key in keys):
        return 0
    for key in keys:
        db.expire(key, _end(db, args[1]))
    return len(keys)


def _prolong(db: Overlay, keys: Sequence[bytes], args: Sequence[bytes]) -> Reply:
    """Give a key that holds a token and expires a longer while, or another one; return whether that was done."""
    record = db.record(keys[0])
    if record.value != args[0] or not record.expiry_ms:
        return 0
    since = record.expiry_ms if args[2] == b"0" else db.now_ms
    db.expire(keys[0], expiry_of(args[1], "eval", unit_ms=1, since_ms=since))
    return 1


def _end(db: Overlay, ms: bytes) -> int:
    return expiry_of(ms, "eval", unit_ms=1, since_ms=db.now_ms)


class Program(IntEnum):
    """What the native door does by itself (door/resp/scripts.hpp), unless something is wrong with the words."""

    RELEASE = 1
    EXTEND = 2
    ACQUIRE = 3
    PROLONG = 4


class Known(NamedTuple):
    """A script that runs here.

    Parameters
    ----------
    run
        What it does.
    program
        The same, as the native door does it.
    keys, args
        How many it has; keys 0: any number of them.
    """

    run: Script
    program: Program
    keys: int
    args: int


_KNOWN: dict[str, Known] = {
    # redis-py, valkey-py: Lock
    "16d4f25a8b1272dc33002e333ca708ee3f94da4e": Known(_release, Program.RELEASE, 1, 1),
    "bce326b8a0b21cc21af307b604335bbdd4e6ad86": Known(_prolong, Program.PROLONG, 1, 3),
    "b57b48d5536ae982a91ca9929e89a43a617db101": Known(_extend, Program.EXTEND, 1, 2),
    # node-redlock
    "edd4ddecf1460b13c093d7cb4fd999c17d3d76d8": Known(_acquire, Program.ACQUIRE, 0, 2),
    "ad59565c53ba1d8128343d84e98a5aaca5739479": Known(_extend, Program.EXTEND, 0, 2),
    "872463717b9d8763339c3b80e81ba68c1dbb28c2": Known(_release, Program.RELEASE, 0, 1),
    # redlock-py and many others: DEL, or PEXPIRE, of a key if it holds a token
    "278b7fc39f087c6276c7b7c08962022c4fe73ba6": Known(_release, Program.RELEASE, 1, 1),
    "43e9817a622cba86ea5a7b09b0c27646e33f4699": Known(_extend, Program.EXTEND, 1, 2),
}

# Those of locks have some hundred bytes. A client that spaces them anew all the time only has others load theirs again.
_TEXT_BYTES_MAX, _LOADED_MAX = 8 * 1024, 1024


class Loaded:
    """The scripts that clients have loaded, by the SHA-1 of their texts as they came."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._followers: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._known)

    @property
    def known(self) -> Mapping[bytes, Known]:
        """All of them, as they are now."""
        return self._known.copy()

    def find(self, name: bytes) -> Known | None:
        """Return one of them, if it is loaded."""
        return self._known.get(name)

    def add(self, name: bytes, script: Known) -> None:
        """Load a script; the oldest one may go for it."""
        if name in self._known:
            return
        if len(self._known) >= _LOADED_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = script
        self._tell()

    def clear(self) -> None:
        """Forget them."""
        self._known = {}
        self._tell()

    def follow(self, told: Callable[[], None]) -> None:
        """Have somebody told of each change, until `leave`."""
        self._followers.append(told)

    def leave(self, told: Callable[[], None]) -> None:
        """Tell it no more, if it was told."""
        if told in self._followers:
            self._followers.remove(told)

    def _tell(self) -> None:
        for told in tuple(self._followers):
            told()


loaded = Loaded()


def plain_sha1(text: bytes) -> str:
    """Return by what a script is known."""
    plain = _SPACE.sub(b" ", _COMMENT.sub(b"", text)).strip().replace(b"'", b'"')
    return hashlib.sha1(_NO_WORD.sub(rb"\1", plain), usedforsecurity=False).hexdigest()


def _load(text: bytes) -> bytes:
    """Know a script from now on by its SHA-1, which is returned.

    Raises
    ------
    Error
        If it is none of the known ones.
    """
    known = _KNOWN.get(plain_sha1(text)) if len(text) <= _TEXT_BYTES_MAX else None
    if known is None:
        raise Error("ERR no scripts run here but those of well-known locks (docs/redis.md)")
    name = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    loaded.add(name, known)
    return name


def _count_of(words: Words) -> int:
    """Return how many keys a script is given, which Redis looks at before it looks for the script."""
    count = long_of(words[_NUMKEYS])
    if count > len(words) - _FIRST_KEY:
        raise Error("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise Error("ERR Number of keys can't be negative")
    return count


def _no_script() -> Error:
    return Error("NOSCRIPT No matching script. Please use EVAL.")


def _run(db: Overlay, name: bytes, words: Words) -> Reply:
    count = _count_of(words)
    known = loaded.find(name)
    if known is None:
        raise _no_script()
    keys, args = words[_FIRST_KEY : _FIRST_KEY + count], words[_FIRST_KEY + count :]
    if len(keys) != (known.keys or max(len(keys), 1)) or len(args) < known.args:
        raise Error("ERR this script has other keys or arguments")
    return known.run(db, keys, args)


@over_keys("eval", -3, _KEYS, writes=True)
def eval_(db: Overlay, words: Words) -> Reply:
    """EVAL script numkeys [key ...] [arg ...]."""
    _count_of(words)
    return _run(db, _load(words[1]), words)


@over_keys("evalsha", -3, _KEYS, writes=True)
def evalsha(db: Overlay, words: Words) -> Reply:
    """EVALSHA sha1 numkeys [key ...] [arg ...]."""
    if len(words[1]) != _SHA1_LETTERS:
        raise _no_script()
    return _run(db, words[1].lower(), words)


@of_session("script", -2, in_transactions=True, subcommands={"exists": -3, "flush": -2, "load": 3})
async def script(_session: Session, words: Words) -> Reply:
    """SCRIPT LOAD script; SCRIPT EXISTS sha1 ...; SCRIPT FLUSH."""
    match words[1].upper(), words[2:]:
        case b"LOAD", [text]:
            return _load(text)
        case b"EXISTS", [_, *_] as names:
            return [int(loaded.find(name.lower()) is not None) for name in names]
        case b"FLUSH", options if is_flush_option(options):
            loaded.clear()
            return OK
    raise Error("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
