"""The weights of rows that were never written: a function of the id alone, so they are the same in each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

Initial: TypeAlias = Callable[[torch.Tensor, int], torch.Tensor]
"""Takes ids (n,) int64 and the number of elements; returns weights (n, dim), for an id the same each time."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def zeros(ids: torch.Tensor, dim: int) -> torch.Tensor:
    """Return zeros (n, dim)."""
    return torch.zeros(len(ids), dim)


def uniform(bound: float, seed: int = 0) -> Initial:
    """Return a function that gives numbers of [-bound, bound), by seed, id and place in the row.

    Examples
    --------
    >>> table = EmbeddingTable(rows, Adagrad(0.05), initial=uniform(0.05, seed=7))  # doctest: +SKIP
    """
    begin = _mixed(np.array([seed % (1 << 64)], np.uint64))

    def weights(ids: torch.Tensor, dim: int) -> torch.Tensor:
        of_ids = _mixed(ids.numpy().astype(np.uint64) ^ begin)
        places = np.arange(1, dim + 1, dtype=np.uint64) * _GOLDEN
        bits = _mixed(of_ids[:, None] + places)
        unit = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return torch.from_numpy((2 * unit - 1) * np.float32(bound))

    return weights


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return words mixed as SplitMix64 does (Steele et al., OOPSLA 2014): each bit depends on all."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
