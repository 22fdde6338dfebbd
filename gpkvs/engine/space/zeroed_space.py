"""Space of the heap that is written before it is used.

On most file systems, space that was only reserved is marked as unwritten, and the mark must go durably with the first
data. A small batch would pay for that with each flush. So zeros are written ahead of the tail, a stretch at a time.
"""

from __future__ import annotations

import ctypes

from gpkvs.engine.state.heap import Tail
from gpkvs.media.files import StoreFiles
from gpkvs.native import library
from gpkvs.pm.mapping import map_memory

_STRETCH_BYTES = 1 << 20


class ZeroedSpace(ctypes.Structure):
    """Writes zeros ahead of the tail of the heap; a native committer does too (``kernels/space/zeroed_space.hpp``).

    Parameters
    ----------
    files
        Of a store with a journal.
    """

    _fields_ = [
        ("_file", ctypes.c_uint64),
        ("_direct", ctypes.c_uint64),
        ("_offset", ctypes.c_uint64),
        ("_segment_bytes", ctypes.c_uint64),
        ("_zeros_address", ctypes.c_void_p),
        ("_ready", ctypes.c_uint64),
        ("_ready_end", ctypes.c_uint64),
    ]

    def __init__(self, files: StoreFiles) -> None:
        assert files.data
        self._files = files
        self._zeros = map_memory(_STRETCH_BYTES)
        super().__init__(
            files.data.file,
            files.data.direct,
            files.root.journal_bytes,
            files.root.segment_bytes,
            self._zeros.ctypes.data,
        )

    def prepare(self, start: Tail, end: Tail) -> None:
        """Prepare space for the records of a batch, which go from one tail to the other, and for those after it.

        A failure ends the process.
        """
        library.gpkvs_prepare_space(ctypes.addressof(self), *start, *end, self._files.root.heap_bytes)
