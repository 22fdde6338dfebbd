"""Where new keys go: a way in one of the two buckets of each."""

from __future__ import annotations

import numpy as np

from gpkvs.backends.base import Processor
from gpkvs.batch import U32
from gpkvs.engine.device.plan import Chains, PlacedChains
from gpkvs.engine.device.planned import ForHostError
from gpkvs.engine.table import Table
from gpkvs.media.layout import NO_SLOT


class Placement:
    """Finds ways for the new keys of one table of records, on one processor.

    Parameters
    ----------
    backend
        Where the plan runs.
    table
        Whose index has the ways.
    """

    def __init__(self, backend: Processor, table: Table) -> None:
        self._backend = backend
        self._index = table.index

    def place(self, chains: Chains, changed: U32) -> PlacedChains:
        """Find a way for every new key among the chains that change.

        Raises
        ------
        ForHostError
            If one finds none.
        """
        new = (chains.slot if len(changed) == len(chains) else chains.slot[changed]) == NO_SLOT
        new_keys = self._backend.total(new)
        if not new_keys:
            return PlacedChains(len(changed), 0, changed, chains.slot, None)
        placed = self._run_place(chains, changed, new_keys)
        if self._backend.total(placed.slot[changed] == NO_SLOT):
            raise ForHostError
        return placed

    def _run_place(self, chains: Chains, changed: U32, new_keys: int) -> PlacedChains:
        xp = self._backend.xp
        slot, moved_to = chains.slot.copy(), self._backend.scratch(len(changed), np.uint64)
        block = chains.block[changed]
        begins = xp.ones(len(changed), np.bool_)
        begins[1:] = block[1:] != block[:-1]
        block_first = xp.append(xp.flatnonzero(begins), len(changed)).astype(np.uint32)
        blocks = len(block_first) - 1
        self._backend.launch(
            "place_bytes",
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
