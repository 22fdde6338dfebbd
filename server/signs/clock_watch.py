"""Says in the log that the clock was set back, and that it has caught up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger("gpkvs.server")

_LOOK_SECONDS = 1.0
# Less is the work of a daemon that keeps the time, and nobody's concern.
_BACK_SECONDS_MIN = 1.0


class ClockWatch:
    """Looks at the clock once a second; logs one line for each step back, and one when the clock has caught up.

    Parameters
    ----------
    back_seconds
        Returns how far the clock lies behind the time by which keys expire.
    """

    def __init__(self, back_seconds: Callable[[], float]) -> None:
        self._back_seconds = back_seconds
        self._back = 0.0
        self._is_told = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Look from now on, in the running event loop."""
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self.begin)
        self.look()

    def close(self) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()

    def look(self) -> None:
        """Compare the clock with the time that counts."""
        back = self._back_seconds()
        if back >= self._back + _BACK_SECONDS_MIN:
            _log.warning(
                "the clock was set back by %.0f s: the time by which keys expire goes on by itself until the clock has "
                "caught up. Times to live count as ever; a moment (EXAT, EXPIREAT) before that time has passed",
                back,
                extra={"event": "clock_back", "seconds": back},
            )
            self._is_told = True
        elif back < _BACK_SECONDS_MIN and self._is_told:
            _log.info("the clock has caught up with the time by which keys expire", extra={"event": "clock_caught_up"})
            self._is_told = False
        self._back = back
