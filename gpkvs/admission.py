"""Which requests are refused when a batch does not fit.

The request is the unit of rejection: the first one in arrival order that does not fit is refused whole, and the rest
run again. A pass may refuse several, where refusing the first one cannot make room for the others. Requests without a
SET are never refused for space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U32, Batch, Op
from gpkvs.errors import GpkvsError


class DoesNotFitError(Exception):
    """Some requests of a batch must be refused before it can run; `rejected` says which and why."""

    def __init__(self, rejected: dict[int, GpkvsError]) -> None:
        super().__init__(f"{len(rejected)} requests do not fit")
        self.rejected = rejected


class CutError(Exception):
    """The batch is too large for one transaction; its first `requests` requests are not."""

    def __init__(self, requests: int) -> None:
        super().__init__(f"only the first {requests} requests fit one transaction")
        self.requests = requests


def request_of_op(batch: Batch) -> NDArray[np.int64]:
    """Return the request of each operation."""
    return np.repeat(np.arange(len(batch.request_ops)), batch.request_ops)


def has_set(batch: Batch) -> NDArray[np.bool_]:
    """Return which requests hold a SET."""
    return np.bincount(request_of_op(batch), weights=batch.ops == Op.SET) > 0


def over_budget(costs: NDArray[np.int64], budget: int, refusable: NDArray[np.bool_]) -> list[int]:
    """Return the requests that do not fit a budget, taken in arrival order.

    Parameters
    ----------
    costs : (r,) int64
        What each request needs.
    budget
        What there is.
    refusable : (r,) bool
        Which may be refused; the others are served first.
    """
    remaining = budget - int(costs[~refusable].sum())
    refused = []
    for request in np.flatnonzero(refusable & (costs > 0)).tolist():
        if costs[request] <= remaining:
            remaining -= int(costs[request])
        else:
            refused.append(request)
    return refused


@dataclass(frozen=True)
class Placement:
    """A second attempt at placing new keys, in arrival order.

    Parameters
    ----------
    block : (m,) uint32
        The block of each changed chain.
    arrival : (m,) uint32
        The operation that first makes each new key present.
    was_new, failed : (m,) bool
        Which chains needed a way, and which got none.
    """

    block: U32
    arrival: U32
    was_new: NDArray[np.bool_]
    failed: NDArray[np.bool_]

    def refused(self, batch: Batch) -> list[int]:
        """Return the requests that surely do not fit.

        The first failing one never does: all ways taken before its turn belong to earlier requests. A later one is
        refused in the same pass if no failing request holds a way in the blocks where it failed, because then
        refusing the first changes nothing for it.
        """
        owner = request_of_op(batch)[self.arrival]
        failing = np.unique(owner[self.failed])
        contested = np.unique(self.block[self.was_new & ~self.failed & np.isin(owner, failing)])
        doubtful = np.unique(owner[self.failed & np.isin(self.block, contested)])
        return [request for request in failing.tolist() if request == failing[0] or request not in doubtful]


def first_set_of_chain(batch: Batch, order: U32, chain_of: U32, chains: int) -> U32:
    """Return for each chain the first SET in arrival order; 0 where there is none."""
    sets = np.flatnonzero(batch.ops[order] == Op.SET)
    chain, first = np.unique(chain_of[sets], return_index=True)
    result = np.zeros(chains, np.uint32)
    result[chain] = order[sets[first]]
    return result


def cut_to(costs: U32 | NDArray[np.int64], budget: int) -> int:
    """Return how many whole requests, from the first on, cost no more than a budget (all of them: no cut)."""
    return int(np.searchsorted(np.cumsum(costs, dtype=np.int64), budget, side="right"))
