"""A `gpkvs serve` in whose process a thread of Python is always busy: what it may not slow down is native.

    python -m gpkvs.bench.door.busy_server serve --data ...

`gpkvs bench door` starts it as a process of its own.
"""

from __future__ import annotations

import runpy
import threading


def burn() -> None:
    """Compute for ever."""
    while True:
        pass


if __name__ == "__main__":
    threading.Thread(target=burn, daemon=True).start()
    runpy.run_module("gpkvs.cli", run_name="__main__")
