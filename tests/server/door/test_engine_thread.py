"""The engine's thread behind the native door."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from gpkvs.process.fatal import EXIT_FATAL
from gpkvs.server.door.engine_thread import EngineThread
from gpkvs.server.door.native_door import NativeDoor

TURN_FAILS = """
from gpkvs.server.door.engine_thread import EngineThread

def turn():
    raise MemoryError("no more of it")

thread = EngineThread(lambda: None)
thread.begin(turn)
thread.submit(int).result()
"""


def test_a_turn_that_fails_ends_the_process() -> None:
    """Else the server would go on, and no request would ever be answered."""
    done = subprocess.run([sys.executable, "-c", TURN_FAILS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_FATAL
    assert "a turn of the engine failed: MemoryError: no more of it. The process stops here" in done.stderr


TURN_GOES_ON = """
import threading
from gpkvs.server.door.engine_thread import EngineThread

began, may_end = threading.Event(), threading.Event()

def turn():
    began.set()
    return may_end.wait(60)

thread = EngineThread(lambda: None)
thread.begin(turn)
began.wait(60)
thread.shutdown(wait=False)
may_end.set()
thread.shutdown()
"""


def test_a_turn_that_goes_on_at_the_end_is_the_last_one() -> None:
    done = subprocess.run([sys.executable, "-c", TURN_GOES_ON], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_door_knows_the_tables_before_who_changed_them() -> None:
    """Else a request on a new table would be taken for one on an older table of its name."""
    store, known = object(), list[object]()
    door: Any = NativeDoor.__new__(NativeDoor)
    door.engine_thread, door._store, door._set_tables = EngineThread(lambda: None), store, known.append
    door.engine_thread.submit(time.sleep, 0.05)  # a batch
    door.tables_changed()
    assert known == [store]
    door.engine_thread.shutdown()
