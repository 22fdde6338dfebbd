"""Follows a server into the segments of an archive, in a thread of its own.

    follow       behind the newest archived entry, if the server still holds what comes next; else from now on
    append       what is told, to a segment; durable within a second, and archived from then on
    seal         at 64 MiB, each 10 minutes, at the end; then the next one begins

Rules:

- A segment begins where the one before ends, or it says that the archive began anew. So a hole is seen.
- A segment is of one timeline: where the server was opened anew and goes on, the next one begins.
- A segment ends behind a whole entry. What comes behind it, and was not written, is asked for again.
- Where the server is gone, or the disk is full, the thread tries again each second. It holds nothing meanwhile, and
  the server holds no more for it than for anybody: so it may have to begin anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from gpkvs.archive.contents import read_runs
from gpkvs.archive.segment import Header, SegmentWriter, Synced, segment_paths, serial_of
from gpkvs.backup.reader import FollowsAll
from gpkvs.changes import Position
from gpkvs.client.errors import AccessDeniedError, NotExecutedError, TlsError
from gpkvs.errors import ChangesLostError, NoSpaceError
from gpkvs.media.directory import NO_SPACE, access_errors, sync_path
from gpkvs.process import failpoint

_READ_BYTES = 1 << 20
_WAIT_SECONDS = 0.1  # for changes; then the thread looks whether it is to end
_AGAIN_SECONDS = 1.0

Say = Callable[[str], None]
"""Tells people one line."""

Follow = Callable[[Position | None], FollowsAll]
"""Follows all tables of a server, behind a position or from now on."""


@dataclass(frozen=True)
class SegmentBounds:
    """When a segment is sealed, and when what is in it is made durable."""

    size: int = 64 << 20
    seconds: float = 600.0
    sync_seconds: float = 0.5


class Recorder:
    """A thread that archives what changes.

    Parameters
    ----------
    folder
        Of the archive, which this process alone writes to.
    source
        The server's name, for people.
    follow
        Follows it.
    say
        Tells people what happens.
    bounds
        Of the segments.

    Attributes
    ----------
    begin
        The position behind which the changes have no hole, up to those that come now; None: nothing is followed.
    synced
        How far what is archived is durable; None: not known yet.
    """

    def __init__(self, folder: Path, source: str, follow: Follow, say: Say, bounds: SegmentBounds) -> None:
        self._folder = folder
        self._source = source
        self._follow = follow
        self._say = say
        self._bounds = bounds
        self._writer: SegmentWriter | None = None
        self._begun_at = 0.0  # when the segment was
        self._unsynced_at = 0.0  # since when something in it is not durable; 0: all is
        self._trouble = ""  # that was told last
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gpkvs-archive", daemon=True)
        self._serial = max(map(serial_of, segment_paths(folder)), default=0)
        runs, loss = read_runs(folder)
        is_right = runs and not loss
        if is_right and not runs[-1].segments[-1].is_sealed:
            sync_path(runs[-1].segments[-1].path)  # a killed archiver wrote it; the next segment goes on from there
        self._first = runs[-1].first if is_right else None  # where the run began that is archived
        self._since = runs[-1].end if is_right else None  # what comes behind it is asked for; None: from now on
        self._is_full = False  # the disk is
        self.begin: Position | None = None
        self.synced: Synced | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def position(self) -> Position | None:
        """Behind what is in the segments, durable within a second; None: nothing is."""
        return self._since

    def require_going(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            with access_errors(self._folder):
                try:
                    while not self._stopped.is_set():
                        self._try()
                finally:
                    self._end_segment()
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            self._error = error

    def _try(self) -> None:
        """Follow until something ends that; wait a little then, if it is likely to end the next one."""
        try:
            with access_errors(self._folder), closing(self._follow(self._since)) as following:
                self._record(following)
        except ChangesLostError as error:
            if self._since:
                self._tell(f"what came behind {self._since} is lost, and the archive begins anew: {error}")
                self._end_segment()
            self._since = None
        except NoSpaceError as error:
            self._is_full = True
            self._tell(f"nothing is archived until there is room: {error}")
            self._stopped.wait(_AGAIN_SECONDS)
        except (AccessDeniedError, TlsError):
            raise
        except NotExecutedError as error:
            self._tell(f"nothing is archived until the server is there: {error}")
            self._stopped.wait(_AGAIN_SECONDS)
        finally:
            self.begin = None

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(trouble)

    def _record(self, following: FollowsAll) -> None:
        """Archive what is told, until nothing more is."""
        if self._since is None:
            self._first = following.position
        if self._writer is None:
            self._begin_segment(following.position, goes_on=self._since is not None)
        self._follow_timeline(following.position)
        self.begin = self._first
        if not self._is_full:
            self._go_on(following.position)
        while not self._stopped.is_set():
            entries = following.read(_READ_BYTES, _WAIT_SECONDS)
            self._follow_timeline(following.position)
            assert self._writer
            try:
                if entries:
                    self._writer.append(entries)
                    self._unsynced_at = self._unsynced_at or time.monotonic()
                    failpoint.hit("mid_archive")
                self._keep_up(self._writer)
            finally:
                if self._writer:
                    self._since = Position(following.position.timeline, self._writer.last)

    def _follow_timeline(self, position: Position) -> None:
        """Begin a segment where the server was opened anew, and goes on behind what it had told before."""
        assert self._writer
        if position.timeline == self._writer.end.timeline:
            return
        self._next_segment(Position(position.timeline, self._writer.last))

    def _go_on(self, position: Position) -> None:
        self._trouble, self._is_full = "", False
        self._say(f"archives the changes of {self._source} behind {position}")

    def _keep_up(self, writer: SegmentWriter) -> None:
        """Make durable what is due, and seal the segment if it is full."""
        now = time.monotonic()
        if self._unsynced_at and now - self._unsynced_at >= self._bounds.sync_seconds:
            writer.sync()
            self.synced = writer.synced
            self._unsynced_at = 0.0
            if self._is_full:
                self._go_on(writer.end)
        is_due = writer.size >= self._bounds.size or now - self._begun_at >= self._bounds.seconds
        if is_due and writer.is_whole and writer.has_entries:
            self._next_segment(writer.end)

    def _next_segment(self, first: Position) -> None:
        """Seal the segment, and begin the next one where it ends.

        Raises
        ------
        NoSpaceError
            If it ends before: its disk has not kept what was written, which is asked for again.
        """
        self._end_segment()
        if self._since is None or self._since.number != first.number:
            raise NoSpaceError("disk", f"{self._folder}: the disk has not kept what came behind {self._since}")
        failpoint.hit("between_segments")
        self._begin_segment(first, goes_on=True)

    def _begin_segment(self, first: Position, *, goes_on: bool) -> None:
        header = Header(self._serial + 1, first, goes_on, time.time_ns() // 1_000_000, self._source)
        self._writer = SegmentWriter(self._folder, header)
        self._serial += 1
        self._since = first
        self.synced = self._writer.synced
        self._begun_at, self._unsynced_at = time.monotonic(), 0.0

    def _end_segment(self) -> None:
        """Seal the segment."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        with closing(writer):
            try:
                writer.seal()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self._tell(f"{writer.path} is not sealed: {error.strerror}")  # it is read as far as it is whole
                with suppress(OSError):  # then it ends where it is durable, and what is behind is asked for again
                    writer.sync()
            self._since = writer.end
