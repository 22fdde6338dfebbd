"""What words of a command mean: numbers, options, times."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpkvs.server.redis.protocol.reply import Error

LONG_MAX = (1 << 63) - 1
_LONG_MIN = -(1 << 63)
_LONG = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_FLOAT = re.compile(rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?)", re.IGNORECASE)
_HEX = re.compile(rb"[+-]?0x[0-9a-f]{1,13}", re.IGNORECASE)
_FRACTION_DIGITS = 17
_FLOAT_BYTES_MAX = 5 * 1024  # what Redis takes


def syntax_error() -> Error:
    """Return what a wrong option is answered with."""
    return Error("ERR syntax error")


def is_flush_option(words: Sequence[bytes]) -> bool:
    """Return whether words say how something is emptied, or nothing."""
    return len(words) == 0 or (len(words) == 1 and words[0].upper() in (b"SYNC", b"ASYNC"))


def long_of(word: bytes, text: str = "ERR value is not an integer or out of range") -> int:
    """Return a signed number of 64 bits, written as Redis writes it: no plus, no zeros before it.

    Raises
    ------
    Error
        If it is none.
    """
    number = int(word) if _LONG.fullmatch(word) else LONG_MAX + 1
    if not _LONG_MIN <= number <= LONG_MAX:
        raise Error(text)
    return number


def float_of(word: bytes) -> np.longdouble:
    """Return a number of x87's 80 bits.

    Raises
    ------
    Error
        If it is none.
    """
    if len(word) < _FLOAT_BYTES_MAX and _HEX.fullmatch(word):
        return np.longdouble(float.fromhex(word.decode()))
    if len(word) >= _FLOAT_BYTES_MAX or not _FLOAT.fullmatch(word):
        raise Error("ERR value is not a valid float")
    with np.errstate(all="ignore"):
        number = np.longdouble(word.decode())
    if np.isinf(number) and b"i" not in word.lower():
        raise Error("ERR value is not a valid float")
    return number


def float_sum(one: np.longdouble, other: np.longdouble) -> np.longdouble:
    """Return a sum; where there is none, it is no number or none that ends."""
    with np.errstate(all="ignore"):
        return one + other


def float_text(number: np.longdouble) -> bytes:
    """Return a number with up to 17 digits behind its point, and no zeros at the end."""
    text = np.format_float_positional(number, precision=_FRACTION_DIGITS, unique=False, trim="-")
    return b"0" if text == "-0" else text.encode()


def expiry_of(word: bytes, command: str, *, unit_ms: int, since_ms: int) -> int:
    """Return when something expires, in milliseconds since 1970.

    Parameters
    ----------
    word
        The number that the client gave.
    command
        For the text of an error.
    unit_ms, since_ms
        What one of it is, and from when on it counts.

    Raises
    ------
    Error
        If it is no number, or past the end of time.
    """
    number = long_of(word)
    if abs(number) - (unit_ms == 1) > LONG_MAX // unit_ms or number * unit_ms > LONG_MAX - since_ms:
        raise invalid_expiry(command)
    return number * unit_ms + since_ms


def invalid_expiry(command: str) -> Error:
    """Return what a time is answered with at which nothing can expire."""
    return Error(f"ERR invalid expire time in '{command}' command")
