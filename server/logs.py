"""How the server logs: each message is one line on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time
from typing import Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVEL: LogLevel = "info"

# What every record has, and what formatting it adds.
_NOT_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _Text(logging.Formatter):
    """``2026-11-21T04:06:50.123Z WARNING gpkvs.server: message``."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self.converter = time.gmtime


class _Json(_Text):
    """One JSON object a line: time, level, logger, message, error where there is one, and the fields of the event.

    The caller gives an event's fields as `extra`. The field ``event`` is its name, which stays the same when the
    message is worded anew.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        fields = {name: value for name, value in vars(record).items() if name not in _NOT_FIELDS}
        return json.dumps({**line, **fields}, default=str)


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Log everything from a level on to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: LogLevel) -> None:
    """Log everything from a level on, from now on."""
    logging.getLogger().setLevel(level.upper())
