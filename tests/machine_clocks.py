"""The clocks of a machine, for tests that set them."""

from __future__ import annotations

from gpkvs.engine.seam.counted_time import Clocks

HOUR_US = 3600 * 10**6


class MachineClocks:
    """One clock that somebody may set, and one that only goes on."""

    def __init__(self, wall_us: int, passed_us: int) -> None:
        self.wall_us, self.passed_us = wall_us, passed_us
        self.clocks = Clocks(lambda: self.wall_us, lambda: self.passed_us, are_native=False)

    def pass_by(self, us: int) -> None:
        """Let time pass."""
        self.wall_us += us
        self.passed_us += us

    def restart(self) -> None:
        """Begin to count what passes anew, as a machine that starts again."""
        self.passed_us = 0
