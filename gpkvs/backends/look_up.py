"""GETs of numbers alone, launched on a GPU by one native call (``kernels/plan/look_up.hpp``)."""

from __future__ import annotations

from typing import Final

from gpkvs.backends.words import Words, places_of
from gpkvs.native import launch_look_up, library

_PLACES: Final = places_of(library.gpkvs_look_up_fields())


class LookUp(Words):
    """The look-ups of one processor, one after the other.

    Parameters
    ----------
    **given
        Fields of the struct that stay: numbers and addresses.
    """

    def __init__(self, **given: int) -> None:
        super().__init__(_PLACES, **given)

    def launch(self) -> int:
        """Launch a look-up; return an error of the driver, or 0.

        Other threads run meanwhile only if keys are copied: to launch takes less time than to hand Python's lock over.
        """
        run = library.gpkvs_look_up if self.get("plain") else launch_look_up
        status: int = run(self.address)
        return status
