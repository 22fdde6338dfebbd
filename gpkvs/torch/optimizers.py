"""What a step does to the rows of a table of embeddings; the state that it keeps for a row lies in the row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import torch

from gpkvs.columns.row_layout import RowLayout
from gpkvs.errors import InvalidArgumentError

ELEMENTS: Final = ("float32", "float64")
"""The types of elements that are trained: a small step is lost in a shorter one."""


class Optimizer(ABC):
    """An optimizer of rows.

    A row is its weights and, behind them, as many vectors of state as the optimizer has for it: (dim,) without state,
    (1 + states, dim) with it. `states` says how many they are.

    Parameters
    ----------
    lr
        The rate of learning, which may change between steps.
    """

    states: int = 0

    def __init__(self, lr: float) -> None:
        if not lr >= 0:
            raise InvalidArgumentError(f"{lr}: a rate of learning is not negative", field="lr")
        self.lr = lr

    def layout(self, dim: int, element: str = "float32") -> str:
        """Return the layout of a table whose embeddings have `dim` elements, as `create_table` takes it."""
        return RowLayout(element, (1 + self.states, dim) if self.states else (dim,)).name

    def begin(self, states: torch.Tensor) -> None:
        """Set the states (n, states, dim) of rows that are not there yet, which are zeros."""
        del states  # zeros are what most begin with

    @abstractmethod
    def update(self, weights: torch.Tensor, states: torch.Tensor, gradients: torch.Tensor) -> None:
        """Change weights (n, dim) and states (n, states, dim) in place, by the gradients (n, dim)."""


class SGD(Optimizer):
    """Stochastic gradient descent: a row is its weights, ``float32[dim]``.

    Parameters
    ----------
    lr
        As `Optimizer` has it.
    """

    def update(self, weights: torch.Tensor, states: torch.Tensor, gradients: torch.Tensor) -> None:
        """As `Optimizer.update`."""
        del states
        weights.add_(gradients, alpha=-self.lr)


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., JMLR 2011): a row is its weights and the sums of squares, ``float32[2,dim]``.

    Parameters
    ----------
    lr
        As `Optimizer` has it.
    initial
        What the sums of a new row begin with.
    eps
        Added to the root of a sum.
    """

    states = 1

    def __init__(self, lr: float = 0.01, *, initial: float = 0.0, eps: float = 1e-10) -> None:
        super().__init__(lr)
        if not initial >= 0:
            raise InvalidArgumentError(f"{initial}: a sum of squares is not negative", field="initial")
        if not eps > 0:
            raise InvalidArgumentError(f"{eps}: a number above 0 is needed", field="eps")
        self.initial, self.eps = initial, eps

    def begin(self, states: torch.Tensor) -> None:
        """As `Optimizer.begin`."""
        states.fill_(self.initial)

    def update(self, weights: torch.Tensor, states: torch.Tensor, gradients: torch.Tensor) -> None:
        """As `Optimizer.update`."""
        sums = states[:, 0].addcmul_(gradients, gradients)
        weights.addcdiv_(gradients, sums.sqrt().add_(self.eps), value=-self.lr)
