"""COPY, within a table and from one table to another."""

from __future__ import annotations

from typing import NamedTuple

from gpkvs.server.redis.execution.command import COMMANDS, TWO_KEYS, Step, Words, outside_transactions, over_keys
from gpkvs.server.redis.execution.overlay import Overlay
from gpkvs.server.redis.protocol.reply import Error, Reply
from gpkvs.server.redis.protocol.words import long_of, syntax_error
from gpkvs.server.redis.sessions.session import Session, name_of_table


class _Options(NamedTuple):
    database: int | None
    replaces: bool


def _options_of(words: Words) -> _Options:
    database, replaces = None, False
    options = iter(words[3:])
    for word in options:
        option = word.upper()
        if option == b"REPLACE":
            replaces = True
        elif option == b"DB" and (number := next(options, None)) is not None:
            database = long_of(number)
        else:
            raise syntax_error()
    return _Options(database, replaces)


@over_keys("copy", -3, TWO_KEYS, writes=True)
def copy(db: Overlay, words: Words) -> Reply:
    """COPY source destination [DB destination-db] [REPLACE]."""
    database, replaces = _options_of(words)
    if database is not None:
        raise Error("ERR COPY to another DB is not possible inside MULTI here: leave out DB")
    if words[1] == words[2]:
        raise Error("ERR source and destination objects are the same")
    record = db.record(words[1])
    if record.value is None or (db.get(words[2]) is not None and not replaces):
        return 0
    db.set(words[2], record.value, record.expiry_ms)
    return 1


@outside_transactions("copy")
async def copy_to_table(session: Session, words: Words) -> Reply:
    """Copy a key as it is now; another client may change it before the copy is there."""
    database, replaces = _options_of(words)
    if database in (None, session.number):
        within = [*words[:3], b"REPLACE"] if replaces else words[:3]
        return (await session.run([Step(COMMANDS[b"copy"], within)]))[0]
    name = name_of_table(database)
    session.require_read()
    session.require_write(name)
    if not replaces:  # the reply tells whether the key is there
        session.require_read(name)
    table = session.table_named(name)
    record = await session.read(words[1])
    if record.value is None:
        return 0
    options = [] if replaces else [b"NX"]
    if record.expiry_ms:
        options += [b"PXAT", b"%d" % record.expiry_ms]
    step = Step(COMMANDS[b"set"], [b"SET", words[2], record.value, *options])
    [reply] = await session.service.executor.run([step], {}, table, session.room)
    if isinstance(reply, Error):
        raise reply
    return int(reply is not None)
