"""How much room the disk under the store has, for the metrics.

A scrape must not wait for a disk that hangs, for it tells that the disk does. So another thread asks, now and then.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor
from pathlib import Path

from gpkvs.media.directory import disk_free_bytes

_LOOK_SECONDS = 5.0


class DiskWatch:
    """Asks the file system of a folder every few seconds; used inside an event loop.

    Parameters
    ----------
    path
        The folder.
    helpers
        A thread of theirs waits for the answer.

    Attributes
    ----------
    free_bytes
        What this user may still write there, as of the last answer.
    all_bytes
        The size of the file system.
    """

    def __init__(self, path: Path, helpers: Executor) -> None:
        self._path = path
        self._helpers = helpers
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.free_bytes = self.all_bytes = 0

    async def begin(self) -> None:
        """Ask now, and from now on."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._helpers, self._ask)
        self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Ask no more."""
        self._is_closed = True
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        asked = asyncio.get_running_loop().run_in_executor(self._helpers, self._ask)
        asked.add_done_callback(self._look_later)  # not before: it may hang

    def _look_later(self, _: asyncio.Future[None]) -> None:
        if not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _ask(self) -> None:
        try:
            found, self.free_bytes = os.statvfs(self._path), disk_free_bytes(self._path)
        except OSError:  # the folder was moved: the last answer stays
            return
        self.all_bytes = found.f_blocks * found.f_frsize
