"""Says when files have changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

_LOOK_SECONDS = 0.25
_CLOSE_SECONDS_MAX = 1.0


class WatchedFiles:
    """Looks at files four times a second, in a thread of its own.

    Parameters
    ----------
    paths
        The files; links are followed.
    changed
        Called in that thread after a change of any of them.
    """

    def __init__(self, paths: Iterable[Path], changed: Callable[[], object]) -> None:
        self._paths = tuple(paths)
        self._changed = changed
        self._seen = [_look(path) for path in self._paths]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watched-files", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; one that waits for a disk ends later."""
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS_MAX)

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            seen = [_look(path) for path in self._paths]
            if seen != self._seen and not self._closed.is_set():
                self._seen = seen
                self._changed()


def _look(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
