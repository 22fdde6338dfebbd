"""The time by which keys expire: the wall clock's; where that was set back, it goes on by a clock that nobody sets.

``kernels/base/counted_time.hpp`` says how; native code asks for the time too, by the same word.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import NamedTuple

from gpkvs.native import count_time


class Clocks(NamedTuple):
    """Two clocks, in microseconds.

    Attributes
    ----------
    wall_us
        Returns the time since 1970, which is negative before. It may jump.
    passed_us
        Returns the time since some moment; it never goes back.
    are_native
        Whether native code reads the same ones.
    """

    wall_us: Callable[[], int]
    passed_us: Callable[[], int]
    are_native: bool


MACHINE = Clocks(
    lambda: time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000,
    lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000,
    are_native=True,
)

NEVER = Clocks(lambda: 0, lambda: 0, are_native=False)
"""By which nothing ever expires."""


def clocks_set_by(wall_ms: Callable[[], int]) -> Clocks:
    """Return clocks of somebody who says the time: while the wall clock is behind, no time passes."""
    passed_us = MACHINE.passed_us()  # native code that asks for the time adds what its own clock says
    return Clocks(lambda: wall_ms() * 1000, lambda: passed_us, are_native=False)


class CountedTime:
    """The time that counts; it never goes back.

    Parameters
    ----------
    clocks
        Those of the machine, or of somebody who sets them.

    Attributes
    ----------
    clocks
        May be set; then the time goes on from where it is.
    """

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._ahead_us = ctypes.c_int64()
        self.begin_at(0)

    def begin_at(self, now_ms: int) -> None:
        """Let a time count that is not the clock's: from here on, and until the clock says a later one."""
        self._ahead_us.value = now_ms * 1000 - self.clocks.passed_us()

    def now_ms(self) -> int:
        """Return the time that counts, in milliseconds since 1970."""
        return self.now_us() // 1000

    def now_us(self) -> int:
        """Return the time that counts, in microseconds since 1970."""
        wall_us = self.clocks.wall_us()  # first: `count_time` in kernels/base/counted_time.hpp
        return count_time(self.address, wall_us, self.clocks.passed_us())

    def behind_ms(self) -> int:
        """Return how far the wall clock lies behind the time that counts, in milliseconds."""
        passed_us = self.clocks.passed_us()
        return max(passed_us + self._ahead_us.value - self.clocks.wall_us(), 0) // 1000

    @property
    def address(self) -> int:
        """Where native code finds the word."""
        return ctypes.addressof(self._ahead_us)
