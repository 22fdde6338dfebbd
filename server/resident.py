"""The memory that the process takes, as the operating system counts it, and the memory of the machine."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LIBC = ctypes.CDLL(None)
# Where the limit of this process's control group stands: version 2, then version 1.
_GROUP_LIMITS = (
    ("", "/sys/fs/cgroup", "memory.max"),
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
)


def anonymous_bytes() -> int:
    """Return the memory in use that belongs to no file."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


class _Allocated(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def allocated_bytes() -> int:
    """Return the memory that is allocated and not freed; if the C library cannot say, all that belongs to no file."""
    describe = getattr(_LIBC, "mallinfo2", None)  # glibc 2.33 and later have it
    if describe is None:
        return anonymous_bytes()
    describe.restype = _Allocated
    allocated = describe()
    return int(allocated.uordblks + allocated.hblkhd)


def give_back_free() -> None:
    """Return freed memory that the C library keeps to the system. It may take some ms: not for the event loop."""
    trim = getattr(_LIBC, "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def machine_bytes() -> int:
    """Return the memory that this process may use: the machine's, or less if its control groups say so."""
    machine = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    return min([machine, *_group_limits()])


def _group_limits() -> list[int]:
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    limits = []
    for controller, root, name in _GROUP_LIMITS:
        for _, controllers, path in groups:
            if controller in controllers.split(","):
                # The limits of all groups above hold too. In a container the path may lead out of the mounted tree.
                inner = Path(root, path.lstrip("/"))
                folders = [inner, *inner.parents]
                limits += [_number(folder / name) for folder in folders if folder.is_relative_to(root)]
    return [limit for limit in limits if limit]


def _number(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
