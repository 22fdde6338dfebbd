"""One operation of a workload: how each way to persist does it, and what it stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpkvs.bench.gpm.cap import Cap


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
        What is done.
    run_gpm
        Do it with gpkvs.gpm.
    run_cap
        Do it with the host persisting what is computed, or nothing (`VOLATILE`).
    stored_bytes
        What gpkvs.gpm stores durably, without its log.
    log_bytes
        What goes to its log.
    reset
        Make ready for a run, with `run_cap` or (`None`) with gpkvs.gpm; not timed.
    crash
        Bring about what `restore` finds, at worst; not timed.
    restore
        What recovery does; `None` where a workload has no recovery of its own.
    whole_seconds
        How long a run of the workload takes, for operations that are only a part of it, by the seconds of one.
    """

    name: str
    kind: str
    what: str
    run_gpm: Callable[[], object]
    run_cap: Callable[[Cap], object]
    stored_bytes: int
    log_bytes: int = 0
    reset: Callable[[Cap | None], object] = lambda cap: None
    crash: Callable[[], object] = lambda: None
    restore: Callable[[], object] | None = None
    whole_seconds: Callable[[float], float] = lambda seconds: seconds
