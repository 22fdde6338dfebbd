"""Slows failed logins: after three failures the next attempt has to wait, longer each time.

Failures count by address, by user, and by both. An address that has logged in as a user lately is slowed as that user
by their common failures alone: nobody else can lock the user out there. All others are slowed by the failures of their
address and those for the user from anywhere: many users tried from one address, and one user from many addresses.

An attempt counts from its beginning: what is tried meanwhile does not get round it. An address without any failure may
try several users at once, as after a restart of the server.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_FREE = 3  # failures, and attempts under way, without a pause
_FREE_TOGETHER = 16  # attempts under way of an address without a failure
_PAUSE_S, _PAUSE_S_MAX = 0.25, 30.0
_DOUBLINGS_MAX = 7  # then the longest pause is reached
_FORGET_S = 900.0  # since the last attempt
_TRUSTED_S = 86_400.0  # since the last login
_ROWS_MAX = 10_000
_NAME_CHARACTERS = 64

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(slots=True)
class _Row:
    """What is known of a key: its failures, its attempts under way, and when the next one may begin."""

    failures: int = 0
    attempts: int = 0
    free_at: float = 0.0
    used_at: float = 0.0


class _Rows(Generic[_Key]):
    """The rows of a kind of keys, as many as memory may hold: the one that was used longest ago goes first."""

    def __init__(self, clock: Callable[[], float], free_together: int = _FREE) -> None:
        self._clock = clock
        self._free_together = free_together
        self._rows: dict[_Key, _Row] = {}

    def failures(self, key: _Key) -> int:
        row = self._find(key)
        return row.failures if row else 0

    def blocked_s(self, key: _Key) -> float:
        row = self._find(key)
        if row is None:
            return 0.0
        wait = row.free_at - self._clock()
        if wait > 0:
            return wait
        free = _FREE if row.failures else self._free_together
        return _PAUSE_S if row.attempts and row.failures + row.attempts >= free else 0.0

    def begin(self, key: _Key) -> None:
        self._use(key).attempts += 1

    def fail(self, key: _Key) -> None:
        row = self._count_out(key)
        row.failures += 1
        if row.failures >= _FREE:
            doublings = min(row.failures - _FREE, _DOUBLINGS_MAX)
            row.free_at = self._clock() + min(_PAUSE_S * 2**doublings, _PAUSE_S_MAX)

    def end(self, key: _Key, forgiven: int = 0) -> None:
        row = self._count_out(key)
        row.failures = max(0, row.failures - forgiven)

    def _count_out(self, key: _Key) -> _Row:
        row = self._use(key)
        row.attempts = max(0, row.attempts - 1)
        return row

    def _find(self, key: _Key) -> _Row | None:
        row = self._rows.get(key)
        if row is not None and self._clock() - row.used_at >= _FORGET_S:
            del self._rows[key]
            return None
        return row

    def _use(self, key: _Key) -> _Row:
        row = self._find(key) or _Row()
        row.used_at = self._clock()
        _put_last(self._rows, key, row)
        return row


_Value = TypeVar("_Value")


def _put_last(rows: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    rows.pop(key, None)
    if len(rows) >= _ROWS_MAX:
        del rows[next(iter(rows))]
    rows[key] = value


class Throttle:
    """Says who may try to log in with a password; for one event loop.

    Ask `blocked_s`, then `begin`, then verify, then say how it ended: `failed`, `succeeded` or `dropped`. One of them
    has to be said for each attempt that began; a call that was cancelled meanwhile has `failed`.

    Parameters
    ----------
    clock
        Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._addresses = _Rows[str](clock, _FREE_TOGETHER)
        self._users = _Rows[str](clock)
        self._pairs = _Rows[tuple[str, str]](clock)
        self._trusted: dict[tuple[str, str], float] = {}  # since when

    def blocked_s(self, address: str, user: str) -> float:
        """Return for how many seconds no attempt may begin; 0 if it may now.

        Parameters
        ----------
        address
            The peer's IP address, without its port.
        user
            The name as it was given, whether there is such a user or not.
        """
        pair = _pair(address, user)
        if self._clock() - self._trusted.get(pair, -_TRUSTED_S) < _TRUSTED_S:
            return self._pairs.blocked_s(pair)
        network, name = pair
        return max(self._addresses.blocked_s(network), self._users.blocked_s(name))

    def begin(self, address: str, user: str) -> None:
        """Count an attempt that begins."""
        network, name = pair = _pair(address, user)
        self._addresses.begin(network)
        self._users.begin(name)
        self._pairs.begin(pair)

    def failed(self, address: str, user: str) -> None:
        """Count an attempt that has failed."""
        network, name = pair = _pair(address, user)
        self._addresses.fail(network)
        self._users.fail(name)
        self._pairs.fail(pair)

    def succeeded(self, address: str, user: str) -> None:
        """End an attempt that was right: it forgives what this address has got wrong for this user, nothing else."""
        network, name = pair = _pair(address, user)
        failures = self._pairs.failures(pair)
        self._addresses.end(network, failures)
        self._users.end(name, failures)
        self._pairs.end(pair, failures)
        _put_last(self._trusted, pair, self._clock())

    def dropped(self, address: str, user: str) -> None:
        """End an attempt that told nothing, as the password could not be verified."""
        network, name = pair = _pair(address, user)
        self._addresses.end(network)
        self._users.end(name)
        self._pairs.end(pair)


def _pair(address: str, user: str) -> tuple[str, str]:
    """Return the network and the name that count, both short."""
    return _network(address), user[:_NAME_CHARACTERS]


def _network(address: str) -> str:
    """Return what one peer has: an IPv4 address, or a network of IPv6, all addresses of which are its own."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address[:_NAME_CHARACTERS]
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((ip.packed[:8] + bytes(8), 64)))
