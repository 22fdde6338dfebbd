"""Replies, as Python objects and as the bytes of RESP2 and RESP3.

A reply is an int, bytes (a bulk string), None, a list of replies, a dict (a map; in RESP2 a flat list), a `Simple`, an
`Error`, or `Pushes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

Reply = Any


class Simple(str):
    """A reply of one line, such as OK."""

    __slots__ = ()


class Text(bytes):
    """Lines for people: a verbatim string in RESP3, a bulk string in RESP2."""

    __slots__ = ()


class Error(Exception):
    """A reply that says what is wrong: a code in capitals, a space, a text. It ends the command."""


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class Push(list[Any]):
    """A message to a client: in RESP3 a push, in RESP2 a list."""

    __slots__ = ()


class Pushes(list[Push]):
    """Messages, one after the other, in the place of a reply."""

    __slots__ = ()


OK = Simple("OK")
QUEUED = Simple("QUEUED")


class NullArray:
    """What EXEC replies when a watched key has changed."""


NULL_ARRAY = NullArray()


# A reply is there three times: as an object, encoded, and as the door's copy.
_COPIES = 3
# Of each of them, beside the bytes of a string: its head, or a number, or the object itself.
_ITEM_BYTES = 48

SHOWN_BYTES_MAX = 128
"""Of a word, in the text of an error."""


def shown(word: bytes) -> str:
    """Return the beginning of a word, for the text of an error."""
    return word[:SHOWN_BYTES_MAX].decode("utf-8", "surrogateescape")


def held_bytes(reply: Reply) -> int:
    """Return what a reply takes at most in memory until it is sent."""
    match reply:
        case bytes():
            return _COPIES * (_ITEM_BYTES + len(reply))
        case Simple() | Error():
            return _COPIES * (_ITEM_BYTES + len(str(reply)))
        case Mapping():
            return _COPIES * _ITEM_BYTES + sum(map(held_bytes, reply)) + sum(map(held_bytes, reply.values()))
        case list():
            return _COPIES * _ITEM_BYTES + sum(map(held_bytes, reply))
    return _COPIES * _ITEM_BYTES


def encode(to: BytesIO, reply: Reply, protocol: int) -> None:
    """Append a reply as bytes of RESP2 or RESP3."""
    match reply:
        case None:
            to.write(b"$-1\r\n" if protocol == 2 else b"_\r\n")
        case Simple():
            to.write(b"+%b\r\n" % reply.encode())
        case bytes():
            is_text = isinstance(reply, Text) and protocol == 3
            to.write(b"=%d\r\ntxt:" % (len(reply) + 4) if is_text else b"$%d\r\n" % len(reply))
            to.write(reply)
            to.write(b"\r\n")
        case bool() | int():
            to.write(b":%d\r\n" % reply)
        case Error():
            to.write(b"-%b\r\n" % str(reply).encode("utf-8", "surrogateescape").translate(_ONE_LINE))
        case NullArray():
            to.write(b"*-1\r\n" if protocol == 2 else b"_\r\n")
        case Mapping():
            to.write(b"*%d\r\n" % (2 * len(reply)) if protocol == 2 else b"%%%d\r\n" % len(reply))
            _encode_all(to, (item for pair in reply.items() for item in pair), protocol)
        case list():
            encode_head(to, reply, protocol)
            _encode_all(to, reply, protocol)
        case _:
            raise TypeError(f"no reply: {type(reply)}")


def encode_head(to: BytesIO, reply: list[Reply], protocol: int) -> None:
    """Append what stands before the items of a list."""
    if not isinstance(reply, Pushes):
        kind = b">" if isinstance(reply, Push) and protocol == 3 else b"*"
        to.write(b"%b%d\r\n" % (kind, len(reply)))


def _encode_all(to: BytesIO, items: Iterable[Reply], protocol: int) -> None:
    for item in items:
        encode(to, item, protocol)
