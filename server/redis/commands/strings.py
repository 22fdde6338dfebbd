"""Commands that read and write whole values, or parts of them."""

from __future__ import annotations

from collections.abc import Iterator

from gpkvs.batch import Condition
from gpkvs.server.redis.execution.command import ALL_KEYS, PAIRS, Words, over_keys, wrong_number
from gpkvs.server.redis.execution.overlay import ABSENT, Overlay
from gpkvs.server.redis.protocol.reply import OK, Error, Reply
from gpkvs.server.redis.protocol.words import (
    expiry_of,
    float_of,
    float_sum,
    float_text,
    invalid_expiry,
    long_of,
    syntax_error,
)

_LONG_MAX = (1 << 63) - 1
# Names of the options that give an expiry: what one of it is in milliseconds, and whether it counts from now on.
_EXPIRY_OPTIONS = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}

_CONDITIONS = {b"NX": Condition.ABSENT, b"XX": Condition.PRESENT}


def _given_expiry(db: Overlay, command: str, option: bytes, word: bytes) -> int:
    """Return the expiry that an option gives; it must not be before 1970, nor in no time."""
    unit_ms, is_relative = _EXPIRY_OPTIONS[option]
    since_ms = db.now_ms if is_relative else 0
    expiry_ms = expiry_of(word, command, unit_ms=unit_ms, since_ms=since_ms)
    if expiry_ms <= since_ms:
        raise invalid_expiry(command)
    return expiry_ms


@over_keys("get", 2)
def get(db: Overlay, words: Words) -> Reply:
    """GET key."""
    return db.get(words[1])


@over_keys("set", -3, writes=True)
def set_(db: Overlay, words: Words) -> Reply:
    """SET key value [NX|XX] [GET] [EX seconds|PX milliseconds|EXAT seconds|PXAT milliseconds|KEEPTTL]."""
    key, value = words[1], words[2]
    condition: Condition | None = None
    expiry: tuple[bytes, bytes] | None = None
    keeps = gets = False
    options = iter(words[3:])
    for word in options:
        option = word.upper()
        if option in _CONDITIONS and condition in (None, _CONDITIONS[option]):
            condition = _CONDITIONS[option]
        elif option == b"GET":
            gets = True
        elif option == b"KEEPTTL" and expiry is None:
            keeps = True
        elif option in _EXPIRY_OPTIONS and not keeps and expiry is None and (given := next(options, None)) is not None:
            expiry = option, given
        else:
            raise syntax_error()
    expiry_ms = _given_expiry(db, "set", *expiry) if expiry else 0
    before = db.record(key) if keeps or gets else ABSENT
    if condition is None or db.fits(key, condition):
        db.set(key, value, before.expiry_ms if keeps else expiry_ms)
        return before.value if gets else OK
    return before.value if gets else None


@over_keys("setnx", 3, writes=True)
def setnx(db: Overlay, words: Words) -> Reply:
    """SETNX key value."""
    if not db.fits(words[1], Condition.ABSENT):
        return 0
    db.set(words[1], words[2])
    return 1


@over_keys("setex", 4, writes=True)
def setex(db: Overlay, words: Words) -> Reply:
    """SETEX key seconds value."""
    db.set(words[1], words[3], _given_expiry(db, "setex", b"EX", words[2]))
    return OK


@over_keys("psetex", 4, writes=True)
def psetex(db: Overlay, words: Words) -> Reply:
    """PSETEX key milliseconds value."""
    db.set(words[1], words[3], _given_expiry(db, "psetex", b"PX", words[2]))
    return OK


@over_keys("getset", 3, writes=True)
def getset(db: Overlay, words: Words) -> Reply:
    """GETSET key value."""
    before = db.get(words[1])
    db.set(words[1], words[2])
    return before


@over_keys("getdel", 2, writes=True)
def getdel(db: Overlay, words: Words) -> Reply:
    """GETDEL key."""
    value = db.get(words[1])
    db.delete(words[1])
    return value


@over_keys("getex", -2, writes=True)
def getex(db: Overlay, words: Words) -> Reply:
    """GETEX key [EX seconds|PX milliseconds|EXAT seconds|PXAT milliseconds|PERSIST]."""
    options = [word.upper() for word in words[2:]]
    persists = all(option == b"PERSIST" for option in options)  # as often as it likes
    if not persists and not (len(options) == 2 and options[0] in _EXPIRY_OPTIONS):
        raise syntax_error()
    key = words[1]
    value = db.get(key)
    if value is None:
        return None
    if not persists:
        db.expire(key, _given_expiry(db, "getex", options[0], words[3]))
    elif options and db.record(key).expiry_ms:
        db.persist(key)
    return value


