"""How `gpkvs serve` says why it does not serve: in the format of its log."""

from __future__ import annotations

import logging
import sys

from gpkvs.server.signs.logs import LogFormat

_log = logging.getLogger("gpkvs.server")


def say(failure: object, log_format: LogFormat) -> None:
    """Say on stderr what is wrong; whoever reads the log as JSON gets JSON to its end."""
    if log_format == "json":
        _log.critical("%s", failure, extra={"event": "failed"})
    else:
        sys.stderr.write(f"gpkvs: {failure}\n")
