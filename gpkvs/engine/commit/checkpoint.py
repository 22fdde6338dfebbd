"""The checkpoint: pages of the images are written to their files, beside the batches, to free space of the journal.

A checkpoint is fuzzy. c is the newest batch whose slots were all stored before the first page was looked at. A page is
written after the newest batch that it may show is durable (W2). When all pages are durable, both root copies get c, and
the journal's space before the frame after c is used again (W3). A torn page does no harm: a replay from c stores whole
slots again (W5).

A close writes one, too, if it takes no more than a second: then the next opening replays nothing.
"""

from __future__ import annotations

import errno
import threading
import time
from typing import Protocol

import numpy as np

from gpkvs.media.files import StoreFiles
from gpkvs.media.image import Image
from gpkvs.media.journal import Journal, Written
from gpkvs.media.layout import PAGE_BYTES, Checkpoint
from gpkvs.pm.mapping import map_memory
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process

_STEP_PAGES = 256  # that are copied, waited for and written at once
# A checkpoint begins when so much of the journal is in use, and aims to end before so much is.
BEGIN_SHARE, _END_SHARE = 0.5, 0.8
_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 0.005  # after a step that is ahead of the journal
_IDLE_SECONDS = 0.1  # then an empty frame covers the last batch
CLOSING_SECONDS = 1.0  # that the checkpoint of a close may take
_FIRST_SHARE = 1 / 8  # of the time that a checkpoint may take: before that nothing tells how long it will take


class Batches(Protocol):
    """What a checkpoint must know of the batches (`JournalCommitter`)."""

    @property
    def begun(self) -> int:
        """The newest epoch whose slots are stored, or may be."""

    @property
    def ended(self) -> Written:
        """The newest batch whose slots are all stored."""

    def cover(self) -> bool:
        """Append an empty frame, if it is of use; return whether one was appended."""


class _Deadline:
    """Tells whether a checkpoint is going to take longer than it may."""

    def __init__(self, seconds: float, pages: int) -> None:
        self._seconds = seconds
        self._pages = max(pages, 1)
        self._written = 0
        self._began = time.monotonic()

    def is_missed(self, image: Image, written: int) -> bool:
        """Whether it is, after a step that has written some pages of an image."""
        if written and not image.is_direct:
            image.sync()  # else the page cache would take all of it at once
        self._written += written
        share = max(self._written / self._pages, _FIRST_SHARE)
        return time.monotonic() - self._began > self._seconds * share


