"""Moments of an archive, as people write them: a time, or a position."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from gpkvs.changes import Position
from gpkvs.errors import InvalidArgumentError
from gpkvs.text import quoted

Moment = int | Position
"""Milliseconds since 1970 by the clock of what was archived, or the last transaction."""


def parse_moment(text: str) -> Moment:
    """Return the moment that somebody wrote.

    Raises
    ------
    InvalidArgumentError
        If it is none.
    """
    if re.fullmatch(r"[0-9a-f]{16}-\d{1,19}", text):
        return Position.parse(text)
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"{quoted(text)} is no moment: write a time (2026-11-29T10:00:00Z), milliseconds since 1970, or a position "
            "(00c0ffee00c0ffee-17)",
            field="until",
        ) from error
    if found.tzinfo is None:
        raise InvalidArgumentError(
            f"{quoted(text)} says no time zone: end it with Z for UTC, or with one such as +01:00", field="until"
        )
    return (found - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def format_time(time_ms: int) -> str:
    """Return a time as `parse_moment` reads it."""
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"


def format_moment(moment: Moment) -> str:
    """Return a moment as `parse_moment` reads it."""
    return str(moment) if isinstance(moment, Position) else format_time(moment)
