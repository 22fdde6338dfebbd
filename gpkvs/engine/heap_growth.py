"""The heap grows: its file is extended ahead of the records, and the engine takes the space over between two batches.

    file extended, synced -> both root copies say the new size -> records go there

So a file may be longer than the root says, never shorter, and no record, tail or reference lies beyond what the root
says (invariants file-size, descriptor and slot-reference). Space is reserved before it is used: a store to the mapping
never meets a hole.

A thread extends the file while batches run. A batch that finds no room extends it itself. If the disk refuses, the
store goes on with what it has, and the thread tries again each second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from gpkvs import failpoint
from gpkvs.config import MIB
from gpkvs.engine.heap import COMPACTED_SEGMENTS_MIN, Heap
from gpkvs.fatal import stop_process
from gpkvs.machine import free_bytes
from gpkvs.media.directory import HEAP_STEP_BYTES, NO_SPACE, disk_free_bytes, extend_file, round_up, sync_path
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import UNIT_BYTES

_log = logging.getLogger("gpkvs")

# The heap grows by half of what it has, within these bounds; less if the disk has less.
_STEP_BYTES_MIN, _STEP_BYTES_MAX = 4 * MIB, 256 * MIB
_REFUSED_STEP_BYTES_MIN = 1 * MIB
# So much is to be free ahead of the records.
_AHEAD_SHARE, _AHEAD_BYTES_MAX = 4, 64 * MIB
# With more than this share charged of what may be, a heap had better grow than be compacted: 0.70 of a large one.
_CHARGED_SHARE = 0.70 / 0.85
# With more than this share, it grows although there are free segments.
_NEARLY_ALL_SHARE = 0.95
_RETRY_SECONDS = 1.0
_MEMORY_SPARE_BYTES = 32 * MIB  # that a file in memory leaves to others
_LOOKS_AHEAD = 8  # while less than that is free


def prefers_growth(charged: int, charged_max: int, segments: int) -> bool:
    """Whether a heap that is short of space had better grow than be compacted."""
    return charged > _CHARGED_SHARE * charged_max or segments < COMPACTED_SEGMENTS_MIN


def step_bytes(heap_bytes: int) -> int:
    """Return by how much a heap grows at once."""
    return min(max(heap_bytes // 2, _STEP_BYTES_MIN), _STEP_BYTES_MAX)


class HeapGrowth:
    """Makes a heap larger, up to the size that the root says.

    Parameters
    ----------
    files, heap
        Of the store.
    on_grown
        Called between two batches when the heap is larger: its address and its segments are others now.
    """

    def __init__(self, files: StoreFiles, heap: Heap, on_grown: Callable[[], None]) -> None:
        self._files = files
        self._heap = heap
        self._on_grown = on_grown
        self._size_max = max(files.root.heap_bytes_max, heap.bytes)
        self._extended = heap.bytes  # what the file has, durably
        self._extending = threading.Lock()
        self._helper: threading.Thread | None = None
        self._is_ending = threading.Event()
        self._is_awaited = threading.Event()  # a batch waits for so many bytes more
        self._awaited_bytes = 0
        self._refused_at = -_RETRY_SECONDS
        # Where the tail was looked at last, and how far it may go before the next look.
        self._segment, self._look_units = -1, 0

    def step(self) -> None:
        """Do what is to be done between two batches; most of the time nothing."""
        tail = self._heap.tail
        if tail.segment == self._segment and tail.units < self._look_units and self._extended == self._heap.bytes:
            return
        self._look()

    def _look(self) -> None:
        self._take_over()
        heap = self._heap
        self._segment = heap.tail.segment
        if heap.bytes == self._size_max:
            self._look_units = heap.segment_units + 1
            return
        ahead = min(heap.bytes // _AHEAD_SHARE, _AHEAD_BYTES_MAX) // UNIT_BYTES
        # What may come before space is short, or before more is charged than may be.
        left = min(heap.free_units - ahead, int(_NEARLY_ALL_SHARE * heap.charged_max) - heap.charged)
        if left < 0 and self.is_preferred:
            self._begin_ahead()
        self._look_units = heap.tail.units + max(left, ahead // _LOOKS_AHEAD)

    @property
    def can_grow(self) -> bool:
        """Whether the heap may grow, and nothing is in the way."""
        return self._heap.bytes < self._size_max and not self._heap.growth_waits

    @property
    def is_preferred(self) -> bool:
        """Whether the heap can grow and had better do so than be compacted."""
        heap = self._heap
        return self.can_grow and prefers_growth(heap.charged, heap.charged_max, heap.segments)

    def _next_size(self, needed_bytes: int) -> int:
        wanted = max(needed_bytes, step_bytes(self._heap.bytes))
        return min(self._heap.bytes + round_up(wanted, HEAP_STEP_BYTES), self._size_max)

    def _begin_ahead(self) -> None:
        """Have a thread extend the file, unless one does."""
        if self._extended > self._heap.bytes or (self._helper and self._helper.is_alive()):
            return
        self._helper = threading.Thread(
            target=self._extend_ahead, args=(self._next_size(0),), name="gpkvs-heap", daemon=True
        )
        try:
            self._helper.start()
        except RuntimeError:  # the system gives no thread: a batch that finds no room does it
            self._helper = None

    def _extend_ahead(self, size: int) -> None:
        try:
            while not self._extend(size) and not self._is_ending.wait(_RETRY_SECONDS):
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
        if self._take_over():
            return True
        if self._heap.bytes == self._size_max or time.monotonic() - self._refused_at < _RETRY_SECONDS:
            return False
        was_named = bool(self._heap.growth_waits)
        if not self._extend_now(needed_bytes):
            self._begin_ahead()  # it tries again, whether a batch comes or not
        return self._take_over() or not was_named

    def _extend_now(self, needed_bytes: int) -> bool:
        """Have what a batch needs as soon as can be: a thread that makes the file longer ends there."""
        self._awaited_bytes = max(needed_bytes, _STEP_BYTES_MIN)
        self._is_awaited.set()
        try:
            return self._extend(self._next_size(needed_bytes))
        finally:
            self._is_awaited.clear()

    def _extend(self, size: int) -> bool:
        """Make the file longer, as far as the disk lets it; return whether it is longer than the heap now."""
        with self._extending:
            if self._extended > self._heap.bytes:
                return True
            before = self._extended
            wanted = size - before
            step = wanted
            while True:
                refusal = self._refusal(before, step)
                if not refusal:
                    self._heap.growth_waits = ""
                    self._refused_at = -_RETRY_SECONDS  # if it is not enough, the next refusal says why
                    return True
                if step <= _REFUSED_STEP_BYTES_MIN:
                    break
                step = max(round_up(step // 2, HEAP_STEP_BYTES), _REFUSED_STEP_BYTES_MIN)
            self._refused_at = time.monotonic()
            if not self._heap.growth_waits:
                _log.warning("%s", refusal, extra={"event": "heap_growth_waits"})
            self._heap.growth_waits = refusal
            return False

    def _refusal(self, before: int, step: int) -> str:
        """Extend the file by a step; return why it cannot be, or nothing."""
        path, offset = self._files.heap.path, self._files.root.journal_bytes
        asked = f"the heap asked for {step:,} bytes more"
        if self._files.root_region.is_volatile:
            free = free_bytes()
            if free is not None and free < step + _MEMORY_SPARE_BYTES:
                return f"{asked}, {path} is in memory, of which {free:,} bytes are free"
        enough = partial(self._pause, offset + before)
        try:
            end = extend_file(path, offset + before, offset + before + step, enough)
        except OSError as error:
            if error.errno in NO_SPACE:
                return f"{asked}, the disk has {disk_free_bytes(path):,} bytes free"
            return f"{asked}, the system refuses: {path}: {error.strerror}"
        try:
            failpoint.hit("before_heap_sync")
            sync_path(path)
        except OSError as error:
            stop_process("the heap's file could not be synced", error)  # records may be lost with it
        self._extended = end - offset
        return ""

    def _pause(self, before: int, seconds: float, end: int) -> bool:
        """Leave as much time to batches as a piece took; return whether one waits for what is there."""
        return self._is_awaited.wait(seconds) and end - before >= self._awaited_bytes

    def _take_over(self) -> bool:
        """Take space into use that the file has; return whether there was some. No batch runs meanwhile."""
        size = self._extended
        if size == self._heap.bytes:
            return False
        files = self._files
        try:
            files.heap.grow(size)
        except OSError as error:
            self._refused_at = time.monotonic()
            self._heap.growth_waits = f"the heap's {size:,} bytes cannot be mapped: {error.strerror}"
            return False
        try:
            failpoint.hit("before_heap_root")
            with files.changing:
                files.roots.change(heap_bytes=size)
            failpoint.hit("before_heap_use")
        except BaseException as error:  # noqa: BLE001 - either root may be durable now
            stop_process("the roots could not be written", error)
        self._heap.grow(size)
        self._on_grown()
        self._segment = -1
        return True

    def close(self) -> None:
        """End the thread, if there is one."""
        self._is_ending.set()
        self._is_awaited.set()
        if self._helper:
            self._helper.join()
