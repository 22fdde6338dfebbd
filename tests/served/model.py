"""What a client knows of its own keys: their values, versions and expiries, and which answers may come.

The server decides when a key has expired, and which requests it has executed before it was killed. So a client may know
several states that are possible; an answer says which of them was the right one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple, Protocol

CLOCKS_MS = 50  # by which a moment may be told wrongly: the server rounds, and its clock is never set back

Key = tuple[str, bytes]  # table, key


class WrongAnswerError(Exception):
    """The server said or kept what no state allows."""


class Moment(NamedTuple):
    """Between which two times the server did something, milliseconds since 1970."""

    first: int
    last: int


@dataclass(frozen=True)
class Within:
    """A number of an answer that may be any of these."""

    first: int
    last: int


@dataclass(frozen=True)
class Held:
    """What a key holds.

    Attributes
    ----------
    value
        Its value.
    expiry
        Between which two times it expires; None: never.
    version
        None: not known.
    """

    value: bytes
    expiry: Moment | None = None
    version: int | None = None

    def may_be_gone(self, at: Moment) -> bool:
        """Whether it may have expired."""
        return self.expiry is not None and at.last >= self.expiry.first - CLOCKS_MS

    def must_be_gone(self, at: Moment) -> bool:
        """Whether it must have expired."""
        return self.expiry is not None and at.first >= self.expiry.last + CLOCKS_MS


State = dict[Key, Held]


class Unit(Protocol):
    """What the server does as one: a request, a command, a transaction."""

    @property
    def keys(self) -> Iterable[Key]:
        """Return the keys that it looks at."""

    def run(self, state: State, at: Moment) -> Any:
        """Change a state as the server does; return the answer."""


@dataclass
class Model:
    """A client's keys, as the answers so far leave them. An APPEND over gRPC does not say whether the key was there."""

    states: list[State] = field(default_factory=lambda: [{}])  # that are possible
    versions: dict[str, int] = field(default_factory=dict)  # the newest that was seen, by table

    @property
    def state(self) -> State:
        """Return one of the states that are possible."""
        return self.states[0]

    def take(self, unit: Unit, at: Moment, answer: Any, fits: Callable[[Any, Any], bool]) -> None:
        """Go on as a unit and its answer say.

        Raises
        ------
        WrongAnswerError
            If none of the states that are possible leads to the answer.
        """
        expected: list[Any] = []

        def run(state: State, moment: Moment) -> None:
            expected.append(unit.run(state, moment))

        changed = [state for before in self.states for state in variants(before, unit.keys, at, run)]
        fitting = [state for state, one in zip(changed, expected, strict=True) if fits(one, answer)]
        if not fitting:
            before = {key: self.state.get(key) for key in unit.keys}
            raise WrongAnswerError(f"{unit}\n  before {before}\n  at {at}\n  answered {answer}\n  expected {expected}")
        self.states = [state for number, state in enumerate(fitting) if state not in fitting[:number]]

    def after(self, units: Sequence[Unit], at: Moment) -> list[State]:
        """Return the states that are possible if nobody knows how many of some units were executed, in their order."""
        possible = latest = self.states
        for unit in units:
            latest = [changed for state in latest for changed in variants(state, unit.keys, at, unit.run)]
            possible = possible + latest
        return possible

    def settle(self, possible: Sequence[State], found: State, at: Moment) -> None:
        """Go on from what the server holds, which must be one of the states that are possible.

        Raises
        ------
        WrongAnswerError
            If it is none of them.
        """
        differences = []
        for state in possible:
            different = [key for key in state.keys() | found.keys() if not _fits(state.get(key), found.get(key), at)]
            if not different:
                self.states = [dict(found)]
                return
            differences.append({key: (_short(state.get(key)), _short(found.get(key))) for key in different[:3]})
        raise WrongAnswerError(f"of {len(possible)} states none is there; (should be, is) {differences[-5:]}")


def variants(
    state: State, keys: Iterable[Key], at: Moment, run: Callable[[State, Moment], Any] = lambda state, at: None
) -> Iterator[State]:
    """Yield copies of a state in which the keys that may have expired have, or have not; something is run on each."""
    held = {key: state[key] for key in keys if key in state}
    gone = [key for key, value in held.items() if value.must_be_gone(at)]
    unsure = [key for key, value in held.items() if value.may_be_gone(at) and key not in gone]
    for count in range(len(unsure) + 1):
        for some in combinations(unsure, count):
            copy = dict(state)
            for key in (*gone, *some):
                del copy[key]
            run(copy, at)
            yield copy


def now_ms() -> int:
    """Return the time as servers tell it."""
    return time.time_ns() // 1_000_000


def until(at: Moment, ttl: int) -> Moment | None:
    """Return when a key expires that was given so many milliseconds; 0: never."""
    return Moment(at.first + ttl, at.last + ttl) if ttl else None


def _short(held: Held | None) -> object:
    return held and replace(held, value=held.value[:60])


def _fits(held: Held | None, found: Held | None, at: Moment) -> bool:
    if held is None:
        return found is None
    if found is None:
        return held.may_be_gone(at)
    if held.must_be_gone(at) or held.value != found.value or (held.expiry is None) != (found.expiry is None):
        return False
    if held.version is not None and found.version is not None and held.version != found.version:
        return False
    return held.expiry is None or found.expiry is None or is_within(held.expiry, found.expiry.first)


def is_within(moment: Moment | Within, number: int) -> bool:
    """Whether a time that a server tells is the one that it should be."""
    return moment.first - CLOCKS_MS <= number <= moment.last + CLOCKS_MS
