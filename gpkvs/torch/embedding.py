"""A table of embeddings in a store, as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gpkvs.errors import InvalidArgumentError
from gpkvs.rows import Rows
from gpkvs.torch.initial_rows import Initial, zeros
from gpkvs.torch.optimizers import ELEMENTS, Optimizer
from gpkvs.torch.state_rows import STATE_KEY, read_state, rows_of_state

_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class _Lookup(NamedTuple):
    """A lookup that a step may train."""

    ids: torch.Tensor  # each once, ascending
    rows: torch.Tensor  # theirs, as they were read
    weights: torch.Tensor  # a copy of theirs, which gets the gradients


class EmbeddingTable(torch.nn.Module):  # type: ignore[misc]
    """Embeddings by id, whose rows lie in a table of a store.

    It is called with ids, as `torch.nn.Embedding`. `step` applies what `backward` has found to the rows of all ids that
    were looked up since the step before, in one durable transaction. It has no parameters: `state_dict` of a model that
    it is a part of is that of the dense weights, and an optimizer of PyTorch does not see it.

    One process trains a table, in one thread. Others may look up meanwhile.

    Parameters
    ----------
    rows
        Of a store, or of a client; their layout is that of the optimizer, `Optimizer.layout`.
    optimizer
        None: the table is only read. Then a row is (dim,), or its weights are the first of (n, dim).
    initial
        The weights of ids that the table does not have: zeros, `uniform`, or a function of the caller's. They are
        written with the step that trains them.

    Attributes
    ----------
    dim
        Elements of an embedding.
    optimizer
        As given; its `lr` may be changed.

    Raises
    ------
    InvalidArgumentError
        If the rows have another type or shape than the optimizer needs.

    Examples
    --------
    >>> optimizer = Adagrad(0.05)
    >>> store.create_table("items", layout=optimizer.layout(16))  # doctest: +SKIP
    >>> rows = store.rows(optimizer.layout(16), table="items")  # doctest: +SKIP
    >>> table = EmbeddingTable(rows, optimizer, initial=uniform(0.05, seed=7))  # doctest: +SKIP
    >>> loss = model(table(ids)).sum()  # doctest: +SKIP
    >>> loss.backward()  # doctest: +SKIP
    >>> table.step()  # doctest: +SKIP
    """

    def __init__(self, rows: Rows, optimizer: Optimizer | None = None, *, initial: Initial = zeros) -> None:
        super().__init__()
        if not isinstance(rows, Rows):
            raise TypeError(f"a {type(rows).__name__}: the rows of a store or of a blocking client are needed")
        layout = rows.layout
        is_of = len(layout.shape) <= 2
        if optimizer is not None:
            is_of = layout.name == optimizer.layout(layout.shape[-1], layout.element)
        if not is_of or layout.element not in ELEMENTS:
            wanted = "float32[dim]" if optimizer is None else optimizer.layout(layout.shape[-1])
            raise InvalidArgumentError(
                f"{layout.name}: {type(optimizer).__name__ if optimizer else 'a lookup'} needs rows such as {wanted}, "
                f"of {' or '.join(ELEMENTS)}",
                field="rows",
            )
        self.optimizer, self.dim = optimizer, layout.shape[-1]
        self._vectors = layout.shape[0] if len(layout.shape) > 1 else 1
        self._rows, self._initial = rows, initial
        self._dtype = getattr(torch, layout.element)
        self._lookups: list[_Lookup] = []

    def extra_repr(self) -> str:
        """Return what is shown of it within a model."""
        return repr(self._rows)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (..., dim) of ids (...), also of those that come twice.

        They get gradients, and the next step trains their rows, if there is an optimizer, the module is in training
        (`train`, `eval`), and gradients are on (`torch.no_grad`). Such a lookup is kept until that step.

        Parameters
        ----------
        ids
            Whole numbers that are not negative, on the host, or on the GPU of a store with the backend ``cuda``: there
            the embeddings are where the ids are. ``table(ids).to(device)`` brings others to a GPU.

        Raises
        ------
        InvalidArgumentError
            If they are none; further errors as `Rows.get` raises them.
        """
        devices = ("cpu", "cuda") if self._rows.takes_gpu_arrays else ("cpu",)
        if ids.device.type not in devices or ids.dtype not in _INTEGERS:
            raise InvalidArgumentError(
                f"a tensor of {ids.dtype} on {ids.device}: whole numbers on the host are needed, or on the GPU of a "
                "store with the backend cuda; table(ids.cpu()).to(device) brings the embeddings to a device",
                field="ids",
            )
        unique, places = torch.unique(ids.to(torch.int64), return_inverse=True)
        rows = self._read(unique)
        weights = self._parts(rows)[0]
        if self.optimizer is not None and self.training and torch.is_grad_enabled():
            weights = weights.clone().requires_grad_()
            self._lookups.append(_Lookup(unique, rows, weights))
        return torch.nn.functional.embedding(places, weights)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of lookups since the last step, as `torch.optim.Optimizer.zero_grad`.

        No loop of training needs it: a step forgets them, too.
        """
        super().zero_grad(set_to_none)
        for lookup in self._lookups:
            lookup.weights.grad = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, state: Mapping[Any, Any] | None = None) -> int:
        """Apply the gradients of all lookups since the last step, durably and all together; return of how many ids.

        An id that was looked up several times gets the sum of its gradients, and one step. Lookups without a gradient
        are forgotten. Without any, and without a state, nothing is written.

        Parameters
        ----------
        state
            What belongs to the same moment: the state dictionaries of the dense model and of its optimizer, the number
            of the step, the state of random numbers. It is written in the same transaction, to rows of this table with
            keys from 2**63 on, and `load_state` returns it. Dictionaries, lists, tuples, numbers, texts and tensors.

        Raises
        ------
        InvalidArgumentError
            If there is no optimizer, the state holds something else or is more than one `Rows.get` reads, or all is too
            much for one request.
        NoSpaceError, OutcomeUnknownError
            As `Rows.set` raises them. The gradients stay: `step` with the same state may be called again. It writes the
            same, whether the first one was done or not.
        """
        if self.optimizer is None:
            raise InvalidArgumentError("a table without an optimizer is only read", field="optimizer")
        layout = self._rows.layout
        trained = [lookup for lookup in self._lookups if lookup.weights.grad is not None]
        ids, rows = self._trained(trained) if trained else (torch.empty(0, dtype=torch.int64), self._empty(0))
        keys, values = self._as_given(ids, rows)
        if state is not None:
            state_keys, pieces = rows_of_state(state, layout)
            if pieces.nbytes > self._rows.read_bytes_max:  # a `set` may be larger than a `get`
                raise InvalidArgumentError(
                    f"{pieces.nbytes:,} bytes, of which `load_state` could read {self._rows.read_bytes_max:,}",
                    field="state",
                )
            keys, values = self._joined(keys, state_keys), self._joined(values, pieces)
        if len(keys):
            self._rows.set(keys, values)
        self._lookups.clear()
        return len(ids)

    @staticmethod
    def _as_given(ids: torch.Tensor, rows: torch.Tensor) -> tuple[Any, Any]:
        """Return keys and rows as `Rows.set` takes them: tensors on a GPU, arrays on the host."""
        if ids.device.type == "cpu":
            return ids.numpy().astype(np.uint64), rows.numpy()
        return ids.view(torch.uint64), rows

    @staticmethod
    def _joined(given: Any, more: NDArray[Any]) -> Any:
        """Return some of them, and more of the host behind, where the first ones are."""
        if isinstance(given, np.ndarray):
            return np.concatenate([given, more])
        # PyTorch has few operations on uint64, and NumPy no tensors.
        kind = torch.int64 if given.dtype is torch.uint64 else given.dtype
        added = torch.from_numpy(more.view(np.int64) if kind is torch.int64 else more)
        return torch.cat([given.view(kind), added.to(given.device)]).view(given.dtype)

    def load_state(self) -> Any:
        """Return the state of the last step that had one, with tensors on the host; None: there was none.

        Raises
        ------
        InvalidArgumentError
            If the rows from key 2**63 on are something else; further errors as `Rows.get` raises them.
        """
        return read_state(self._rows)

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ids that ascend; of those that are not there, as they begin."""
        if len(ids) and int(ids[0]) < 0:
            raise InvalidArgumentError(f"{int(ids[0])}: ids are 0 to {STATE_KEY - 1}", field="ids")
        rows = self._empty(len(ids), ids.device)
        is_on_host = ids.device.type == "cpu"
        _, found = self._rows.get(ids.numpy() if is_on_host else ids, out=rows, atomic=False)
        there = torch.from_numpy(found) if is_on_host else torch.from_dlpack(found)
        if not there.all():
            rows[~there] = self._begun(ids[~there].cpu()).to(ids.device)
        return rows

    def _begun(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self._empty(len(ids)).zero_()
        weights, states = self._parts(rows)
        given = self._initial(ids, self.dim)
        if given.shape != weights.shape:
            raise InvalidArgumentError(
                f"weights of the shape {tuple(given.shape)}, {tuple(weights.shape)} is needed", field="initial"
            )
        weights.copy_(given.detach())
        if self.optimizer is not None:
            self.optimizer.begin(states)
        return rows

    def _trained(self, lookups: list[_Lookup]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids of lookups, each once, and their rows after a step."""
        assert self.optimizer
        device = lookups[0].ids.device
        ids, places = torch.unique(torch.cat([lookup.ids.to(device) for lookup in lookups]), return_inverse=True)
        rows = self._empty(len(ids), device)
        gradients = torch.zeros(len(ids), self.dim, dtype=self._dtype, device=device)
        # One lookup after the other, each of which has an id once: the order of sums is that of the lookups.
        for lookup, place in zip(lookups, places.split([len(lookup.ids) for lookup in lookups]), strict=True):
            rows[place] = lookup.rows.to(device)
            gradients[place] += lookup.weights.grad.to(device)
        weights, states = self._parts(rows)
        self.optimizer.update(weights, states, gradients)
        return ids, rows

    def _empty(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        return torch.empty(count, *self._rows.layout.shape, dtype=self._dtype, device=device)

    def _parts(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights (n, dim) and the states (n, states, dim) of rows, which are views."""
        vectors = rows.view(len(rows), self._vectors, self.dim)
        return vectors[:, 0], vectors[:, 1:]
