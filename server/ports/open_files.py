"""The open files that the server keeps for itself: clients may take the others (door/net/listener.cpp)."""

from __future__ import annotations

import resource
import socket

_KEPT_MAX, _KEPT_SHARE = 64, 8


def kept() -> int:
    """Return how many there are."""
    return kept_of(_limit())


def kept_of(limit: int | None) -> int:
    """Return how many there are of so many open files; None: without a limit."""
    return _KEPT_MAX if limit is None else min(_KEPT_MAX, limit // _KEPT_SHARE)


def is_kept(connection: socket.socket) -> bool:
    """Return whether it takes one of them: the system gives the lowest number that is free, so all below are taken."""
    limit = _limit()
    return limit is not None and connection.fileno() >= limit - kept()


def _limit() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit
