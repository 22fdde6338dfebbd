"""Says in the log how many connections the native door refused, and why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from gpkvs.text import counted

LOOK_SECONDS = 3.0

_log = logging.getLogger("gpkvs.server")

# What was the matter, at which level it is said, and what to do.
_REASONS = {
    "connections_full": (logging.WARNING, "{max} are open, as many as --memory-max has room for"),
    "files_full": (
        logging.WARNING,
        "the process has as many open files as it may: raise that limit (ulimit -n, LimitNOFILE)",
    ),
    "memory_full": (logging.WARNING, "clients take all the memory that they may (--memory-max)"),
    "http1": (logging.DEBUG, "HTTP/1 at the port of gRPC; metrics are at the port of --metrics"),
    "tls": (logging.DEBUG, "TLS at a port without it (--tls-cert, --tls-key)"),
    "plain": (logging.DEBUG, "no TLS at a port of it: clients need its options, as redis-cli --tls"),
    "handshake": (logging.DEBUG, "the handshake of TLS failed, or took too long"),
}


class RefusedConnections:
    """Looks at the door's counts every few seconds, and logs one line for each reason of which there are more.

    Parameters
    ----------
    counts
        Returns how many connections were refused, by reason.
    connections_max
        How many there may be at the same time.
    """

    def __init__(self, counts: Callable[[], Mapping[str, int]], connections_max: int) -> None:
        self._counts = counts
        self._connections_max = connections_max
        self._logged = dict.fromkeys(_REASONS, 0)
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Log what is new, and look no more."""
        self._next.cancel()
        self._log_new()

    def _look(self) -> None:
        self._log_new()
        self._next = self._loop.call_later(LOOK_SECONDS, self._look)

    def _log_new(self) -> None:
        for reason, count in self._counts().items():
            new = count - self._logged[reason]
            self._logged[reason] = count
            if new:
                level, why = _REASONS[reason]
                _log.log(
                    level,
                    "%s refused: %s",
                    counted(new, "connection"),
                    why.format(max=self._connections_max),
                    extra={"event": "connections_refused", "reason": reason, "count": new},
                )
