"""Does the explorer see a missing persist? Each fence, write-back and sync is left out, one at a time.

The stores of a build do not depend on its persists. So a build without one of them makes the same trace without these
events, and a *mutant* needs no build: its traces, of the workload and of every recovery after it, are filtered. If no
model catches a mutant, then nothing needs the persist, or the explorer has a hole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpkvs.recovery.proof.powerfail.crash_models import Model
from gpkvs.recovery.proof.powerfail.explorer import Explorer, StateName
from gpkvs.recovery.proof.powerfail.trace import HOST_STORE, ORDERING, Event, Kind, Mutation
from gpkvs.recovery.proof.powerfail.workloads import Workload

# Together they run every persist; the short ones come first.
WORKLOADS = (
    "bytes:N",
    "u64:N",
    "bytes:E",
    "bytes:O",
    "u64:C",
    "bytes:X",
    "bytes:I",
    "bytes:L",
    "bytes:H",
    "bytes:Z",
    "u64:P",
    "bytes:K",
    "bytes:k",
)
# Which models can see that an event of a kind is missing. The others ignore such events, or see no more than these.
_SEEN_BY = {
    Kind.FENCE: (Model.ADR8, Model.GPU),
    Kind.WRITE_BACK: (Model.ADR8,),
    Kind.SYNC: (Model.PAGE,),
    Kind.FILE_SYNC: (Model.ADR8, Model.PAGE),  # after a SYNC of the same file, the size is lost in ADR8 alone
    Kind.NAMES_SYNC: (Model.PAGE,),
}

Place = tuple[int, str]  # a depth and a workload


@dataclass(frozen=True)
class MutantVerdict:
    """Whether a state showed a mutant, and which."""

    mutation: Mutation
    caught: StateName | None  # the first state that shows the mutant
    message: str
    states: int  # visited until then


def mutations_of(events: Iterable[Event]) -> set[Mutation]:
    """Return every mutation of some events: for each persist of memory, leave out its fence, its write-backs, or both.

    All stores of the host share one fence in the source, so one mutation leaves it out for all of them. Their
    write-backs, and their whole persists, are left out one by one.
    """
    kinds: dict[str, set[Kind]] = {}
    for event in events:
        if event.kind in ORDERING:
            kinds.setdefault(event.site, set()).add(event.kind)
    found = set()
    for site, there in kinds.items():
        found.add(Mutation(site, frozenset(there)))
        for kind in there:
            is_shared = kind is Kind.FENCE and site.startswith(HOST_STORE)
            found.add(Mutation(HOST_STORE if is_shared else site, frozenset({kind})))
    return found


def mutations_in(explorer: Explorer, workload: str) -> dict[Mutation, list[Place]]:
    """Return the mutations of a workload and of the recoveries after its crashes, each with its places."""
    found: dict[Mutation, list[Place]] = {}
    for depth, events in enumerate(explorer.events(Workload.parse(workload)), 1):
        for mutation in mutations_of(events):
            found.setdefault(mutation, []).append((depth, workload))
    return found


def verdict(explorer: Explorer, mutation: Mutation, places: list[Place]) -> MutantVerdict:
    """Explore a mutant in the places where it runs, until a state shows it."""
    states = 0
    wanted = [model for kind in mutation.kinds for model in _SEEN_BY[kind]]
    models = tuple(model for model in explorer.options.models if model in wanted)
    for depth, workload in sorted(places, key=lambda place: (place[0], WORKLOADS.index(place[1]))):
        options = replace(explorer.options, models=models, depth=depth, mutation=mutation, stop_early=True)
        visited = explorer.with_options(options).explore(Workload.parse(workload))
        states += len(visited.distinct)
        if visited.violations:
            first = visited.violations[0]
            return MutantVerdict(mutation, first.state, first.message, states)
    return MutantVerdict(mutation, None, "", states)
