"""Commands of whole keys that are named."""

from __future__ import annotations

from gpkvs.server.redis.execution.command import ALL_KEYS, TWO_KEYS, Words, over_keys
from gpkvs.server.redis.execution.overlay import Overlay
from gpkvs.server.redis.protocol.reply import OK, Error, Reply, Simple


@over_keys("del", -2, ALL_KEYS, writes=True)
def delete(db: Overlay, words: Words) -> Reply:
    """DEL key [key ...]."""
    return sum([db.delete(key) for key in words[1:]])


over_keys("unlink", -2, ALL_KEYS, writes=True)(delete)


@over_keys("exists", -2, ALL_KEYS)
def exists(db: Overlay, words: Words) -> Reply:
    """EXISTS key [key ...]."""
    return sum(db.get(key) is not None for key in words[1:])


over_keys("touch", -2, ALL_KEYS)(exists)


@over_keys("type", 2)
def type_(db: Overlay, words: Words) -> Reply:
    """TYPE key."""
    return Simple("none" if db.get(words[1]) is None else "string")


def _move(db: Overlay, source: bytes, target: bytes) -> None:
    record = db.record(source)
    assert record.value is not None
    db.delete(source)
    db.set(target, record.value, record.expiry_ms)


@over_keys("rename", 3, TWO_KEYS, writes=True)
def rename(db: Overlay, words: Words) -> Reply:
    """RENAME key newkey."""
    if db.get(words[1]) is None:
        raise Error("ERR no such key")
    if words[1] != words[2]:  # else it is not written, and who watches it sees no change
        _move(db, words[1], words[2])
    return OK


@over_keys("renamenx", 3, TWO_KEYS, writes=True)
def renamenx(db: Overlay, words: Words) -> Reply:
    """RENAMENX key newkey."""
    if db.get(words[1]) is None:
        raise Error("ERR no such key")
    if db.get(words[2]) is not None:
        return 0
    _move(db, words[1], words[2])
    return 1
