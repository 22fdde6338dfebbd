"""Keeps processors awake, without taking time from anybody: a halted one adds its own wake-up to a latency."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_SPIN = """
import os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
os.sched_setaffinity(0, {int(sys.argv[1])})
while True: pass
"""


@contextmanager
def awake() -> Iterator[None]:
    """Let a process of the lowest priority compute on each processor; any other thread displaces it at once."""
    with ExitStack() as stack:
        for processor in os.sched_getaffinity(0):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _SPIN, str(processor)]))
            stack.callback(process.kill)
        yield
