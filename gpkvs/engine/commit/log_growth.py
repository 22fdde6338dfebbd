"""The undo log grows: between two batches, when one comes that it has no room for.

    file extended, synced -> both root copies say the new size -> entries go there

The flag is IDLE meanwhile: no entry of the log counts.
"""

from __future__ import annotations

import logging
import time

from gpkvs.backends.base import Backend
from gpkvs.media.directory import extend_file, round_up, sync_path
from gpkvs.media.files import StoreFiles, log_bytes_for
from gpkvs.media.layout import PAGE_BYTES
from gpkvs.process import failpoint
from gpkvs.process.fatal import stop_process

_log = logging.getLogger("gpkvs")

_RETRY_SECONDS = 1.0


def grown_log_bytes(entries: int, log_bytes: int, size_max: int) -> int:
    """Return how large an undo log becomes that has no room for so many entries."""
    return min(round_up(max(log_bytes_for(entries), 2 * log_bytes), PAGE_BYTES), size_max)


class LogGrowth:
    """Makes an undo log larger.

    Parameters
    ----------
    files
        Of a store with an undo log.
    backend
        May store to it.
    size_max
        How large it may become.
    """

    def __init__(self, files: StoreFiles, backend: Backend, size_max: int) -> None:
        self._files = files
        self._backend = backend
        self._size_max = size_max
        self._refused_at = -_RETRY_SECONDS

    def make_room(self, entries: int) -> bool:
        """Have room for so many entries, or for as many as may be; return whether the log is larger now."""
        log = self._files.log
        size = grown_log_bytes(entries, log.bytes, self._size_max)
        if size <= log.bytes or time.monotonic() - self._refused_at < _RETRY_SECONDS:
            return False
        try:
            self._files.require_in_place()
            extend_file(log.path, log.bytes, size)
        except OSError as error:
            self._refused_at = time.monotonic()
            _log.warning("the undo log cannot grow to %d bytes: %s", size, error.strerror)
            return False
        try:
            failpoint.hit("before_log_sync")
            sync_path(log.path)
            self._map(size)
            failpoint.hit("before_log_root")
            self._files.roots.change(log_bytes=size)
        except BaseException as error:  # noqa: BLE001 - a GPU may have lost the log, and either root may be durable
            stop_process("the undo log could not grow", error)
        return True

    def _map(self, size: int) -> None:
        self._backend.detach(self._files.log)
        self._files.log.grow(size)
        self._backend.attach(self._files.log)
