"""Commands that can wait leave the processors to others."""

from __future__ import annotations

import os
from contextlib import suppress

_NICE = 10


def give_way() -> None:
    """Run with a lower priority from here on: the server, and its clients, may be on this machine.

    A thread takes the priority of the one that begins it: this comes before whatever begins threads.
    """
    with suppress(OSError):  # the system forbids it
        os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), _NICE))
