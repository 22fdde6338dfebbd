"""Tables of embeddings for PyTorch; it is not a dependency, so these tests run where it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.client import Client
from gpkvs.client.async_rows import AsyncRows
from gpkvs.columns.row_layout import require_row_layout
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from gpkvs.face import KeyValues
from gpkvs.rows import Rows
from tests.conftest import SMALL
from tests.serving import Server

HAS_TORCH = find_spec("torch") is not None
needs_torch = [pytest.mark.machine, pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")]
if HAS_TORCH:
    import torch

    from gpkvs.torch import SGD, Adagrad, EmbeddingTable, Optimizer, uniform
    from gpkvs.torch.state_rows import STATE_KEY

DIM = 5


def test_without_pytorch_the_error_says_what_is_missing() -> None:
    code = "import sys; sys.modules['torch'] = None; import gpkvs.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert "ImportError: gpkvs.torch needs PyTorch" in done.stderr
    assert "pip install torch" in done.stderr


def rows_in(db: KeyValues, optimizer: Optimizer, name: str = "items") -> Rows:
    layout = optimizer.layout(DIM)
    db.create_table(name, layout=layout, exist_ok=True)
    return db.rows(layout, table=name)


def embeddings(table: EmbeddingTable, ids: Any) -> Any:
    with torch.no_grad():
        return table(torch.as_tensor(ids))


@pytest.fixture
def rows(store: gpkvs.Store) -> Rows:
    return rows_in(store, Adagrad())


@pytest.fixture(params=["store", "client"])
def db(request: pytest.FixtureRequest) -> Iterator[KeyValues]:
    if request.param == "store":
        yield request.getfixturevalue("store")
    else:
        server: Server = request.getfixturevalue("server")
        with Client(server.target) as client:
            yield client


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
class TestAgainstPyTorch:
    pytestmark = needs_torch

    def test_the_same_weights_bit_by_bit(self, db: KeyValues, name: str) -> None:
        """Ids that come twice in a lookup, and in two lookups of a step, as in `torch.nn.Embedding`."""
        torch.manual_seed(1)
        optimizer: Optimizer = {"SGD": SGD, "Adagrad": Adagrad}[name](0.1)
        initial = uniform(0.05, seed=7)
        table = EmbeddingTable(rows_in(db, optimizer), optimizer, initial=initial)
        dense = torch.nn.Embedding(50, DIM)
        with torch.no_grad():
            dense.weight.copy_(initial(torch.arange(50), DIM))
        peer = getattr(torch.optim, name)(dense.parameters(), lr=0.1)
        for _ in range(10):
            first, second = torch.randint(0, 50, (4, 3)), torch.randint(0, 50, (6,))
            factors = torch.randn(4, 3, DIM), torch.randn(6, DIM)
            for lookup in (table, dense):
                outputs = lookup(first), lookup(second)
                assert outputs[0].shape == (4, 3, DIM)
                sum((output * factor).tanh().sum() for output, factor in zip(outputs, factors, strict=True)).backward()
            assert table.step() == len(set(first.flatten().tolist()) | set(second.tolist()))
            peer.step()
            peer.zero_grad()
            assert torch.equal(embeddings(table, range(50)), dense.weight)


class TestLookups:
    pytestmark = needs_torch

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,), (2, 3, 4)])
    @pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
    def test_of_any_shape(self, rows: Rows, shape: tuple[int, ...], dtype: str) -> None:
        table = EmbeddingTable(rows, Adagrad(), initial=uniform(1.0))
        ids = torch.zeros(shape, dtype=getattr(torch, dtype))
        assert table(ids).shape == (*shape, DIM)
        assert table(ids).dtype == torch.float32

    def test_what_a_row_begins_with_depends_on_its_id_alone(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad(), initial=uniform(0.5, seed=3))
        every = embeddings(table, range(100))
        assert torch.equal(embeddings(table, [99, 7, 7]), every[[99, 7, 7]])
        assert every.abs().max() <= 0.5
        assert every.unique().numel() > 490
        assert abs(float(every.mean())) < 0.05
        assert not torch.equal(every, uniform(0.5, seed=4)(torch.arange(100), DIM))
        assert (embeddings(EmbeddingTable(rows, Adagrad()), [1]) == 0).all()

    def test_uniform_rows_are_those_of_every_version(self) -> None:
        """A run that goes on with a later version has the same rows."""

        def mixed(word: int) -> int:
            word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
            word = (word ^ word >> 27) * 0x94D049BB133111EB % (1 << 64)
            return word ^ word >> 31

        for seed, number in ((0, 0), (7, 0), (7, 1 << 62), (-1, 5)):
            of_id = mixed(number ^ mixed(seed % (1 << 64)))
            words = [mixed((of_id + place * 0x9E3779B97F4A7C15) % (1 << 64)) for place in range(1, 4)]
            expected = [2 * (word >> 40) / (1 << 24) - 1 for word in words]
            assert uniform(1.0, seed)(torch.tensor([number]), 3).tolist() == [expected]

    def test_without_training_write_nothing_and_have_no_gradient(self, rows: Rows) -> None:
        table, ids = EmbeddingTable(rows, Adagrad(), initial=uniform(1.0)), torch.arange(3)
        assert table(ids).requires_grad
        assert not table.eval()(ids).requires_grad
        with torch.inference_mode():
            assert not table.train()(ids).requires_grad
        assert not EmbeddingTable(rows)(ids).requires_grad
        assert table.step() == 0
        assert rows.count() == 0

    def test_a_table_that_is_only_read(self, rows: Rows) -> None:
        trained = EmbeddingTable(rows, Adagrad(), initial=uniform(1.0))
        trained(torch.arange(3)).sum().backward()
        trained.step()
        read = EmbeddingTable(rows)
        assert torch.equal(read(torch.arange(3)), embeddings(trained, range(3)))
        with pytest.raises(InvalidArgumentError, match="only read"):
            read.step()

    def test_ids_that_are_none_are_refused(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad())
        for ids, said in (
            (torch.tensor([0.5]), "float32"),
            (torch.tensor([True]), "bool"),
            (torch.tensor([3, -1]), "ids: -1"),
            (torch.zeros(2, dtype=torch.int64, device="meta"), r"on meta.*table\(ids.cpu\(\)\)"),
        ):
            with pytest.raises(InvalidArgumentError, match=said):
                table(ids)

    def test_rows_of_another_type_or_shape_are_refused(self, store: gpkvs.Store, rows: Rows) -> None:
        with pytest.raises(InvalidArgumentError, match=r"float32\[2,5\]: SGD needs rows such as float32\[5\]"):
            EmbeddingTable(rows, SGD(0.1))
        for layout in ("float16[2,5]", "float32[5]", "float32[3,5]", "float32[1,2,5]"):
            store.create_table(layout.replace("[", "-").replace(",", "-")[:-1], layout=layout)
            with pytest.raises(InvalidArgumentError, match="Adagrad needs rows such as"):
                EmbeddingTable(store.rows(layout, table=layout.replace("[", "-").replace(",", "-")[:-1]), Adagrad())
        with pytest.raises(InvalidArgumentError, match=r"\(1, 5\) is needed"):
            EmbeddingTable(rows, Adagrad(), initial=lambda ids, dim: torch.zeros(len(ids), dim + 1))(torch.tensor([1]))

    def test_rows_that_are_awaited_are_refused(self) -> None:
        with pytest.raises(TypeError, match="AsyncRows"):
            EmbeddingTable(AsyncRows(None, require_row_layout("float32[5]"), None), SGD(0.1))  # type: ignore[arg-type]

    def test_float64(self, store: gpkvs.Store) -> None:
        optimizer = Adagrad(0.1, initial=0.5)
        store.create_table("double", layout=optimizer.layout(DIM, "float64"))
        rows = store.rows("float64[2,5]", table="double")
        table = EmbeddingTable(rows, optimizer)
        table(torch.tensor([1])).sum().backward()
        table.step()
        held, _ = rows.get([1])
        assert (held[0, 1] == 1.5).all()
        assert (held[0, 0] == -0.1 / (1.5**0.5 + 1e-10)).all()


class TestSteps:
    pytestmark = needs_torch

    def test_one_transaction_with_what_belongs_to_it(self, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[Any] = []
        real = Rows.set
        monkeypatch.setattr(Rows, "set", lambda self, *args: (calls.append(args), real(self, *args))[1])
        table = EmbeddingTable(rows, Adagrad(), initial=uniform(1.0))
        table(torch.tensor([7, 7, 9])).sum().backward()
        assert table.step({"step": 1}) == 2
        assert len(calls) == 1
        assert [key for key in calls[0][0].tolist() if key < STATE_KEY] == [7, 9]
        assert table.load_state() == {"step": 1}

    def test_without_gradients_only_a_state_is_written(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad(), initial=uniform(1.0))
        assert table.load_state() is None
        table(torch.tensor([1]))
        assert table.step() == 0
        assert rows.count() == 0
        assert table.step({"step": 1}) == 0
        assert table.load_state() == {"step": 1}

    def test_each_gradient_counts_once(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad(0.1))
        loss = table(torch.tensor([1])).sum()
        loss.backward()
        table.step()
        after = embeddings(table, [1])
        assert table.step() == 0
        assert torch.equal(embeddings(table, [1]), after)

    def test_zero_grad_forgets_gradients_and_keeps_lookups(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad(0.1))
        loss = table(torch.tensor([1])).sum()
        loss.backward(retain_graph=True)
        table.zero_grad()
        loss.backward()
        table.step()
        assert (rows.get([1])[0][0, 1] == 1).all()

    def test_a_step_that_failed_may_be_taken_again(self, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also when it was done, and only nobody heard of it."""
        table = EmbeddingTable(rows, Adagrad(0.1), initial=uniform(1.0))
        table(torch.tensor([1, 2])).sum().backward()
        real = Rows.set

        def lost(self: Rows, *args: Any) -> None:
            real(self, *args)
            raise NoSpaceError("told", "heap")

        monkeypatch.setattr(Rows, "set", lost)
        with pytest.raises(NoSpaceError):
            table.step({"step": 1})
        monkeypatch.setattr(Rows, "set", real)
        before = rows.get([1, 2])[0]
        assert table.step({"step": 1}) == 2
        np.testing.assert_array_equal(rows.get([1, 2])[0], before)

    def test_more_than_a_request_takes_changes_nothing(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad())
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(InvalidArgumentError):
            table.step({"large": torch.zeros(rows._db.limits.request_ops_max, 2 * DIM)})
        assert rows.count() == 0


