"""Durations as people write them: 90s, 10m, 24h, 7d."""

from __future__ import annotations

import re

import typer

from gpkvs.text import quoted

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SECONDS_MAX = 1e10


def parse_duration(text: object) -> float:
    """Return a number of seconds.

    Raises
    ------
    typer.BadParameter
        If the text is none, or the number is not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", str(text).strip(), re.IGNORECASE)
    seconds = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if not 0 < seconds <= _SECONDS_MAX:
        raise typer.BadParameter(f"{quoted(str(text))} is no duration: write a number with s, m, h or d (24h)")
    return seconds
