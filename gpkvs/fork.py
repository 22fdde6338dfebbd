"""Forks of this process: what was opened before one belongs to the parent, and the child is told so."""

from __future__ import annotations

import os

from gpkvs.errors import ForkedError


class _Forks:
    """How many forks lie between this process and the first one."""

    count = 0


def _count() -> None:
    _Forks.count += 1


os.register_at_fork(after_in_child=_count)


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
