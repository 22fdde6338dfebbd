"""Memory: what the machine and the control groups give, what clients may take of it, and pages of 2 MiB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpkvs.config import MIB, Limits, ServerConfig, StoreConfig
from gpkvs.doctor.fact import Fact, Verdict
from gpkvs.errors import InvalidArgumentError
from gpkvs.process.machine import free_bytes, group_bytes, physical_bytes
from gpkvs.process.mounts import Mount
from gpkvs.server.account.bounds import PROCESS_BYTES, PROCESS_SHARE, Bounds, bounds_of, usual_memory_bytes
from gpkvs.text import readable_bytes

_HUGE: Final = Path("sys/kernel/mm/transparent_hugepage/enabled")

_MEMORY = "Indexes of a store with a journal, clients' requests and the page cache share it."
_USUAL = "Clients can make a server take so much (--memory-max); it bounds connections and sizes of messages, too."
_PAGES = "gpkvs asks for pages of 2 MiB for what it holds in memory: a processor finds its way in them faster."
_TMPFS = "A GPU registers a store in memory in a quarter of the time where its pages have 2 MiB (docs/gpu.md)."


def usual_bounds(root: Path) -> Bounds | None:
    """Return the bounds of a server without options; None if it would not start for want of memory."""
    try:
        return bounds_of(ServerConfig(), Limits(), StoreConfig().batch_result_bytes_max, usual_memory_bytes(root))
    except InvalidArgumentError:
        return None


def memory_facts(mount: Mount | None, root: Path, *, has_gpu: bool) -> Iterator[Fact]:
    """Look at the memory."""
    yield _memory(root)
    yield _usual(root)
    yield huge_fact(root)
    if mount and mount.kind == "tmpfs":
        yield tmpfs_fact(mount, has_gpu=has_gpu)


def _memory(root: Path) -> Fact:
    group, free = group_bytes(root), free_bytes(root)
    figures = {"machine_bytes": physical_bytes(), "cgroup_bytes": group, "free_bytes": free}
    value = f"{readable_bytes(physical_bytes())} in the machine, "
    value += f"{readable_bytes(group)} for the control group" if group else "no limit of a control group"
    if free is None:
        return Fact("memory", Verdict.UNSEEN, f"{value}; the system does not say how much is free", _MEMORY)
    value += f", {readable_bytes(free)} free"
    needed = int(PROCESS_SHARE * usual_memory_bytes(root)) + PROCESS_BYTES
    if free < needed:
        mend = f"free memory or more of it, or gpkvs serve --memory-max {max(free // 4 // MIB, 64)}MiB"
        why = f"A server whose clients take all that they may needs {readable_bytes(needed)} beside its indexes."
        return Fact("memory", Verdict.BETTER, value, why, mend, figures)
    return Fact("memory", Verdict.FINE, value, _MEMORY, figures=figures)


def _usual(root: Path) -> Fact:
    taken, bounds = usual_memory_bytes(root), usual_bounds(root)
    figures = {"memory_bytes_max": taken, "connections_max": bounds.connections_max if bounds else 0}
    if not bounds:
        value = f"{readable_bytes(taken)} by default: a server does not start with so little"
        return Fact(
            "memory-max", Verdict.WRONG, value, _USUAL, "gpkvs serve --memory-max 64MiB, or more memory", figures
        )
    value = (
        f"{readable_bytes(taken)} by default: {bounds.connections_max:,} connections, "
        f"messages of up to {readable_bytes(bounds.config.message_bytes_max)}"
    )
    return Fact("memory-max", Verdict.FINE, value, _USUAL, figures=figures)


def huge_fact(root: Path) -> Fact:
    """Judge what the kernel says of transparent huge pages."""
    try:
        text = (root / _HUGE).read_text()
    except OSError as error:
        return Fact("huge pages", Verdict.UNSEEN, f"/{_HUGE}: {error.strerror}", _PAGES)
    found = re.search(r"\[(\w+)\]", text)
    if not found:
        return Fact("huge pages", Verdict.UNSEEN, f"/{_HUGE} has no choice in brackets", _PAGES)
    figures = {"transparent_hugepages": found[1]}
    if found[1] == "never":
        return Fact("huge pages", Verdict.BETTER, found[1], _PAGES, f"echo madvise > /{_HUGE} (as root)", figures)
    return Fact("huge pages", Verdict.FINE, found[1], _PAGES, figures=figures)


def tmpfs_fact(mount: Mount, *, has_gpu: bool) -> Fact:
    """Judge the pages of a file system in memory; without a GPU they do not matter."""
    huge = next((option for option in mount.options if option.startswith("huge=")), "huge=never")
    figures = {"tmpfs": huge}
    if has_gpu and huge == "huge=never":
        return Fact("huge tmpfs", Verdict.BETTER, huge, _TMPFS, f"mount -o remount,huge=always {mount.point}", figures)
    return Fact("huge tmpfs", Verdict.FINE, huge, _TMPFS, figures=figures)
