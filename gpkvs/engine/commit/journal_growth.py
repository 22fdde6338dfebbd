"""The journal grows: by whole segments of the heap's space, at its end, which it keeps for ever (`Extent`).

    file extended, synced -> both root copies give the extent to the journal -> zeros written, synced
      -> both root copies say from which segment of the journal on it is in the ring -> frames go there

So a crash in between leaves an extent that is not in the ring yet: the next opening writes its zeros again. Zeros are
written because a flush of space that was only reserved costs several times as much (`ZeroedSpace`).

A thread makes the journal as large as half of all indexes: with less, checkpoints write more than they save. A
request that needs a larger frame than a quarter of the journal has it grow at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from gpkvs.config import JOURNAL_BYTES_MAX, MIB
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.space.heap_growth import HeapGrowth
from gpkvs.media.directory import disk_free_bytes, round_up
from gpkvs.media.files import StoreFiles, log_words_for
from gpkvs.media.journal import Ring
from gpkvs.media.layout import EXTENTS_MAX, Extent, Root
from gpkvs.pm.mapping import map_memory
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process

_log = logging.getLogger("gpkvs")

_RETRY_SECONDS = 1.0
_AHEAD_RETRY_SECONDS = 30.0  # nobody waits for it
# A root has room for few extents: each makes the journal larger by a good part, where that is possible.
_STEP_SHARE_MIN = 4
# What the journal takes of the free disk without need.
_FREE_SHARE = 4
_EXTENT_SEGMENTS_MAX = 1 << 18
_ZEROS_BYTES = 1 * MIB  # written at once
_PAUSE_SHARE = 1.0  # of the time that they take; batches have the disk meanwhile


def grown_journal_bytes(wanted: int, has: int) -> int:
    """Return how large a journal becomes that had better have `wanted` bytes; 0: as large as it is."""
    return 0 if wanted < has + has // _STEP_SHARE_MIN else max(wanted, 2 * has)


def journal_space_max(root: Root) -> int:
    """Return how much of the heap's space may be the journal's."""
    return min(JOURNAL_BYTES_MAX, _EXTENT_SEGMENTS_MAX * root.segment_bytes)


class JournalGrowth:
    """Makes a journal larger.

    Parameters
    ----------
    files
        Of a store with a journal.
    committer
        Appends to the journal.
    heap_growth
        Extends the file.
    size_max
        How large the journal may become for one batch.
    follows_index
        Whether it may become half of all indexes, whatever `size_max` says.
    """

    def __init__(
        self,
        files: StoreFiles,
        committer: JournalCommitter,
        heap_growth: HeapGrowth,
        size_max: int,
        *,
        follows_index: bool,
    ) -> None:
        assert files.data
        self._files = files
        self._data = files.data
        self._roots = files.roots
        self._committer = committer
        self._heap_growth = heap_growth
        self._size_max = size_max
        self._follows_index = follows_index
        self._looked_at = -1  # the catalogue, when the indexes were looked at
        self._helper: threading.Thread | None = None
        self._zeroed: Extent | None = None  # by the thread, durably
        self._is_ending = threading.Event()
        self._is_hurried = threading.Event()
        self._refused_at = -_RETRY_SECONDS

    def step(self) -> None:
        """Do what is to be done between two batches; most of the time nothing."""
        if self._helper is None and self._roots.current.catalog_generation == self._looked_at:
            return
        self._look()

    @property
    def wants_batches(self) -> bool:
        """Whether something goes on beside the batches that is to be looked at soon."""
        return self._helper is not None

    def _look(self) -> None:
        if self._helper and self._helper.is_alive():
            return
        self._helper = None
        extent = self._files.root.unused_extent
        if extent and extent == self._zeroed:
            self._use()
            extent = None
        if extent:
            self._begin(self._zero_ahead, extent)
        elif segments := self._wanted_ahead():
            self._begin(self._extend_ahead, segments)
        else:
            self._looked_at = self._files.root.catalog_generation

    def _begin(self, work: Callable[..., None], *given: object) -> None:
        self._helper = threading.Thread(target=work, args=given, name="gpkvs-journal", daemon=True)
        try:
            self._helper.start()
        except RuntimeError:  # the system gives no thread: the next batch that finds another catalogue tries again
            self._helper = None
            self._looked_at = self._files.root.catalog_generation

    def _wanted_ahead(self) -> int:
        """Return by how many segments of the heap the journal had better grow, if the disk is large."""
        root = self._files.root
        wanted = sum(index.region.bytes for index in self._files.indexes.values()) // 2
        if not self._follows_index:
            wanted = min(wanted, self._size_max)
        size = grown_journal_bytes(wanted, root.journal_bytes_all)
        return self._segments_for(size, wanted) if size else 0

    def _segments_for(self, size: int, least: int) -> int:
        """Return how many segments of the heap make the journal so large, or as large as it may be; 0 if too few."""
        root = self._files.root
        step = max(root.segment_bytes, root.journal_segment_bytes)
        has = root.journal_bytes_all
        most = self._size_max
        if self._follows_index:
            most = max(most, has + round_up(max(least - has, 0), step))
        most = min(most, root.journal_bytes + journal_space_max(root))
        more = max(min(round_up(max(size - has, 0), step), (most - has) // step * step), 0)
        fits = root.heap_bytes + root.segment_bytes + more <= self._heap_growth.space_bytes
        if len(root.journal_extents) == EXTENTS_MAX or not fits or has + more < least:
            return 0
        return more // root.segment_bytes

    def _extend_ahead(self, segments: int) -> None:
        size = segments * self._files.root.segment_bytes
        try:
            while not self._heap_growth.has_extent:
                is_small = size <= disk_free_bytes(self._data.path) // _FREE_SHARE
                if is_small and not self._heap_growth.extend_for_journal(segments, self._pause):
                    return
                if self._is_hurried.wait(_AHEAD_RETRY_SECONDS):  # a batch waits, or the store is closed
                    return
        except BaseException as error:  # noqa: BLE001 - it may have begun to extend the file
            stop_process("the journal could not be extended", error)

    def _pause(self, seconds: float) -> bool:
        """Leave time to batches; return whether to end."""
        self._is_hurried.wait(seconds)
        return self._is_ending.is_set()

    def _zero_ahead(self, extent: Extent) -> None:
        if self._zero(extent):
            self._zeroed = extent

    def _zero(self, extent: Extent) -> bool:
        """Write zeros, durably; return whether all are."""
        root = self._files.root
        at = root.journal_bytes + extent.first_segment * root.segment_bytes
        end = at + extent.segments * root.segment_bytes
        try:
            zeros = map_memory(_ZEROS_BYTES)
            while at < end:
                if self._is_ending.is_set():
                    return False
                began = time.monotonic()
                at += os.pwrite(self._data.direct, zeros[: end - at].data, at)
                failpoint.hit("mid_extent_zeros")
                if not self._is_hurried.is_set():
                    self._is_hurried.wait(_PAUSE_SHARE * (time.monotonic() - began))
            failpoint.hit("before_extent_sync")
            self._data.sync()
        except MemoryError:
            return False
        except BaseException as error:  # noqa: BLE001 - a write or a flush that failed must not be tried again
            stop_process("the journal's new segments could not be written", error)
        return True

    def _use(self) -> None:
        """Put the new segments into the ring; no batch runs meanwhile."""
        self._committer.grow_journal()
        self._zeroed = None

    def make_room(self, entries: int) -> bool:
        """Have room for so many entries in a frame, or for as many as may be; return whether there is more now."""
        ring = Ring.of(self._files.root)
        needed = ring.bytes_for(log_words_for(entries))
        if self._files.log_entries_max >= entries or time.monotonic() - self._refused_at < _RETRY_SECONDS:
            return False
        had = ring.segments
        while self._finish_unused() and self._files.log_entries_max < entries and self._extend(needed):
            pass
        return Ring.of(self._files.root).segments > had

    def _finish_unused(self) -> bool:
        """Have an extent that is not in the ring join it, if there is one; return whether none is left."""
        self._is_hurried.set()
        try:
            if self._helper:
                self._helper.join()
                self._helper = None
            while self._heap_growth.take_over():  # what the heap gave back once, then what the file has more
                pass
            extent = self._files.root.unused_extent
            if extent and extent != self._zeroed and not self._zero(extent):
                return False
        finally:
            self._is_hurried.clear()
        if extent:
            self._use()
        return True

    def _extend(self, needed: int) -> bool:
        """Have the file extended, if it may be; return whether the root gives the journal an extent now."""
        root = self._files.root
        segments = self._segments_for(max(needed, 2 * root.journal_bytes_all), 0)
        if not segments:
            return False
        least = self._segments_for(needed, 0)
        refusal = self._heap_growth.extend_for_journal(segments)
        if refusal and least < segments:
            refusal = self._heap_growth.extend_for_journal(least)
        if not refusal and not self._heap_growth.take_over():
            refusal = self._heap_growth.waits
        if refusal:
            self._refused_at = time.monotonic()
            _log.warning("%s", refusal, extra={"event": "journal_growth_waits"})
        self._files.log_waits = refusal
        return not refusal

    def close(self) -> None:
        """End the thread, if there is one."""
        self._is_ending.set()
        self._is_hurried.set()
        if self._helper:
            self._helper.join()
