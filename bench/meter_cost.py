"""What counting seconds and bytes by phase costs a transaction.

    python bench/meter_cost.py --seconds 10

Batches run with and without the meter in turn, in one process on one store; prints one JSON object for each size of
batch, with the median time of a transaction and the median difference of the pairs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from statistics import mean, median

import numpy as np

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.metrics import Meter
from gpkvs.store import Store

VALUE_BYTES = 100
BATCHES = 15  # different ones; an odd number, so that each comes in both orders


class NoMeter(Meter):
    """Counts nothing."""

    def begin(self) -> None:
        pass

    def lap(self, phase: str) -> None:
        pass

    def committed(self, user_bytes: int, heap: int, log: int, index: int, root: int) -> None:
        pass


def use(store: Store, meter: Meter) -> None:
    engine = store._engine
    engine.meter = meter
    if isinstance(meter, NoMeter):
        engine._bytes_stored = lambda _plans, _runs, _tail: (0,) * 5
    else:
        engine.__dict__.pop("_bytes_stored", None)
    for table in engine.tables.values():
        table._meter = meter


def make_batch(number: int, operations: int) -> Batch:
    keys = np.arange(number * operations, (number + 1) * operations, dtype=np.uint64)
    return Batch(
        ops=np.full(operations, Op.SET, np.uint8),
        keys=keys.view(np.uint8),
        key_lengths=np.full(operations, 8, np.uint32),
        values=np.zeros(operations * VALUE_BYTES, np.uint8),
        value_lengths=np.full(operations, VALUE_BYTES, np.uint32),
    )


def measure(store: Store, operations: int, seconds: float) -> dict[str, float]:
    batches = [make_batch(number, operations) for number in range(BATCHES)]
    meters = (Meter(), NoMeter())
    times: list[float] = []
    # Of pairs on the same batch, by which came first: the second finds the caches warm.
    differences: tuple[list[float], list[float]] = ([], [])
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < 3 * BATCHES:
        pair = [0.0, 0.0]
        for which in (turn % 2, 1 - turn % 2):
            use(store, meters[which])
            start = time.perf_counter()
            store.execute(batches[turn % BATCHES])
            pair[which] = time.perf_counter() - start
        if turn >= 2 * BATCHES:  # every key is there
            times.append(pair[1])
            differences[turn % 2].append(pair[0] - pair[1])
        turn += 1
    cost = mean(median(kind) for kind in differences)
    return {
        "operations": operations,
        "pairs": len(times),
        "transaction_us": round(1e6 * median(times), 2),
        "cost_us": round(1e6 * cost, 2),
        "cost_percent": round(100 * cost / median(times), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--path", default="/dev/shm", help="where the store goes: a tmpfs, so that no disk is measured")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size of batch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.path) as folder, gpkvs.open(folder) as store:
        for operations in (1, 256, 65_536):
            print(json.dumps(measure(store, operations, arguments.seconds)))


if __name__ == "__main__":
    main()
