"""The copy of an index in a GPU's memory, and the slots in which it lags behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpkvs.batch import U64
from gpkvs.media.layout import SlotLayout
from gpkvs.pm.region import Region


class Mirror:
    """The mirror of one index.

    Small batches change the index and not its mirror: their slots are noted, and read from PM, which is the truth,
    before the next kernel that reads the mirror.

    Parameters
    ----------
    region
        The mapped index.
    layout
        Of its slots.
    array
        Its copy in the GPU's memory.
    """

    def __init__(self, region: Region, layout: SlotLayout, array: Any) -> None:
        self.region = region
        self.layout = layout
        self.array = array
        self.late_slots = 0
        self._late: list[U64] = []

    def note(self, slots: U64) -> None:
        """Remember slots of the index that changed, by their numbers; they are copied."""
        self._late.append(slots.copy())
        self.late_slots += len(slots)

    def take_late(self) -> U64:
        """Return the slots that were noted, and forget them; one that changed often is there often."""
        # Without np.unique: it takes a hundred times as long as it saves.
        late = np.concatenate(self._late)
        self._late.clear()
        self.late_slots = 0
        return late
