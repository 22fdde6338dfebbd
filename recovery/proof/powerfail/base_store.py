"""The base store, with which every workload begins: the smallest possible, and the same in every run."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import numpy as np

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import Batch, Op
from gpkvs.config import DEFAULT_TABLE, KIB, DurabilityName
from gpkvs.media.directory import HEAP_FILE, LOCK_FILE, ROOT_FILE
from gpkvs.media.files import open_files
from gpkvs.media.layout import (
    BLOCK_BYTES,
    BYTES_LAYOUT,
    INCARNATION_MAX,
    LAYOUTS,
    STRUCTURE_BYTES,
    U64_LAYOUT,
    WAYS,
    Root,
)
from gpkvs.pm.domain import find_domain
from gpkvs.store import Store

OTHER_TABLE = "other"  # the workloads create and drop it

_HEAP_BYTES, _HEAP_BYTES_WITH_BLOBS = 128 * KIB, 512 * KIB

# Keys are the numbers from 1. The search for the keys of three buckets looks at so many; the last one that it takes is
# 571,927, or 2,034,438.
_CANDIDATES = {BYTES_LAYOUT.name: 600_000, U64_LAYOUT.name: 2_100_000}
_FULL_A, _FULL_B, _ROOMY = 10, 20, 30  # buckets
_GAPS = 4  # free ways in the roomy bucket


@dataclass(frozen=True)
class Keys:
    """The keys that workloads of a table use."""

    crowd: tuple[bytes, ...]  # in the base store, in the two full buckets and the roomy one
    present: tuple[bytes, ...]  # in the base store, in other buckets
    absent: tuple[bytes, ...]  # not in the base store, of other buckets
    full: tuple[bytes, ...]  # not in the base store, and both their buckets are full

    @property
    def all(self) -> tuple[bytes, ...]:
        """Every key that a store may ever hold."""
        return (*self.crowd, *self.present, *self.absent, *self.full)


# What runs the batches of a workload. `pair`: phases, and a `PairBackend`, which logs in chunks; two processors store.
ExploredEngine = Literal["native", "phases", "pair"]


def table_of(layout: str) -> str:
    """Return the table of a layout: the default table has the layout `bytes`."""
    return DEFAULT_TABLE if layout == BYTES_LAYOUT.name else layout


def open_tiny(
    path: Path,
    *,
    create: bool = False,
    durability: DurabilityName = "msync",
    is_pair: bool = False,
    has_blobs: bool = False,
) -> Store:
    """Open the smallest possible store; in `msync`, with every persist that any domain has.

    A store places its keys by a hash key that it draws at random. Here it is always the same, so that every run visits
    the same states. Two processors store the slots of a pair (`PairBackend`). A new store of format 4 has room for some
    blobs, which may take as much as the heap may.
    """
    heap_bytes = _HEAP_BYTES_WITH_BLOBS if has_blobs else _HEAP_BYTES
    if (path / ROOT_FILE).exists():
        heap_bytes = (path / HEAP_FILE).stat().st_size
    with ExitStack() as stack:
        if is_pair:
            stack.enter_context(patch.dict(os.environ, {VARIABLE: PAIR}))
        if create and not (path / ROOT_FILE).exists():
            stack.enter_context(
                patch("gpkvs.media.directory.secrets.token_bytes", lambda count: bytes(range(1, count + 1)))
            )
            stack.enter_context(patch("gpkvs.media.directory.time.time_ns", lambda: 0))
        return gpkvs.open(
            path,
            backend="auto" if is_pair else "cpu",
            threads=1,
            durability=durability,
            commit="undo",
            store_format="4" if has_blobs else "auto",
            index_bytes=BLOCK_BYTES,
            heap_bytes=heap_bytes,
            log_bytes=128 * KIB,
            create=create,
        )


def value_of(layout: str, number: int) -> bytes:
    """Return a value; in `bytes`, values differ in length."""
    return number.to_bytes(8, "little") if layout == U64_LAYOUT.name else b"v%d" % number + b"." * (number * 7 % 13)


def use_up_incarnations(path: Path) -> None:
    """Make a store that is not open look as if it had been opened four million times."""
    (path / LOCK_FILE).touch()  # `find_domain` looks at it
    files = open_files(path, find_domain(path, "msync"))
    used_up = replace(files.root, sequence=files.root.sequence + 1, incarnation=INCARNATION_MAX)
    files.roots.write(used_up)
    files.close()


def make_base(path: Path, layout: str, *, has_blobs: bool) -> Keys:
    """Create the store that every workload of a layout begins with; return its keys."""
    open_tiny(path, create=True, has_blobs=has_blobs).close()
    table = table_of(layout)
    root = Root.unpack((path / "root").read_bytes()[:STRUCTURE_BYTES])
    keys, first_words = _find_keys(layout, root.hash_keys)
    with open_tiny(path) as store:
        if table != DEFAULT_TABLE:
            store.create_table(table, layout=layout, index_bytes=BLOCK_BYTES)
        # The first half of the crowd fills its two buckets, B and the roomy one. So all of the other half goes to A.
        for part in (keys.crowd[: 2 * WAYS], keys.crowd[2 * WAYS :], keys.present):
            operations = [(Op.SET, key, value_of(layout, number)) for number, key in enumerate(part)]
            store.execute(Batch.of(operations), table=table)
        index = np.frombuffer((path / f"index-{store.table(table).id}-0").read_bytes(), np.uint64)
        slot_words = LAYOUTS[layout].slot_bytes // 8
        roomy = index[_ROOMY * WAYS * slot_words : (_ROOMY + 1) * WAYS * slot_words : slot_words].tolist()
        gaps = [first_words[word] for word in roomy[:_GAPS]]
        store.execute(Batch.of([(Op.DELETE, key) for key in gaps]), table=table)
    crowd = tuple(key for key in keys.crowd if key not in gaps)
    return replace(keys, crowd=crowd, absent=(*keys.absent, *gaps))


def _find_keys(layout: str, hash_keys: tuple[int, int]) -> tuple[Keys, dict[int, bytes]]:
    """Find keys that crowd three buckets. Return them, and the crowd's keys by the first words of their slots.

    A new key of the pair (A, B) then finds both buckets full. The occupants of A cannot move. Those of B can move to
    the roomy bucket.
    """
    count = _CANDIDATES[layout]
    numbers = np.arange(1, count + 1, dtype=np.uint64)
    fingerprint0, fingerprint1 = np.empty(count, np.uint64), np.empty(count, np.uint64)
    backend = CpuBackend(threads=1)
    backend.launch(
        "route_u64",
        count,
        keys=numbers.view(np.uint8),
        hash_key0=hash_keys[0],
        hash_key1=hash_keys[1],
        fingerprint0=fingerprint0,
        fingerprint1=fingerprint1,
    )
    backend.close()
    # As `candidates_in_block` of kernels/base/probe.cuh.
    buckets = LAYOUTS[layout].block_buckets
    first = fingerprint1 >> np.uint64(64 - (buckets.bit_length() - 1))
    second = (first + np.uint64(1) + fingerprint1 % np.uint64(buckets - 1)) % np.uint64(buckets)

    def pair(one: int, other: int, wanted: int) -> list[int]:
        found = np.flatnonzero((first == one) & (second == other) | (first == other) & (second == one))
        assert len(found) >= wanted, "too few candidates"
        return [int(at) for at in found[:wanted]]

    crowded = (_FULL_A, _FULL_B, _ROOMY)
    b_and_roomy, a_and_b = pair(_FULL_B, _ROOMY, 2 * WAYS), pair(_FULL_A, _FULL_B, WAYS + _GAPS)
    elsewhere = np.flatnonzero(~np.isin(first[:1000], crowded) & ~np.isin(second[:1000], crowded))[:72].tolist()

    def names(places: list[int]) -> tuple[bytes, ...]:
        return tuple(int(numbers[at]).to_bytes(8, "little") for at in places)

    crowd = [*b_and_roomy, *a_and_b[:WAYS]]
    words = numbers if layout == U64_LAYOUT.name else fingerprint0
    first_words = dict(zip((int(words[at]) for at in crowd), names(crowd), strict=True))
    return Keys(names(crowd), names(elsewhere[:8]), names(elsewhere[8:]), names(a_and_b[WAYS:])), first_words
