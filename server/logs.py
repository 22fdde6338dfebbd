"""How the server logs: one line a message on stderr, for people or as JSON."""

from __future__ import annotations

import json
import logging
import time
from typing import Literal

from grpc._cython import cygrpc

LogFormat = Literal["text", "json"]


class _Text(logging.Formatter):
    """``2026-11-21T04:06:50.123Z WARNING gpkvs.server: message``."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self.converter = time.gmtime


class _Json(_Text):
    """One JSON object a line: time, level, logger, message, and error where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _ClientsThatStay(logging.Filter):
    """Drops gRPC's traceback for each answer whose client went away: no fault of the server."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is None or not issubclass(kind, cygrpc.ExecuteBatchError)


def configure(log_format: LogFormat) -> None:
    """Log everything from INFO on to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    handler.addFilter(_ClientsThatStay())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
