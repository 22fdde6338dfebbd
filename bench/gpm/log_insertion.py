"""Insertions into logs from kernels, against streaming stores of as many bytes (GPM, ASPLOS '22, figure 11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpkvs.bench.gpm.row import Row, rate_row, seconds_of
from gpkvs.gpm import CoalescedLog, Kernels, PartitionedLog, PersistentArray, Place

_ENTRY_WORDS = 4
_PARTITIONS = 1024

_SOURCE = """
#include "gpm.cuh"

#define INSERT_ARGS(F) F(const GpmLog*, log)
GPM_KERNEL(insert, INSERT_ARGS) {
    const u64 entry[4] = {i, i + 1, i + 2, i + 3};
    gpm_log_insert(a.log, i, entry);
}

#define APPEND_ARGS(F) F(const GpmPartitions*, log) F(u64, partitions)
GPM_KERNEL(append, APPEND_ARGS) {
    const u64 entry[4] = {i, i + 1, i + 2, i + 3};
    gpm_part_insert(a.log, i % a.partitions, entry, 4);
}

// As many bytes as an entry and its tail take, one pair after the other.
#define STREAM_ARGS(F) F(u64*, out)
GPM_KERNEL(stream, STREAM_ARGS) {
    const u64 pair[2] = {i, i + 1};
    pm_stream_pair(a.out + 2 * i, pair);
}
"""


def measure_insertion(folder: Path, place: Place, threads: int, runs: int) -> Iterator[Row]:
    """Yield insertions a second into a coalesced and a partitioned log, one entry of 32 bytes a thread."""
    kernels = Kernels(_SOURCE, place, name="log_insertion")
    log_path, part_path, out_path = (folder / name for name in ("log.gpm", "part.gpm", "out.gpm"))
    pairs = threads * (_ENTRY_WORDS + 1) // 2
    with PersistentArray.create(out_path, 2 * pairs, "u8", place=place) as out:
        limit = seconds_of(lambda: kernels.launch("stream", pairs, out=out), runs)
    out_path.unlink()
    what = f"insertions of {8 * _ENTRY_WORDS} bytes by {threads:,} threads"
    of = "streaming stores of as many bytes"
    with CoalescedLog.create(log_path, threads, 8 * _ENTRY_WORDS, place=place) as log:

        def insert() -> None:
            log.clear()
            kernels.launch("insert", threads, log=log)

        took = seconds_of(insert, runs)
        log.require_room()
        yield rate_row(f"{what}, coalesced", threads, took, limit, of=of, aim=0.85, unit="M/s")
    log_path.unlink()
    fewer = threads // 16
    room = 8 * (_ENTRY_WORDS + 1) * (fewer // _PARTITIONS + 1)
    with PartitionedLog.create(part_path, _PARTITIONS, room, place=place) as log_of_parts:

        def append() -> None:
            log_of_parts.clear()
            kernels.launch("append", fewer, log=log_of_parts, partitions=_PARTITIONS)

        took = seconds_of(append, runs)
        log_of_parts.require_room()
        what = f"insertions by {fewer:,} threads, partitioned ({_PARTITIONS:,} locks)"
        yield rate_row(what, fewer, took, [second / 16 for second in limit], of=of, aim=0, unit="M/s")
    part_path.unlink()
