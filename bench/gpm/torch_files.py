"""A state of PyTorch saved and loaded: gpkvs.gpm.torch beside torch.save and safetensors, with the same durability."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from gpkvs.bench.gpm.row import Row, rate_row, seconds_of
from gpkvs.gpm import Place


def measure_torch(folder: Path, place: Place, count: int, runs: int) -> Iterator[Row]:
    """Yield GB/s of durable saves and of loads; nothing where there is no PyTorch."""
    try:
        torch: Any = import_module("torch")
    except ModuleNotFoundError:
        return
    ours: Any = import_module("gpkvs.gpm.torch")
    side = int((count / 16) ** 0.5 / 2)
    state = {f"layer{n}": torch.rand(side, 2 * side, device=place.name) for n in range(8)}
    total = sum(tensor.numel() * 4 for tensor in state.values())
    path = folder / "state"

    def synced(save: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            save()
            with path.open("rb") as file:
                os.fsync(file.fileno())

        return run

    ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "torch.save": (
            synced(lambda: torch.save(state, path)),
            lambda: torch.load(path, map_location=place.name, weights_only=True),
        ),
        "gpkvs.gpm.torch": (lambda: ours.save(state, path), lambda: ours.load(path)),
    }
    try:
        safe: Any = import_module("safetensors.torch")
    except ModuleNotFoundError:
        pass
    else:
        ways["safetensors"] = (
            synced(lambda: safe.save_file(state, path)),
            lambda: safe.load_file(path, device=place.name),
        )

    def loaded(load: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            load()
            if place.is_gpu:
                torch.cuda.synchronize()

        return run

    for name, (save, load) in ways.items():
        took = seconds_of(save, runs)
        yield rate_row(f"{name}: save {total / 1e9:.1f} GB", total, took, [], of="", aim=0)
        yield rate_row(f"{name}: load", total, seconds_of(loaded(load), runs), [], of="", aim=0)
        path.unlink()
    with ours.StateCheckpoint.create(path, state) as checkpoint:
        took = seconds_of(lambda: (state["layer0"].add_(1), checkpoint.save(state)), runs)
        yield rate_row("StateCheckpoint: save again, one layer of 8 changed", total, took, [], of="", aim=0)
    path.unlink()