class Checkpointer:
    """Writes checkpoints in a thread of its own.

    Parameters
    ----------
    files
        Of the store.
    journal
        Tells what is durable.
    batches
        Tell what is stored.

    Attributes
    ----------
    pages
        Written by all checkpoints.
    checkpoints
        How many are complete.
    """

    def __init__(self, files: StoreFiles, journal: Journal, batches: Batches) -> None:
        self._files = files
        self._journal = journal
        self._batches = batches
        self._numbers = np.empty(_STEP_PAGES, np.uint64)
        self._copies = map_memory(_STEP_PAGES * PAGE_BYTES)
        self._is_ending = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="gpkvs-checkpoint", daemon=True)
        self.pages = self.checkpoints = 0

    def start(self) -> None:
        """Begin to look after the journal.

        Raises
        ------
        OSError
            If the system gives no thread.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "the system gives no thread for checkpoints") from error

    def stop(self) -> None:
        """Return when the thread has ended; a checkpoint that is under way is given up."""
        self._is_ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def close(self) -> None:
        """Do the same, but write a checkpoint first if it takes no more than `CLOSING_SECONDS`.

        The thread writes it: no interrupt reaches that.
        """
        self._is_closing = True
        self.stop()

    @property
    def dirty_pages(self) -> int:
        """Pages that a checkpoint would write."""
        return sum(image.dirty_pages for image in self._images_now())  # at once: a slow disk has the lock for long

    def _run(self) -> None:
        last, since = self._batches.begun, time.monotonic()
        try:
            while not self._is_ending.wait(_LOOK_SECONDS):
                if self._used_share() >= BEGIN_SHARE:
                    self.write(paced=True)
                if self._batches.begun != last:
                    last, since = self._batches.begun, time.monotonic()
                elif time.monotonic() - since >= _IDLE_SECONDS and self._batches.cover():
                    last = self._batches.begun
            if self._is_closing:
                self._write_last()
        except BaseException as error:  # noqa: BLE001 - a write that failed must not be tried again
            stop_process("a checkpoint could not be written", error)

    def _used_share(self) -> float:
        return self._journal.used_pages / self._journal.ring.capacity

    def _write_last(self) -> None:
        """Write the checkpoint of a close; that of an empty frame, so that nothing is left to replay."""
        self._journal.wait(self._batches.begun)
        self._batches.cover()
        self.write(paced=False, seconds_max=CLOSING_SECONDS)

    def write(self, *, paced: bool, seconds_max: float | None = None) -> None:
        """Write a checkpoint.

        Parameters
        ----------
        paced
            Whether to take as much time as the journal leaves, and to give up when the thread is to end.
        seconds_max
            Give up when it is going to take longer; None: it may take any time.

        Raises
        ------
        OSError
            If it could not be written; the process must not go on.
        """
        c = self._batches.ended
        begin_share = self._used_share()
        images = self._images()
        deadline = None if seconds_max is None else _Deadline(seconds_max, self.dirty_pages)
        total = sum(len(image.marks) for image in images)
        looked = 0
        for image in images:
            page = 0
            while page < len(image.marks):
                if paced and self._is_ending.is_set():
                    return
                before = page
                with self._files.changing:
                    if image.is_closed:  # its table was dropped
                        break
                    page, written = self._step(image, page)
                if deadline and deadline.is_missed(image, written):
                    return
                looked += page - before
                if paced:
                    self._pace(looked / total, begin_share)
        self._end(c)

    def _step(self, image: Image, first: int) -> tuple[int, int]:
        """Write the next dirty pages of an image; return the page to go on with, and how many were written."""
        count, following = image.copy_pages(first, self._batches.ended.epoch, self._numbers, self._copies)
        if count:
            # What the copies show may be of the newest batch that has begun by now, but of none after it.
            self._journal.wait(self._batches.begun)
            failpoint.hit("mid_checkpoint")
            image.write_pages(self._numbers[:count], self._copies[: count * PAGE_BYTES])
            self.pages += count
        return following, count

    def _pace(self, done_share: float, begin_share: float) -> None:
        """Pause while the checkpoint is ahead of the journal that fills up."""
        filled = (self._used_share() - begin_share) / max(_END_SHARE - begin_share, 0.05)
        if filled < done_share:
            self._is_ending.wait(_PAUSE_SECONDS)

    def _end(self, c: Written) -> None:
        failpoint.hit("before_checkpoint_sync")
        self._sync_images()
        self._journal.wait(c.epoch)
        with self._files.changing:
            failpoint.hit("before_checkpoint_root")
            _change_checkpoint(self._files, c)
        self._journal.free(c.position)
        self.checkpoints += 1

    def _sync_images(self) -> None:
        """Make all image files durable. It may take long, so tables may be made and dropped meanwhile."""
        for image in self._images():
            image.sync()

    def _images(self) -> list[Image]:
        with self._files.changing:
            return self._images_now()

    def _images_now(self) -> list[Image]:
        regions = [index.region for index in list(self._files.indexes.values())]
        return [region for region in regions if isinstance(region, Image)]


def _change_checkpoint(files: StoreFiles, c: Written) -> None:
    """Make both root copies say that c is the checkpoint."""
    descriptor = c.descriptor
    checkpoint = Checkpoint(
        descriptor.epoch,
        descriptor.tail_segment,
        descriptor.tail_bytes,
        descriptor.next_sequence,
        descriptor.time_horizon_ms,
        descriptor.applied_sequence,
        c.position,
        c.digest,
        files.root.checkpoint.recovered_epoch,
        descriptor.growth,
    )
    files.roots.change(checkpoint=checkpoint)
