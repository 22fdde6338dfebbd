"""The temperatures of a chip, from the power of its parts, that are checkpointed.

Heat flows between a cell of the chip and its four neighbours, and from each cell to the air; power heats it. A pass
is one explicit step of time of that equation. All is in whole arrays, so NumPy and CuPy run the same code.

After GPM (ASPLOS '22), section 4.2 and table 1: 16 K * 16 K cells, whose temperatures take 1 GiB, twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gpkvs.bench.gpm.workload import main
from gpkvs.bench.gpm.workloads.iterative import Iterative

AIR = 45.0  # degrees Celsius
TO_NEIGHBOUR, TO_AIR, OF_POWER = 0.15, 0.01, 1.0  # shares of a difference, and degrees, in a pass


@dataclass(frozen=True)
class Size:
    """The side of the chip in cells, and passes."""

    side: int
    passes: int
    every: int

    @property
    def file_bytes(self) -> int:
        """Two copies of the temperatures."""
        return 8 * self.side**2 + (1 << 20)

    @property
    def memory_bytes(self) -> int:
        """Temperatures and power, and what a pass computes."""
        return 24 * self.side**2


class Hotspot(Iterative):
    """See the text above."""

    size: Size
    SIZES: ClassVar = {"tiny": Size(16, 4, 2), "small": Size(512, 60, 5), "paper": Size(16 << 10, 100, 10)}

    def first(self) -> dict[str, Any]:
        """Make the power of a chip with units in a pattern; return the temperature of the air."""
        xp, side = self.place.xp, self.size.side
        unit = (xp.arange(side) * 16 // side).astype(xp.float32)
        self.power = (unit[:, None] * 7 + unit[None, :] * 5) % 8 * (OF_POWER / 8)
        return {"temperature": xp.full((side, side), AIR, xp.float32)}

    def advance(self) -> None:
        """Let heat flow for one step of time; beyond an edge there is the cell itself, and no flow."""
        xp, heat = self.place.xp, self.arrays["temperature"]
        change = self.power + xp.float32(TO_AIR) * (xp.float32(AIR) - heat)
        down = xp.float32(TO_NEIGHBOUR) * (heat[1:] - heat[:-1])
        change[:-1] += down
        change[1:] -= down
        del down
        right = xp.float32(TO_NEIGHBOUR) * (heat[:, 1:] - heat[:, :-1])
        change[:, :-1] += right
        change[:, 1:] -= right
        heat += change


if __name__ == "__main__":
    main(Hotspot, __doc__)
