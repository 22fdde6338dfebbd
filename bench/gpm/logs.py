"""Logs: coalesced and conventional (GPM, ASPLOS '22, figure 11b), and stores in a stream, the limit of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs import gpm
from gpkvs.config import DurabilityName

ENTRY_BYTES = 64
_TAIL_BYTES = 8
PARTITIONS = 4096
_RUNS = 5

SOURCE = f"""
#include "gpm.cuh"
const u32 WORDS = {ENTRY_BYTES // 8};

#define STREAM_ARGS(F) F(u64*, to)
GPM_KERNEL(stream, STREAM_ARGS) {{ gpm_store(&a.to[i], i); }}

#define COALESCED_ARGS(F) F(const GpmLog*, log)
GPM_KERNEL(coalesced, COALESCED_ARGS) {{
    u64 entry[WORDS];
    for (u32 w = 0; w < WORDS; w++) entry[w] = i + w;
    gpm_log_insert(a.log, i, entry);
}}

#define PARTITIONED_ARGS(F) F(const GpmPartitions*, log) F(u64, partitions)
GPM_KERNEL(partitioned, PARTITIONED_ARGS) {{
    u64 entry[WORDS];
    for (u32 w = 0; w < WORDS; w++) entry[w] = i + w;
    gpm_part_insert(a.log, i % a.partitions, entry, WORDS);
}}
"""


def median_seconds(run: Callable[[], object], ready: Callable[[], object], runs: int = _RUNS) -> float:
    """Return the median time of some runs, after a first one that is not counted."""
    found = []
    for _ in range(1 + runs):
        ready()
        begin = perf_counter()
        run()
        found.append(perf_counter() - begin)
    return float(np.median(found[1:]))


def stream_rate(folder: Path, count: int, place: gpm.Place, durability: DurabilityName) -> float:
    """Return how many bytes a second kernels store durably to a file, one after the other, in words of 8 bytes."""
    kernels = gpm.Kernels(SOURCE, place, name="logs")
    with gpm.PersistentArray.create(folder / "stream.gpm", count // 8, "u8", place=place, durability=durability) as to:
        seconds = median_seconds(lambda: kernels.launch("stream", count // 8, to=to), place.settle)
    (folder / "stream.gpm").unlink()
    return count // 8 * 8 / seconds


def compare_logs(folder: Path, threads: int, place: gpm.Place, durability: DurabilityName) -> dict[str, Any]:
    """Time inserting an entry for each of some threads into both kinds of logs."""
    kernels = gpm.Kernels(SOURCE, place, name="logs")
    where: Any = {"place": place, "durability": durability}
    partitions = min(threads, PARTITIONS)
    with gpm.CoalescedLog.create(folder / "coalesced.gpm", threads, ENTRY_BYTES, **where) as log:
        coalesced = median_seconds(lambda: kernels.launch("coalesced", threads, log=log), log.clear)
        log.require_room()
    each = -(-threads // partitions) * (ENTRY_BYTES + 8)
    with gpm.PartitionedLog.create(folder / "partitioned.gpm", partitions, each, **where) as parted:
        conventional = median_seconds(
            lambda: kernels.launch("partitioned", threads, log=parted, partitions=partitions), parted.clear
        )
        parted.require_room()
    for name in ("coalesced.gpm", "partitioned.gpm"):
        (folder / name).unlink()
    return {
        "threads": threads,
        "partitions": partitions,
        "coalesced_ms": coalesced * 1e3,
        "conventional_ms": conventional * 1e3,
        "bytes": threads * (ENTRY_BYTES + _TAIL_BYTES),
    }
