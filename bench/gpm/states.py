"""A state saved whole and loaded: gpkvs.gpm beside safetensors and torch.save, with the same durability."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpkvs.bench.gpm.row import Row, rate_row, seconds_of
from gpkvs.gpm import Checkpoint, Place

_LAYERS = 8


class _Way(NamedTuple):
    """How a file is written, and read; `is_durable`: as soon as `save` returns, without a sync by its caller."""

    save: Callable[[Path], object]
    load: Callable[[Path], object]
    is_durable: bool = False


def measure_arrays(folder: Path, count: int, runs: int) -> Iterator[Row]:
    """Yield GB/s of durable saves and of loads of NumPy arrays, on the host; nothing without safetensors."""
    try:
        safe: Any = import_module("safetensors.numpy")
    except ModuleNotFoundError:
        return
    state = {f"layer{n}": np.random.default_rng(n).random(count // 8 // _LAYERS) for n in range(_LAYERS)}

    def save(path: Path) -> None:
        with Checkpoint.create(path, {"state": state}, once=True, replace=True) as checkpoint:
            checkpoint.save("state", state)

    def load(path: Path) -> object:
        with Checkpoint.open(path, readonly=True) as checkpoint:
            return checkpoint.load("state")

    ways = {
        "safetensors.numpy": _Way(lambda path: safe.save_file(state, path), safe.load_file),
        "gpkvs.gpm.Checkpoint": _Way(save, load, is_durable=True),
    }
    yield from _rows(ways, folder / "state", sum(array.nbytes for array in state.values()), runs)


def measure_torch(folder: Path, place: Place, count: int, runs: int) -> Iterator[Row]:
    """Yield the same of tensors at a place; nothing without PyTorch."""
    try:
        torch: Any = import_module("torch")
    except ModuleNotFoundError:
        return
    ours: Any = import_module("gpkvs.gpm.torch")
    side = int((count / 2 / _LAYERS) ** 0.5 / 2)
    state = {f"layer{n}": torch.rand(side, 2 * side, device=place.name) for n in range(_LAYERS)}
    total = sum(tensor.numel() * 4 for tensor in state.values())
    ways = {
        "torch.save": _Way(
            lambda path: torch.save(state, path),
            lambda path: torch.load(path, map_location=place.name, weights_only=True),
        ),
        "gpkvs.gpm.torch": _Way(lambda path: ours.save(state, path), ours.load, is_durable=True),
    }
    try:
        safe: Any = import_module("safetensors.torch")
    except ModuleNotFoundError:
        pass
    else:
        ways["safetensors.torch"] = _Way(
            lambda path: safe.save_file(state, path), lambda path: safe.load_file(path, device=place.name)
        )
    path = folder / "state"
    yield from _rows(ways, path, total, runs, settle=torch.cuda.synchronize if place.is_gpu else lambda: None)
    with ours.StateCheckpoint.create(path, state) as checkpoint:
        took = seconds_of(lambda: (state["layer0"].add_(1), checkpoint.save(state)), runs)
        yield rate_row("StateCheckpoint: save again, one layer of 8 changed", total, took, [], of="", aim=0)
    path.unlink()


def _rows(
    ways: dict[str, _Way], path: Path, total: int, runs: int, settle: Callable[[], object] = lambda: None
) -> Iterator[Row]:
    for name, way in ways.items():

        def save(way: _Way = way) -> None:
            way.save(path)
            if not way.is_durable:
                with path.open("rb") as file:
                    os.fsync(file.fileno())

        def load(way: _Way = way) -> None:
            kept = way.load(path)
            settle()
            del kept

        took = seconds_of(save, runs)
        yield rate_row(f"{name}: save {total / 1e9:.2g} GB", total, took, [], of="", aim=0)
        yield rate_row(f"{name}: load", total, seconds_of(load, runs), [], of="", aim=0)
        path.unlink()
