"""A gas that flows: a solver of Euler's equations that checkpoints density, momentum and energy.

The gas is on a square grid whose sides meet; a blast spreads from its middle. A pass moves the gas on by the longest
time that is stable, with Rusanov's flux between cells: the mean of both sides' fluxes, and a part of their difference
that damps it. All is in whole arrays, so NumPy and CuPy run the same code.

After GPM (ASPLOS '22), section 4.2; there the grid is the surface of a missile. 746 * 746 cells have its 8.9 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpkvs.bench.gpm.workload import main
from gpkvs.bench.gpm.workloads.iterative import Iterative

HEATS = 1.4  # the ratio of specific heats, of air
COURANT = 0.4  # how far a wave goes in a pass, in cells


@dataclass(frozen=True)
class Size:
    """The side of the grid, and passes."""

    side: int
    passes: int
    every: int

    @property
    def file_bytes(self) -> int:
        """Two copies of four values of a cell."""
        return 32 * self.side**2 + (1 << 20)

    @property
    def memory_bytes(self) -> int:
        """The gas, and what a pass computes."""
        return 40 * 4 * self.side**2


class Cfd(Iterative):
    """See the text above."""

    size: Size
    SIZES: ClassVar = {"tiny": Size(16, 4, 2), "small": Size(96, 60, 5), "paper": Size(746, 2_000, 50)}

    def first(self) -> dict[str, Any]:
        """Return a gas at rest, with high pressure in the middle."""
        xp, side = self.place.xp, self.size.side
        at = (xp.arange(side, dtype=xp.float32) + 0.5) / side - 0.5
        is_inside = at[:, None] ** 2 + at[None, :] ** 2 < 0.15**2
        pressure = xp.where(is_inside, xp.float32(1), xp.float32(0.1))
        return {
            "density": xp.where(is_inside, xp.float32(1), xp.float32(0.125)),
            "momentum": xp.zeros((2, side, side), xp.float32),
            "energy": pressure / xp.float32(HEATS - 1),
        }

    def advance(self) -> None:
        """Move the gas on by one step of time."""
        xp, arrays = self.place.xp, self.arrays
        gas = xp.stack([arrays["density"], *arrays["momentum"], arrays["energy"]])
        velocity = gas[1:3] / gas[0]
        pressure = xp.float32(HEATS - 1) * (gas[3] - xp.float32(0.5) * (gas[1:3] * velocity).sum(0))
        sound = xp.sqrt(xp.float32(HEATS) * pressure / gas[0])
        step = xp.float32(COURANT) / (xp.abs(velocity).max(0) + sound).max()  # in sides of a cell
        change = xp.zeros_like(gas)
        for axis in range(2):
            flow = gas * velocity[axis]
            flow[1 + axis] += pressure
            flow[3] += pressure * velocity[axis]
            speed = xp.abs(velocity[axis]) + sound
            fastest = xp.maximum(speed, xp.roll(speed, -1, axis))
            ahead = xp.roll(gas, -1, 1 + axis)
            between = xp.float32(0.5) * (flow + xp.roll(flow, -1, 1 + axis) - fastest * (ahead - gas))
            change += between - xp.roll(between, 1, 1 + axis)
        gas -= step * change
        arrays["density"][...], arrays["momentum"][...], arrays["energy"][...] = gas[0], gas[1:3], gas[3]


if __name__ == "__main__":
    main(Cfd, __doc__)
