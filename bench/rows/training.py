"""Steps of training on a GPU: a small model of clicks over a table of embeddings, whose every step is durable.

Beside it is the same loop of PyTorch alone, whose embeddings lie on the GPU, have sparse gradients, and are lost when
the process ends. The model, the ids and the optimizers are the same: Adagrad for the embeddings, Adam for the dense
layers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import gpkvs
from gpkvs.bench.peers.contender import BenchError, Progress
from gpkvs.bench.report.comparison import Comparison
from gpkvs.bench.report.results import Measurement
from gpkvs.bench.rows.gpkvs_rows import OWN
from gpkvs.bench.rows.gpu_turns import measured
from gpkvs.config import MIB, DurabilityName

TASK = "training, float32[2,16]"
_PLAIN, _NONE = "PyTorch", "durability none"
_ROWS, _DIM = 1_000_000, 16
_EXAMPLES, _FEATURES = 4096, 16
_IDS = _EXAMPLES * _FEATURES
_STEPS = 10  # in a call, so that the loop of PyTorch alone need not wait for the GPU after each
_BATCHES = 8
_SAVES, _STEPS_A_SAVE = 3, 100
_TIME_AIM = 1.10
_RATE = 0.05

Step = Callable[[int], None]


def measure_training(
    folder: Path, progress: Progress, rounds: int, seconds: float
) -> tuple[list[Measurement], list[Comparison]]:
    """Train with each step durable, with a store that keeps nothing, and with PyTorch alone.

    Parameters
    ----------
    folder
        For the stores, and for what PyTorch saves.
    rounds, seconds
        As `measured` takes them.

    Raises
    ------
    BenchError
        If PyTorch is not installed, or sees no GPU.
    """
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise BenchError(f"PyTorch is not installed ({error}): run pip install torch") from error
    if not torch.cuda.is_available():
        raise BenchError("PyTorch sees no GPU: install a build of it for CUDA")
    progress(f"{TASK}: loading {_ROWS:,} rows, twice")
    data = _Data(torch)
    with ExitStack() as stack:
        stores: list[tuple[str, DurabilityName]] = [(OWN, "auto"), (_NONE, "none")]
        steps: dict[str, Step] = {
            name: _step_of_store(torch, data, stack.enter_context(closing(_opened(folder / name, durability))))
            for name, durability in stores
        }
        plain = _Plain(torch, data)
        steps[_PLAIN] = plain.step
        progress(f"{TASK}: {rounds} rounds of {', '.join(steps)}")
        calls = {name: _repeated(step) for name, step in steps.items()}
        found = measured(TASK, _STEPS * _IDS, calls, torch.cuda.synchronize, rounds, seconds)
        progress(f"{TASK}: torch.save")
        saves = [plain.save(folder / "model.pt") for _ in range(_SAVES)]
        saved_bytes = (folder / "model.pt").stat().st_size
    return list(found.values()), compared(found, median(saves), saved_bytes)


def compared(found: dict[str, Measurement], save_seconds: float, saved_bytes: int) -> list[Comparison]:
    """Return how long a durable step takes over one of the others, and over one with its part of a checkpoint."""
    own, none, plain = ([_IDS / run.rate for run in found[name].runs] for name in (OWN, _NONE, _PLAIN))
    saving = [seconds + save_seconds / _STEPS_A_SAVE for seconds in plain]
    save = f", with torch.save each {_STEPS_A_SAVE} steps"
    extra = f"; a save of {saved_bytes / 1e6:,.0f} MB takes {1e3 * save_seconds:.0f} ms"
    what = "time of a step of training"
    return [
        Comparison(what, OWN, _PLAIN, _over(own, plain), _TIME_AIM, is_least=False, note=_note(own, plain)),
        Comparison(what, OWN, _PLAIN + save, _over(own, saving), note=_note(own, saving) + extra),
        Comparison(what, OWN, _NONE, _over(own, none), note=_note(own, none)),
    ]


def _over(own: list[float], other: list[float]) -> list[float]:
    return [mine / beside for mine, beside in zip(own, other, strict=True)]


def _note(own: list[float], other: list[float]) -> str:
    return f"{1e3 * median(own):.2f} ms, {1e3 * median(other):.2f} ms"


def _repeated(step: Step) -> Callable[[int], None]:
    def call(number: int) -> None:
        for at in range(_STEPS):
            step(number * _STEPS + at)

    return call


class _Data:
    """Ids and clicks, drawn uniformly, on the GPU."""

    def __init__(self, torch: Any) -> None:
        random = np.random.default_rng(1)
        self._ids = [
            torch.from_numpy(random.integers(0, _ROWS, (_EXAMPLES, _FEATURES))).cuda() for _ in range(_BATCHES)
        ]
        self._clicks = [
            torch.from_numpy((random.random(_EXAMPLES) < 0.3).astype(np.float32)).cuda() for _ in range(_BATCHES)
        ]

    def of(self, number: int) -> tuple[Any, Any]:
        """Return those of a step."""
        return self._ids[number % _BATCHES], self._clicks[number % _BATCHES]


class _Dense:
    """The dense layers, and their optimizer."""

    def __init__(self, torch: Any) -> None:
        self._torch, nn = torch, torch.nn
        torch.manual_seed(1)
        self.layers = nn.Sequential(
            nn.Linear(_FEATURES * _DIM, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        ).cuda()
        self.optimizer = torch.optim.Adam(self.layers.parameters())

    def learn(self, vectors: Any, clicks: Any) -> None:
        """Find the gradients of embeddings, and change the dense layers."""
        logits = self.layers(vectors.flatten(1)).squeeze(1)
        loss = self._torch.nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has of it."""
        return {"dense": self.layers.state_dict(), "optimizer": self.optimizer.state_dict()}


