"""A `gpkvs serve` that counts its objects and every call of a function, of Python and of C, in all of its threads.

    python -m gpkvs.bench.server.counting_server FILE serve --data ...

Counting begins with the first SIGUSR1. Each SIGUSR1 writes the counts since the last one to FILE, as JSON. Each call
and return costs some microseconds more: the counts are exact, but the times only show where to look.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from types import FrameType
from typing import Any


class CallCounter:
    """Counts calls by function, and the processor time inside each, without the functions that it calls."""

    def __init__(self) -> None:
        self._calls: dict[str, list[float]] = {}  # by function: calls, seconds
        self._blocks_before = self._blocks_most = 0
        self._counts = False  # not yet: the start of the server is not counted

    def start(self) -> None:
        """Count in this thread, and in threads that are started later."""
        threading.setprofile(self._first_event)
        sys.setprofile(self._thread_profile())

    def _first_event(self, frame: FrameType, event: str, argument: Any) -> None:
        profile = self._thread_profile()
        sys.setprofile(profile)
        profile(frame, event, argument)

    def _thread_profile(self) -> Callable[[FrameType, str, Any], None]:
        stack: list[list[float]] = []
        last = thread_time()

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal last
            if not self._counts:
                return
            now = thread_time()
            if stack:
                stack[-1][1] += now - last
            # Nearly every small object is a block. At each call and return, the objects of the function are alive.
            self._blocks_most = max(self._blocks_most, sys.getallocatedblocks())
            if event == "call":
                entry = self._entry(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}")
            elif event == "c_call":
                entry = self._entry(f"{argument.__module__ or 'C'}:{argument.__qualname__}")
            else:
                if stack:
                    stack.pop()
                last = thread_time()
                return
            entry[0] += 1
            stack.append(entry)
            last = thread_time()

        return profile

    def _entry(self, name: str) -> list[float]:
        return self._calls.setdefault(name, [0, 0.0])

    def take(self) -> dict[str, Any]:
        """Return the counts, and begin again."""
        self._counts = True
        taken, self._calls = self._calls, {}
        objects = self._blocks_most - self._blocks_before
        functions = {name: {"calls": calls, "seconds": seconds} for name, (calls, seconds) in taken.items()}
        self._blocks_before = self._blocks_most = sys.getallocatedblocks()
        return {"objects_most": objects, "functions": functions}


if __name__ == "__main__":
    counter = CallCounter()
    file = Path(sys.argv.pop(1))

    def write(_number: int, _frame: FrameType | None) -> None:
        """Write the counts, so that a reader sees all of them or none."""
        part = file.with_suffix(".part")
        part.write_text(json.dumps(counter.take()))
        part.rename(file)

    signal.signal(signal.SIGUSR1, write)
    counter.start()
    runpy.run_module("gpkvs.cli", run_name="__main__")
