"""Replies, as Python objects and as the bytes of RESP2 and RESP3.

A reply is an int, bytes (a bulk string), None, a list of replies, a dict (a map; in RESP2 a flat list), a `Simple` or
an `Error`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
OK = Simple("OK")
QUEUED = Simple("QUEUED")


class NullArray:
    """What EXEC replies when a watched key has changed."""


NULL_ARRAY = NullArray()


def encode(reply: Reply, protocol: int) -> bytes:
    """Return a reply as bytes of RESP2 or RESP3."""
    parts: list[bytes] = []
    _append(parts, reply, protocol)
    return b"".join(parts)


def size_of(reply: Reply) -> int:
    """Return how many bytes the strings of a reply have."""
    match reply:
        case bytes():
            return len(reply)
        case list():
            return sum(map(size_of, reply))
    return 0


def _append(parts: list[bytes], reply: Reply, protocol: int) -> None:
    match reply:
        case None:
            parts.append(b"$-1\r\n" if protocol == 2 else b"_\r\n")
        case Simple():
            parts.append(b"+%b\r\n" % reply.encode())
        case Text() if protocol == 3:
            parts.append(b"=%d\r\ntxt:%b\r\n" % (len(reply) + 4, reply))
        case bytes():
            parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
        case bool():
            parts.append(b":%d\r\n" % reply)
        case int():
            parts.append(b":%d\r\n" % reply)
        case Error():
            parts.append(b"-%b\r\n" % str(reply).encode("utf-8", "surrogateescape").translate(_ONE_LINE))
        case NullArray():
            parts.append(b"*-1\r\n" if protocol == 2 else b"_\r\n")
        case Mapping():
            _append_items(parts, b"*%d\r\n" % (2 * len(reply)) if protocol == 2 else b"%%%d\r\n" % len(reply),
                          (item for pair in reply.items() for item in pair), protocol)  # fmt: skip
        case Sequence():
            _append_items(parts, b"*%d\r\n" % len(reply), reply, protocol)
        case _:
            raise TypeError(f"no reply: {type(reply)}")


def _append_items(parts: list[bytes], head: bytes, items: Iterable[Reply], protocol: int) -> None:
    parts.append(head)
    for item in items:
        _append(parts, item, protocol)
