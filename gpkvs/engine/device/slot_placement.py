"""Where new keys go: a way in one of the two buckets of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Processor
from gpkvs.batch import U32, Op
from gpkvs.engine.capacity import DoesNotFitError, IndexFullError, request_of_op
from gpkvs.engine.device.plan import Chains, PlacedChains, Plan
from gpkvs.engine.table import Table
from gpkvs.media.layout import NO_OP, NO_SLOT


class Placement:
    """Finds ways for the new keys of one table, on one processor.

    Parameters
    ----------
    backend
        Where the plan runs.
    table
        Whose index has the ways.
    """

    def __init__(self, backend: Processor, table: Table) -> None:
        self._backend = backend
        self._table = table
        self._index = table.index

    def place(self, plan: Plan, changed: U32) -> PlacedChains:
        """Find a way for every new key among the chains that change.

        Raises
        ------
        DoesNotFitError
            With the requests whose keys find none.
        """
        chains = plan.chains
        is_new = (chains.slot if len(changed) == len(chains) else chains.slot[changed]) == NO_SLOT
        new_keys = self._backend.total(is_new)
        if not new_keys:
            return PlacedChains(len(changed), 0, changed, chains.slot, None)
        placed = self._run_place(chains, changed, new_keys)
        if not self._backend.total(placed.slot[changed] == NO_SLOT):
            return placed
        return self._admit(plan, changed, is_new)

    def _admit(self, plan: Plan, changed: U32, is_new: NDArray[np.bool_]) -> PlacedChains:
        """Place in arrival order, where it is clear which requests are too much."""
        xp, batch, chains = self._backend.xp, plan.batch, plan.chains
        change_of_chain = xp.full(len(chains), NO_OP, np.uint32)
        change_of_chain[changed[is_new]] = xp.flatnonzero(is_new)
        sets, set_chain = _sets_of_chains(plan)
        set_change = change_of_chain[set_chain]
        new = set_change != NO_OP
        sets, set_change = sets[new], set_change[new]
        blocks, change_block = xp.unique(chains.block[changed], return_inverse=True)
        slot, moved_to = chains.slot.copy(), xp.full(len(changed), NO_SLOT, np.uint64)
        refused = xp.zeros(len(batch.request_ops), np.uint8)
        self._backend.launch(
            f"admit_{self._index.layout.name}",
            1,
            sets=len(sets),
            set_change=set_change,
            set_request=self._backend.upload(request_of_op(batch).astype(np.uint32))[sets],
            changes=len(changed),
            changed_chain=changed,
            change_block=change_block.astype(np.uint32),
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            index=self._index,
            **self._index.geometry,
            hash_key0=self._index.hash_keys[0],
            hash_key1=self._index.hash_keys[1],
            taken=xp.zeros(len(blocks) * self._index.layout.block_buckets, np.uint8),
            pinned=xp.zeros(len(blocks) * self._index.layout.block_buckets, np.uint8),
            placed=xp.empty(len(sets), np.uint32),
            slot=slot,
            moved_to=moved_to,
            refused=refused,
        )
        requests = np.flatnonzero(self._backend.download(refused)).tolist()
        if requests:
            reason = IndexFullError(self._table, self._backend.total(is_new))
            raise DoesNotFitError(dict.fromkeys(requests, reason))
        return PlacedChains(len(changed), self._backend.total(is_new), changed, slot, moved_to)

    def _run_place(self, chains: Chains, changed: U32, new_keys: int) -> PlacedChains:
        xp = self._backend.xp
        slot, moved_to = chains.slot.copy(), self._backend.scratch(len(changed), np.uint64)
        block = chains.block[changed]
        begins = xp.ones(len(changed), np.bool_)
        begins[1:] = block[1:] != block[:-1]
        block_first = xp.append(xp.flatnonzero(begins), len(changed)).astype(np.uint32)
        blocks = len(block_first) - 1
        self._backend.launch(
            f"place_{self._index.layout.name}",
            blocks,
            keys_per_item=1 + len(changed) // blocks,
            block_first=block_first,
            changed_chain=changed,
            chain_fingerprint0=chains.fingerprint0,
            chain_fingerprint1=chains.fingerprint1,
            index=self._index,
            **self._index.geometry,
            hash_key0=self._index.hash_keys[0],
            hash_key1=self._index.hash_keys[1],
            slot=slot,
            moved_to=moved_to,
        )
        moves = self._backend.total(moved_to != NO_SLOT)
        return PlacedChains(len(changed), new_keys, changed, slot, moved_to if moves else None)


def _sets_of_chains(plan: Plan) -> tuple[NDArray[np.int64], U32]:
    """Return the SETs in arrival order, and the chain of each."""
    sets = np.flatnonzero(plan.ops == Op.SET.value)
    return sets, plan.chain_of_op()[sets]
