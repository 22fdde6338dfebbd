"""Says when files have changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gpkvs.server.threads import begun_thread

_log = logging.getLogger("gpkvs.server")

_LOOK_SECONDS = 0.25
_CLOSE_SECONDS_MAX = 1.0
AGAIN_SECONDS = 60.0

Looks = list[tuple[int, ...]]
"""What differs after a change of any of some files."""


def look_at(paths: Iterable[Path]) -> Looks:
    """Look at files; links are followed."""
    return [_look(path) for path in paths]


class WatchedFiles:
    """Looks at files four times a second, in a thread of its own.

    Parameters
    ----------
    paths
        The files; links are followed.
    changed
        Called in that thread after a change of any of them. It returns whether the files can be used: if not, it is
        called again after a while, since what keeps them from use may pass without a change.
    seen
        How they looked before they were read: a change after that is seen. By default, how they look now.
    again_seconds
        That while.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        changed: Callable[[], bool],
        *,
        seen: Looks | None = None,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._paths = tuple(paths)
        self._changed = changed
        self._again_seconds = again_seconds
        self._seen = look_at(self._paths) if seen is None else seen
        self._closed = threading.Event()
        self._thread = begun_thread("watched-files", self._watch)

    def close(self) -> None:
        """End the thread; one that waits for a disk ends later. Not called by it."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS_MAX)

    def _watch(self) -> None:
        again = float("inf")
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                seen = look_at(self._paths)
            except MemoryError:
                continue
            if self._closed.is_set():
                return
            if seen != self._seen or time.monotonic() >= again:
                self._seen = seen
                again = float("inf") if self._can_be_used() else time.monotonic() + self._again_seconds

    def _can_be_used(self) -> bool:
        try:
            return self._changed()
        except Exception:  # noqa: BLE001 - the thread must go on, or no later change would be seen
            with suppress(MemoryError):
                _log.exception("cannot read %s again", ", ".join(map(str, self._paths)))
            return False


def _look(path: Path) -> tuple[int, ...]:
    """Return what differs after any change, also of a link on the way to a file."""
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
