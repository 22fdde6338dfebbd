"""Archives a server until it is stopped: what changes, and a base from time to time.

The archive follows first. So what changes behind a base's position is in its segments.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from gpkvs.archive.contents import read_contents
from gpkvs.archive.recorder import Follow, Recorder, Say, SegmentBounds
from gpkvs.archive.segment import Synced, segment_paths
from gpkvs.backup.copier import back_up
from gpkvs.backup.kept import new_name, remove_backup, remove_unfinished
from gpkvs.backup.place import locked_directory
from gpkvs.backup.reader import FollowsAll
from gpkvs.backup.source import Source
from gpkvs.changes import Position
from gpkvs.errors import ChangesLostError, GpkvsError, StoreLockedError
from gpkvs.media.directory import access_errors, sync_path
from gpkvs.process import failpoint
from gpkvs.store import Store
from gpkvs.text import counted

_LOOK_SECONDS = 0.1
_NOT_YET_SECONDS = 1.0
_DAY_MS = 86_400_000


class _NotYetError(ChangesLostError):
    """The archive does not follow the opening of the server of which a base would be."""


@dataclass(frozen=True)
class ArchiveConfig:
    """How a server is archived.

    Parameters
    ----------
    base_seconds
        Between two bases.
    keep_days
        Moments of so many days can be restored; None: nothing is removed.
    again_seconds
        After a base that could not be taken.
    note_seconds
        Between two notes of how far the archive is (`Source.notes`).
    bounds
        Of segments.
    """

    base_seconds: float = 86_400.0
    keep_days: float | None = None
    again_seconds: float = 60.0
    note_seconds: float = 5.0
    bounds: SegmentBounds = field(default_factory=SegmentBounds)


class Archiver:
    """Archives a server in a ``with`` block; who has it calls `keep_up` from time to time.

    Parameters
    ----------
    folder
        Of the archive; it is made if it is missing.
    source
        What is scanned for a base, and its name for people.
    follow
        Follows all tables of it.
    config
        How often, how long.
    say
        Tells people one line; called from several threads.

    Raises
    ------
    StoreLockedError
        If another process archives into the folder.
    StoreError
        If the folder cannot be used.
    """

    def __init__(self, folder: Path, source: Source, follow: Follow, config: ArchiveConfig, say: Say) -> None:
        self._folder = folder
        self._source = source
        self._config = config
        self._say = say
        self._begin: Position | None = None  # of the run that the newest base is in
        self._tried: Position | None = None  # the begin of the run for which `_next_at` counts; others wait for nothing
        self._next_at = 0.0
        self._ended = threading.Event()
        self._noting = threading.Thread(target=self._note, name="gpkvs-archive-notes", daemon=True)
        with access_errors(folder):
            self._lock = locked_directory(folder)
            try:
                remove_unfinished(folder)
                self.recorder = Recorder(folder, source.name, follow, say, config.bounds)
                self._find_newest_base()
            except BaseException:
                os.close(self._lock)
                raise

    def __enter__(self) -> Self:
        self.recorder.__enter__()
        self._noting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._ended.set()
            self._noting.join()
            self.recorder.__exit__(kind, error, trace)
        finally:
            os.close(self._lock)

    def restorable(self) -> Synced | None:
        """Return up to where the run can be restored; None: it has no base yet, or nothing is followed."""
        synced = self.recorder.synced  # before the look at the run, which may end meanwhile
        begin = self.recorder.begin
        return synced if begin is not None and begin == self._begin else None

    def _note(self) -> None:
        """Say so now and then, in a thread of its own: to take a base may last long."""
        while not self._ended.wait(self._config.note_seconds):
            if found := self.restorable():
                self._source.notes.archive(*found)

    def _find_newest_base(self) -> None:
        if segment_paths(self._folder):
            run = read_contents(self._folder).runs[-1:]
            if run and run[0].bases:
                self._begin = self._tried = run[0].first
                age_seconds = max(time.time() - run[0].bases[-1].time_ms / 1000, 0.0)
                self._next_at = time.monotonic() + self._config.base_seconds - age_seconds

    def keep_up(self, go_on: Callable[[], None] = lambda: None) -> None:
        """Take a base if one is due: the changes have a hole before this run, or the last base is old.

        Parameters
        ----------
        go_on
            Called between the steps of a base; what it raises ends that.

        Raises
        ------
        AccessDeniedError, TlsError
            If the server does not let this user do it.
        StoreError
            If the folder cannot be used any more.
        """
        self.recorder.require_going()
        begin, now = self.recorder.begin, time.monotonic()
        if begin is None or (begin == self._tried and now < self._next_at):
            return
        self._tried = begin
        try:
            self._take(begin, go_on)
        except GpkvsError as error:
            self._say(f"no base was taken, and it is tried again: {error}")
            again_seconds = _NOT_YET_SECONDS if isinstance(error, _NotYetError) else self._config.again_seconds
            self._next_at = now + again_seconds
            return
        self._begin, self._next_at = begin, now + self._config.base_seconds
        if self._config.keep_days is not None:
            try:
                remove_unneeded(self._folder, self._config.keep_days, self._say)
            except GpkvsError as error:
                self._say(f"what is too old could not be removed: {error}")

    def _take(self, begin: Position, go_on: Callable[[], None]) -> None:
        def follow() -> FollowsAll:
            """Follow behind where the archive does: else changes between the two would be in neither."""
            following = self._source.follow()
            here, archived = following.position, self.recorder.position
            if archived is None or here.timeline != archived.timeline or here.number < begin.number:
                following.close()
                raise _NotYetError(f"what is archived is not of the opening of the server that is at {here}")
            return following

        def show(_step: str, _share: float) -> None:
            self.recorder.require_going()
            go_on()

        report = back_up(replace(self._source, follow=follow), self._folder / _free_name(self._folder), Store, show)
        self._say(f"{report.directory.name} is a base: {counted(report.keys, 'key')}, position {report.position}")


def _free_name(folder: Path) -> str:
    """Return the name of a base that begins now; two never begin in the same second."""
    while (folder / (name := new_name())).exists():
        time.sleep(_LOOK_SECONDS)
    return name


def remove_unneeded(folder: Path, days: float, say: Callable[[str], None]) -> None:
    """Remove the bases and segments that no restore of the last days needs.

    Parameters
    ----------
    folder
        Of an archive.
    days
        So many.
    say
        Told what was removed.
    """
    contents = read_contents(folder)
    since_ms = time.time_ns() // 1_000_000 - int(days * _DAY_MS)
    order = [base for run in contents.runs for base in (*run.bases, *run.ahead)]
    old = [at for at, base in enumerate(order) if base.time_ms <= since_ms]
    if not old:
        return
    oldest = order[old[-1]]  # the moments behind it are restored of it
    kept = {base.directory for base in order[old[-1] :]}
    removed = 0
    for base in contents.bases:
        if base.directory not in kept and base.time_ms <= since_ms:
            with suppress(StoreLockedError):  # somebody uses it: it goes another day
                remove_backup(base.directory)
                removed += 1
    failpoint.hit("mid_archive_removal")
    segments = 0
    for run in contents.runs:
        is_needed = oldest in run.bases or oldest in run.ahead
        for segment in run.segments:
            # The base's own position lies in one that ends there: the next one may be of a later timeline.
            if is_needed and (segment.last >= oldest.position.number or segment is run.segments[-1]):
                sync_path(folder)
                if removed or segments:
                    say(f"removed {counted(removed, 'base')} and {counted(segments, 'segment')}")
                return
            segment.path.unlink()
            segments += 1
