"""A fact about the machine, and what we think of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What we think of a fact."""

    FINE = "fine"
    BETTER = "could be better"
    WRONG = "wrong"  # it loses data, or stops a server
    UNSEEN = "not seen"  # it could not be looked at


@dataclass(frozen=True)
class Fact:
    """One thing that was looked at.

    Parameters
    ----------
    name
        What it is called; no other fact has the name.
    verdict
        What we think of it.
    value
        What was found, for people; if it could not be looked at, why.
    why
        Why it matters: a sentence.
    mend
        The command or the option that makes it better; "" if it is fine.
    figures
        The same as `value`, for scripts.
    """

    name: str
    verdict: Verdict
    value: str
    why: str
    mend: str = ""
    figures: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert bool(self.mend) == (self.verdict in (Verdict.BETTER, Verdict.WRONG)), self.name


@dataclass(frozen=True)
class Group:
    """Facts about one part of the machine."""

    title: str
    facts: Sequence[Fact]
