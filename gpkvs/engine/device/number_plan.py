"""A plan for a table of numbers whose kernels native code launches: what Python gives it, and what it is told.

``kernels/number_plan.hpp`` has the steps and the columns.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Processor
from gpkvs.backends.words import Words, places_of
from gpkvs.batch import U64
from gpkvs.native import library, number_plan

_PLACES: Final = places_of(library.gpkvs_number_plan_fields())
# What the kernels tell, a word each (`NumberCount` in kernels/number_plan.hpp).
_TOLD: Final = ("NEEDED", "UNSORTED", "CHAINS", "CHANGES", "BLOCKS", "PLACED", "VALUES", "ABSENT")
assert library.gpkvs_number_counts().decode().split(";") == [*_TOLD, ""]


class Step(IntEnum):
    """The steps of a plan, in their order."""

    BEGIN = 0
    SELECT = 1
    FINISH = 2
    VALUES = 3
    STAGE_MOVED = 4


assert library.gpkvs_number_steps().decode().split(";") == [*Step.__members__, ""]


class Counts(NamedTuple):
    """What the kernels told of a plan.

    Attributes
    ----------
    needed
        Operations that are to be ordered; after `Step.SELECT`.
    unsorted
        Where ties of fingerprints were left as they are: the plan is worth nothing. After `Step.FINISH`.
    changes, removed_keys, new_keys, unplaced, moved
        Chains that change a slot; those of them that remove a key, that bring a new one, for which there is no way, and
        that displace an occupant. After `Step.FINISH`.
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
    """The kernels of one plan.

    Parameters
    ----------
    place
        Where it runs; its `launcher` launches them.
    **given
        Fields of the struct: numbers and addresses.
    """

    def __init__(self, place: Processor, **given: int) -> None:
        super().__init__(_PLACES)
        self._place = place
        self._told: U64 = place.result_column(len(_TOLD), np.uint64)
        self._kept: list[NDArray[Any]] = []  # memory of columns
        self.set(launcher=place.launcher, queue=place.queue, told=place.address(self._told), **given)

    def run(self, step: Step) -> None:
        """Launch the kernels of a step."""
        self._place.run_native(partial(number_plan, self.address, step))

    def begin(self) -> None:
        """Launch the first step, in memory of its own."""
        self._make_room(Step.BEGIN)
        self.run(Step.BEGIN)

    def order(self, operations: int) -> None:
        """Have room to order so many operations, and for what follows."""
        self.set(ordered=operations)
        self._make_room(Step.FINISH)

    def _make_room(self, step: Step) -> None:
        self.set(room=0)
        room: NDArray[np.uint8] = self._place.scratch(library.gpkvs_number_plan_room(self.address, step), np.uint8)
        self._kept.append(room)
        self.set(room=self._place.address(room))
        library.gpkvs_number_plan_room(self.address, step)

    @property
    def counts(self) -> Counts:
        """What the kernels told, once they are done (`Processor.settle`)."""
        halves = self._told.view(np.uint32).reshape(-1, 2).tolist()
        (needed, _), (unsorted, _), _, (changes, removed_keys), (_, new_keys), (unplaced, moved), (values, _), _ = (
            halves
        )
        return Counts(needed, unsorted, changes, removed_keys, new_keys, unplaced, moved, values)
