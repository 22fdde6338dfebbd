"""The pieces of the library alone, each beside its limit: logs, checkpoints, versions, states of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpkvs.bench.gpm.checkpoints import measure_memory, measure_training
from gpkvs.bench.gpm.log_insertion import measure_insertion
from gpkvs.bench.gpm.row import Row
from gpkvs.bench.gpm.solver import measure_solver
from gpkvs.bench.gpm.torch_files import measure_torch
from gpkvs.gpm import Place


@dataclass(frozen=True)
class LibrarySize:
    """How much is measured."""

    log_threads: int
    saved_bytes: int
    layer_side: int
    layers: int
    grid_side: int


LIBRARY_SIZES: Final = {
    "tiny": LibrarySize(1 << 15, 1 << 20, 32, 2, 32),
    "small": LibrarySize(1 << 18, 64 << 20, 128, 2, 512),
    "paper": LibrarySize(1 << 22, 4 << 30, 8192, 4, 8192),
}


def measure_library(folder: Path, place: Place, size: LibrarySize, runs: int) -> Iterator[Row]:
    """Yield a figure after the other."""
    yield from measure_insertion(folder, place, size.log_threads, runs)
    yield from measure_memory(folder, place, size.saved_bytes, runs)
    yield from measure_training(folder, place, size.layer_side, size.layers, runs)
    yield from measure_solver(folder, place, size.grid_side, runs)
    yield from measure_torch(folder, place, size.saved_bytes, runs)
