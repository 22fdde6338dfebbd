"""In-place versions beside copying, on a solver and on training, as the paper of in-place versioning compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.bench.gpm.row import Row
from gpkvs.gpm import Checkpoint, Place, Versions

_ITERATIONS = 20
_LAYERS = 4

Arrays = Mapping[str, Any]
Step = Callable[[Arrays, Arrays], None]  # computes new arrays from old ones


def measure_solver(folder: Path, place: Place, side: int, runs: int) -> Iterator[Row]:
    """Yield how much longer Jacobi's solver takes if every iteration is durable, by copies and in place."""

    def step(old: Arrays, new: Arrays) -> None:
        of, to = old["t"], new["t"]
        to[1:-1, 1:-1] = 0.25 * (of[:-2, 1:-1] + of[2:, 1:-1] + of[1:-1, :-2] + of[1:-1, 2:])
        to[0], to[-1], to[:, 0], to[:, -1] = of[0], of[-1], of[:, 0], of[:, -1]

    start = {"t": place.xp.asarray(np.random.default_rng(2).random((side, side), np.float32))}
    yield from _compare(f"Jacobi, {side:,} x {side:,}, every iteration durable", folder, place, start, step, runs)


def measure_steps(folder: Path, place: Place, side: int, runs: int) -> Iterator[Row]:
    """Yield the same of training a network whose weights are durable after every step."""
    xp = place.xp
    data = xp.asarray(np.random.default_rng(9).random((256, side), np.float32))

    def step(old: Arrays, new: Arrays) -> None:
        activity = data
        for weight in old.values():
            activity = xp.tanh(activity @ weight)
        change = 1e-4 * (data.T @ activity)
        for name, weight in old.items():
            xp.subtract(weight, change, out=new[name])

    rng = np.random.default_rng(3)
    start = {f"w{n}": xp.asarray(rng.random((side, side), np.float32) / side) for n in range(_LAYERS)}
    yield from _compare(f"training, {_LAYERS} layers of {side:,}, every step durable", folder, place, start, step, runs)


def _compare(what: str, folder: Path, place: Place, start: Arrays, step: Step, runs: int) -> Iterator[Row]:
    """Yield how much longer some steps take with copies and in place, over none."""
    pair = [{name: array.copy() for name, array in start.items()} for _ in range(2)]

    def in_turn(after: Callable[[Arrays], object]) -> None:
        for number in range(_ITERATIONS):
            new = pair[1 - number % 2]
            step(pair[number % 2], new)
            after(new)

    def in_place(versions: Versions) -> None:
        for _ in range(_ITERATIONS):
            step(versions.current, versions.next)
            versions.commit()

    def seconds(run: Callable[[], None]) -> float:
        place.settle()
        begin = perf_counter()
        run()
        place.settle()
        return perf_counter() - begin

    paths = folder / "copied.gpm", folder / "versions.gpm"
    with (
        Checkpoint.create(paths[0], {"g": start}, place=place) as checkpoint,
        Versions.create(paths[1], start, place=place) as versions,
    ):
        for name, array in start.items():
            versions.next[name][...] = array
        versions.commit()
        ways: dict[str, Callable[[], None]] = {
            "none": lambda: in_turn(lambda _: None),
            "copied": lambda: in_turn(lambda new: checkpoint.save("g", new)),
            "in place": lambda: in_place(versions),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for run in range(runs + 1):
            for name, way in ways.items():
                found = seconds(way)
                if run:
                    took[name].append(found)
    base = median(took["none"])
    for name in ("copied", "in place"):
        yield Row(f"{what}, {name}", 100 * (median(took[name]) / base - 1), "% longer", runs=tuple(took[name]))
    for path in paths:
        path.unlink()
