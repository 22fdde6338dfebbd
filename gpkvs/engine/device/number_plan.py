"""Plans for a table of numbers whose kernels native code launches: what Python gives them, and what it is told.

``kernels/number_plan.hpp`` has the steps and the columns.
"""

from __future__ import annotations

from enum import IntFlag
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Processor
from gpkvs.backends.words import Words, places_of
from gpkvs.native import library, number_plan, number_plan_room

_PLACES: Final = places_of(library.gpkvs_number_plan_fields())
# What the kernels tell, a word each (`NumberCount` in kernels/number_plan.hpp).
_TOLD: Final = ("NEEDED", "UNSORTED", "CHAINS", "CHANGES", "BLOCKS", "PLACED", "VALUES", "ABSENT")
assert library.gpkvs_number_counts().decode().split(";") == [*_TOLD, ""]


class Step(IntFlag):
    """The steps of a plan, in their order; a call launches one or several."""

    LOCATE = 1
    SELECT = 2
    ORDER = 4
    STAGE = 8
    VALUES = 16
    STAGE_MOVED = 32
    TELL = 64


assert library.gpkvs_number_steps().decode().split(";") == [*Step.__members__, ""]


class Counts(NamedTuple):
    """What the kernels told of a plan.

    Attributes
    ----------
    needed
        Operations that are to be ordered; after `Step.SELECT`.
    unsorted
        Where ties of fingerprints were left as they are: the plan is worth nothing. After `Step.ORDER`.
    changes, removed_keys, new_keys, unplaced, moved
        Chains that change a slot; those of them that remove a key, that bring a new one, for which there is no way, and
        that displace an occupant. After `Step.ORDER`.
    values
        That GETs found; after `Step.VALUES`.
    """

    needed: int
    unsorted: int
    changes: int
    removed_keys: int
    new_keys: int
    unplaced: int
    moved: int
    values: int


class NumberPlan(Words):
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
        room: NDArray[np.uint8] = self._place.scratch(number_plan_room(self.address), np.uint8)
        self.set(room=self._place.address(room))
        return room

    def run(self, steps: int) -> None:
        """Launch the kernels of some steps."""
        self._place.run_native(partial(number_plan, self.address, steps))

    def look(self) -> Counts:
        """Wait for what was launched; return what `Step.TELL` told."""
        self._place.settle()
        needed, _, unsorted, _, _, _, changes, removed, _, new, unplaced, moved, values, *_ = self._halves.tolist()
        self.counts = Counts(needed, unsorted, changes, removed, new, unplaced, moved, values)
        return self.counts
