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
    own_bytes
        What no file has.
    library_bytes
        Its program and libraries, which processes share.
    """

    store_bytes: int
    own_bytes: int
    library_bytes: int

    @property
    def other_bytes(self) -> int:
        """All but the store."""
        return self.own_bytes + self.library_bytes


def resident(pid: int, store: Path) -> Resident:
    """Return the resident bytes of a process; the files under `store` are counted apart.

    Notes
    -----
    From ``/proc/PID/smaps``: the line of a mapping names its file, its line ``Rss`` the resident KiB.
    """
    prefix = f"{store.resolve()}/"
    sizes = {"store": 0, "own": 0, "library": 0}
    whose = "own"
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split(maxsplit=5)
        if name == "Rss:":
            sizes[whose] += int(rest[0]) << 10
        elif not name.endswith(":"):
            file = rest[4] if len(rest) == 5 else ""
            whose = "store" if file.startswith(prefix) else "library" if file.startswith("/") else "own"
    return Resident(sizes["store"], sizes["own"], sizes["library"])


def cpu_seconds(pid: int) -> float:
    """Return the processor time that all threads of a process have used.

    The clock is that of clock_getcpuclockid(3), in nanoseconds: /proc counts hundredths of a second.
    """
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
