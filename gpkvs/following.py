"""Somebody who is told every change of a store that is open in this process; made by `Store.follow`."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from gpkvs.changes import Changes, Position
from gpkvs.engine.host.change_log import ChangeLog
from gpkvs.errors import StoreClosedError

# Who waits in native code hears of a signal, such as Ctrl-C, so much later.
_SIGNAL_SECONDS = 0.2


class Following:
    """What has changed behind a position. One thread at a time uses it; nobody who writes waits for it.

    Parameters
    ----------
    log
        Of the store.
    position
        Where it begins.
    leave
        Called once, by `close` or when nobody has the object any more.
    require_own
        Raises `ForkedError` in the child of a fork.
    require_open
        Raises `StoreClosedError` if the store was closed.

    Attributes
    ----------
    position
        Behind what was read.

    Examples
    --------
    >>> with store.follow() as following:
    ...     store.set(b"key", b"value")
    ...     [changes.key_list() for changes in following.read()]
    1
    [[b'key']]
    """

    def __init__(
        self,
        log: ChangeLog,
        position: Position,
        leave: Callable[[], None],
        require_own: Callable[[], None],
        require_open: Callable[[], None],
    ) -> None:
        self._log = log
        self.position = position
        self._require_own, self._require_open = require_own, require_open
        self._leave = weakref.finalize(self, leave)
        self._leave.atexit = False

    def newest(self) -> Position:
        """Return the position behind all that was executed by now, some of which may not be durable yet."""
        self._require_open()
        return self._log.newest

    def read(self, bytes_max: int = 1 << 20, timeout: float | None = 0.0) -> list[Changes]:
        """Return what has changed, the oldest first: only what is durable.

        Parameters
        ----------
        bytes_max
            Of what is returned, about; an entry that is longer comes alone.
        timeout
            Seconds to wait for something, if there is nothing yet; None: for ever.

        Returns
        -------
        list of Changes
            Empty: nothing came in time.

        Raises
        ------
        ChangesLostError
            If the next changes are no longer held. Begin anew: read all, then follow.
        StoreClosedError
            If the store was closed, and everything was read; or after `close`.
        """
        self._require_own()  # before any lock, which another thread may have held at the fork
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if not self._leave.alive:
                raise StoreClosedError("this follower has left: follow again")
            is_over = self._log.is_closed  # before the look at what there is: nothing comes behind that
            found = self._read_now(bytes_max)
            if found:
                return found
            if is_over:
                self._require_open()
            left = _SIGNAL_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                return []
            self._log.wait(self.position, min(left, _SIGNAL_SECONDS))

    def _read_now(self, bytes_max: int) -> list[Changes]:
        found: list[Changes] = []
        position, left = self.position, bytes_max
        while left > 0 and (changes := self._log.read(position, left)) is not None:
            found.append(changes)
            position = replace(position, number=changes.number)
            left -= changes.nbytes
        self.position = position  # at the end: what an interrupt takes away is read again
        return found

    def close(self) -> None:
        """Follow no more; when nobody does, changes are no longer held."""
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
