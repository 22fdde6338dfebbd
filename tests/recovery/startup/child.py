"""The process that crash tests kill: opens a store, runs batches given on the command line, says what was acknowledged.

Run as ``python child.py STORE BATCHES`` with BATCHES a JSON list of lists of ["set", key, value], ["delete", key],
["get", key]; prints one line "ack N" for each batch when it is durable.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpkvs
from gpkvs.batch import Batch, Op

SIZES = {"index_bytes": 64 << 10, "index_bytes_max": 64 << 10, "heap_bytes": 1 << 20, "log_bytes": 256 << 10}


def parse(operation: list[str]) -> tuple[Op, bytes] | tuple[Op, bytes, bytes]:
    """Turn ["set", key, value] into what `Batch.of` takes."""
    kind = {"get": Op.GET, "set": Op.SET, "delete": Op.DELETE}[operation[0]]
    arguments = [text.encode() for text in operation[1:]]
    return (kind, arguments[0], arguments[1]) if kind is Op.SET else (kind, arguments[0])


def main() -> None:
    """Run the batches."""
    store = gpkvs.open(Path(sys.argv[1]), threads=2, **SIZES)
    print("open", flush=True)
    for number, batch in enumerate(json.loads(sys.argv[2])):
        store.execute(Batch.of([parse(operation) for operation in batch]))
        print(f"ack {number}", flush=True)
    store.close()


if __name__ == "__main__":
    main()
