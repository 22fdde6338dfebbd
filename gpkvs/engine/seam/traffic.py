"""Whether a store is in use: work that can wait then goes in small steps, and leaves time between them."""

from __future__ import annotations

from time import monotonic

from gpkvs.engine.seam.meter import Meter

_LATELY_SECONDS = 0.1


class Traffic:
    """Knows whether transactions have run lately, of whomever.

    Parameters
    ----------
    meter
        Counts them.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._transactions = 0  # when somebody asked last
        self._until = 0.0

    def is_lately(self) -> bool:
        """Whether some have run within the last moment; asked again and again, since it compares with the last time."""
        now, transactions = monotonic(), self._meter.transactions
        if transactions != self._transactions:
            self._until, self._transactions = now + _LATELY_SECONDS, transactions
        return now < self._until
