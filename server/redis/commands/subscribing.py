"""SUBSCRIBE and what belongs to it: a client is told of keys that change, when the change is durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpkvs.server.redis.execution.command import Words, of_session
from gpkvs.server.redis.execution.overlay import require_key
from gpkvs.server.redis.protocol.reply import Push, Pushes, Reply
from gpkvs.server.redis.sessions.session import Session, name_of_table
from gpkvs.server.redis.sessions.subscriptions import Database, channel_database, pattern_database
from gpkvs.store import OpenTable


@of_session("subscribe", -2)
async def subscribe(session: Session, words: Words) -> Reply:
    """SUBSCRIBE channel [channel ...]."""
    before = session.subscriptions
    channels: dict[bytes, Database] = {}
    for name in words[1:]:
        database, key = channel_database(name)
        table = _require_database(session, database)
        if key is not None and table is not None:
            require_key(key, table.limits)
        channels[name] = database
    await session.subscribe(before.with_more(channels, {}))
    return _added(b"subscribe", words[1:], before.channels, len(before.patterns))


@of_session("psubscribe", -2)
async def psubscribe(session: Session, words: Words) -> Reply:
    """PSUBSCRIBE pattern [pattern ...]."""
    before = session.subscriptions
    patterns = {pattern: pattern_database(pattern) for pattern in words[1:]}
    for database in patterns.values():
        _require_database(session, database)
    await session.subscribe(before.with_more({}, patterns))
    return _added(b"psubscribe", words[1:], before.patterns, len(before.channels))


@of_session("unsubscribe", -1)
async def unsubscribe(session: Session, words: Words) -> Reply:
    """UNSUBSCRIBE [channel ...]."""
    before = session.subscriptions
    names = words[1:] or list(before.channels)
    session.unsubscribe(before.without(channels=names))
    return _removed(b"unsubscribe", names, before.channels, len(before.patterns))


@of_session("punsubscribe", -1)
async def punsubscribe(session: Session, words: Words) -> Reply:
    """PUNSUBSCRIBE [pattern ...]."""
    before = session.subscriptions
    names = words[1:] or list(before.patterns)
    session.unsubscribe(before.without(patterns=names))
    return _removed(b"punsubscribe", names, before.patterns, len(before.channels))


def _require_database(session: Session, database: Database) -> OpenTable | None:
    """Return the table of a database, None for all of them; refuse who may not read it, and one that there is not."""
    session.require_told(database)
    return None if database is None else session.table_named(name_of_table(database))


def _added(kind: bytes, names: Sequence[bytes], before: Iterable[bytes], others: int) -> Pushes:
    """Return a message for each name, with the number of subscriptions behind it."""
    held = set(before)
    pushes = Pushes()
    for name in names:
        held.add(name)
        pushes.append(Push([kind, name, len(held) + others]))
    return pushes


def _removed(kind: bytes, names: Sequence[bytes], before: Iterable[bytes], others: int) -> Pushes:
    held = set(before)
    pushes = Pushes()
    for name in names:
        held.discard(name)
        pushes.append(Push([kind, name, len(held) + others]))
    return pushes or Pushes([Push([kind, None, others])])
