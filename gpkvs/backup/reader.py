"""Reads the changes of a source into a file, in a thread of its own, while the source is scanned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from gpkvs.backup.spill import SpillWriter
from gpkvs.changes import Position
from gpkvs.media.directory import access_errors
from gpkvs.watch import Follows

_READ_BYTES = 1 << 20
_WAIT_SECONDS = 0.1  # for changes; then the thread looks whether the scan has ended


class FollowsAll(Follows, Protocol):
    """What gives all changes of a source, of a store or of a client."""

    def newest(self) -> Position:
        """Return the position of the last transaction executed, durable or not."""


class Told(NamedTuple):
    """What was read of the changes.

    Attributes
    ----------
    position
        Behind it.
    entries
        How many they are. Part of the next one may lie behind them.
    time_ms
        When the scan had ended, in milliseconds since 1970.
    """

    position: Position
    entries: int
    time_ms: int


class ChangesReader:
    """A thread that reads changes into a file.

    Parameters
    ----------
    following
        Gives them; from here on the thread's alone.
    path
        Of the file, which is made.
    """

    def __init__(self, following: FollowsAll, path: Path) -> None:
        self._following = following
        self._path = path
        self._is_scanned, self._is_stopped = threading.Event(), threading.Event()
        self._told: Told | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gpkvs-backup", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopped.set()
        self._thread.join()

    def require_going(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._error:
            raise self._error

    def finish(self, go_on: Callable[[], None] = lambda: None) -> Told:
        """Read on, at least to what is the newest transaction now that the scan has ended; return what was read.

        So nothing that the scan saw is missing in it, and all of it is durable in the source, which tells it only then.
        Meanwhile `go_on` is called now and then; what it raises ends the wait.
        """
        self._is_scanned.set()
        while self._thread.is_alive():
            self._thread.join(_WAIT_SECONDS)
            go_on()
        self.require_going()
        assert self._told
        return self._told

    def _run(self) -> None:
        try:
            with access_errors(self._path), SpillWriter(self._path) as spill:
                self._told = self._read(spill)
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            self._error = error

    def _read(self, spill: SpillWriter) -> Told | None:
        newest: Position | None = None
        time_ms = whole = 0
        while not self._is_stopped.is_set():
            position = self._following.position
            # One of another timeline says nothing: the source was opened anew before or after it was asked.
            if self._is_scanned.is_set() and (newest is None or newest.timeline != position.timeline):
                newest, time_ms = self._following.newest(), time.time_ns() // 1_000_000
            if newest and newest.timeline == position.timeline and position.reaches(newest):
                return Told(position, whole, time_ms)
            entries = self._following.read(_READ_BYTES, _WAIT_SECONDS)
            spill.append(entries)
            behind_whole = next((at for at, entry in enumerate(reversed(entries)) if entry.is_whole), None)
            if behind_whole is not None:
                whole = spill.count - behind_whole
        return None
