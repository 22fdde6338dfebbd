"""Space of the heap that batches have freed, and that waits to be used again (``kernels/space/waiting_space.hpp``)."""

from __future__ import annotations

import weakref

from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import U64
from gpkvs.native import (
    library,
    waiting_add,
    waiting_newest,
    waiting_notes,
    waiting_release,
    waiting_units,
)


class WaitingSpace:
    """Notes of units of each segment, one for each epoch; a native committer adds to them too.

    Attributes
    ----------
    address
        Where native code finds them.
    """

    def __init__(self) -> None:
        self.address: int = library.gpkvs_waiting_new() or 0
        if not self.address:
            raise MemoryError("space that waits")
        weakref.finalize(self, library.gpkvs_waiting_delete, self.address).atexit = False

    def __len__(self) -> int:
        return int(waiting_notes(self.address))

    def add(self, epoch: int, units: U64) -> None:
        """Note units that wait for an epoch, which is not older than any noted.

        Raises
        ------
        MemoryError
            If there is none for it; nothing was noted.
        """
        if not waiting_add(self.address, epoch, address_of(units), len(units)):
            raise MemoryError("space that waits")

    def release(self, epoch: int, live_units: U64) -> bool:
        """Take what waits for the epochs up to one from the live units; return whether there was something."""
        return bool(waiting_release(self.address, epoch, address_of(live_units)))

    @property
    def newest(self) -> int:
        """The newest epoch that space waits for; 0 if none does."""
        return int(waiting_newest(self.address))

    @property
    def units(self) -> int:
        """All that waits."""
        return int(waiting_units(self.address))
