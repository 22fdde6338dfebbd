"""Threads that stand for a GPU: they plan on mirrors of the indexes, which another processor also stores to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Stored
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.backends.fields import KernelFields
from gpkvs.backends.late_slots import LateSlots
from gpkvs.batch import U8, U64
from gpkvs.media.index import Index
from gpkvs.native import IS_TRACED

_NOTES = 1  # of late slots: with any, the whole index is copied


class Mirrors:
    """Copies of all indexes of a store, which several processors share."""

    def __init__(self) -> None:
        self._copies: dict[Index, U8] = {}
        self._late: dict[Index, LateSlots] = {}

    def add(self, index: Index) -> None:
        """Begin to mirror an index."""
        self._late[index] = LateSlots(_NOTES)
        self._copies[index] = np.empty(0, np.uint8)

    def remove(self, index: Index) -> None:
        """End it."""
        self._copies.pop(index, None)
        self._late.pop(index, None)

    def address(self, index: Index) -> int:
        """Return where the mirror lies, which has what the index has now.

        Where stores are recorded, to see what a crash leaves of them, it is the index: only stores to files count
        there, and each batch has landed before the next one is planned.
        """
        if IS_TRACED:
            return index.address
        if self._late[index].is_any or len(self._copies[index]) != index.region.bytes:
            self._copies[index] = np.empty(index.region.bytes, np.uint8)
            ctypes.memmove(self._copies[index].ctypes.data, index.address, index.region.bytes)
            self._late[index].forget()
        return int(self._copies[index].ctypes.data)

    def late_slots(self, index: Index) -> int:
        """Return where native code takes notes of what the mirror lags behind in."""
        return self._late[index].address

    def are_behind(self, index: Index) -> None:
        """Take note that an index has changed."""
        self._late[index].note(np.zeros(1, np.uint64))


class MirroredThreads(CpuBackend):
    """A processor that reads mirrors.

    Parameters
    ----------
    threads
        Of it; 0 takes one for each of the machine's processors.
    mirrors
        Of the store.
    """

    def __init__(self, threads: int, mirrors: Mirrors) -> None:
        super().__init__(threads)
        self._mirrors = mirrors

    def address(self, argument: NDArray[np.generic] | Index, /) -> int:
        """See `Processor.address`."""
        return self._mirrors.address(argument) if isinstance(argument, Index) else super().address(argument)

    def launch(self, kernel: str, items: int, /, *, keys_per_item: int = 1, **arguments: Argument) -> None:
        """See `Processor.launch`."""
        super().launch(kernel, items, keys_per_item=keys_per_item, **self._on_mirrors(kernel, arguments))

    def launch_unawaited(
        self,
        kernel: str,
        items: int,
        /,
        *,
        mirrored: int | None = None,
        summed: U64 | None = None,
        **arguments: Argument,
    ) -> Callable[[], Stored]:
        """See `Processor.launch_unawaited`."""
        given = self._on_mirrors(kernel, arguments)
        return super().launch_unawaited(kernel, items, mirrored=mirrored, summed=summed, **given)

    def _on_mirrors(self, kernel: str, arguments: dict[str, Argument]) -> dict[str, Argument]:
        """Return arguments that name mirrors where a kernel reads an index; one that it stores to lags behind then."""
        stored_to, given = KernelFields(kernel).stored_to, dict(arguments)
        for name, argument in arguments.items():
            if not isinstance(argument, Index):
                continue
            if name in stored_to:
                self._mirrors.address(argument)  # what it reads of it is up to date
                self._mirrors.are_behind(argument)
            else:
                given[name] = self._mirrors.address(argument)
        return given