def _opened(path: Path, durability: DurabilityName) -> gpkvs.Store:
    return gpkvs.open(path, backend="cuda", durability=durability, log_bytes=128 * MIB, heap_bytes=1024 * MIB)


def _step_of_store(torch: Any, data: _Data, store: gpkvs.Store) -> Step:
    own: Any = import_module("gpkvs.torch")
    optimizer = own.Adagrad(_RATE)
    layout = optimizer.layout(_DIM)
    store.create_table("embeddings", layout=layout, records=_ROWS)
    rows = store.rows(layout, table="embeddings")
    values = 0.05 * np.random.default_rng(2).random((_ROWS, 2, _DIM), np.float32)
    rows.set(np.arange(_ROWS, dtype=np.uint64), values)
    table, dense = own.EmbeddingTable(rows, optimizer), _Dense(torch)

    def step(number: int) -> None:
        ids, clicks = data.of(number)
        dense.learn(table(ids), clicks)
        table.step({**dense.state(), "step": number})

    return step


class _Plain:
    """The loop of PyTorch alone."""

    def __init__(self, torch: Any, data: _Data) -> None:
        self._torch, self._data, self._dense = torch, data, _Dense(torch)
        self._embedding = torch.nn.Embedding(_ROWS, _DIM, sparse=True).cuda()
        # Of its kinds, only the one for a tensor at a time takes sparse gradients.
        self._optimizer = torch.optim.Adagrad(self._embedding.parameters(), lr=_RATE, foreach=False)

    def step(self, number: int) -> None:
        """Train once; nothing of it is kept."""
        ids, clicks = self._data.of(number)
        self._optimizer.zero_grad()
        self._dense.learn(self._embedding(ids), clicks)
        self._optimizer.step()

    def save(self, path: Path) -> float:
        """Save everything, and flush it; return the seconds."""
        self._torch.cuda.synchronize()
        began = perf_counter()
        state = {"embedding": self._embedding.state_dict(), "adagrad": self._optimizer.state_dict()}
        with path.open("wb") as file:
            self._torch.save({**state, **self._dense.state()}, file)
            file.flush()
            os.fsync(file.fileno())
        return perf_counter() - began
