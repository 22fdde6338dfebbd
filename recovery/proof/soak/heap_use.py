"""How full the heap is, and which refusals that explains."""

from __future__ import annotations

from dataclasses import dataclass

from gpkvs.recovery.proof.soak.tables import Refusal
from gpkvs.server.signs.metrics_reader import Scrape

SHARE_MIN, SHARE_MAX = 0.80, 0.85
"""The clients keep the heap this full. A store that compacts accepts any write up to `SHARE_MAX`."""

# A record that is larger than a part of a segment is charged what it blocks, which is less than twice its size.
_CHARGE_OF_SIZE_MAX = 2


@dataclass(frozen=True)
class HeapUse:
    """The heap of a server at one moment.

    Parameters
    ----------
    used_bytes, limit_bytes
        What is in use, and what may be.
    is_promised
        Whether the store promises to accept writes up to `SHARE_MAX`: one that compacts does. Then both figures are
        charges; else live bytes, and the size of the heap.
    """

    used_bytes: int
    limit_bytes: int
    is_promised: bool = False

    @property
    def share(self) -> float:
        """How full the heap is."""
        return self.used_bytes / self.limit_bytes


def heap_use(metrics: Scrape) -> HeapUse:
    """Return how full a server's heap is."""
    if metrics.has("gpkvs_heap_charged_bytes_max"):  # a server that compacts: the share is in this figure already
        limit = metrics.value("gpkvs_heap_charged_bytes_max") / SHARE_MAX
        return HeapUse(int(metrics.value("gpkvs_heap_charged_bytes")), int(limit), is_promised=True)
    return HeapUse(int(metrics.value("gpkvs_heap_live_bytes")), int(metrics.value("gpkvs_heap_bytes")))


def breaks_promise(refusal: Refusal, use: HeapUse, released_bytes: int) -> bool:
    """Whether a write was refused for the heap although the heap was not full by any reckoning.

    Parameters
    ----------
    refusal
        The refusal.
    use
        The heap at a later moment.
    released_bytes
        `Totals.released_bytes` at that moment: what was given free since the write was sent was in use before.
    """
    if not use.is_promised or refusal.full != "heap":
        return False
    uncertain = released_bytes - refusal.released_before + refusal.in_flight_bytes
    return use.used_bytes + _CHARGE_OF_SIZE_MAX * uncertain <= SHARE_MAX * use.limit_bytes
