"""Sizes and counts as people write them: 64MiB, 1GiB, 4096; 10M."""

from __future__ import annotations

import re

import typer

from gpkvs.text import quoted

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_LARGE = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))

_BYTES_MAX = 1 << 60
_COUNT_DIGITS_MAX = 19


def parse_bytes(text: object) -> int:
    """Return a number of bytes.

    Raises
    ------
    typer.BadParameter
        If the text is not one.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(text).strip(), re.IGNORECASE)
    unit = _UNITS.get(match[2].upper()) if match else None
    if not match or unit is None:
        raise typer.BadParameter(
            f"{quoted(str(text))} is no size: write bytes, or a number with KiB, MiB, GiB or TiB (64MiB)"
        )
    number = float(match[1]) * unit
    if number > _BYTES_MAX:
        raise typer.BadParameter(f"{quoted(str(text))} is more than 1,048,576 TiB: no machine has that")
    return int(number)


def parse_count(text: object) -> int:
    """Return a count.

    Raises
    ------
    typer.BadParameter
        If the text is not one, or not a whole number.
    """
    match = re.fullmatch(r"(\d+)(?:\.(\d{1,9}))?([kmg]?)", str(text).strip(), re.IGNORECASE)
    if match and len(match[1]) < _COUNT_DIGITS_MAX:
        unit, decimals = _COUNTS[match[3].upper()], match[2] or ""
        part, rest = divmod(int(match[1] + decimals) * unit, int("1" + "0" * len(decimals)))
        if not rest:
            return part
    raise typer.BadParameter(f"{quoted(str(text))} is no count: write a whole number, or one with K, M or G (10M)")


def format_bytes(number: int) -> str:
    """Return a number of bytes in the largest unit that divides it; `parse_bytes` reads it."""
    for unit, shift in _LARGE:
        if number and number % (1 << shift) == 0:
            return f"{number >> shift}{unit}"
    return str(number)
