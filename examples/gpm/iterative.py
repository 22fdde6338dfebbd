"""What the iterative workloads share: they compute for some passes, checkpoint, and go on from the last checkpoint.

After GPM (ASPLOS '22), sections 4.2 and 5.3, figure 7.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from gpkvs import gpm
from gpkvs.bench.gpm.workload import Size, Workload, require_room
from gpkvs.config import DurabilityName


class Passes(Size, Protocol):
    """A size, and when there is a checkpoint."""

    @property
    def passes(self) -> int:
        """How many passes there are."""

    @property
    def every(self) -> int:
        """After how many of them there is a checkpoint."""


class Iterative(Workload):
    """A program whose arrays are saved together every few passes.

    Attributes
    ----------
    arrays
        What is saved, in the memory of the place; `advance` changes it.
    done
        How many passes are done.
    """

    def __init__(
        self, folder: Path, size: Passes, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None:
        self.size, self.place = size, gpm.find_place(place)
        require_room(folder, size, self.place)
        self.arrays: dict[str, Any] = self.first()
        path = folder / "checkpoint.gpm"
        if path.exists():
            self.checkpoint = gpm.Checkpoint.open(path, place=self.place, durability=durability)
        else:
            self.checkpoint = gpm.Checkpoint.create(
                path, {"state": self.arrays}, place=self.place, durability=durability
            )
        saved = self.checkpoint.number("state")
        if saved:
            self.checkpoint.restore("state", self.arrays)
        self.done = saved * size.every

    @abstractmethod
    def first(self) -> dict[str, Any]:
        """Make what the passes read, and return the arrays before the first of them."""

    @abstractmethod
    def advance(self) -> None:
        """Compute one pass: number `done`, from 0."""

    def compute(self) -> None:
        """Compute the passes up to the next checkpoint."""
        for _ in range(self.size.every):
            self.advance()
            self.done += 1

    def step(self) -> bool:
        """Compute some passes, and save what they give."""
        if self.done >= self.size.passes:
            return False
        self.compute()
        self.checkpoint.save("state", self.arrays)
        return True

    def result(self) -> dict[str, NDArray[Any]]:
        """Return what was saved last."""
        return {name: self.place.to_host(array) for name, array in self.checkpoint.load("state").items()}

    def close(self) -> None:
        """Close the checkpoint."""
        self.checkpoint.close()
