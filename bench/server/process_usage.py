"""The memory and the processor time of a process, as Linux counts them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_CPUCLOCK_SCHED = 2


@dataclass(frozen=True)
class Resident:
    """Resident bytes of a process.

    Parameters
    ----------
    store_bytes
        The mapped files of its store: page cache that the kernel may take back, or the tmpfs itself.
    other_bytes
        Everything else.
    """

    store_bytes: int
    other_bytes: int


def resident(pid: int, store: Path) -> Resident:
    """Return the resident bytes of a process; the files under `store` are counted apart.

    Notes
    -----
    From ``/proc/PID/smaps``: the line of a mapping names its file, its line ``Rss`` the resident KiB.
    """
    prefix = f"{store.resolve()}/"
    sizes = {True: 0, False: 0}
    is_store = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split(maxsplit=5)
        if name == "Rss:":
            sizes[is_store] += int(rest[0]) << 10
        elif not name.endswith(":"):
            is_store = len(rest) == 5 and rest[4].startswith(prefix)
    return Resident(store_bytes=sizes[True], other_bytes=sizes[False])


def cpu_seconds(pid: int) -> float:
    """Return the processor time that all threads of a process have used.

    The clock is that of clock_getcpuclockid(3), in nanoseconds: /proc counts hundredths of a second.
    """
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
