"""Commands of all keys of a table."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from gpkvs.scan import PIECE_BYTES_MAX, PIECE_KEYS_MAX, ScanPiece
from gpkvs.server.redis.execution.columns import delete_of
from gpkvs.server.redis.execution.command import Words, of_session
from gpkvs.server.redis.protocol.pattern import pattern_of
from gpkvs.server.redis.protocol.reply import OK, Error, Reply, held_bytes
from gpkvs.server.redis.protocol.words import is_flush_option, long_of, syntax_error
from gpkvs.server.redis.sessions.session import DEFAULT_TABLE, Session, databases_of

# A cursor is the upper bits of a position: clients keep it in a double.
_POSITION_BITS, _CURSOR_BITS = 64, 53
_SHIFT = _POSITION_BITS - _CURSOR_BITS
_DIGITS_MAX = 20
_SCAN_KEYS = 10
_RANDOM_KEYS = 16  # of which RANDOMKEY takes one: all keys of a smaller table are as likely
_SCAN_STEPS_MAX = 8  # of one SCAN: each takes milliseconds, and may find fewer keys than it is asked for
_EVERYTHING = b"*"
# A key of a piece is there as a part of a column, as an object, and in the columns of a request.
_PIECE_COPIES, _KEY_BYTES = 3, 256


def _take_room(session: Session, keys_max: int = PIECE_KEYS_MAX, steps: int = 1) -> None:
    """Count so many keys, which so many steps find.

    Raises
    ------
    NoSpaceError
        If there is no room for them.
    """
    key_bytes_max = session.service.gate.serving().store.limits.key_bytes_max
    bytes_max = min(steps * PIECE_BYTES_MAX, keys_max * key_bytes_max)
    session.room.take(_PIECE_COPIES * bytes_max + _KEY_BYTES * keys_max)


async def _step(session: Session, table: str, position: int, keys_max: int = PIECE_KEYS_MAX) -> tuple[ScanPiece, int]:
    """Return the keys from a position on, and where it goes on; 0 at the end."""
    store = session.service.gate.serving().store
    cursor = store.cursor_at(table, position) if position else b""
    piece = await session.service.scan(
        lambda: store.scan_step(table, cursor, keys_only=True, keys_max=keys_max, bytes_max=PIECE_BYTES_MAX)
    )
    return piece, store.position_of(table, piece.cursor)


async def _steps(session: Session, table: str, position: int, keys_max: int) -> tuple[list[bytes], int]:
    """Return so many keys, from a position on, if a few steps find them, and where it goes on."""
    keys: list[bytes] = []
    for _ in range(_SCAN_STEPS_MAX):
        piece, position = await _step(session, table, position, keys_max - len(keys))
        keys += piece.key_list()
        if not position or len(keys) >= keys_max:
            break
    return keys, position


async def _keys(session: Session, table: str) -> AsyncIterator[list[bytes]]:
    """Return all keys of a table, in pieces."""
    position = 0
    while True:
        piece, position = await _step(session, table, position)
        yield piece.key_list()
        if not position:
            return


async def _fitting(session: Session, pattern: bytes, keys: list[bytes]) -> list[bytes]:
    """Return the keys that fit a pattern; long ones of both take milliseconds each, and so does to read a long one."""

    def fitting() -> list[bytes]:
        fits = pattern_of(pattern).fullmatch
        return [key for key in keys if fits(key)]

    return await session.service.scan(fitting)


@of_session("dbsize", 1)
async def dbsize(session: Session, _words: Words) -> Reply:
    """DBSIZE."""
    session.require_read()
    store, name = session.service.gate.serving().store, session.table.name
    return await session.service.scan(lambda: store.records(name))


@of_session("scan", -2)
async def scan(session: Session, words: Words) -> Reply:
    """SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]."""
    session.require_read()
    if not words[1].isdigit() or len(words[1]) > _DIGITS_MAX or int(words[1]) >> _CURSOR_BITS:
        raise Error("ERR invalid cursor")
    cursor, keys_max, match, type_ = int(words[1]), _SCAN_KEYS, _EVERYTHING, b"string"
    if len(words) % 2:
        raise syntax_error()
    for option, word in zip(words[2::2], words[3::2], strict=True):
        match option.upper():
            case b"COUNT":
                keys_max = long_of(word)
                if keys_max < 1:
                    raise syntax_error()
            case b"MATCH":
                match = word
            case b"TYPE":
                type_ = word.lower()
            case _:
                raise syntax_error()
    keys_max = min(keys_max, PIECE_KEYS_MAX)
    _take_room(session, keys_max, _SCAN_STEPS_MAX)
    keys, position = await _steps(session, session.table.name, cursor << _SHIFT, keys_max)
    # The next step begins with all keys of these upper bits: some may come twice.
    following = position >> _SHIFT
    if position and following <= cursor:
        following = cursor + 1
    if type_ != b"string":
        keys = []
    if match != _EVERYTHING:
        keys = await _fitting(session, match, keys)
    return [b"%d" % (following if position else 0), keys]


@of_session("keys", 2)
async def keys(session: Session, words: Words) -> Reply:
    """KEYS pattern."""
    session.require_read()
    await _fitting(session, words[1], [])  # refuses a pattern that is too long, also where there are no keys
    before = session.room.bytes
    _take_room(session)
    found: list[bytes] = []
    left = session.service.gate.serving().message_bytes_max
    async for piece in _keys(session, session.table.name):
        fitting = await _fitting(session, words[1], piece)
        left -= sum(map(len, fitting)) + 8 * len(fitting)
        if left < 0:
            raise Error("ERR the keys do not fit one reply (message_bytes_max): use SCAN")
        session.room.take(held_bytes(fitting))
        found += fitting
    session.room.keep(before)  # the reply is counted as any other
    return found


@of_session("randomkey", 1)
async def randomkey(session: Session, _words: Words) -> Reply:
    """RANDOMKEY."""
    session.require_read()
    _take_room(session, _RANDOM_KEYS, 2)
    # One of the next keys by lot, not the next one: that would favour a key behind a wide gap.
    keys: set[bytes] = set()
    for first in (random.getrandbits(_POSITION_BITS), 0):
        position = first
        while len(keys) < _RANDOM_KEYS:
            piece, position = await _step(session, session.table.name, position, _RANDOM_KEYS - len(keys))
            keys.update(piece.key_list())
            if not position:
                break
    return random.choice(list(keys)) if keys else None


def _require_flush_options(words: Words) -> None:
    if not is_flush_option(words[1:]):
        raise syntax_error()


async def _empty(session: Session, name: str) -> None:
    serving = session.service.gate.serving()
    _take_room(session)
    async for piece in _keys(session, name):
        table = session.service.executor.table(name)
        for at in range(0, len(piece), table.limits.request_ops_max):
            part = piece[at : at + table.limits.request_ops_max]
            await serving.queue.submit(delete_of(part, table), table.id, session.account)
            session.account.forget_responses()


@of_session("flushdb", -1, writes=True)
async def flushdb(session: Session, words: Words) -> Reply:
    """FLUSHDB [ASYNC|SYNC]."""
    _require_flush_options(words)
    name = session.table.name
    if name == DEFAULT_TABLE:
        raise Error(f"ERR the table '{DEFAULT_TABLE}' is not emptied by FLUSHDB: delete its keys, or use another DB")
    session.require_write(name)
    await _empty(session, name)
    return OK


@of_session("flushall", -1, writes=True)
async def flushall(session: Session, words: Words) -> Reply:
    """FLUSHALL [ASYNC|SYNC]."""
    _require_flush_options(words)
    session.require_write_everywhere()
    databases = databases_of(session.service.gate.serving().store.open_tables())
    for number, table in databases.items():
        if number:
            await _empty(session, table.name)
    return OK
