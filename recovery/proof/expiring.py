"""Keys that expire, in the explorers of crashes: the explorer sets the clock, and hears of each removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gpkvs.batch import Batch, Op, Status
from gpkvs.engine.seam.counted_time import CountedTime, clocks_set_by
from gpkvs.media.layout import BYTES_LAYOUT
from gpkvs.recovery.proof.model import Asked, Held, batch_of
from gpkvs.store import Store

# The time at which a workload or a life begins: in the year 2286. So the clock of whoever judges a state is behind, as
# after a restart with an earlier time.
BEGIN_MS = 10**13
AFTER_MS = BEGIN_MS * 2  # all keys with an expiry have expired

OnRemoval = Callable[[int, list[bytes], Callable[[], None]], None]


def at_time(store: Store, now: Callable[[], int]) -> None:
    """Set the clock of a store, forwards or backwards."""
    with store._turn_over():
        store._engine.expiry.time.clocks = clocks_set_by(now)


@contextmanager
def as_stored(store: Store) -> Iterator[None]:
    """Have nothing expire meanwhile: keys are read as the store has them."""
    expiry = store._engine.expiry
    before = expiry.time
    with store._turn_over():
        expiry.time = CountedTime(clocks_set_by(lambda: 0))
    try:
        yield
    finally:
        with store._turn_over():
            expiry.time = before


def expiries_of(store: Store, table: str, keys: Sequence[bytes]) -> list[int]:
    """Return when each of some keys expires, 0 if never or if it is not there; call it inside of `as_stored`."""
    opened = store.open_table(table)
    if not keys or opened.layout != BYTES_LAYOUT.name or not store._files.root.may_expire:
        return [0] * len(keys)
    result = store.execute_requests(batch_of(opened.id, [[Asked(Op.EXPIRY, key) for key in keys]])).request(0)
    found = zip(result.status.tolist(), result.value_list(), strict=True)
    return [int.from_bytes(value, "little") if status == Status.OK else 0 for status, value in found]


def on_removal(store: Store, around: OnRemoval) -> None:
    """Have the removal of expired keys run by a function, which is given the table, the keys, and what runs it."""
    expiry = store._engine.expiry
    execute = expiry._execute

    def remove(deletes: Batch) -> None:
        assert (deletes.ops == Op.DELETE).all()
        ends = np.cumsum(deletes.key_lengths, dtype=np.uint64).tolist()
        data = deletes.keys.tobytes()
        keys = [data[end - length : end] for end, length in zip(ends, deletes.key_lengths.tolist(), strict=True)]
        around(deletes.table, keys, lambda: execute(deletes))

    expiry._execute = remove


def expired(held: Held, keys: Sequence[bytes], now: int) -> list[bytes]:
    """Return those of some keys that are there, and have expired."""
    return [key for key in keys if key in held and 0 < held[key].expiry <= now]
