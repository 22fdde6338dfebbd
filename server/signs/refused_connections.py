"""Says in the log how many connections a port refused or closed, and why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from gpkvs.text import counted

LOOK_SECONDS = 3.0

_log = logging.getLogger("gpkvs.server")

Reasons = Mapping[str, tuple[int, str]]
"""By reason, at which level it is said, and what was the matter or what to do."""


class RefusedConnections:
    """Looks at the counts of a port every few seconds, and logs one line for each reason of which there are more.

    Parameters
    ----------
    counts
        Returns how many connections were refused, by reason.
    reasons
        What to say of each.
    event
        The name of these lines, as `connections_refused`.
    verb
        What was done to them.
    """

    def __init__(
        self, counts: Callable[[], Mapping[str, int]], reasons: Reasons, event: str, verb: str = "refused"
    ) -> None:
        self._counts = counts
        self._reasons = reasons
        self._event = event
        self._verb = verb
        self._logged = dict.fromkeys(reasons, 0)
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Log what is new, and look no more."""
        self._next.cancel()
        self._log_new()

    def _look(self) -> None:
        self._next = self._loop.call_later(LOOK_SECONDS, self._look)
        self._log_new()

    def _log_new(self) -> None:
        for reason, count in self._counts().items():
            new = count - self._logged[reason]
            self._logged[reason] = count
            if new:
                level, why = self._reasons[reason]
                _log.log(
                    level,
                    "%s %s: %s",
                    counted(new, "connection"),
                    self._verb,
                    why,
                    extra={"event": self._event, "reason": reason, "count": new},
                )
