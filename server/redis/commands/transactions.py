"""MULTI and what belongs to it."""

from __future__ import annotations

from gpkvs.server.redis.execution.command import Words, of_session
from gpkvs.server.redis.protocol.reply import OK, Error, Reply
from gpkvs.server.redis.sessions.session import Session, Transaction


@of_session("multi", 1)
async def multi(session: Session, _words: Words) -> Reply:
    """MULTI."""
    if session.transaction is not None:
        raise Error("ERR MULTI calls can not be nested")
    session.transaction = Transaction()
    return OK


@of_session("exec", 1)
async def exec_(session: Session, _words: Words) -> Reply:
    """EXEC."""
    return await session.commit()


@of_session("discard", 1)
async def discard(session: Session, _words: Words) -> Reply:
    """DISCARD."""
    if session.transaction is None:
        raise Error("ERR DISCARD without MULTI")
    return session.discard()


@of_session("watch", -2, may_be_long=True)
async def watch(session: Session, words: Words) -> Reply:
    """WATCH key [key ...]."""
    if session.transaction is not None:
        raise Error("ERR WATCH inside MULTI is not allowed")
    await session.watch(words[1:])
    return OK


@of_session("unwatch", 1, in_transactions=True)
async def unwatch(session: Session, _words: Words) -> Reply:
    """UNWATCH."""
    session.forget_transaction()
    return OK
