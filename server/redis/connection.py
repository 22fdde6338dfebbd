"""Commands of the connection itself."""

from __future__ import annotations

import time

from gpkvs.server.redis.command import Words, of_session, wrong_number
from gpkvs.server.redis.reply import OK, Error, Reply, Simple, Text
from gpkvs.server.redis.session import Session
from gpkvs.server.redis.words import long_of, syntax_error

_VERSION = b"7.0.15"  # of Redis, as which we answer
_NAME_LETTERS = frozenset(range(ord("!"), ord("~") + 1))


@of_session("ping", -1, in_transactions=True)
async def ping(_session: Session, words: Words) -> Reply:
    """PING [message]."""
    if len(words) > 2:
        raise wrong_number("ping")
    return words[1] if len(words) == 2 else Simple("PONG")


@of_session("echo", 2, in_transactions=True)
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
        if number < 0:
            raise Error("ERR DB index is out of range")
        _ = session.table
    except Error:
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
    if not session.service.asks_for_logins:
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
                shown = options[0].decode("utf-8", "surrogateescape")
                raise Error(f"ERR Syntax error in HELLO option '{shown}'")
    if login:
        await session.log_in(*login)
    if session.caller is None:
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
    return name


@of_session("client", -2, in_transactions=True)
async def client(session: Session, words: Words) -> Reply:
    """CLIENT ID|INFO|LIST|SETNAME|GETNAME|SETINFO|NO-EVICT|NO-TOUCH."""
    match words[1].upper(), words[2:]:
        case b"ID", []:
            reply: Reply = session.id
        case b"INFO", []:
            reply = Text(_described(session))
        case b"LIST", []:
            reply = Text(b"".join(map(_described, session.service.sessions.values())))
        case b"SETNAME", [name]:
            session.name, reply = _named(name), OK
        case b"GETNAME", []:
            reply = session.name or None
        case b"SETINFO", [option, value]:
            reply = _set_library(session, option, value)
        case ((b"NO-EVICT" | b"NO-TOUCH"), [word]) if word.upper() in (b"ON", b"OFF"):
            reply = OK  # nothing is evicted, and no time of access is kept
        case ((b"TRACKING" | b"CACHING" | b"TRACKINGINFO" | b"GETREDIR"), _):
            raise Error("ERR CLIENT TRACKING is not supported: nothing is pushed to clients")
        case _:
            raise unknown_subcommand(words)
    return reply


def _set_library(session: Session, option: bytes, value: bytes) -> Reply:
    name = option.lower().decode("utf-8", "surrogateescape")
    if name not in ("lib-name", "lib-ver"):
        raise Error(f"ERR Unrecognized option '{name}'")
    if not _NAME_LETTERS.issuperset(value):
        raise Error(f"ERR {name} cannot contain spaces, newlines or special characters.")
    session.library[name] = value
    return OK


def unknown_subcommand(words: Words) -> Error:
    """Return what a subcommand is answered with that there is not, or has other words."""
    text = words[1].decode("utf-8", "surrogateescape")[:128]
    return Error(
        f"ERR unknown subcommand or wrong number of arguments for '{text}'. Try {words[0].decode().upper()} HELP."
    )


def _described(session: Session) -> bytes:
    """Return what CLIENT LIST has of a session: a line."""
    fields = {
        "id": session.id,
        "addr": session.peer,
        "name": session.name.decode(),
        "age": int(time.monotonic() - session.began),
        "flags": "x" if session.transaction is not None else "N",
        "db": session.number,
        "multi": -1 if session.transaction is None else len(session.transaction.steps),
        "watch": len(session.watched),
        "cmd": session.last_command,
        "user": session.user_name,
        "resp": session.protocol,
        "lib-name": session.library.get("lib-name", b"").decode(),
        "lib-ver": session.library.get("lib-ver", b"").decode(),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()).encode() + b"\n"
