"""In-place versions beside copying, on an iterative solver (Jacobi), as the paper of in-place versioning compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.bench.gpm.row import Row
from gpkvs.gpm import Checkpoint, Place, Versions

_ITERATIONS = 20


def _step(old: Any, new: Any) -> None:
    new[1:-1, 1:-1] = 0.25 * (old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:])
    new[0], new[-1], new[:, 0], new[:, -1] = old[0], old[-1], old[:, 0], old[:, -1]


def measure_solver(folder: Path, place: Place, side: int, runs: int) -> Iterator[Row]:
    """Yield how much longer a solver takes if every iteration is durable, by copies and in place, over none."""
    xp = place.xp
    start = xp.asarray(np.random.default_rng(2).random((side, side), np.float32))
    grids = [start.copy(), start.copy()]

    def iterate(after: Callable[[Any], object]) -> float:
        place.settle()
        begin = perf_counter()
        for number in range(_ITERATIONS):
            old, new = grids[number % 2], grids[1 - number % 2]
            _step(old, new)
            after(new)
        place.settle()
        return perf_counter() - begin

    def in_place(versions: Versions) -> float:
        place.settle()
        begin = perf_counter()
        for _ in range(_ITERATIONS):
            _step(versions.current["t"], versions.next["t"])
            versions.commit()
        return perf_counter() - begin

    with (
        Checkpoint.create(folder / "copied.gpm", {"g": {"t": start}}, place=place) as checkpoint,
        Versions.create(folder / "versions.gpm", {"t": start}, place=place) as versions,
    ):
        versions.next["t"][...] = start
        versions.commit()
        took: dict[str, list[float]] = {"none": [], "copied": [], "in place": []}
        for run in range(runs + 1):
            for name, seconds in (
                ("none", iterate(lambda _: None)),
                ("copied", iterate(lambda new: checkpoint.save("g", {"t": new}))),
                ("in place", in_place(versions)),
            ):
                if run:
                    took[name].append(seconds)
    base = median(took["none"])
    for name in ("copied", "in place"):
        what = f"Jacobi, {side:,} x {side:,}, every iteration durable, {name}"
        yield Row(what, 100 * (median(took[name]) / base - 1), "% longer", runs=tuple(took[name]))
    for name in ("copied.gpm", "versions.gpm"):
        (folder / name).unlink()
