"""The library's own aims: checkpoints, versions and states of PyTorch, each beside its limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpkvs.bench.gpm.checkpoints import measure_disk, measure_memory, measure_training
from gpkvs.bench.gpm.in_place import measure_solver, measure_steps
from gpkvs.bench.gpm.row import Row
from gpkvs.bench.gpm.states import measure_arrays, measure_torch
from gpkvs.bench.peers.contender import Progress
from gpkvs.gpm import Place


class _Size(NamedTuple):
    memory_bytes: int
    disk_bytes: int
    layer_side: int
    grid_side: int
    state_bytes: int


_SIZES: Final = {
    "tiny": _Size(1 << 20, 1 << 20, 16, 32, 1 << 16),
    "small": _Size(256 << 20, 256 << 20, 512, 1024, 256 << 20),
    "paper": _Size(8 << 30, 4 << 30, 4096, 8192, 4 << 30),
}


def measure_library(
    folder: Path, disk: Path, place: Place, size: str, runs: int, progress: Progress
) -> list[dict[str, Any]]:
    """Return the rows of all parts.

    Parameters
    ----------
    folder, disk
        In memory, and on a disk; what is made there is removed.
    place, size, runs, progress
        As `run_gpm` has them.
    """
    of = _SIZES[size]
    parts: dict[str, Iterator[Row]] = {
        "checkpoints in memory": measure_memory(folder, place, of.memory_bytes, runs),
        "checkpoints on a disk": measure_disk(disk, place, of.disk_bytes, runs),
        "training": measure_training(folder, place, of.layer_side, 4, runs),
        "an iterative solver": measure_solver(folder, place, of.grid_side, runs),
        "training in place": measure_steps(folder, place, of.layer_side, runs),
        "states of NumPy": measure_arrays(folder, of.state_bytes, runs),
        "states of PyTorch": measure_torch(folder, place, of.state_bytes, runs),
    }
    rows = []
    for name, measured in parts.items():
        progress(name)
        rows += [{**asdict(row), "part": row.part} for row in measured]
    return rows
