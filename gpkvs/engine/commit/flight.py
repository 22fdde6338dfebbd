"""Transactions of GPUs that end beside the plan of the next one, by native code (``kernels/commit/flight.hpp``).

One is on its way at a time: its entries and its flag are stored over by the next one.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Final

from gpkvs.backends.chunks import Steps
from gpkvs.backends.words import Words, places_of
from gpkvs.engine.commit.chunked_slots import Part
from gpkvs.errors import NoMemoryError
from gpkvs.native import flight_begin, flight_go_on, flight_landed, library
from gpkvs.process import failpoint

_PLACES: Final = places_of(library.gpkvs_landing_fields())


class Landing(Words):
    """What is left to do of a transaction whose chunks are launched.

    Parameters
    ----------
    parts
        The slots of each processor.
    steps
        Of their chunks, that are left.
    epoch
        Of the transaction.
    delivered
        The event that tells that its results have left; 0: they have.
    kept
        What native code and GPUs may use until it has landed.
    """

    def __init__(self, parts: list[Part], steps: Steps, epoch: int, delivered: int, kept: tuple[object, ...]) -> None:
        count = len(parts)
        addresses = (ctypes.c_void_p * count)(*[part.chunks.address for part in parts])
        chunks = (ctypes.c_uint64 * count)(*[part.chunk_count for part in parts])
        super().__init__(
            _PLACES,
            parts=ctypes.addressof(addresses),
            chunks=ctypes.addressof(chunks),
            count=count,
            steps=steps,
            epoch=epoch,
            delivered=delivered,
            failpoint=failpoint.address(),
        )
        self._kept = (addresses, chunks, parts, kept)

    def seconds(self, what: str) -> float:
        """Return what a step took, once it has landed: ``apply`` or ``idle``."""
        return self.get(f"{what}_ns") / 1e9


class Flight:
    """Ends transactions. An error of a GPU's driver ends the process: only recovery may go on.

    Parameters
    ----------
    flag
        The address of the transaction flag.

    Raises
    ------
    NoMemoryError
        If there is no memory for it.

    Attributes
    ----------
    address
        Of the native object.
    begun
        The gate of the last transaction.
    """

    def __init__(self, flag: int) -> None:
        self._flag = flag
        self.address = library.gpkvs_flight_new()
        if not self.address:
            raise NoMemoryError
        self.begun = 0
        self._landing: Landing | None = None
        process = os.getpid()
        # The end of the process waits for what is on its way, while memory and GPU are there; who comes later may still
        # use the rest.
        weakref.finalize(self, _in_process, process, library.gpkvs_flight_delete, self.address).atexit = False
        weakref.finalize(self, _in_process, process, library.gpkvs_flight_end, self.address)

    def begin(self, landing: Landing) -> int:
        """Begin to end a transaction; the one before has landed. Returns its gate.

        Who waits for it first ends it; if nobody will soon, `go_on` has a thread do so.
        """
        landing.set(flag=self._flag)
        self._landing = landing
        self.begun = flight_begin(self.address, landing.address)
        return self.begun

    def go_on(self) -> None:
        """Have a thread end what is on its way."""
        flight_go_on(self.address)

    @property
    def landed(self) -> int:
        """The gate of the last transaction that is durable, and whose results are there."""
        return int(flight_landed(self.address))

    def is_landed(self, gate: int) -> bool:
        """Whether the transaction of a gate, and all before it, are durable, and their results there."""
        return gate <= self.landed

    def wait(self, gate: int) -> None:
        """Return when they are; from any thread."""
        if not self.is_landed(gate):
            library.gpkvs_flight_wait(self.address, gate)

    def take_landed(self) -> Landing | None:
        """Return the last transaction, which has landed, once; with it goes what was kept for it."""
        landing, self._landing = self._landing, None
        return landing

    def close(self) -> None:
        """End the thread. Nothing is on its way any more."""
        library.gpkvs_flight_end(self.address)


def _in_process(process: int, end: Callable[[int], None], flight: int) -> None:
    """End a flight where its thread is: the child of a fork has none."""
    if os.getpid() == process:
        end(flight)
