"""The heap grows: its file is extended ahead of the records, and the engine takes the space over between two batches.

    file extended, synced -> both root copies say the new size -> records go there

So a file may be longer than the root says, never shorter, and no record, tail or reference lies beyond what the root
says (invariants file-size, descriptor and slot-reference). Space is reserved before it is used: a store to the mapping
never meets a hole.

The journal's extents lie in the same space, and are extended here for it (`HeapGrowth.extend_for_journal`).

A thread extends the file while batches run. A batch that finds no room extends it itself. If the disk refuses, the
store goes on with what it has, and the thread tries again each second.

What a heap does not need for a minute goes back to the file system (``given_space.py``), and is reserved again, in the
same way, before the file is extended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.config import MIB
from gpkvs.engine.space.given_space import NO_SEGMENTS, TAKES_BACK_SHARE, GivenSpace, Segments, SpareSegments
from gpkvs.engine.state.heap import COMPACTED_SEGMENTS_MIN, SMALL_HEAP_BYTES, SMALL_HEAP_SHARE, Heap
from gpkvs.engine.state.refused import RefusedError, refusals
from gpkvs.media.directory import HEAP_STEP_BYTES, extend_file, round_up, sync_path
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import UNIT_BYTES, Extent
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process

_log = logging.getLogger("gpkvs")

_REFUSED_STEP_BYTES_MIN = 1 * MIB
# With more than this share charged of what may be, a heap had better grow than be compacted: 0.70 of a large one.
_GROWS_SHARE = 0.70 / 0.85
_SMALL_GROWS_SHARE = SMALL_HEAP_SHARE / 0.85
# With more than this share, or so little left of it as is to be free, it grows although there are free segments.
_NEARLY_ALL_SHARE = 0.95
_RETRY_SECONDS = 1.0
_LACK_SECONDS = 10.0  # so long after a batch found no room the heap says in any case why it does not grow
_LOOKS_AHEAD = 8  # while less than that is free


def prefers_growth(
    charged: int, charged_max: int, segments: int, segment_units: int, share: float = _GROWS_SHARE
) -> bool:
    """Whether a heap that is short of space had better grow than be compacted."""
    if segments * segment_units * UNIT_BYTES < SMALL_HEAP_BYTES:
        share = min(share, _SMALL_GROWS_SHARE)
    return charged > share * charged_max or segments < COMPACTED_SEGMENTS_MIN


class Pace(NamedTuple):
    """How a heap grows.

    Attributes
    ----------
    step_share, step_bytes_min, step_bytes_max
        It grows by such a part of what it has, within these bounds; less if the disk has less.
    ahead_share, ahead_bytes_max
        Such a part of it, up to so much, is to be free ahead of the records.
    """

    step_share: int
    step_bytes_min: int
    step_bytes_max: int
    ahead_share: int
    ahead_bytes_max: int

    def step_bytes(self, heap_bytes: int) -> int:
        """Return by how much a heap grows at once."""
        return min(max(heap_bytes // self.step_share, self.step_bytes_min), self.step_bytes_max)

    def ahead_bytes(self, heap_bytes: int) -> int:
        """Return how much of a heap is to be free."""
        return min(heap_bytes // self.ahead_share, self.ahead_bytes_max)

    def units_left(self, present_bytes: int, free_units: int, charged: int, charged_max: int) -> int:
        """Return how much may come before space is short, or before more is charged than may be."""
        ahead = self.ahead_bytes(present_bytes) // UNIT_BYTES
        nearly_all = max(int(_NEARLY_ALL_SHARE * charged_max), charged_max - ahead)
        return min(free_units - ahead, nearly_all - charged)


ON_DISK = Pace(2, 4 * MIB, 256 * MIB, 4, 64 * MIB)
# What a file in memory has reserved, nobody else has; and to reserve more takes no longer than to fill it. A GPU's
# batches are large: each would wait for more, and be planned again.
IN_MEMORY = Pace(16, 1 * MIB, 16 * MIB, 16, 16 * MIB)


def pace_of(files: StoreFiles, backend: Backend) -> Pace:
    """Return how the heap of a store grows."""
    return IN_MEMORY if files.root_region.is_volatile and backend.host is backend else ON_DISK


class HeapGrowth:
    """Makes a heap larger, up to the size that the root says.

    Parameters
    ----------
    files, backend, heap
        Of the store.
    on_grown
        Called between two batches when the heap is larger: its address and its segments are others now.
    wait
        Returns when all batches up to a gate are durable (`Committer.wait`).
    kept_bytes
        What the heap keeps of its space in any case.

    Raises
    ------
    NoSpaceError
        If the heap has holes where records are, and the disk is full.
    """

    def __init__(
        self,
        files: StoreFiles,
        backend: Backend,
        heap: Heap,
        on_grown: Callable[[], None],
        wait: Callable[[int], None],
        kept_bytes: int = 0,
    ) -> None:
        self._files = files
        self._heap = heap
        self._on_grown = on_grown
        self._wait = wait
        self._given = GivenSpace(files, heap)
        self._reserved: Segments = NO_SEGMENTS  # that have their space again, and are not the heap's yet
        self._spare = SpareSegments(heap, kept_bytes)
        self._pace = pace_of(files, backend)
        self._extended = heap.bytes  # what the file has, durably
        self._extent: Extent | None = None  # the end of it that the journal asked for
        self._helper: threading.Thread | None = None
        self._may_end = threading.Event()
        self._is_awaited = threading.Event()  # a batch waits for so many bytes more
        self._awaited_bytes = 0
        self._giver: threading.Thread | None = None
        self._refused_at = -_RETRY_SECONDS
        self._lacked_at = -inf  # when a batch found no room
        # Where the tail was looked at last, and how far it may go before the next look.
        self._segment, self._look_units = -1, 0

    def step(self) -> None:
        """Do what is to be done between two batches; most of the time nothing."""
        tail = self._heap.tail
        is_far = tail.segment == self._segment and tail.units < self._look_units
        if is_far and self._extended == self._heap.bytes and self._reserved is NO_SEGMENTS:
            return
        self._look()

    @property
    def units_until_step(self) -> int:
        """So many units may be appended to one segment before the next `step`, which has just been done."""
        return max(self._look_units - self._heap.tail.units, 0)

    @property
    def wants_batches(self) -> bool:
        """Whether something goes on beside the batches that is to be looked at soon."""
        return any(thread is not None and thread.is_alive() for thread in (self._helper, self._giver)) or self._has_more

    @property
    def _size_max(self) -> int:
        """How large the space of heap and journal's extents may become for the heap's sake."""
        root = self._files.root
        most = min(root.heap_bytes_max + root.extent_bytes, self._heap.space_bytes)
        return max(most, self._heap.bytes)

    @property
    def _has_more(self) -> bool:
        """Whether there is space that the heap has not taken over."""
        return self._extended != self._heap.bytes or self._reserved is not NO_SEGMENTS

    def _look(self) -> None:
        self.take_over()
        heap = self._heap
        self._segment = heap.tail.segment
        if self._is_largest:
            self._look_units = heap.segment_units + 1
            return
        ahead = self._pace.ahead_bytes(heap.present_bytes) // UNIT_BYTES
        left = self._units_left
        if left < 0 and self.is_preferred:
            self._begin_ahead()
        self._look_units = heap.tail.units + max(left, ahead // _LOOKS_AHEAD)

    @property
    def _units_left(self) -> int:
        heap = self._heap
        return self._pace.units_left(heap.present_bytes, heap.free_units, heap.charged, heap.charged_max)

    def end_wait(self) -> None:
        """Wait no more where the heap has room again as it is, as after keys were deleted; between two batches.

        The disk may stay full. Nothing is said to wait that nobody needs.
        """
        if not self._heap.growth_waits or time.monotonic() - self._lacked_at < _LACK_SECONDS:
            return
        if self._units_left < 0 and self._should_grow:
            self._begin_ahead()  # unless a thread tries, as it mostly does
            return
        if self._helper and self._helper.is_alive():
            self._may_end.set()  # it may say so once more: the next look finds it gone
            return
        self._heap.growth_waits = ""
        self._refused_at = -_RETRY_SECONDS
        _log.info("the heap has room again, and waits for no more", extra={"event": "heap_growth_ends_wait"})

    @property
    def space_bytes(self) -> int:
        """The size that the heap and the journal's extents have a place for."""
        return self._heap.space_bytes

    @property
    def waits(self) -> str:
        """Why space is not taken into use that the file may have; else nothing."""
        return self._heap.growth_waits or "the file has no more space"

    @property
    def can_grow(self) -> bool:
        """Whether the heap may grow, and nothing is in the way."""
        return not self._is_largest and not self._heap.growth_waits

    @property
    def _is_largest(self) -> bool:
        """Whether nothing can be added to the heap."""
        return self._heap.bytes >= self._size_max and not len(self._given.segments)

    @property
    def given_bytes(self) -> int:
        """What the file system has of the heap's space."""
        return self._given.bytes

    @property
    def is_preferred(self) -> bool:
        """Whether the heap can grow and had better do so than be compacted."""
        return self.can_grow and self._should_grow

    @property
    def _should_grow(self) -> bool:
        """Whether it had better grow than be compacted, if it can."""
        heap, share = self._heap, TAKES_BACK_SHARE if self._given.bytes else _GROWS_SHARE
        return prefers_growth(heap.charged, heap.charged_max, heap.present_segments, heap.segment_units, share)

    def _wanted_bytes(self, needed_bytes: int) -> int:
        return round_up(max(needed_bytes, self._pace.step_bytes(self._heap.present_bytes)), HEAP_STEP_BYTES)

    def _begin_ahead(self) -> None:
        """Have a thread extend the file, unless one does."""
        if self._has_more or (self._helper and self._helper.is_alive()):
            return
        self._may_end.clear()
        self._helper = threading.Thread(
            target=self._extend_ahead, args=(self._wanted_bytes(0),), name="gpkvs-heap", daemon=True
        )
        try:
            self._helper.start()
        except RuntimeError:  # the system gives no thread: a batch that finds no room does it
            self._helper = None

    def _extend_ahead(self, wanted: int) -> None:
        try:
            while not self._extend(wanted) and not self._may_end.wait(_RETRY_SECONDS):
                pass
        except MemoryError:
            pass  # a batch that finds no room does it
        except BaseException as error:  # noqa: BLE001 - it may have begun to extend the file
            stop_process("the heap's file could not be extended", error)

    def make_room(self, needed_bytes: int) -> bool:
        """Make the heap larger for a batch that found no room.

        Parameters
        ----------
        needed_bytes
            What the batch takes at most.

        Returns
        -------
        bool
            Whether to plan the batch again: the heap is larger now, or only now it is known why it cannot be.
        """
        if self.take_over():
            return True
        self._lacked_at = time.monotonic()
        if self._is_largest or time.monotonic() - self._refused_at < _RETRY_SECONDS:
            return False
        was_named = bool(self._heap.growth_waits)
        if not self._extend_now(needed_bytes):
            self._begin_ahead()  # it tries again, whether a batch comes or not
        return self.take_over() or not was_named

    def _extend_now(self, needed_bytes: int) -> bool:
        """Have what a batch needs as soon as can be: a thread that makes the file longer ends there."""
        self._awaited_bytes = max(needed_bytes, self._pace.step_bytes_min)
        self._is_awaited.set()
        try:
            return self._extend(self._wanted_bytes(needed_bytes), needed_bytes)
        finally:
            self._is_awaited.clear()

    @property
    def has_extent(self) -> bool:
        """Whether the journal has space that it does not use yet."""
        return self._extent is not None or self._files.root.unused_extent is not None

    def extend_for_journal(self, segments: int, pause: Callable[[float], bool] | None = None) -> str:
        """Make the file longer by whole segments that are to be the journal's; from any thread.

        What the heap lacks of its last segment is filled up first. Both get their part when the space is taken over.

        Parameters
        ----------
        segments
            How many.
        pause
            Called with the seconds that each piece took; returns whether to end. It ends, too, if a batch waits for
            space of the heap: what is there by then is the heap's.

        Returns
        -------
        str
            Why it cannot be, or nothing.
        """
        with self._given.changing:
            if self.has_extent:
                return ""  # the last ones are not in use yet
            segment_bytes, before = self._files.root.segment_bytes, self._extended
            first = -(-before // segment_bytes)
            size = (first + segments) * segment_bytes
            ends = partial(self._ends_for_heap, pause) if pause else None
            try:
                end = self._reserve(size - before, partial(self._extend_file, before, size, ends), "the journal")
            except RefusedError as error:
                return str(error)
            if end < size:
                self._extended = max(min(end, self._size_max), before)
                return "a batch needed the space"
            self._extent = Extent(first, segments)  # before the size: who sees that takes over both
            self._extended = size
            return ""

    def _extend(self, wanted: int, needed: int = 0) -> bool:
        """Get more space, as far as the disk lets it; return whether there is more than the heap has now.

        Parameters
        ----------
        wanted
            How much is best.
        needed
            A batch waits for so much, perhaps for one record of that size.
        """
        with self._given.changing:
            if self._has_more or self._is_largest:
                return True
            # What was given back comes first, unless a long record may find no neighbours there.
            is_longest = self._extended >= self._size_max
            is_given = self._given.bytes > 0 and (is_longest or self._given.longest_run_bytes >= needed)
            unit = self._segment_bytes if is_given else HEAP_STEP_BYTES
            most = self._given.bytes if is_given else self._size_max - self._extended
            step = min(round_up(wanted, unit), most)
            while True:
                try:
                    self._add(step, is_given=is_given)
                except RefusedError as error:
                    refusal = str(error)
                else:
                    self._heap.growth_waits = ""
                    self._refused_at = -_RETRY_SECONDS  # if it is not enough, the next refusal says why
                    return True
                if step <= max(_REFUSED_STEP_BYTES_MIN, unit):
                    break
                step = max(round_up(step // 2, unit), min(_REFUSED_STEP_BYTES_MIN, most))
            was_known = bool(self._heap.growth_waits)
            self._heap.growth_waits = refusal  # first: a batch that does not ask now says this
            self._refused_at = time.monotonic()
            if not was_known:
                _log.warning("%s", refusal, extra={"event": "heap_growth_waits"})
            return False

    @property
    def _segment_bytes(self) -> int:
        return self._files.root.segment_bytes

    def _add(self, step: int, *, is_given: bool) -> None:
        """Take space back that was given back, or make the file longer."""
        before = self._extended
        if is_given:
            segments = self._given.next(step // self._segment_bytes)
            count = self._reserve(step, lambda: self._given.reserve(segments, partial(self._pause, 0)))
            taken = segments[:count]
            self._given.forget(taken)
            self._reserved = taken  # last: the engine may take them over from here on
            return
        self._extended = self._reserve(step, partial(self._extend_file, before, before + step, self._pause))

    def _extend_file(self, before: int, size: int, pause: Callable[[int, float, int], bool] | None = None) -> int:
        """Make the file longer, so that the heap's space has a size, or less if a pause says that it is enough."""
        begin = self._files.root.journal_bytes
        enough = partial(pause, begin + before) if pause else None
        return extend_file(self._files.heap.path, begin + before, begin + size, enough) - begin

    def _reserve(self, step: int, reserve: Callable[[], int], who: str = "the heap") -> int:
        """Have space reserved, durably; return what is returned.

        Raises
        ------
        RefusedError
            If it cannot be.
        """
        path = self._files.heap.path
        with refusals(who, path, step, is_in_memory=self._files.root_region.is_volatile):
            self._files.require_in_place()
            end = reserve()
        try:
            failpoint.hit("before_heap_sync")
            sync_path(path)
        except OSError as error:
            stop_process("the heap's file could not be synced", error)  # records may be lost with it
        return end

    def _pause(self, before: int, seconds: float, end: int) -> bool:
        """Leave as much time to batches as a piece took; return whether one waits for what is there."""
        return self._is_awaited.wait(seconds) and end - before >= self._awaited_bytes

    def _ends_for_heap(self, pause: Callable[[float], bool], before: int, seconds: float, end: int) -> bool:
        """Leave time to batches; return whether one waits for space of the heap, or the caller ends."""
        return pause(seconds) or self._is_awaited.is_set()

    def give_back(self, gate: int) -> None:
        """Have a thread give space back that nobody needs; between two batches.

        Parameters
        ----------
        gate
            Of the newest batch: what it says is durable before space goes.
        """
        if self._reserved is not NO_SEGMENTS:  # also what a file system did not take
            self.take_over()
        if not self._given.can_punch or (self._giver and self._giver.is_alive()):
            return
        segments = self._spare.find()
        if not len(segments):
            return
        if self._has_more:
            self.take_over()
            return
        if self._helper and self._helper.is_alive():  # it still tries to get more
            self._may_end.set()
            return
        if not self._given.changing.acquire(blocking=False):  # the journal's thread gets more
            return
        try:
            self._given.add(segments)
        finally:
            self._given.changing.release()
        self._heap.leave(segments)
        self._heap.growth_waits = ""
        self._segment = -1
        self._giver = threading.Thread(target=self._give, args=(segments, gate), name="gpkvs-give", daemon=True)
        with suppress(RuntimeError):  # the system gives no thread: they are taken back when they are needed
            self._giver.start()

    def _give(self, segments: Segments, gate: int) -> None:
        try:
            self._wait(gate)
            self._given.give(segments)
            if not self._given.can_punch:
                self._extend(self._given.bytes)
        except BaseException as error:  # noqa: BLE001 - nobody knows which space is there
            stop_process("space of the heap could not be given back", error)

    def take_over(self) -> bool:
        """Take space into use that the file has; return whether there was some. No batch runs meanwhile."""
        has_taken = self._take_back()
        return self._take_end() or has_taken

    def _take_back(self) -> bool:
        """Take segments into use that have their space again."""
        if self._reserved is NO_SEGMENTS:
            return False
        failpoint.hit("before_heap_back")
        self._heap.take_back(self._reserved)
        self._reserved = NO_SEGMENTS
        self._segment = -1
        return True

    def _take_end(self) -> bool:
        """Take into use what was added to the end of the file."""
        size, extent = self._extended, self._extent
        if size == self._heap.bytes:
            return False
        files = self._files
        segment_bytes = files.root.segment_bytes
        if extent and (extent.first_segment + extent.segments) * segment_bytes > size:
            extent = None  # of a later size
        try:
            files.heap.grow(size)
        except OSError as error:
            self._heap.growth_waits = f"the heap's {size:,} bytes cannot be mapped: {error.strerror}"
            self._refused_at = time.monotonic()
            return False
        try:
            failpoint.hit("before_heap_root")
            with files.changing:
                extents = (*files.root.journal_extents, *([extent] if extent else []))
                files.roots.change(heap_bytes=size, journal_extents=extents)
            failpoint.hit("before_heap_use")
        except BaseException as error:  # noqa: BLE001 - either root may be durable now
            stop_process("the roots could not be written", error)
        self._heap.grow(size)
        self._heap.growth_waits = ""  # it may have waited for the mapping
        self._refused_at = -_RETRY_SECONDS
        if extent:
            self._heap.leave(np.arange(extent.first_segment, extent.first_segment + extent.segments))
            self._extent = None
        self._on_grown()
        self._segment = -1
        return True

    def close(self) -> None:
        """End the threads, if there are any."""
        self._may_end.set()
        self._is_awaited.set()
        self._given.is_ending = True
        for thread in (self._helper, self._giver):
            if thread:
                thread.join()
