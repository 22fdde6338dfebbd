"""Two processors of one store, where there is only one: threads stand for a GPU, and others for its host.

For tests and for the crash explorer: what a GPU plans goes through the same steps here, columns "on the device", a
mirror, and slots that both processors store. There is no link.
"""

from __future__ import annotations

from collections.abc import Callable

from gpkvs.backends.base import Argument, Stored
from gpkvs.backends.cpu.backend import CpuBackend, host_ops_asked
from gpkvs.backends.cpu.mirrored import MirroredThreads, Mirrors
from gpkvs.backends.row_cache import RowCaches
from gpkvs.batch import U64
from gpkvs.config import MIB
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.pm.region import Region

_FREE_BYTES = 64 * MIB  # of the memory "on the device"


class PairBackend(MirroredThreads):
    """Runs the kernels of a GPU on threads of its own.

    Parameters
    ----------
    threads
        Of each processor; 0 takes one for each of the machine's.
    """

    description = "cpu, in place of a GPU and its host"

    def __init__(self, threads: int = 0) -> None:
        super().__init__(threads, Mirrors())
        self._host = CpuBackend(threads)
        self.host_ops_max = host_ops_asked() or 0
        self._row_caches = RowCaches(self, lambda: _FREE_BYTES)
        self.row_caches = self._row_caches
        self._launches = 0

    @property
    def host(self) -> CpuBackend:
        """See `Processor.host`."""
        return self._host

    def shares_slots(self, region: Region | Image, count: int, /) -> bool:
        """See `Processor.shares_slots`: in every domain, and as few as can be divided."""
        del region
        return count > 1

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
        """See `Processor.launch_unawaited`.

        Some run only when they are waited for, after what the other processor does meanwhile. Only a journal's are
        launched here.
        """
        self._launches += 1
        is_late = self._launches % 4 in (1, 0)
        begin = super().launch_unawaited

        def run() -> Stored:
            return begin(kernel, items, mirrored=mirrored, summed=summed, **arguments)()

        if is_late:
            return run
        stored = run()
        return lambda: stored

    def attach_index(self, index: Index, /) -> None:
        """See `Backend.attach_index`."""
        self._mirrors.add(index)

    def detach_index(self, index: Index, /) -> None:
        """See `Backend.detach_index`."""
        self._mirrors.remove(index)
        self._row_caches.forget(index)

    def follow(self, index: Index, slots: U64, contents: U64, /) -> None:
        """See `Backend.follow`."""
        del slots, contents
        self._mirrors.are_behind(index)

    def host_stored(self, index: Index, slots: U64, /) -> None:
        """See `Backend.host_stored`."""
        del slots
        self._mirrors.are_behind(index)

    def late_slots(self, index: Index, /) -> int:
        """See `Backend.late_slots`."""
        return self._mirrors.late_slots(index)

    def host_stored_blocks(self, index: Index, first: int, last: int, /) -> None:
        """See `Backend.host_stored_blocks`."""
        del first, last
        self._mirrors.are_behind(index)

    def begin(self) -> None:
        """See `Backend.begin`."""
        super().begin()
        self._host.begin()

    def close(self) -> None:
        """See `Backend.close`."""
        self._host.close()
        super().close()
