"""Where the keys of a batch are, found by the host's threads, outside of any plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpkvs.backends.base import Argument, Backend
from gpkvs.batch import U32, U64, Batch
from gpkvs.engine.plan import offsets_of
from gpkvs.engine.table import Table


class Found(NamedTuple):
    """What a table holds of the keys of some operations.

    Attributes
    ----------
    chain
        Of each operation: all operations of one key are a chain.
    slot, old_word, old_meta
        Of each chain, as `gpkvs.engine.plan.Chains` has them; `old_meta` means nothing in a table of numbers.
    """

    chain: U32
    slot: U64
    old_word: U64
    old_meta: U64


def find_keys(backend: Backend, table: Table, part: Batch) -> Found:
    """Find all keys of the operations on one table.

    Parameters
    ----------
    backend
        Of the store.
    table
        The table.
    part
        Operations on it alone.
    """
    index, n, host = table.index, len(part), backend.host
    layout, (hash_key0, hash_key1) = index.layout.name, index.hash_keys
    keys: dict[str, Argument] = {"keys": backend.download(part.keys)}
    lengths = np.ascontiguousarray(part.key_lengths)
    of_records: dict[str, Argument] = {"key_offsets": offsets_of(lengths), "key_lengths": lengths}
    word0, word1 = np.empty((2, n), np.uint64)
    words: dict[str, Argument] = {"fingerprint0": word0, "fingerprint1": word1}
    host.launch(
        f"route_{layout}",
        n,
        keys_per_item=1,
        **keys,
        **(of_records if index.has_records else {}),
        hash_key0=hash_key0,
        hash_key1=hash_key1,
        **words,
    )
    order, chain_of, start, _ = host.order(word0, word1, np.ascontiguousarray(part.ops))
    chain = np.empty(n, np.uint32)
    chain[order] = chain_of
    count = len(start) - 1
    slot, old_word, old_meta, chain0, chain1 = np.empty((5, count), np.uint64)
    host.launch(
        f"find_{layout}",
        count,
        keys_per_item=1,
        **({"old_meta": old_meta} if index.has_records else keys),
        **words,
        order=order,
        chain_start=start,
        index=index,
        **index.geometry,
        chain_fingerprint0=chain0,
        chain_fingerprint1=chain1,
        block=np.empty(count, np.uint32),
        slot=slot,
        old_word=old_word,
    )
    return Found(chain, slot, old_word, old_meta)
