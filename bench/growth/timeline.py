"""How late batches are over time, and what the store did beside each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

BUCKETS = 120


@dataclass
class Timeline:
    """The batches of one store, in their order.

    Parameters
    ----------
    store
        Whose they are.

    Attributes
    ----------
    operations
        In all batches that were taken.
    refusal
        Why the next batch was refused; "" if none was.
    seconds
        Of each batch.
    is_growing, is_moving
        Whether the index grew beside it, and whether records were moved.
    """

    store: str
    operations: int = 0
    refusal: str = ""
    seconds: list[float] = field(default_factory=list)
    is_growing: list[bool] = field(default_factory=list)
    is_moving: list[bool] = field(default_factory=list)

    def add(self, operations: int, seconds: float, *, is_growing: bool = False, is_moving: bool = False) -> None:
        """Note a batch."""
        self.operations += operations
        self.seconds.append(seconds)
        self.is_growing.append(is_growing)
        self.is_moving.append(is_moving)

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / sum(self.seconds) if self.seconds else 0.0

    def percentile_ms(self, percentile: float, *, growing: bool | None = None) -> float | None:
        """Return a percentile of all batches, or of those that grew, or did not; None if there are none."""
        chosen = np.array(self.seconds)[[growing in (None, grew) for grew in self.is_growing]]
        return float(np.percentile(chosen, percentile)) * 1e3 if len(chosen) else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures, and those of each bucket of time."""
        return {
            "store": self.store,
            "operations": self.operations,
            "seconds": sum(self.seconds),
            "rate": self.rate,
            "refusal": self.refusal,
            "buckets": self._buckets() if self.seconds else [],
        }

    def _buckets(self) -> list[dict[str, Any]]:
        ends = np.cumsum(self.seconds)
        of_bucket = np.minimum((ends / ends[-1] * BUCKETS).astype(int), BUCKETS - 1)
        buckets = []
        for number in np.unique(of_bucket):
            chosen = np.flatnonzero(of_bucket == number)
            p50, p99, longest = np.percentile(np.array(self.seconds)[chosen], (50, 99, 100)) * 1e3
            buckets.append(
                {
                    "end_seconds": round(float(ends[chosen[-1]]), 4),
                    "p50_ms": round(float(p50), 4),
                    "p99_ms": round(float(p99), 4),
                    "longest_ms": round(float(longest), 4),
                    "is_growing": bool(np.array(self.is_growing)[chosen].any()),
                    "is_moving": bool(np.array(self.is_moving)[chosen].any()),
                }
            )
        return buckets
