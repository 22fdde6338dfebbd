"""What this process uses of the machine, and may use: all of it, or less if its control groups say so.

A function that takes `root` looks below it for what the system keeps in ``/proc`` and ``/sys``.
"""

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
    _Hierarchy("", "sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")),
    _Hierarchy(
        "memory",
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ROOT = Path("/")
# Where each version keeps the limits on processors: folder, file of the quota, file of its period (or both in one).
_QUOTAS = (
    ("", "sys/fs/cgroup", "cpu.max", ""),
    ("cpu", "sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
)


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


def machine_bytes(root: Path = _ROOT) -> int:
    """Return the memory that this process may use."""
    return group_bytes(root) or physical_bytes()


def physical_bytes() -> int:
    """Return the memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES


def group_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory that the control groups of this process allow; None if that is not less than the machine's."""
    limits = [group.limit for group in _limited_groups(root)]
    return min((limit for limit in limits if limit < physical_bytes()), default=None)


def group_processors(root: Path = _ROOT) -> float | None:
    """Return how many processors' time the control groups of this process allow; None without a limit."""
    shares = []
    for controller, tree, quota, period in _QUOTAS:
        for folder in _own_folders(controller, root / tree, root):
            words = _text(folder / quota).split() + (_text(folder / period).split() if period else [])
            if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):  # not "max", not -1
                shares.append(int(words[0]) / int(words[1]))
    return min(shares, default=None)


def anonymous_bytes() -> int:
    """Return the memory of this process that is in use and belongs to no file."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def free_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory that this process can still get without swapping; None if the system does not say."""
    available = _fields(root / "proc/meminfo").get("MemAvailable:")
    free = [group.free_bytes for group in _limited_groups(root)]
    if available is not None:
        free.append(available << 10)
    return min(free, default=None)


def _limited_groups(root: Path) -> Iterator[_Group]:
    """Find the groups of this process that have a limit on memory."""
    for kind in _HIERARCHIES:
        for folder in _own_folders(kind.controller, root / kind.root, root):
            group = _Group(folder, kind)
            if group.limit:
                yield group


def _own_folders(controller: str, tree: Path, root: Path) -> Iterator[Path]:
    """Find the groups of this process for a controller, and all groups above: their limits hold too."""
    for controllers, path in _own_groups(root):
        if controller in controllers.split(","):
            # In a container the path may lead out of the mounted tree.
            inner = tree / path.lstrip("/")
            yield from (folder for folder in [inner, *inner.parents] if folder.is_relative_to(tree))


def _own_groups(root: Path) -> list[tuple[str, str]]:
    """Return the controllers and the path of each group that this process is in."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    return [(controllers, path) for _, controllers, path in (line.split(":", 2) for line in lines)]


def _number(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    """Return what a file says; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    """Return the names and numbers that a file has, a pair a line."""
    lines = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
