"""How the server logs: each message is one line on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time
from typing import Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVEL: LogLevel = "info"

# What grpcio raises where a client went away; its module is loaded only where it serves.
_RESPONSE_UNSENT = "ExecuteBatchError"

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


class _FaultsOfTheServer(logging.Filter):
    """Drops gRPC's tracebacks for what only clients can help.

    They are for each response whose client went away, and for each header that is not UTF-8: that one repeats the
    header, which may be a password.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is None or not (
            kind.__name__ == _RESPONSE_UNSENT
            or (issubclass(kind, UnicodeDecodeError) and record.name.startswith("grpc."))
        )


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Log everything from a level on to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    handler.addFilter(_FaultsOfTheServer())
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: LogLevel) -> None:
    """Log everything from a level on, from now on."""
    logging.getLogger().setLevel(level.upper())
