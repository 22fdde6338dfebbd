"""Whether a server's memory grows under a load that stays the same.

The measure is the resident memory that belongs to no file (``RssAnon`` of ``/proc/PID/status``), read twice a second.
Mapped files do not count: they are the store. The beginning of a server's life does not count either, because its
buffers and the allocator's arenas fill up once. The rest is cut into two halves, and the drift is the median of the
second over that of the first: a single peak moves neither, a leak moves the second one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

DRIFT_MAX = 0.02
WARM_UP_SHARE = 1 / 3
SECONDS_MIN = 60.0  # of a life; a shorter one is not judged: its buffers still fill up


def anonymous_bytes_of(pid: int) -> int:
    """Return the resident memory of a process that belongs to no file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) << 10
    raise OSError(f"/proc/{pid}/status has no RssAnon")


@dataclass
class MemoryOfLife:
    """The memory of one server at regular moments of its life."""

    seconds: float = 0.0  # from the first sample to the last
    samples: list[int] = field(default_factory=list)

    @property
    def _counted(self) -> list[int]:
        return self.samples[int(len(self.samples) * WARM_UP_SHARE) :]

    @property
    def before_bytes(self) -> int:
        """The median of the first half that counts."""
        counted = self._counted
        return int(median(counted[: len(counted) // 2 or 1]))

    @property
    def after_bytes(self) -> int:
        """The median of the second half."""
        counted = self._counted
        return int(median(counted[len(counted) // 2 :]))

    @property
    def is_judged(self) -> bool:
        """Whether the life was long enough."""
        return self.seconds >= SECONDS_MIN

    @property
    def drift(self) -> float:
        """How much memory the second half takes more than the first, as a share."""
        return self.after_bytes / self.before_bytes - 1

    @property
    def problems(self) -> list[str]:
        """Say that the memory grew, if it did."""
        if not self.is_judged or self.drift <= DRIFT_MAX:
            return []
        return [
            f"memory: the server's resident memory beyond files grew from {self.before_bytes:,} to "
            f"{self.after_bytes:,} bytes, {self.drift:.1%} in {self.seconds:.0f} s; at most {DRIFT_MAX:.0%} is allowed"
        ]
