"""Checkpoints against the link and the disk: saved, restored, in part, and beside computing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from gpkvs.bench.gpm.row import Row, rate_row, seconds_of
from gpkvs.gpm import Checkpoint, Place

_STEPS = 100  # of training, between two checkpoints


class _Plain:
    """The limit: a plain copy between the place and memory of the host that it copies to at full speed."""

    def __init__(self, place: Place, count: int) -> None:
        self._place = place
        self.host = np.frombuffer(place.xp.cuda.alloc_pinned_memory(count), np.uint8, count) if place.is_gpu else None
        if self.host is None:
            self.host = np.zeros(count, np.uint8)
        self.host[:] = 1

    def out(self, array: Any) -> None:
        assert self.host is not None
        if self._place.is_gpu:
            array.data.copy_to_host_async(self.host.ctypes.data, len(array), self._place.xp.cuda.get_current_stream())
        else:
            self._place.copy_in(self.host, array.ctypes.data)
        self._place.settle()

    def back(self, array: Any) -> None:
        assert self.host is not None
        if self._place.is_gpu:
            array.data.copy_from_host_async(self.host.ctypes.data, len(array), self._place.xp.cuda.get_current_stream())
        else:
            self._place.copy_in(array, self.host.ctypes.data)
        self._place.settle()


def measure_memory(folder: Path, place: Place, count: int, runs: int) -> Iterator[Row]:
    """Yield what saves and restores of so many bytes reach on a tmpfs or persistent memory.

    Every save is of bytes that all changed. The limit is a plain copy of as many: to pinned memory of the host where
    the place is a GPU, by all threads where it is not.
    """
    array = place.xp.zeros(count, np.uint8)
    plain = _Plain(place, count)
    with Checkpoint.create(folder / "checkpoint.gpm", {"g": {"a": array}}, place=place) as checkpoint:

        def save() -> None:
            array[:] += 1
            place.settle()
            begin = perf_counter()
            checkpoint.save("g", {"a": array})
            saves.append(perf_counter() - begin)

        saves: list[float] = []
        for _ in range(runs + 2):  # the first two touch the pages of both copies
            save()
        assert checkpoint.last_bytes == count
        limit = seconds_of(lambda: plain.out(array), runs)
        yield rate_row("save", count, saves[2:], limit, of="a plain copy to the host", aim=0.85)
        restores = seconds_of(lambda: checkpoint.restore("g", {"a": array}), runs)
        limit = seconds_of(lambda: plain.back(array), runs)
        yield rate_row("restore, checked", count, restores, limit, of="a plain copy from the host", aim=0.85)
        begun = []
        for _ in range(runs):
            array[: count // 100] += 1
            place.settle()
            begin = perf_counter()
            checkpoint.save("g", {"a": array})
            begun.append(perf_counter() - begin)
        yield rate_row(f"save, {checkpoint.last_bytes / count:.0%} changed since", count, begun, [], of="", aim=0)
    (folder / "checkpoint.gpm").unlink()


def measure_disk(folder: Path, place: Place, count: int, runs: int) -> Iterator[Row]:
    """Yield what saves reach on an ordinary disk. The limit is a plain file, written past the page cache and synced."""
    array = place.xp.zeros(count, np.uint8)
    saves = []
    with Checkpoint.create(folder / "checkpoint.gpm", {"g": {"a": array}}, place=place) as checkpoint:
        for _ in range(runs + 2):
            array[:] += 1
            place.settle()
            begin = perf_counter()
            checkpoint.save("g", {"a": array})
            saves.append(perf_counter() - begin)
    host = np.empty(count + 4096, np.uint8)
    host = host[-host.ctypes.data % 4096 :][:count]
    host[:] = 7
    plain = folder / "plain"
    file = os.open(plain, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.posix_fallocate(file, 0, count)

    def write() -> None:
        for at in range(0, count, 16 << 20):
            os.pwrite(file, host[at : at + (16 << 20)].data, at)
        os.fdatasync(file)

    limit = seconds_of(write, runs)
    os.close(file)
    plain.unlink()
    (folder / "checkpoint.gpm").unlink()
    yield rate_row("save to a disk", count, saves[2:], limit, of="a plain file, direct and synced", aim=0.85)


def measure_training(folder: Path, place: Place, side: int, layers: int, runs: int) -> Iterator[Row]:
    """Yield how much longer training takes if its weights are saved every 100 steps, beside computing and not."""
    xp = place.xp
    weights = {
        f"w{n}": xp.asarray(np.random.default_rng(n).random((side, side), np.float32) / side) for n in range(layers)
    }
    data = xp.asarray(np.random.default_rng(9).random((256, side), np.float32))

    def step() -> None:
        activity = data
        for weight in weights.values():
            activity = xp.tanh(activity @ weight)
        gradient = data.T @ activity
        for weight in weights.values():
            xp.subtract(weight, 1e-4 * gradient, out=weight)

    def train(save: Any) -> float:
        place.settle()
        begin = perf_counter()
        for number in range(2 * _STEPS):
            step()
            if save and number % _STEPS == _STEPS - 1:
                save()
        place.settle()
        return perf_counter() - begin

    with Checkpoint.create(folder / "training.gpm", {"g": weights}, place=place) as checkpoint:
        ways = {
            "none": None,
            "waited for": lambda: checkpoint.save("g", weights),
            "in the background": lambda: checkpoint.save("g", weights, wait=False),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for run in range(runs + 1):
            for name, save in ways.items():
                seconds = train(save)
                checkpoint.wait()
                if run:
                    took[name].append(seconds)
        bytes_saved = sum(weight.nbytes for weight in weights.values())
        base = median(took["none"])
        for name in ("waited for", "in the background"):
            slower = median(took[name]) / base - 1
            what = f"training with {bytes_saved / 1e9:.2f} GB saved each 100 steps of {base / 200 * 1e3:.1f} ms, {name}"
            yield Row(what, 100 * slower, "% longer", aim=3.0 if "back" in name else 0.0, runs=tuple(took[name]))
    (folder / "training.gpm").unlink()
