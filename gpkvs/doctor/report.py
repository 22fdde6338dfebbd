"""The facts as people read them, and as scripts do."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from gpkvs.doctor.fact import Fact, Group, Verdict

_WIDTH: Final = 100
_SHOWN: Final = {
    Verdict.FINE: "fine",
    Verdict.BETTER: "better",
    Verdict.WRONG: "WRONG",
    Verdict.UNSEEN: "not seen",
}
_ROOM: Final = 2 + max(map(len, _SHOWN.values())) + 2


def worst(groups: Iterable[Group]) -> Verdict:
    """Return the worst verdict; what was not seen is no fault."""
    found = {fact.verdict for group in groups for fact in group.facts}
    return next((verdict for verdict in (Verdict.WRONG, Verdict.BETTER) if verdict in found), Verdict.FINE)


def as_dict(groups: list[Group]) -> dict[str, object]:
    """Return the report for JSON."""
    facts = [
        {
            "group": group.title,
            "name": fact.name,
            "verdict": str(fact.verdict),
            "value": fact.value,
            "why": fact.why,
            "mend": fact.mend,
            "figures": dict(fact.figures),
        }
        for group in groups
        for fact in group.facts
    ]
    return {"verdict": str(worst(groups)), "facts": facts}


def lines_of(groups: list[Group]) -> Iterator[str]:
    """Return the report as lines; a value or a mend is one line, so that it can be copied."""
    names = max(len(fact.name) for group in groups for fact in group.facts) + 2
    for group in groups:
        yield group.title
        for fact in group.facts:
            yield from _lines(fact, names)
        yield ""
    yield _sum(groups)


def _lines(fact: Fact, names: int) -> Iterator[str]:
    indent = " " * (_ROOM + names)
    yield f"  {_SHOWN[fact.verdict]:<{_ROOM - 2}}{fact.name:<{names}}{fact.value}"
    yield from textwrap.wrap(fact.why, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    if fact.mend:
        yield f"{indent}mend: {fact.mend}"


def _sum(groups: list[Group]) -> str:
    counts = Counter(fact.verdict for group in groups for fact in group.facts)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict) + "."
