"""Says in the log that the store has no room for what clients send, in the words that they are told."""

from __future__ import annotations

import logging
import time

from gpkvs.errors import NoSpaceError

_log = logging.getLogger("gpkvs.server")

AGAIN_SECONDS = 60.0
_OF_THE_SERVER = ("queue", "memory")  # they have room again a moment later


class FullLog:
    """Logs one line in a minute for each resource of the store that is full; any thread may note it."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def note(self, error: NoSpaceError) -> None:
        """Note that a request was refused."""
        now, resource = time.monotonic(), error.resource
        if resource in _OF_THE_SERVER or now < self._next.get(resource, 0.0):
            return
        self._next[resource] = now + AGAIN_SECONDS
        _log.warning("requests are refused: %s", error, extra={"event": "full", "resource": resource})
