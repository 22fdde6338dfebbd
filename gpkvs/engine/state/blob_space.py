"""The space of the file ``blobs``: where large values lie, in runs of pages.

    live -> waits for a durable frame (W6) -> present -> taken -> live
    present -> the newest batch begun then is durable -> punched: absent     (S4)
    absent, or beyond the end -> reserved, synced -> present                 (S5)

Native code takes and frees present pages (``blob_pages.py``). It asks for more where none of their runs fits. Nothing
durable says what is free: an opening finds it from the live blobs, and asks the file system for holes.

A new blob gets the smallest run that fits. Free and waiting pages are kept up to a part of the live ones. So pages
are punched before others are reserved: those with the highest addresses first, which leaves long runs at low ones.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from gpkvs.batch import U64
from gpkvs.engine.state.blob_pages import BlobPages, Run
from gpkvs.engine.state.refused import RefusedError, refusals
from gpkvs.errors import CorruptStoreError, NoSpaceError
from gpkvs.media.directory import NO_SPACE, disk_free_bytes
from gpkvs.media.file_space import CANNOT_PUNCH, PUNCHED_AT_ONCE, holes, punch, reserve
from gpkvs.media.layout import PAGE_BYTES
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process

_log = logging.getLogger("gpkvs")

_ALL = 1 << 40  # pages: more than any file has
_PUNCHED_PAGES = (64 << 10) // PAGE_BYTES  # by an idle store, in multiples
_AHEAD_PAGES = (16 << 20) // PAGE_BYTES  # of a file that gets longer: each step waits for the disk


class BlobSpace:
    """Has room for blobs in an open file.

    Parameters
    ----------
    file, path
        The file, open for writing, and its name for messages.
    first, pages
        The live blobs, in any order.
    settle
        Waits until all batches that have begun are durable, and calls `BlobPages.release`. It does not wait for one
        that is being planned: that one may wait for room.
    on_longer
        Called with the pages of the file before new ones are given to a blob; raises NoSpaceError if they cannot be.
    is_in_memory
        Whether the file is memory.

    Attributes
    ----------
    pages
        Of the file; their `address` is where native code finds them.
    overlaps
        Damage: pairs of blobs, by their numbers in `first`, of which the first one begins in the second one. Both
        stay, and no page of either gets another value before the next opening.
    can_punch
        Whether the file system takes space back.

    Raises
    ------
    CorruptStoreError
        If a blob ends beyond the file.
    NoSpaceError
        If a live blob has holes, as in a sparse copy, and the disk is full.
    MemoryError
        If there is none for it.
    """

    def __init__(
        self,
        file: int,
        path: Path,
        first: U64,
        pages: U64,
        settle: Callable[[], None],
        on_longer: Callable[[int], None] = lambda pages: None,
        *,
        is_in_memory: bool = False,
    ) -> None:
        self._on_longer = on_longer
        self._file = file
        self._path = path
        self._settle = settle
        self._is_in_memory = is_in_memory
        self._changing = threading.Lock()  # held while space is reserved or punched
        self._leaving: list[Run] = []  # they are punched when a batch is durable
        self._leaving_gate = 0
        self.can_punch = True
        order = np.argsort(first, kind="stable")
        first, pages = first[order], pages[order]
        reach = np.maximum.accumulate(first + pages)  # where those up to each one end
        file_pages = os.fstat(file).st_size // PAGE_BYTES
        if len(reach) and int(reach[-1]) > file_pages:
            end = file_pages * PAGE_BYTES
            raise CorruptStoreError(
                "file-size",
                f"has {end:,} bytes, a value ends at {int(reach[-1]) * PAGE_BYTES:,}: restore it from a backup",
                path=path,
                offset=end,
            )
        holder = np.maximum.accumulate(np.where(first + pages == reach, np.arange(len(first)), 0))
        self.overlaps = [
            (int(order[blob]), int(order[holder[blob - 1]]))
            for blob in (np.flatnonzero(first[1:] < reach[:-1]) + 1).tolist()
        ]
        self.pages = BlobPages(first, pages, file_pages)
        self._find_holes(first, pages, reach, file_pages)

    def _find_holes(self, first: U64, pages: U64, reach: U64, file_pages: int) -> None:
        """Note which free pages are absent; reserve what live blobs lack."""
        found = np.array(holes(self._file, 0, file_pages * PAGE_BYTES), np.uint64).reshape(-1, 2)
        begin = found[:, 0] // PAGE_BYTES
        end = (found[:, 1] + (PAGE_BYTES - 1)) // PAGE_BYTES
        self.pages.leave(begin, end - begin)
        touched = np.searchsorted(reach, begin, "right"), np.searchsorted(first, end, "left")
        for begins, ends, live, live_end in zip(*(column.tolist() for column in (begin, end, *touched)), strict=True):
            if live < live_end:
                self._fill(first[live:live_end], pages[live:live_end])
            elif self._is_in_memory:  # space that was only reserved looks like a hole there
                self._punch(Run(begins, ends - begins))

    def _fill(self, first: U64, pages: U64) -> None:
        try:
            for at, count in zip(first.tolist(), pages.tolist(), strict=True):
                reserve(self._file, at * PAGE_BYTES, count * PAGE_BYTES)
            os.fsync(self._file)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise NoSpaceError(
                "disk",
                f"{self._path} has holes where values are, as a sparse copy has, and the disk has "
                f"{disk_free_bytes(self._path):,} bytes free, too few to fill them: make room, or copy the backup with "
                "--sparse=never",
            ) from error

    def make_room(self, pages: int, bytes_max: int, *, is_again: bool = False) -> None:
        """Have a run of so many present pages, for whoever then takes it first; from any thread.

        Parameters
        ----------
        pages
            Of a blob for which no run fits.
        bytes_max
            How much of the disk all blobs may have.
        is_again
            A batch of several blobs has got room for one before: nothing is punched now. That room may look spare, and
            without it the batch would lack it again, and so on for ever.

        Raises
        ------
        NoSpaceError
            If disk, quota, memory or the limit refuse.
        MemoryError
            If there is none for it.
        """
        with self._changing:
            self._keep_leaving()
            counts = self.pages.counts
            if counts.waiting and counts.waiting + pages > counts.kept:
                self._settle()
            if self.pages.fits(pages):
                return
            if not is_again:
                self._punch_spare(pages)
            with suppress(RefusedError, NoSpaceError):
                self._reserve(pages, _AHEAD_PAGES, bytes_max)
                return
            self._settle()
            if self.pages.fits(pages):
                return
            if not is_again:
                self._punch_spare(_ALL)
            try:
                self._reserve(pages, 0, bytes_max)
            except RefusedError as error:
                raise NoSpaceError("heap", f"{error}: make room, and try again; or delete keys") from error

    def tidy(self, begun: int, is_durable: Callable[[int], bool]) -> bool:
        """Punch what is more than is kept, up to 16 MiB of it.

        Parameters
        ----------
        begun, is_durable
            The newest epoch that a batch has begun, and whether all up to one are durable. A run that one call chooses
            is punched when what had begun then is durable, in this call or a later one (S4).

        Returns
        -------
        bool
            Whether something was punched: there may be more.
        """
        with self._changing:
            if not self._leaving:
                self._choose_leaving()
                self._leaving_gate = begun
            if not is_durable(self._leaving_gate):
                return False
            leaving, self._leaving = self._leaving, []
            return sum(self._leave(run) for run in leaving) > 0

    def _choose_leaving(self) -> None:
        most = PUNCHED_AT_ONCE // PAGE_BYTES
        while self.can_punch and most and (run := self.pages.take_spare(0, _PUNCHED_PAGES, most)):
            self._leaving.append(run)
            most -= run.pages

    def _keep_leaving(self) -> None:
        """Have pages stay that were to be punched: they may do for what is asked now."""
        while self._leaving:
            self.pages.put(self._leaving.pop(), are_present=True)

    def _punch_spare(self, wanted: int) -> None:
        """Punch until so many more pages are no more than what is kept."""
        while self.can_punch and (run := self.pages.take_spare(wanted, 1, _ALL)):
            if not self._leave(run):
                return

    def _leave(self, run: Run) -> bool:
        """Punch pages that are out; return whether they are absent now."""
        is_punched = self._punch(run)
        self.pages.put(run, are_present=not is_punched)
        return is_punched

    def _punch(self, run: Run) -> bool:
        if not self.can_punch:
            return False
        failpoint.hit("before_blob_punch")
        try:
            punch(self._file, run.first * PAGE_BYTES, run.pages * PAGE_BYTES)
        except OSError as error:
            self.can_punch = error.errno not in CANNOT_PUNCH
            _log.warning(
                "space of values is not given back: %s: %s", self._path, error.strerror, extra={"event": "no_punch"}
            )
            return False
        failpoint.hit("after_blob_punch")
        return True

    def _reserve(self, pages: int, ahead: int, bytes_max: int) -> None:
        """Reserve a place for a blob, durably.

        Raises
        ------
        RefusedError
            If the system refuses.
        NoSpaceError
            If it would be more than may be.
        """
        file_pages, has = self.pages.counts.file, self.present_bytes
        ahead = min(ahead, max((bytes_max - has) // PAGE_BYTES - pages, 0))
        run, missing = self.pages.take_place(pages, ahead)
        step = missing * PAGE_BYTES
        try:
            if has + step > bytes_max:
                raise NoSpaceError(
                    "heap",
                    f"a value asked for {step:,} bytes more, large values have {has:,} of the {bytes_max:,} bytes that "
                    "they may have: delete keys, or start the store again with a larger --heap-bytes-max",
                )
            with refusals("a value", self._path, step, is_in_memory=self._is_in_memory):
                reserve(self._file, run.first * PAGE_BYTES, run.pages * PAGE_BYTES)
        except BaseException:
            self._forgo(run, file_pages)
            raise
        try:
            failpoint.hit("before_blob_sync")
            os.fsync(self._file)
        except OSError as error:
            stop_process("the file of values could not be synced", error)  # values may be lost with it
        try:
            self._on_longer(run.first + run.pages)
        except NoSpaceError:
            self._forgo(run, file_pages)
            raise
        self.pages.put(run, are_present=True)

    def _forgo(self, run: Run, file_pages: int) -> None:
        """Give a place up that was not reserved, or not all of it; the file is as long as it was."""
        with suppress(OSError):
            os.ftruncate(self._file, file_pages * PAGE_BYTES)
        within = Run(run.first, min(run.first + run.pages, file_pages) - run.first)
        if within.pages:
            self._punch(within)
            self.pages.put(within, are_present=False)  # punched or not: nobody knows what it has

    @property
    def live_bytes(self) -> int:
        """What live blobs take."""
        return self.pages.counts.live * PAGE_BYTES

    @property
    def file_bytes(self) -> int:
        """The length of the file, with its holes."""
        return self.pages.counts.file * PAGE_BYTES

    @property
    def present_bytes(self) -> int:
        """What the file has of the disk."""
        counts = self.pages.counts
        return (counts.file - counts.absent) * PAGE_BYTES
