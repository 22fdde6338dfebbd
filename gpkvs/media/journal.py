"""The journal of a store: where frames go, in which order, and what is durable.

The journal is a ring of segments. Its pages are numbered from the first one ever written. Each segment begins with a
page for its head, which is not numbered. Space is used again when both root copies name a checkpoint beyond it (W3).

The ring grows by extents: whole segments of the heap's space. The root says of each which segment of the journal was
the newest when it joined, and that gives every segment its place. Nothing of the journal is read to find the order.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.errors import memory_refused
from gpkvs.media.data_file import DataFile
from gpkvs.media.frame import HEADER_BYTES
from gpkvs.media.layout import NO_SERIAL, PAGE_BYTES, STRUCTURE_BYTES, Descriptor, Extent, Root
from gpkvs.native import (
    frames_append,
    frames_begin,
    frames_begun,
    frames_covered_by,
    frames_end,
    frames_ended,
    frames_free,
    frames_grow,
    frames_is_empty,
    frames_last,
    frames_next_sequence,
    frames_room_nanoseconds,
    frames_try_lock,
    frames_unlock,
    frames_used_pages,
    journal_durable,
    library,
)

# A frame takes at most this share of the journal.
_FRAME_SHARE = 4
_PLACE = struct.Struct("<QQ")  # of a frame: digest and position
_WRITTEN_BYTES = STRUCTURE_BYTES + _PLACE.size


class Written(NamedTuple):
    """A batch of the journal: what the next frame and a checkpoint must know of it.

    Attributes
    ----------
    descriptor
        Of the batch.
    digest
        Of its frame.
    position
        The page after its frame.
    """

    descriptor: Descriptor
    digest: int
    position: int

    @property
    def epoch(self) -> int:
        """Of the batch."""
        return self.descriptor.epoch

    def pack(self) -> bytes:
        """Return what native code has of it (`Written` in ``kernels/commit/frames.hpp``)."""
        return self.descriptor.pack() + _PLACE.pack(self.digest, self.position)

    @staticmethod
    def unpack(data: bytes) -> Written:
        """Read what native code has of it."""
        return Written(Descriptor.unpack(data[:STRUCTURE_BYTES]), *_PLACE.unpack_from(data, STRUCTURE_BYTES))


class Ring(NamedTuple):
    """Where a page of the journal lies in the file.

    Attributes
    ----------
    segment_bytes
        Of each segment.
    places : (segments,) uint64
        Where the segments begin in the file: that of serial number s is the one at s modulo their number.
    """

    segment_bytes: int
    places: NDArray[np.uint64]

    @staticmethod
    def of(root: Root) -> Ring:
        """Return the ring of a store."""
        extents = tuple(extent for extent in root.journal_extents if extent.serial != NO_SERIAL)
        return _ring_of(root.journal_segment_bytes, root.journal_bytes, root.segment_bytes, extents)

    @staticmethod
    def of_size(segment_bytes: int, size: int) -> Ring:
        """Return the ring of a journal that has not grown."""
        return _ring_of(segment_bytes, size, 0, ())

    def extended(self, serial: int, places: NDArray[np.uint64]) -> Ring:
        """Return the ring with more segments, which follow the one with a serial number.

        That one and those before it, of which any may be in use, keep their places.
        """
        known = np.arange(serial - self.segments + 1, serial + 1)
        new = np.arange(serial + 1, serial + 1 + len(places))
        count = self.segments + len(places)
        all_places = np.empty(count, np.uint64)
        all_places[known % count] = self.places[known % self.segments]
        all_places[new % count] = places
        return Ring(self.segment_bytes, all_places)

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self.places)

    @property
    def segment_pages(self) -> int:
        """Numbered pages of a segment."""
        return self.segment_bytes // PAGE_BYTES - 1

    @property
    def capacity(self) -> int:
        """Pages that may be in use. One segment less than there are: no head is stored over one in use."""
        return (self.segments - 1) * self.segment_pages

    @property
    def frame_pages_max(self) -> int:
        """Pages of the largest frame."""
        return self.capacity // _FRAME_SHARE

    @property
    def frame_words_max(self) -> int:
        """Words of entries that the largest frame has room for."""
        return (self.frame_pages_max * PAGE_BYTES - HEADER_BYTES) // 8

    def bytes_for(self, words: int) -> int:
        """Return the size of a ring of such segments in which a frame has room for so many words."""
        frame_pages = -(-(HEADER_BYTES + 8 * words) // PAGE_BYTES)
        return (-(-frame_pages * _FRAME_SHARE // self.segment_pages) + 1) * self.segment_bytes

    def head_offset(self, serial: int) -> int:
        """Return where the segment with a serial number begins in the file."""
        return int(self.places[serial % self.segments])

    def page_offset(self, position: int) -> int:
        """Return where a page begins in the file."""
        serial, page = divmod(position, self.segment_pages)
        return self.head_offset(serial) + (1 + page) * PAGE_BYTES


@lru_cache(maxsize=4)
def _ring_of(segment_bytes: int, size: int, heap_segment_bytes: int, extents: tuple[Extent, ...]) -> Ring:
    ring = Ring(segment_bytes, _places(0, size, segment_bytes))
    for extent in extents:
        begin = size + extent.first_segment * heap_segment_bytes
        end = begin + extent.segments * heap_segment_bytes
        ring = ring.extended(extent.serial, _places(begin, end, segment_bytes))
    return ring


def _places(begin: int, end: int, step: int) -> NDArray[np.uint64]:
    return np.arange(begin, end, step).astype(np.uint64)


class Frame:
    """Room for a frame: its pages in memory, and its place in the journal.

    Attributes
    ----------
    entries
        The address of the entries.
    """

    def __init__(self, address: int, count: int) -> None:
        self.count = count
        self.entries = address + HEADER_BYTES


class Journal:
    """The journal of an open store: native frames and their writer (``kernels/commit/frames.hpp``, ``journal.hpp``).

    Who appends holds `appending`; any thread may ask and wait. A native committer appends to the same frames.

    Parameters
    ----------
    data
        The file.
    root
        As the opening found it; its incarnation is that of the frames.
    last
        The last batch that was recovered. It is durable.
    flushes
        Whether a frame is durable only when the file was flushed.

    Attributes
    ----------
    address
        Where native code finds the frames.
    appending
        The lock, which native code takes too.
    is_direct
        Whether frames are written past the page cache.
    on_new_memory
        Called with memory that will hold frames, before it is used.
    """

    def __init__(self, data: DataFile, root: Root, last: Written, *, flushes: bool) -> None:
        self.ring = Ring.of(root)
        key = root.hash_keys
        self.is_direct = data.is_direct
        self.on_new_memory: Callable[[NDArray[np.uint8]], None] = lambda memory: None
        self._memory: dict[int, NDArray[np.uint8]] = {}  # of frames, by address
        words = (
            *(data.file, data.direct, flushes),
            *(self.ring.segment_bytes, self.ring.segments, self.ring.places.ctypes.data),
            *key,
            *(root.incarnation, last.epoch),
        )
        self._writer: int = library.gpkvs_journal_new((ctypes.c_uint64 * len(words))(*words)) or 0
        if not self._writer:
            raise OSError(errno.EAGAIN, "the system gives no thread for the journal")
        packed = ctypes.create_string_buffer(last.pack(), _WRITTEN_BYTES)
        freed_to = root.checkpoint.position
        of_frames = (self._writer, *key, root.incarnation, self.ring.capacity, freed_to, ctypes.addressof(packed))
        self.address: int = library.gpkvs_frames_new((ctypes.c_uint64 * len(of_frames))(*of_frames)) or 0
        if not self.address:
            library.gpkvs_journal_end(self._writer)
            library.gpkvs_journal_delete(self._writer)
            raise OSError(errno.ENOMEM, "the system gives no memory for the journal")
        self.appending = _lock_of(self.address)
        self._is_closed = False

    @property
    def durable(self) -> int:
        """The newest durable epoch."""
        return int(journal_durable(self._writer))

    @property
    def begun(self) -> int:
        """The newest epoch whose slots are stored to the image, or may be."""
        return int(frames_begun(self.address))

    @property
    def ended(self) -> Written:
        """The newest batch whose slots are all stored."""
        return _written(frames_ended, self.address)

    @property
    def last(self) -> Written:
        """The newest batch that was appended."""
        return _written(frames_last, self.address)

    @property
    def next_sequence(self) -> int:
        """The version that the next SET may get."""
        return int(frames_next_sequence(self.address))

    @property
    def is_empty(self) -> bool:
        """Whether the last frame of this opening says nothing: then nothing is to be covered."""
        return bool(frames_is_empty(self.address))

    @property
    def flushes(self) -> int:
        """How often the file was flushed."""
        return int(library.gpkvs_journal_flushes(self._writer))

    @property
    def flush_seconds(self) -> float:
        """How long all flushes took."""
        return int(library.gpkvs_journal_flush_nanoseconds(self._writer)) / 1e9

    @property
    def room_seconds(self) -> float:
        """How long batches have waited for room in the journal."""
        return int(frames_room_nanoseconds(self.address)) / 1e9

    @property
    def used_pages(self) -> int:
        """Pages that a replay would read."""
        return int(frames_used_pages(self.address))

    @property
    def is_nearly_full(self) -> bool:
        """Whether a frame might have to wait for room."""
        return self.used_pages + self.ring.frame_pages_max > self.ring.capacity

    def covered_by(self, durable: int) -> int:
        """Return the newest epoch that the frames up to a durable one name as durable (W6)."""
        return int(frames_covered_by(self.address, durable))

    def wait(self, epoch: int) -> None:
        """Return when the frame of an epoch is durable. A failure of the disk ends the process."""
        if self.durable < epoch:
            library.gpkvs_journal_wait(self._writer, epoch)

    def try_appending(self) -> bool:
        """Take the lock if it is free; for a thread that no interrupt reaches."""
        return bool(frames_try_lock(self.address))

    def end_appending(self) -> None:
        """Give the lock back."""
        frames_unlock(self.address, None, None, None)

    def reserve(self, pages: int) -> Frame:
        """Return room for a frame, in memory and in the journal; wait until there is some.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing has changed.
        """
        assert pages <= self.ring.frame_pages_max
        size = ctypes.c_uint64()
        with memory_refused():
            address = library.gpkvs_frames_reserve(self.address, pages, ctypes.byref(size))
            if not address:
                raise MemoryError(f"{pages * PAGE_BYTES:,} bytes for a frame of the journal")
            if address not in self._memory:
                memory = np.ctypeslib.as_array((ctypes.c_uint8 * size.value).from_address(address))
                self.on_new_memory(memory)
                self._memory[address] = memory
        return Frame(address, pages)

    def begin(self, epoch: int) -> None:
        """Say that slots of an epoch may be stored from here on."""
        frames_begin(self.address, epoch)

    def append(self, descriptor: Descriptor, records_digest: int, durable_upto: int) -> None:
        """Give the reserved frame its header, and have it written behind the last one.

        Its entries are in place, its records written. It is durable after `wait`.
        """
        frames_append(self.address, descriptor.pack(), records_digest, durable_upto)

    def end(self) -> None:
        """Say that all slots of the last batch are stored."""
        frames_end(self.address)

    def free(self, position: int) -> None:
        """Use the pages before a position again: both root copies name a checkpoint there (W3)."""
        frames_free(self.address, position)

    @property
    def serial(self) -> int:
        """Of the segment that the next frame begins in."""
        return self.last.position // self.ring.segment_pages

    def grow(self, ring: Ring) -> None:
        """Go on in a ring with more segments, which both root copies name; nobody appends meanwhile."""
        assert ring.segment_bytes == self.ring.segment_bytes
        library.gpkvs_journal_set_places(self._writer, ring.places.ctypes.data, ring.segments)
        self.ring = ring
        frames_grow(self.address, ring.capacity)

    def close(self) -> None:
        """Write what was appended, then end the writer. Threads may still wait for what is durable by now."""
        if not self._is_closed:
            self._is_closed = True
            library.gpkvs_journal_end(self._writer)
            self._memory.clear()
            # Its memory goes with this object, which every thread that waits holds.
            weakref.finalize(self, _delete, self.address, self._writer).atexit = False


def _written(read: Callable[..., None], frames: int) -> Written:
    packed = ctypes.create_string_buffer(_WRITTEN_BYTES)
    read(frames, packed)
    return Written.unpack(packed.raw)


def _lock_of(frames: int) -> AbstractContextManager[None]:
    """Return the lock of frames. Python runs nothing on its way in and out, so an interrupt cannot leave it taken."""
    enter, leave = partial(library.gpkvs_frames_lock, frames), partial(frames_unlock, frames)
    lock: AbstractContextManager[None] = type(
        "Appending", (), {"__enter__": staticmethod(enter), "__exit__": staticmethod(leave)}
    )()
    return lock


def _delete(frames: int, writer: int) -> None:
    library.gpkvs_frames_delete(frames)
    library.gpkvs_journal_delete(writer)
