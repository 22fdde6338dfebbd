"""The journal of a store: where frames go, in which order, and what is durable.

The journal is a ring of segments. Its pages are numbered from the first one ever written. Each segment begins with a
page for its head, which is not numbered. Space is used again when both root copies name a checkpoint beyond it (W3).

The ring grows by extents: whole segments of the heap's space. The root says of each which segment of the journal was
the newest when it joined, and that gives every segment its place. Nothing of the journal is read to find the order.
"""

from __future__ import annotations

import ctypes
import errno
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.errors import memory_refused
from gpkvs.media.data_file import DataFile
from gpkvs.media.frame import HEADER_BYTES, FrameHeader
from gpkvs.media.layout import NO_SERIAL, PAGE_BYTES, Descriptor, Extent, Root
from gpkvs.native import journal_durable, library
from gpkvs.pm.mapping import map_memory

# Frames that may be on their way to the disk: with more, a batch waits. Each holds a buffer.
_IN_FLIGHT_MAX = 4
# A frame takes at most this share of the journal.
_FRAME_SHARE = 4


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

    def __init__(self, pages: NDArray[np.uint8], count: int) -> None:
        self.memory = pages
        self.count = count
        self.entries = int(pages.ctypes.data) + HEADER_BYTES


class Journal:
    """The journal of an open store. One thread appends; any may wait.

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
    is_direct
        Whether frames are written past the page cache.
    room_seconds
        How long batches have waited for room in the journal.
    on_new_memory
        Called with memory that will hold frames, before it is used.
    """

    def __init__(self, data: DataFile, root: Root, last: Written, *, flushes: bool) -> None:
        self.ring = Ring.of(root)
        self._key = root.hash_keys
        self._incarnation = root.incarnation
        self.last = last
        self.is_direct = data.is_direct
        self.room_seconds = 0.0
        self._freed_to = root.checkpoint.position
        self._is_freed = threading.Condition()
        self._in_flight: deque[tuple[int, Frame]] = deque()
        self._names: deque[tuple[int, int, int]] = deque()  # of each frame: epoch, durable_upto, next_sequence
        self._covered = 0
        self._stable_sequence = last.descriptor.next_sequence
        self._spare: list[NDArray[np.uint8]] = []
        self.on_new_memory: Callable[[NDArray[np.uint8]], None] = lambda memory: None
        words = (
            *(data.file, data.direct, flushes),
            *(self.ring.segment_bytes, self.ring.segments, self.ring.places.ctypes.data),
            *self._key,
            *(root.incarnation, last.epoch),
        )
        self._writer: int = library.gpkvs_journal_new((ctypes.c_uint64 * len(words))(*words)) or 0
        if not self._writer:
            raise OSError(errno.EAGAIN, "the system gives no thread for the journal")
        self._is_closed = False

    @property
    def durable(self) -> int:
        """The newest durable epoch."""
        return journal_durable(self._writer)

    @property
    def flushes(self) -> int:
        """How often the file was flushed."""
        return int(library.gpkvs_journal_flushes(self._writer))

    @property
    def flush_seconds(self) -> float:
        """How long all flushes took."""
        return int(library.gpkvs_journal_flush_nanoseconds(self._writer)) / 1e9

    @property
    def used_pages(self) -> int:
        """Pages that a replay would read."""
        return self.last.position - self._freed_to

    @property
    def is_nearly_full(self) -> bool:
        """Whether a frame might have to wait for room."""
        return self.used_pages + self.ring.frame_pages_max > self.ring.capacity

    def covered_by(self, durable: int) -> int:
        """Return the newest epoch that the frames up to a durable one name as durable (W6)."""
        while self._names and self._names[0][0] <= durable:
            _, self._covered, self._stable_sequence = self._names.popleft()
        return self._covered

    def stable_sequence(self, durable: int) -> int:
        """Return the version below which the frames up to a durable one gave all."""
        self.covered_by(durable)
        return self._stable_sequence

    def wait(self, epoch: int) -> None:
        """Return when the frame of an epoch is durable. A failure of the disk ends the process."""
        if self.durable < epoch:
            library.gpkvs_journal_wait(self._writer, epoch)

    def reserve(self, pages: int) -> Frame:
        """Return room for a frame, in memory and in the journal; wait until there is some.

        Raises
        ------
        NoMemoryError
            If there is no memory for it; nothing has changed.
        """
        assert pages <= self.ring.frame_pages_max
        while len(self._in_flight) >= _IN_FLIGHT_MAX or (self._in_flight and self._in_flight[0][0] <= self.durable):
            self.wait(self._in_flight[0][0])
            self._spare.append(self._in_flight.popleft()[1].memory)
        memory = self._memory(pages)
        self._wait_for_room(pages)
        return Frame(memory, pages)

    def _wait_for_room(self, pages: int) -> None:
        began = time.perf_counter()
        with self._is_freed:
            self._is_freed.wait_for(lambda: self.used_pages + pages <= self.ring.capacity)
        self.room_seconds += time.perf_counter() - began

    def _memory(self, pages: int) -> NDArray[np.uint8]:
        """Return memory for so many pages: some that was used before, if it is large enough."""
        for at, memory in enumerate(self._spare):
            if len(memory) >= pages * PAGE_BYTES:
                return self._spare.pop(at)
        with memory_refused():
            memory = map_memory((1 << (pages - 1).bit_length()) * PAGE_BYTES)
            self.on_new_memory(memory)
        return memory

    def append(self, frame: Frame, descriptor: Descriptor, records_digest: int, durable_upto: int) -> Written:
        """Give a frame its header, and have it written behind the last one.

        Its entries are in place, its records written. It is durable after `wait`.
        """
        header, digest = FrameHeader(
            self._incarnation, self.last.digest, durable_upto, frame.count, records_digest, descriptor
        ).pack(self._key)
        ctypes.memmove(frame.entries - HEADER_BYTES, header, HEADER_BYTES)
        position = self.last.position
        self._in_flight.append((descriptor.epoch, frame))
        self._names.append((descriptor.epoch, durable_upto, descriptor.next_sequence))
        self.last = Written(descriptor, digest, position + frame.count)
        library.gpkvs_journal_submit(
            self._writer, descriptor.epoch, position, frame.count, frame.entries - HEADER_BYTES
        )
        return self.last

    def free(self, position: int) -> None:
        """Use the pages before a position again: both root copies name a checkpoint there (W3)."""
        with self._is_freed:
            self._freed_to = position
            self._is_freed.notify_all()

    @property
    def serial(self) -> int:
        """Of the segment that the next frame begins in."""
        return self.last.position // self.ring.segment_pages

    def grow(self, ring: Ring) -> None:
        """Go on in a ring with more segments, which both root copies name; nobody appends meanwhile."""
        assert ring.segment_bytes == self.ring.segment_bytes
        library.gpkvs_journal_set_places(self._writer, ring.places.ctypes.data, ring.segments)
        with self._is_freed:
            self.ring = ring
            self._is_freed.notify_all()

    def close(self) -> None:
        """Write what was appended, then end the writer. Threads may still wait for what is durable by now."""
        if not self._is_closed:
            self._is_closed = True
            library.gpkvs_journal_end(self._writer)
            # Its memory goes with this object, which every thread that waits holds.
            weakref.finalize(self, library.gpkvs_journal_delete, self._writer).atexit = False
