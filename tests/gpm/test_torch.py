"""States of PyTorch; PyTorch is not a dependency, so these tests run where it is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpkvs.errors import CorruptStoreError, InvalidArgumentError, StoreMissingError
from gpkvs.gpm import Place

HAS_TORCH = find_spec("torch") is not None
pytestmark = [pytest.mark.machine, pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")]
if HAS_TORCH:
    import torch

    from gpkvs.gpm.torch import StateCheckpoint, load, save


def state_of(device: str) -> dict[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(30, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(8, 30, device=device)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "halves": torch.rand(5, 7, device=device).to(torch.bfloat16),
        "flags": torch.rand(9) < 0.5,
        "empty": torch.empty(0, 4),
        "step": torch.tensor(3),
        "epoch": 7,
        "rates": [0.1, (1, None)],
        5: "a text",
    }


def same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return type(first) is type(second) and len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.fixture
def device(place: Place) -> str:
    return place.name


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_saved_and_loaded(memory: Path, tmp_path: Path, device: str, where: str) -> None:
    path, state = (memory if where == "memory" else tmp_path) / "s.gpm", state_of(device)
    with pytest.raises(StoreMissingError):
        load(path)
    save({"other": 1}, path)
    save(state, path)
    found = load(path)
    assert same(found, {**state, "model": dict(state["model"])})
    assert all(tensor.device.type == "cpu" for tensor in load(path, place="cpu")["model"].values())
    assert sorted(file.name for file in path.parent.iterdir()) == ["s.gpm"]


def test_again_and_again(memory: Path, device: str) -> None:
    state = state_of(device)
    with StateCheckpoint.create(memory / "s.gpm", state) as checkpoint:
        for step in range(1, 5):
            state["epoch"] = step
            state["halves"] += 1
            assert checkpoint.save(state, wait=step % 2 == 0) == step
        assert same(checkpoint.load()["halves"], state["halves"])
        with pytest.raises(InvalidArgumentError, match="room for"):
            checkpoint.save({**state, "more": "x" * 100_000})
        with pytest.raises(InvalidArgumentError, match="tensors, not"):
            checkpoint.save({**state, "more": torch.zeros(1)})
    assert load(memory / "s.gpm")["epoch"] == 4


def test_what_cannot_be_saved_is_named(memory: Path) -> None:
    save({"a": 1}, memory / "s.gpm")
    with pytest.raises(InvalidArgumentError, match=r"state\['b'\]\[1\] is a set"):
        save({"b": [1, {2}]}, memory / "s.gpm")
    assert load(memory / "s.gpm") == {"a": 1}
    data = bytearray((memory / "s.gpm").read_bytes())
    data[-4096] ^= 1
    (memory / "s.gpm").write_bytes(data)
    with pytest.raises(CorruptStoreError):
        load(memory / "s.gpm")


def test_tensors_that_are_views_are_saved_and_others_than_dense_ones_refused(tmp_path: Path, device: str) -> None:
    numbers = torch.tensor([1 + 2j, 3 - 1j], device=device)
    views = {"conjugate": numbers.conj(), "negative": numbers.conj().imag, "turned": numbers.reshape(2, 1).T}
    save(views, tmp_path / "t.gpm")
    assert same(load(tmp_path / "t.gpm"), views)
    for odd in (torch.eye(3).to_sparse(), torch.empty(3, device="meta")):
        with pytest.raises(InvalidArgumentError, match=r"state\['x'\] is a tensor of"):
            save({"x": odd}, tmp_path / "t.gpm")
    assert same(load(tmp_path / "t.gpm"), views)
