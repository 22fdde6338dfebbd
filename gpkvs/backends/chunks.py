"""Slots that are logged and stored in chunks, by native code (``kernels/commit/chunks.hpp``)."""

from __future__ import annotations

from enum import IntFlag
from functools import partial
from typing import Final, NamedTuple

from gpkvs.backends.base import Processor
from gpkvs.backends.words import Words, places_of
from gpkvs.native import library

_PLACES: Final = places_of(library.gpkvs_store_chunks_fields())


class Steps(IntFlag):
    """What is done with chunks (``ChunkSteps``), in this order."""

    LEAVE = 1  # what slots are is copied, and what the host's threads store begins to leave for the host
    LOG = 2  # entries, and markers
    STORE = 4  # slots
    STORE_ON_HOST = 8  # those of the host's threads
    WAIT = 16  # until the stores are complete that were launched


class ChunkTimes(NamedTuple):
    """How long the host's threads and a processor stored slots, and waited or did other things; 0: nobody knows.

    Attributes
    ----------
    host, host_waited, gpu, gpu_waited
        In seconds.
    """

    host: float
    host_waited: float
    gpu: float
    gpu_waited: float


_TIMES: Final = tuple(f"{name}_ns" for name in ChunkTimes._fields)


class Chunks(Words):
    """The chunks of one processor's slots.

    Parameters
    ----------
    place
        The processor.
    turn
        0 or 1, which the batch before does not have (`Processor.chunk_queues`).
    **given
        Fields of the struct: numbers and addresses.
    """

    def __init__(self, place: Processor, turn: int, **given: int) -> None:
        super().__init__(_PLACES, **place.chunk_queues(turn) | given)
        self._place = place

    def run(self, steps: Steps, first: int, last: int) -> None:
        """Do some steps with the chunks `first` to `last - 1`.

        Raises
        ------
        BackendError
            If the driver refuses.
        """
        self._place.run_native(partial(library.gpkvs_store_chunks, self.address, steps, first, last))

    @property
    def times(self) -> ChunkTimes:
        """What it took to store the slots, if one call did all steps with all chunks."""
        return ChunkTimes(*[self.get(name) / 1e9 for name in _TIMES])
