"""One operation of a workload: how each way to persist does it, and what it stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpkvs.bench.gpm.cap import Cap


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Operation:
    """What is timed.

    Parameters
    ----------
    name
        As GPM's figure 9 calls it: "gpDB (U)".
    kind
        "transactional", "checkpointing" or "native".
    what
        What the time is of.
    run_gpm
        Do it with gpkvs.gpm.
    run_cap
        Do it with the host persisting what is computed.
    stored_bytes
        What gpkvs.gpm stores durably, without its log.
    log_bytes
        What goes to its log.
    reset
        Make ready for the next run; not timed.
    restore
        What recovery does after the worst crash; `None` where a workload has no recovery of its own.
    crash
        Bring about what `restore` finds; not timed.
    whole
        How often the operation is done in a run of the workload, and the seconds of computing beside each.
    """

    name: str
    kind: str
    what: str
    run_gpm: Callable[[], object]
    run_cap: Callable[[Cap], object]
    stored_bytes: int
    log_bytes: int = 0
    reset: Callable[[], object] = nothing
    restore: Callable[[], object] | None = None
    crash: Callable[[], object] = nothing
    compute: Callable[[], object] | None = None
