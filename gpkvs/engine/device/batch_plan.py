"""Plans whose kernels native code launches: what Python gives them, and what it is told.

``kernels/plan/batch_plan.hpp`` has the steps and the columns.
"""

from __future__ import annotations

from enum import IntFlag
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Processor
from gpkvs.backends.words import Words, places_of
from gpkvs.native import batch_plan, batch_plan_room, library

_PLACES: Final = places_of(library.gpkvs_batch_plan_fields())
# What the kernels tell, a word each (`PlanCount` in kernels/plan/batch_plan.hpp).
_TOLD: Final = ("NEEDED", "UNSORTED", "CHAINS", "CHANGES", "BLOCKS", "PLACED", "VALUES", "ABSENT", "KEPT")
assert library.gpkvs_plan_counts().decode().split(";") == [*_TOLD, ""]


class Step(IntFlag):
    """The steps of a plan, in their order; a call launches one or several."""

    LOCATE = 1
    SELECT = 2
    ORDER = 4
    KEEP = 8
    STAGE = 16
    VALUES = 32
    STAGE_MOVED = 64
    TELL = 128


assert library.gpkvs_plan_steps().decode().split(";") == [*Step.__members__, ""]


class Counts(NamedTuple):
    """What the kernels told of a plan.

    Attributes
    ----------
    needed
        Operations that are to be ordered; after `Step.SELECT`.
    unsorted
        Where ties of fingerprints were left as they are: the plan is worth nothing. After `Step.ORDER`.
    chains
        Of how many keys operations were ordered. After `Step.ORDER`.
    changes, removed_keys, new_keys, unplaced, moved
        Chains that change a slot; those of them that remove a key, that bring a new one, for which there is no way, and
        that displace an occupant. After `Step.ORDER`.
    values
        That GETs found; after `Step.VALUES`.
    kept
        SETs whose records are kept; after `Step.KEEP`.
    """

    needed: int
    unsorted: int
    chains: int
    changes: int
    removed_keys: int
    new_keys: int
    unplaced: int
    moved: int
    values: int
    kept: int


class BatchPlan(Words):
    """What native code knows of a plan: one plan of a table after the other.

    Parameters
    ----------
    place
        Where they run; its `launcher` launches their kernels.
    **given
        Fields of the struct that stay the same: numbers and addresses.

    Attributes
    ----------
    counts
        What was told when `look` was called last.
    """

    counts: Counts

    def __init__(self, place: Processor, **given: int) -> None:
        super().__init__(_PLACES)
        self._place = place
        told: NDArray[Any] = place.result_column(len(_TOLD), np.uint64)
        self._halves = told.view(np.uint32)
        self.set(launcher=place.launcher, told=place.address(told), **given)

    def begin(self, **given: int) -> NDArray[np.uint8]:
        """Begin a plan with fields of its own; return the memory of its columns, which must last as long."""
        self.set(queue=self._place.queue, **given)
        room: NDArray[np.uint8] = self._place.scratch(batch_plan_room(self.address), np.uint8)
        self.set(room=self._place.address(room))
        return room

    def column(self, room: NDArray[np.uint8], name: str, count: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Return the first items of a column of the plan that was begun last, in the memory that `begin` returned."""
        at = self.get(name) - self.get("room")
        return room[at : at + count * np.dtype(dtype).itemsize].view(dtype)

    def run(self, steps: int) -> None:
        """Launch the kernels of some steps."""
        self._place.run_native(partial(batch_plan, self.address, steps))

    def look(self) -> Counts:
        """Wait for what was launched; return what `Step.TELL` told."""
        self._place.settle()
        low, high = self._halves[::2].tolist(), self._halves[1::2].tolist()
        self.counts = Counts(
            needed=low[0],
            unsorted=low[1],
            chains=high[2],
            changes=low[3],
            removed_keys=high[3],
            new_keys=high[4],
            unplaced=low[5],
            moved=high[5],
            values=low[6],
            kept=low[8],
        )
        return self.counts
