"""Space of the heap that is written before it is used.

On most file systems, space that was only reserved is marked as unwritten, and the mark must go durably with the first
data. A small batch would pay for that with each flush. So zeros are written ahead of the tail, a stretch at a time.
"""

from __future__ import annotations

import os

from gpkvs.engine.heap import Tail
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import PAGE_BYTES, UNIT_BYTES
from gpkvs.pm.mapping import map_memory

_STRETCH_BYTES = 1 << 20


class ZeroedSpace:
    """Writes zeros ahead of the tail of the heap.

    Parameters
    ----------
    files
        Of a store with a journal.
    """

    def __init__(self, files: StoreFiles) -> None:
        assert files.data
        self._files = files
        self._data = files.data
        self._offset = files.root.journal_bytes
        self._segment_bytes = files.root.segment_bytes
        self._zeros = map_memory(_STRETCH_BYTES)
        self._ready = (0, 0)  # bytes of the heap that were looked at

    def prepare(self, start: Tail, end: Tail) -> None:
        """Prepare space for the records of a batch, which go from one tail to the other, and for those after it.

        Nothing is done for much at once: it carries the cost itself.

        Raises
        ------
        OSError
            If zeros could not be written; the process must not go on.
        """
        first = end.segment * self._segment_bytes + (start.units * UNIT_BYTES if start.segment == end.segment else 0)
        last = end.segment * self._segment_bytes + end.units * UNIT_BYTES
        if (self._ready[0] <= first and last <= self._ready[1]) or last - first > _STRETCH_BYTES // 4:
            return
        segment_end = min((end.segment + 1) * self._segment_bytes, self._files.root.heap_bytes)
        until = min(-(-last // PAGE_BYTES) * PAGE_BYTES + _STRETCH_BYTES // 2, segment_end)
        at = -(-first // PAGE_BYTES) * PAGE_BYTES
        self._ready = (first, until)
        hole = os.lseek(self._data.file, self._offset + at, os.SEEK_HOLE) if at < until else self._offset + until
        at = max(at, (hole - self._offset) // PAGE_BYTES * PAGE_BYTES)
        if at < until:
            os.pwrite(self._data.direct, self._zeros[: until - at].data, self._offset + at)
