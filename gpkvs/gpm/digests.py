"""Digests of blocks of bytes: what tells whether a block changed, or was damaged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from gpkvs.batch import U8, U64
from gpkvs.gpm.kernels import own_kernels
from gpkvs.gpm.place import Place

BLOCK_BYTES: Final = 256 << 10
DIGEST_BYTES: Final = 16
_BLOCK_WORDS: Final = BLOCK_BYTES // 8
_TABLES_MAX: Final = 64

Sources = tuple[tuple[int, int], ...]  # where columns begin, and their bytes


def blocks_of(count: int) -> int:
    """Return how many blocks so many bytes have."""
    return -(-count // BLOCK_BYTES)


class Digests:
    """The hash of blocks, keyed by a file's seed (``gpm_digest.cu``), computed at a place."""

    def __init__(self, seed: int, place: Place) -> None:
        self._place = place
        # NumPy promises this stream; that of a Generator, not.
        self._keys = place.words(np.random.Philox(seed).random_raw(_BLOCK_WORDS))
        self._tables: dict[Sources, Any] = {}  # a loop saves the same arrays again and again

    def of(self, columns: Sequence[U8]) -> U64:
        """Return the digests of all blocks, one column after the other, as (blocks, 2) uint64 of the host."""
        place = self._place
        sources = tuple((place.address(column), len(column)) for column in columns)
        digests = place.xp.empty((sum(blocks_of(count) for _, count in sources), 2), np.uint64)
        own_kernels(place).launch(
            "gpm_digest",
            len(digests),
            parts=self._table(sources),
            count=len(sources),
            block_words=_BLOCK_WORDS,
            keys=self._keys,
            digest=digests,
            wait=False,
        )
        return place.to_host(digests)

    def _table(self, sources: Sources) -> Any:
        """Return the columns as `GpmPart`s, near to kernels."""
        found = self._tables.get(sources)
        if found is None:
            if len(self._tables) == _TABLES_MAX:
                self._tables.clear()
            first = accumulate((blocks_of(count) for _, count in sources), initial=0)
            words = [word for source, at in zip(sources, first, strict=False) for word in (*source, at)]
            found = self._tables[sources] = self._place.words(words)
        return found
