"""The memory that this process uses, and may use: the machine's, or less if its control groups say so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Hierarchy(NamedTuple):
    """Where a version of control groups keeps its figures."""

    controller: str
    root: str
    limit: str
    used: str
    reclaimable: tuple[str, str]  # in memory.stat: pages of files, which are given up when memory is short


_HIERARCHIES = (
    _Hierarchy("", "/sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")),
    _Hierarchy(
        "memory",
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMINFO = Path("/proc/meminfo")


class _Group(NamedTuple):
    folder: Path
    kind: _Hierarchy

    @property
    def limit(self) -> int:
        """Its limit in bytes; 0 if it has none."""
        return _number(self.folder / self.kind.limit)

    @property
    def free_bytes(self) -> int:
        used = _number(self.folder / self.kind.used)
        found = _fields(self.folder / "memory.stat")
        reclaimable = sum(found.get(name, 0) for name in self.kind.reclaimable)
        return max(self.limit - max(used - reclaimable, 0), 0)


def machine_bytes() -> int:
    """Return the memory that this process may use."""
    machine = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    return min([machine, *(group.limit for group in _limited_groups())])


def anonymous_bytes() -> int:
    """Return the memory of this process that is in use and belongs to no file."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def free_bytes() -> int | None:
    """Return the memory that this process can still get without swapping; None if the system does not say."""
    available = _fields(_MEMINFO).get("MemAvailable:")
    free = [group.free_bytes for group in _limited_groups()]
    if available is not None:
        free.append(available << 10)
    return min(free, default=None)


def _limited_groups() -> Iterator[_Group]:
    """Find the groups of this process that have a limit, and all groups above: their limits hold too."""
    for kind in _HIERARCHIES:
        for controllers, path in _own_groups():
            if kind.controller in controllers.split(","):
                # In a container the path may lead out of the mounted tree.
                inner = Path(kind.root, path.lstrip("/"))
                for folder in [inner, *inner.parents]:
                    group = _Group(folder, kind)
                    if folder.is_relative_to(kind.root) and group.limit:
                        yield group


def _own_groups() -> list[tuple[str, str]]:
    """Return the controllers and the path of each group that this process is in."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(controllers, path) for _, controllers, path in (line.split(":", 2) for line in lines)]


def _number(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def _fields(path: Path) -> dict[str, int]:
    """Return the names and numbers that a file has, a pair a line."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
