"""A client process that makes SETs, one call at a time, until its standard input ends.

    python -m gpkvs.bench.server.set_caller TARGET FIRST RECORDS

It prints a line when the first SET is durable, and how many there were at the end.
"""

from __future__ import annotations

import sys
import threading

from gpkvs.bench.peers.embedded_gpkvs import TABLE
from gpkvs.bench.server.load import DrawnKeys
from gpkvs.client import Client


def main(target: str, first: str, records: str) -> None:
    """Make SETs of the records from the first one on."""
    keys = DrawnKeys(int(records), seed=6, first=int(first)).singly()
    is_ending = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_ending.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    done = 0
    with Client(target, table=TABLE, timeout=60) as client:
        while not is_ending.is_set():
            key = next(keys)
            client.set(key, key)
            done += 1
            if done == 1:
                print("running", flush=True)
    print(done, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
