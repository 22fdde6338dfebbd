"""Forks of this process: what was opened before one belongs to the parent, and the child is told so."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from gpkvs.errors import ForkedError


class _Forks:
    """How many forks lie between this process and the first one."""

    count = 0


def _count() -> None:
    _Forks.count += 1


os.register_at_fork(after_in_child=_count)


class Lock(Protocol):
    """A lock of this process, through a descriptor that the child of a fork shares."""

    def release(self) -> None:
        """Close the descriptor."""


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def release_in_child(lock: Lock) -> None:
    """Have a child give its own copy of a lock away at once: else it would last for as long as the child lives."""
    _locks.add(lock)


def _release_all() -> None:
    for lock in list(_locks):
        lock.release()  # of the child's copy; the parent's lock stays
    _locks.clear()


os.register_at_fork(after_in_child=_release_all)


class Origin:
    """The process that something was opened in.

    Each call of a client asks for it. So it compares two counts: the number of the process would be a system call.

    Parameters
    ----------
    what
        What was opened, for the error: "the client".
    """

    __slots__ = ("_forks", "_what")

    def __init__(self, what: str) -> None:
        self._forks = _Forks.count
        self._what = what

    @property
    def is_here(self) -> bool:
        """Whether that is this process."""
        return self._forks == _Forks.count

    def require(self) -> None:
        """Refuse to go on in a child.

        Raises
        ------
        ForkedError
            If this process was forked from the one that opened it.
        """
        if self._forks != _Forks.count:
            raise ForkedError(f"{self._what} was opened before a fork, in the parent process: open again in the child")
