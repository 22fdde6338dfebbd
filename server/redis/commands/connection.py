"""Commands of the connection itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO

from gpkvs.errors import GpkvsError
from gpkvs.server.gate import NotServingError
from gpkvs.server.redis.execution.command import Words, of_session, wrong_number
from gpkvs.server.redis.protocol.reply import OK, Error, Reply, Simple, Text, shown
from gpkvs.server.redis.protocol.words import long_of, syntax_error
from gpkvs.server.redis.sessions.session import Session

_VERSION = b"7.0.15"  # of Redis, as which we answer
_NAME_BYTES_MAX = 1024
# A line of CLIENT LIST with three names, as it is made.
_LINE_BYTES = 2 * (512 + 3 * _NAME_BYTES_MAX)
_NAME_LETTERS = frozenset(range(ord("!"), ord("~") + 1))


@of_session("ping", -1, in_transactions=True, may_be_long=True)
async def ping(session: Session, words: Words) -> Reply:
    """PING [message]. Who is answered may send commands: not while the store recovers, nor when the server stops."""
    if len(words) > 2:
        raise wrong_number("ping")
    session.service.gate.serving()
    if session.is_only_told:
        return [b"pong", words[1] if len(words) == 2 else b""]
    return words[1] if len(words) == 2 else Simple("PONG")


@of_session("echo", 2, in_transactions=True, may_be_long=True)
async def echo(_session: Session, words: Words) -> Reply:
    """ECHO message."""
    return words[1]


@of_session("quit", -1)
async def quit_(session: Session, _words: Words) -> Reply:
    """QUIT."""
    session.is_over = True
    return OK


@of_session("reset", 1)
async def reset(session: Session, _words: Words) -> Reply:
    """RESET."""
    session.clear()
    session.log_out()
    return Simple("RESET")


@of_session("select", 2)
async def select(session: Session, words: Words) -> Reply:
    """SELECT index."""
    number = long_of(words[1])
    before, session.number = session.number, number
    try:
        session.require_any()
        with suppress(NotServingError):  # clients select as soon as they are connected again, and look no further
            _ = session.table
    except (Error, GpkvsError):
        session.number = before
        raise
    if session.watched and number != before:
        session.number = before
        raise Error("ERR SELECT is not possible while keys of another table are watched")
    return OK


@of_session("auth", -2)
async def auth(session: Session, words: Words) -> Reply:
    """AUTH [username] password."""
    if len(words) > 3:
        raise syntax_error()
    if not session.service.asks_for_logins and len(words) == 2:
        raise Error(
            "ERR AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?"
        )
    await session.log_in(words[1] if len(words) == 3 else None, words[-1])
    return OK


@of_session("hello", -1)
async def hello(session: Session, words: Words) -> Reply:
    """HELLO [protover [AUTH username password] [SETNAME clientname]]."""
    protocol = session.protocol
    if len(words) > 1:
        protocol = long_of(words[1], "ERR Protocol version is not an integer or out of range")
        if protocol not in (2, 3):
            raise Error("NOPROTO unsupported protocol version")
    options: list[bytes] = list(words[2:])
    name: bytes | None = None
    login: tuple[bytes | None, bytes] | None = None
    while options:
        match options[0].upper(), options[1:]:
            case b"AUTH", [user, password, *options]:
                login = user, password
            case b"SETNAME", [word, *options]:
                name = _named(word)
            case _:
                raise Error(f"ERR Syntax error in HELLO option '{shown(options[0])}'")
    if login:
        await session.log_in(*login)
    if not session.is_logged_in:
        raise Error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
            "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the "
            "same time"
        )
    if name is not None:
        session.name = name
    session.protocol = protocol
    return {
        b"server": b"redis",
        b"version": _VERSION,
        b"proto": protocol,
        b"id": session.id,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }


def _named(name: bytes) -> bytes:
    if not _NAME_LETTERS.issuperset(name):
        raise Error("ERR Client names cannot contain spaces, newlines or special characters.")
    if len(name) > _NAME_BYTES_MAX:
        raise Error(f"ERR a client name of {len(name):,} bytes, allowed are {_NAME_BYTES_MAX:,}")
    return name


_CLIENT = {
    "caching": 3,
    "getname": 2,
    "getredir": 2,
    "id": 2,
    "info": 2,
    "list": -2,
    "no-evict": 3,
    "no-touch": 3,
    "reply": 3,
    "setinfo": 4,
    "setname": 3,
    "tracking": -3,
    "trackinginfo": 2,
}


@of_session("client", -2, in_transactions=True, subcommands=_CLIENT)
async def client(session: Session, words: Words) -> Reply:
    """CLIENT ID|INFO|LIST|SETNAME|GETNAME|SETINFO|NO-EVICT|NO-TOUCH|REPLY."""
    match words[1].upper(), words[2:]:
        case b"ID", []:
            reply: Reply = session.id
        case b"INFO", []:
            reply = Text(_described(session))
        case b"LIST", options:
            reply = Text(_all_described(session, _chosen(session, options)))
        case b"SETNAME", [name]:
            session.name, reply = _named(name), OK
        case b"GETNAME", []:
            reply = session.name or None
        case b"SETINFO", [option, value]:
            reply = _set_library(session, option, value)
        case ((b"NO-EVICT" | b"NO-TOUCH"), [word]):
            if word.upper() not in (b"ON", b"OFF"):
                raise syntax_error()
            reply = OK  # nothing is evicted, and no time of access is kept
        case b"REPLY", [word]:
            reply = _set_replies(session, word)
        case ((b"TRACKING" | b"CACHING" | b"TRACKINGINFO" | b"GETREDIR"), _):
            raise Error("ERR CLIENT TRACKING is not supported: PSUBSCRIBE __keyspace@0__:* tells of keys that change")
        case _:
            raise syntax_error()
    return reply


def _chosen(session: Session, options: Words) -> list[Session]:
    """Return the sessions that CLIENT LIST [TYPE type] [ID id ...] tells of; their types are normal and pubsub."""
    sessions = {number: one for number, one in session.service.sessions.items() if session.may_see(one)}
    match [option.upper() for option in options[:1]], options[1:]:
        case [], _:
            return list(sessions.values())
        case [b"TYPE"], [name]:
            if name.lower() not in (b"normal", b"replica", b"slave", b"pubsub", b"master"):
                raise Error(f"ERR Unknown client type '{shown(name)}'")
            types = {b"normal": False, b"pubsub": True}
            return [one for one in sessions.values() if bool(one.subscriptions) is types.get(name.lower())]
        case [b"ID"], [_, *_] as words:
            numbers = [long_of(word, "ERR Invalid client ID") for word in words]
            return [sessions[number] for number in numbers if number in sessions]
    raise syntax_error()


def _set_replies(session: Session, word: bytes) -> Reply:
    match word.upper():
        case b"ON":
            session.send_replies()
        case b"OFF":
            session.send_no_replies()
        case b"SKIP":
            session.skip_reply()
        case _:
            raise syntax_error()
    return OK


def _set_library(session: Session, option: bytes, value: bytes) -> Reply:
    name = shown(option).lower()
    if name not in ("lib-name", "lib-ver"):
        raise Error(f"ERR Unrecognized option '{name}'")
    if not _NAME_LETTERS.issuperset(value) or len(value) > _NAME_BYTES_MAX:
        raise Error(f"ERR {name} cannot contain spaces, newlines or special characters.")
    session.library[name] = value
    return OK


def _all_described(session: Session, chosen: Sequence[Session]) -> bytes:
    lines = BytesIO()
    for one in chosen:
        session.room.take(_LINE_BYTES)
        lines.write(_described(one))
    return lines.getvalue()


def _described(session: Session) -> bytes:
    """Return what CLIENT LIST has of a session: a line."""
    fields = {
        "id": session.id,
        "addr": session.peer,
        "name": session.name.decode(),
        "age": int(time.monotonic() - session.began),
        "flags": "P" * bool(session.subscriptions) + "x" * (session.transaction is not None) or "N",
        "db": session.number,
        "sub": len(session.subscriptions.channels),
        "psub": len(session.subscriptions.patterns),
        "multi": -1 if session.transaction is None else len(session.transaction.steps),
        "watch": len(session.watched),
        "cmd": session.last_command,
        "user": session.user_name,
        "resp": session.protocol,
        "lib-name": session.library.get("lib-name", b"").decode(),
        "lib-ver": session.library.get("lib-ver", b"").decode(),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()).encode() + b"\n"
