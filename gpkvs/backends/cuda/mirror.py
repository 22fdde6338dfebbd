"""The read image of an index on a GPU: a mirror in its memory, and the slots in which it lags behind."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from gpkvs.backends.cuda.device_memory import DeviceMemory
from gpkvs.backends.cuda.gpus import Gpus
from gpkvs.backends.cuda.host_memory import GrowingHostMemory
from gpkvs.batch import U64
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES

_LATE_ROOM = 1024  # slots that may be noted at first


class Mirror:
    """The mirror of one index.

    Batches that run on the host change the index and not its mirror. The mirror notes their slots. The backend reads
    them from PM, which is the truth, before the next kernel reads the mirror.

    Parameters
    ----------
    index
        What it mirrors.
    memory
        Of the GPU, for its copy.
    registered
        The index, if CUDA has registered it.
    gpus
        Where the memory lies: each copies its own stripes over its own link.
    """

    def __init__(self, index: Index, memory: DeviceMemory, registered: GrowingHostMemory | None, gpus: Gpus) -> None:
        self.index = index
        self.memory = memory
        self.registered = registered
        self._gpus = gpus
        self.late_slots = 0
        self._late: U64 = np.empty(_LATE_ROOM, np.uint64)  # the first `late_slots` are noted

    @property
    def array(self) -> Any:
        """The copy."""
        return self.memory.array

    def copy_whole(self) -> None:
        """Copy the index as it is now."""
        self._copy(0, self.index.region.bytes)

    def copy_blocks(self, first: int, last: int) -> None:
        """Copy some blocks of the index as they are now."""
        self._copy(first * BLOCK_BYTES, last * BLOCK_BYTES)

    def _copy(self, begin: int, end: int) -> None:
        for first, last in self.registered.parts(begin, end) if self.registered else ((begin, end),):
            for number, (begin_here, end_here) in self._gpus.cut(first, last):
                runtime.setDevice(number)
                runtime.memcpyAsync(
                    self.array.data.ptr + begin_here,
                    self.index.address + begin_here,
                    end_here - begin_here,
                    runtime.memcpyHostToDevice,
                    cupy.cuda.Stream.null.ptr,
                )
        self._gpus.synchronize()

    def note(self, slots: U64) -> None:
        """Remember slots of the index that changed, by their numbers; they are copied."""
        count = self.late_slots + len(slots)
        if count > len(self._late):
            late: U64 = np.empty(2 * count, np.uint64)
            late[: self.late_slots] = self._late[: self.late_slots]
            self._late = late
        self._late[self.late_slots : count] = slots
        self.late_slots = count

    def late(self) -> U64:
        """Return the noted slots; a slot that changed often is there often."""
        # Without np.unique: it takes a hundred times as long as it saves.
        return self._late[: self.late_slots].copy()

    def forget_late(self) -> None:
        """Forget the noted slots: the copy has them."""
        self.late_slots = 0