class TestStates:
    pytestmark = needs_torch

    def test_of_models_and_optimizers(self, rows: Rows) -> None:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.BatchNorm1d(11), torch.nn.Linear(11, 1))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.rand(4, 7)).sum().backward()
        optimizer.step()
        table = EmbeddingTable(rows, Adagrad())
        table.step({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()})
        state = table.load_state()
        assert all(torch.equal(state["model"][name], value) for name, value in model.state_dict().items())
        again = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.BatchNorm1d(11), torch.nn.Linear(11, 1))
        again.load_state_dict(state["model"])
        torch.optim.Adam(again.parameters()).load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])

    def test_longer_and_shorter_ones(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad())
        for count in (0, 1, 5, 1000, 3, 0):
            state = {"a": torch.arange(count), "b": torch.ones(count, 2).to(torch.bfloat16), "n": count}
            table.step(state)
            found = table.load_state()
            assert found["n"] == count
            assert torch.equal(found["a"], state["a"])
            assert torch.equal(found["b"], state["b"])
            assert found["b"].dtype == torch.bfloat16

    def test_one_that_could_not_be_read_is_not_written(self, tmp_path: Path) -> None:
        """A store takes a `set` of any size, and a `get` has a bound."""
        with gpkvs.open(tmp_path / "store", limits=gpkvs.Limits(result_bytes_max=4000), **SMALL) as store:
            table = EmbeddingTable(rows_in(store, SGD(0.1)), SGD(0.1))
            table.step({"dense": torch.ones(900), "step": 1})
            with pytest.raises(
                InvalidArgumentError, match=r"state: 4,1.. bytes, of which `load_state` could read 4,000"
            ):
                table.step({"dense": torch.ones(1000), "step": 2})
            assert table.load_state()["step"] == 1

    def test_views_are_saved(self, rows: Rows) -> None:
        numbers = torch.arange(12).reshape(3, 4)
        table = EmbeddingTable(rows, Adagrad())
        table.step({"turned": numbers.T, "part": numbers[1:, ::2], "scalar": torch.tensor(2.5)})
        state = table.load_state()
        assert torch.equal(state["turned"], numbers.T)
        assert torch.equal(state["part"], numbers[1:, ::2])
        assert state["scalar"].item() == 2.5

    def test_what_is_no_state_is_refused(self, rows: Rows) -> None:
        table = EmbeddingTable(rows, Adagrad())
        with pytest.raises(InvalidArgumentError, match=r"state\['b'\] is a set"):
            table.step({"b": {1}})
        rows.set(np.array([STATE_KEY], np.uint64), np.ones((1, 2, DIM), np.float32))
        with pytest.raises(InvalidArgumentError, match="are no state"):
            table.load_state()


class TestOptimizers:
    pytestmark = needs_torch

    def test_settings_that_make_no_sense_are_refused(self) -> None:
        for make in (lambda: SGD(-0.1), lambda: SGD(float("nan")), lambda: Adagrad(initial=-1), lambda: Adagrad(eps=0)):
            with pytest.raises(InvalidArgumentError):
                make()

    def test_one_of_the_callers_own(self, store: gpkvs.Store) -> None:
        class Momentum(Optimizer):
            states = 1

            def update(self, weights: torch.Tensor, states: torch.Tensor, gradients: torch.Tensor) -> None:
                weights.sub_(states[:, 0].mul_(0.5).add_(gradients), alpha=self.lr)

        table = EmbeddingTable(rows_in(store, Momentum(1.0)), Momentum(1.0))
        for _ in range(2):
            table(torch.tensor([3])).sum().backward()
            table.step()
        assert embeddings(table, [3]).tolist() == [[-2.5] * DIM]
