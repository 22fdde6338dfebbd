"""Processors and open files: what a process may use of them."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpkvs.bench.report.machine import kernel_version, processor
from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.doctor.memory import usual_bounds
from gpkvs.process.machine import group_processors
from gpkvs.server.ports.open_files import kept_of
from gpkvs.text import counted

_OWN_FILES: Final = 30  # of an idle server with one table; measured: 27 to 29
_LEFT_MIN: Final = 64  # a server makes no table when it has fewer left (gpkvs/engine/tables/table_quota.py)

_PROCESSORS = "A server runs large batches on all processors (--threads), and connections beside them."
_KERNEL = "gpkvs runs on Linux alone."
_FILES = "Each connection and each table takes an open file; a server raises its limit to the hard one by itself."


def processor_facts(root: Path) -> Iterator[Fact]:
    """Look at the processors, and at how many files a process may have open."""
    yield Fact("kernel", Verdict.FINE, f"Linux {kernel_version(os.uname().release)}, {os.uname().machine}", _KERNEL)
    yield processors_fact(len(os.sched_getaffinity(0)), group_processors(root))
    bounds = usual_bounds(root)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = None if hard == resource.RLIM_INFINITY else hard
    yield files_fact(limit, bounds.connections_max if bounds else 0)


def processors_fact(count: int, quota: float | None) -> Fact:
    """Judge the processors that a process may run on, and the time that control groups give it of them."""
    value = f"{counted(count, 'processor')} ({processor()})"
    figures = {"processors": count, "cgroup_processors": quota}
    if quota is not None and quota < count:
        value += f", and the time of {quota:g} of them by the control group"
        threads = max(math.floor(quota), 1)
        why = "A server has a thread for each processor; with less time for them all, the kernel stops them together."
        return Fact("processors", Verdict.BETTER, value, why, f"gpkvs serve --threads {threads}", figures)
    if count == 1:
        why = "Clients' connections, batches and flushes take turns on one processor."
        return Fact("processors", Verdict.BETTER, value, why, "a second processor", figures)
    return Fact("processors", Verdict.FINE, value, _PROCESSORS, figures=figures)


def files_fact(limit: int | None, connections_max: int) -> Fact:
    """Judge how many files a server may have open.

    Parameters
    ----------
    limit
        The hard limit; None: there is none.
    connections_max
        Connections for which a server has memory.
    """
    if limit is None:
        return Fact("open files", Verdict.FINE, "no limit", _FILES, figures={"open_files_max": None})
    connections = max(limit - _OWN_FILES - kept_of(limit), 0)
    figures = {"open_files_max": limit, "connections_max": connections}
    value = f"{limit:,}, for about {counted(connections, 'connection')} and tables"
    mend = "ulimit -Hn 65536 (as root), or LimitNOFILE=65536 in the unit (docker run --ulimit nofile=65536)"
    if limit <= _OWN_FILES:
        return Fact("open files", Verdict.WRONG, f"{value}: a server does not start", _FILES, mend, figures)
    if limit <= _OWN_FILES + _LEFT_MIN:
        return Fact("open files", Verdict.BETTER, f"{value}: no table can be made", _FILES, mend, figures)
    if connections < connections_max:
        value += f"; there is memory for {connections_max:,}"
        return Fact("open files", Verdict.BETTER, value, _FILES, mend, figures)
    return Fact("open files", Verdict.FINE, value, _FILES, figures=figures)
