"""The iterative workloads: a checkpoint of gpkvs.gpm, or the host copies and persists the same arrays (CAP).

Only the checkpoint is timed. What it costs a whole run depends on how often there is one, so that is told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

from gpkvs import gpm
from gpkvs.bench.gpm.cap import Cap
from gpkvs.bench.gpm.operation import Operation
from gpkvs.bench.gpm.workloads import workload
from gpkvs.bench.gpm.workloads.iterative import Iterative
from gpkvs.config import DurabilityName

_NAMES = {"dnn": "DNN", "cfd": "CFD", "black_scholes": "BLK", "hotspot": "HS"}


def checkpointed(
    file: str, folder: Path, size: str, place: gpm.Place, durability: DurabilityName
) -> Iterator[Operation]:
    """Yield a checkpoint of the workload in a file."""
    kind = workload(file)
    with kind(folder, kind.SIZES[size], place, durability) as work:
        assert isinstance(work, Iterative)
        work.compute()
        place.settle()
        begin = perf_counter()
        work.compute()
        place.settle()
        compute_seconds = perf_counter() - begin
        data_bytes = sum(array.nbytes for array in work.arrays.values())
        saves = work.size.passes // work.size.every

        def change(_: Cap | None) -> None:
            """Compute on: a checkpoint of arrays that did not change would write less."""
            work.compute()
            place.settle()

        def run_cap(cap: Cap) -> None:
            cap.persist(*work.arrays.values())

        yield Operation(
            _NAMES[file],
            "checkpointing",
            f"checkpoint of {data_bytes / 1e6:,.3g} MB; {work.size.every} passes take {compute_seconds * 1e3:,.3g} ms",
            lambda: work.checkpoint.save("state", work.arrays),
            run_cap,
            data_bytes,
            reset=change,
            crash=partial(change, None),
            restore=lambda: work.checkpoint.restore("state", work.arrays),
            whole_seconds=lambda seconds: saves * (compute_seconds + seconds),
        )
