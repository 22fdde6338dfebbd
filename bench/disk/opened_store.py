"""A process that opens a store and is killed, so that the opening can be timed from outside.

    python -m gpkvs.bench.disk.opened_store [DIRECTORY]

It prints a line when the store is open, and then kills itself: nothing is closed. Without a directory it only starts
Python with the same modules.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import gpkvs


def main(*arguments: str) -> None:
    """Open the store."""
    replayed = 0
    if arguments:
        store = gpkvs.open(arguments[0], create=False)
        replayed = store.recovery.replayed_batches
    print(json.dumps({"replayed_batches": replayed}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