@over_keys("mget", -2, ALL_KEYS)
def mget(db: Overlay, words: Words) -> Reply:
    """MGET key [key ...]."""
    return [db.get(key) for key in words[1:]]


def _pairs(words: Words) -> Iterator[tuple[bytes, bytes]]:
    if len(words) % 2 == 0:
        raise wrong_number(words[0].decode().lower())
    return zip(words[1::2], words[2::2], strict=True)


@over_keys("mset", -3, PAIRS, writes=True)
def mset(db: Overlay, words: Words) -> Reply:
    """MSET key value [key value ...]."""
    for key, value in _pairs(words):
        db.set(key, value)
    return OK


@over_keys("msetnx", -3, PAIRS, writes=True)
def msetnx(db: Overlay, words: Words) -> Reply:
    """MSETNX key value [key value ...]."""
    pairs = list(_pairs(words))
    if any(db.get(key) is not None for key, _ in pairs):
        return 0
    for key, value in pairs:
        db.set(key, value)
    return 1


def _increment(db: Overlay, key: bytes, by: int) -> int:
    value = db.get(key)
    number = (0 if value is None else long_of(value)) + by
    if not -_LONG_MAX - 1 <= number <= _LONG_MAX:
        raise Error("ERR increment or decrement would overflow")
    db.change(key, b"%d" % number)
    return number


@over_keys("incr", 2, writes=True)
def incr(db: Overlay, words: Words) -> Reply:
    """INCR key."""
    return _increment(db, words[1], 1)


@over_keys("decr", 2, writes=True)
def decr(db: Overlay, words: Words) -> Reply:
    """DECR key."""
    return _increment(db, words[1], -1)


@over_keys("incrby", 3, writes=True)
def incrby(db: Overlay, words: Words) -> Reply:
    """INCRBY key increment."""
    return _increment(db, words[1], long_of(words[2]))


@over_keys("decrby", 3, writes=True)
def decrby(db: Overlay, words: Words) -> Reply:
    """DECRBY key decrement."""
    by = long_of(words[2])
    if by == -_LONG_MAX - 1:
        raise Error("ERR decrement would overflow")
    return _increment(db, words[1], -by)


@over_keys("incrbyfloat", 3, writes=True)
def incrbyfloat(db: Overlay, words: Words) -> Reply:
    """INCRBYFLOAT key increment."""
    value = db.get(words[1])
    number = float_sum(float_of(b"0" if value is None else value), float_of(words[2]))
    if number != number or abs(number) == float("inf"):  # noqa: PLR0124 - so is a number that is none
        raise Error("ERR increment would produce NaN or Infinity")
    text = float_text(number)
    db.change(words[1], text)
    return text


@over_keys("append", 3, writes=True)
def append(db: Overlay, words: Words) -> Reply:
    """APPEND key value."""
    value = db.get(words[1]) or b""
    db.require_room(len(value) + len(words[2]))
    value += words[2]
    db.change(words[1], value)
    return len(value)


@over_keys("strlen", 2)
def strlen(db: Overlay, words: Words) -> Reply:
    """STRLEN key."""
    return len(db.get(words[1]) or b"")


@over_keys("getrange", 4)
def getrange(db: Overlay, words: Words) -> Reply:
    """GETRANGE key start end."""
    start, end = long_of(words[2]), long_of(words[3])
    value = db.get(words[1]) or b""
    if start < 0 and end < 0 and start > end:
        return b""
    start = max(start + len(value), 0) if start < 0 else start
    end = max(end + len(value), 0) if end < 0 else end
    db.require_room(min(end + 1, len(value)) - min(start, len(value)))
    return value[start : end + 1]


over_keys("substr", 4)(getrange)


@over_keys("setrange", 4, writes=True)
def setrange(db: Overlay, words: Words) -> Reply:
    """SETRANGE key offset value."""
    offset, part = long_of(words[2]), words[3]
    if offset < 0:
        raise Error("ERR offset is out of range")
    value = db.get(words[1])
    if not part:
        return len(value or b"")
    before = memoryview(value or b"")
    db.require_room(max(offset + len(part), len(before)))
    value = b"".join((before[:offset], bytes(max(offset - len(before), 0)), part, before[offset + len(part) :]))
    db.change(words[1], value)
    return len(value)
