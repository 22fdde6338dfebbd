"""The engine's thread behind the native door."""

from __future__ import annotations

import subprocess
import sys

from gpkvs.fatal import EXIT_FATAL

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
