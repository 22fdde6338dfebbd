"""Commands of times to live."""

from __future__ import annotations

from collections.abc import Callable

from gpkvs.server.redis.execution.command import Words, over_keys
from gpkvs.server.redis.execution.overlay import Overlay
from gpkvs.server.redis.protocol.reply import Error, Reply, shown
from gpkvs.server.redis.protocol.words import expiry_of

_NO_KEY, _NO_EXPIRY = -2, -1


def _may_expire(before_ms: int, expiry_ms: int, options: Words) -> bool:
    """Return whether options let a key expire at a moment that expires at another one now, or never (0)."""
    names = {option.upper() for option in options}
    unknown = next((option for option in options if option.upper() not in (b"NX", b"XX", b"GT", b"LT")), None)
    if unknown is not None:
        raise Error(f"ERR Unsupported option {shown(unknown)}")
    if b"NX" in names and len(names) > 1:
        raise Error("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= names:
        raise Error("ERR GT and LT options at the same time are not compatible")
    return not (
        (b"NX" in names and before_ms)
        or (b"XX" in names and not before_ms)
        or (b"GT" in names and (not before_ms or expiry_ms <= before_ms))
        or (b"LT" in names and before_ms and expiry_ms >= before_ms)
    )


def _expire(name: str, *, unit_ms: int, is_relative: bool) -> Callable[[Overlay, Words], Reply]:
    def run(db: Overlay, words: Words) -> Reply:
        key = words[1]
        _may_expire(0, 0, words[3:])  # options come first
        expiry_ms = expiry_of(words[2], name, unit_ms=unit_ms, since_ms=db.now_ms if is_relative else 0)
        record = db.record(key)
        if record.value is None or not _may_expire(record.expiry_ms, expiry_ms, words[3:]):
            return 0
        db.expire(key, expiry_ms)
        return 1

    return run


for _name, _unit_ms, _is_relative in (
    ("expire", 1000, True),
    ("pexpire", 1, True),
    ("expireat", 1000, False),
    ("pexpireat", 1, False),
):
    over_keys(_name, -3, writes=True)(_expire(_name, unit_ms=_unit_ms, is_relative=_is_relative))


def _left(db: Overlay, key: bytes, unit_ms: int, *, is_relative: bool) -> int:
    """Return the expiry of a key, rounded to whole units."""
    record = db.record(key)
    if record.value is None:
        return _NO_KEY
    if not record.expiry_ms:
        return _NO_EXPIRY
    return (record.expiry_ms - (db.now_ms if is_relative else 0) + unit_ms // 2) // unit_ms


@over_keys("ttl", 2)
def ttl(db: Overlay, words: Words) -> Reply:
    """TTL key."""
    return _left(db, words[1], 1000, is_relative=True)


@over_keys("pttl", 2)
def pttl(db: Overlay, words: Words) -> Reply:
    """PTTL key."""
    return _left(db, words[1], 1, is_relative=True)


@over_keys("expiretime", 2)
def expiretime(db: Overlay, words: Words) -> Reply:
    """EXPIRETIME key."""
    return _left(db, words[1], 1000, is_relative=False)


@over_keys("pexpiretime", 2)
def pexpiretime(db: Overlay, words: Words) -> Reply:
    """PEXPIRETIME key."""
    return _left(db, words[1], 1, is_relative=False)


@over_keys("persist", 2, writes=True)
def persist(db: Overlay, words: Words) -> Reply:
    """PERSIST key."""
    if not db.record(words[1]).expiry_ms:
        return 0
    db.persist(words[1])
    return 1
