"""The read image of an index on a GPU: a mirror in its memory, and the slots in which it lags behind.

Batches that run on the host change the index and not its mirror, which lags behind in their slots. Before the next
kernel reads the mirror, it follows: from PM, which is the truth.
"""

from __future__ import annotations

from typing import Any

import cupy
from cupy.cuda import runtime

from gpkvs.backends.cuda.device_memory import DeviceMemory
from gpkvs.backends.cuda.gpus import Gpus
from gpkvs.backends.cuda.host_memory import GrowingHostMemory
from gpkvs.backends.late_slots import ROOM_MAX, LateSlots
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES

# With more late slots than this part of an index, a copy of the whole takes less time.
_LATE_PART = 1 / 32
_LATE_MIN = 1024  # a copy takes a moment, however small the index is
# What it takes to follow: a launch, and each slot, which the host's threads read; or a copy of the whole over the link.
_MOMENT_SECONDS, _SLOT_SECONDS, _COPIED_A_SECOND = 5e-4, 1e-8, 55e9


class Mirror:
    """The mirror of one index.

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

    Attributes
    ----------
    late
        The slots in which it lags behind.
    """

    def __init__(self, index: Index, memory: DeviceMemory, registered: GrowingHostMemory | None, gpus: Gpus) -> None:
        self.index = index
        self.memory = memory
        self.registered = registered
        self._gpus = gpus
        self.late = LateSlots(_late_room(index.slots))

    @property
    def array(self) -> Any:
        """The copy."""
        return self.memory.array

    def copy_whole(self) -> None:
        """Copy the index as it is now, when the GPUs have done all that was launched."""
        self._gpus.synchronize()
        self._copy(0, self.index.region.bytes)
        self.late.forget()

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

    @property
    def catch_up_seconds(self) -> float:
        """What it takes to bring it up to date, about; 0: it is."""
        if self.late.are_too_many:
            return _MOMENT_SECONDS + self.index.region.bytes / _COPIED_A_SECOND
        return _MOMENT_SECONDS + _SLOT_SECONDS * self.late.count if self.late.is_any else 0.0

    def grow(self, bytes_after: int, spare_bytes: int) -> None:
        """Have room for a longer index."""
        self.memory.grow(bytes_after, spare_bytes)
        self.late.room = _late_room(bytes_after // BLOCK_BYTES * self.index.layout.block_slots)


def _late_room(slots: int) -> int:
    return min(max(int(slots * _LATE_PART), _LATE_MIN), ROOM_MAX)
