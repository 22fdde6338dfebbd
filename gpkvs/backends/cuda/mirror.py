"""The read image of an index on a GPU: a mirror in its memory, and the slots in which it lags behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpkvs.batch import U64
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES


class Mirror:
    """The mirror of one index.

    Batches that run on the host change the index and not its mirror. The mirror notes their slots. The backend reads
    them from PM, which is the truth, before the next kernel reads the mirror.

    Parameters
    ----------
    index
        What it mirrors.
    array
        Its copy in the GPU's memory.
    """

    def __init__(self, index: Index, array: Any) -> None:
        self.index = index
        self.array = array
        self.late_slots = 0
        self._late: list[U64] = []

    def copy_whole(self) -> None:
        """Copy the index as it is now."""
        self.array.data.copy_from_host(self.index.address, self.array.nbytes)

    def copy_blocks(self, first: int, last: int) -> None:
        """Copy some blocks of the index as they are now."""
        begin, end = first * BLOCK_BYTES, last * BLOCK_BYTES
        self.array[begin:end].data.copy_from_host(self.index.address + begin, end - begin)

    def note(self, slots: U64) -> None:
        """Remember slots of the index that changed, by their numbers; they are copied."""
        self._late.append(slots.copy())
        self.late_slots += len(slots)

    def take_late(self) -> U64:
        """Return the noted slots and forget them; a slot that changed often is there often."""
        # Without np.unique: it takes a hundred times as long as it saves.
        late = np.concatenate(self._late)
        self._late.clear()
        self.late_slots = 0
        return late
