"""A step of a scan: the keys of a part of a table, in the order of fingerprint0.

    slots (index) -> cut -> peek (headers and keys) -> cut -> take (keys, values)

Neither growth, compaction nor a restart changes that order, so a cursor is a fingerprint. Invariant S1: a step returns
all keys with fingerprint0 from its cursor on up to the next one, ties together, and no others. So a key that is there
throughout a scan is returned exactly once.

A step looks at a bounded part of the index. Batches wait for it: so it looks at so many records as take a few
milliseconds, and a quarter of one while others use the store.
"""

from __future__ import annotations

import struct
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Backend
from gpkvs.batch import U8, U32, U64, constant, offsets_of
from gpkvs.engine.seam.traffic import Traffic
from gpkvs.engine.state.table import Table
from gpkvs.errors import InvalidArgumentError
from gpkvs.media.files import StoreFiles, blob_file
from gpkvs.media.index import Index
from gpkvs.media.layout import BYTES_LAYOUT, UNIT_BYTES
from gpkvs.native import number
from gpkvs.scan import ScanPiece

END = 1 << 64  # behind the last fingerprint

_FOUND, _DAMAGED, _EXPIRED = 1, 2, 3  # `Scanned` in kernels/plan/scan.hpp
_GROUP = number("SCAN_GROUP")
_LENGTH_MASK = np.uint64((1 << 24) - 1)  # of a reference: its units

_CURSOR = struct.Struct("<B16sIQ")  # version, store, table, the next fingerprint
_CURSOR_VERSION = 1

_BLOCKS_MAX = 64  # 4 MiB of an index
_SECONDS_AIM = 0.004
_KEYS_MIN, _KEYS_FIRST, _KEYS_MAX = 64, 4096, 1 << 16
# While others use the store. So few keys are read without other threads, for which a step might have to wait.
_KEYS_IN_USE, _BYTES_IN_USE = 2048, 256 << 10


class Wanted(NamedTuple):
    """What a step is to return.

    Attributes
    ----------
    prefix
        Only keys that begin with it.
    keys_only
        Whether to leave out the values.
    keys_max, bytes_max
        How many keys, and bytes of keys and values. One key may be more, and so may keys of one fingerprint.
    """

    prefix: bytes
    keys_only: bool
    keys_max: int
    bytes_max: int


class _Part(NamedTuple):
    """The columns of a piece, how many of its records are damaged, and the fingerprint behind it."""

    columns: tuple[U8, U32, U8, U32, U64, U64]
    damaged: int
    end: int


class _Gathered(NamedTuple):
    """Slots of a part, in the order of their fingerprints; the word is their reference, or the number they hold."""

    fingerprint0: U64
    slot: U64
    word: U64

    def first(self, count: int) -> _Gathered:
        """Return the first of them."""
        return _Gathered(self.fingerprint0[:count], self.slot[:count], self.word[:count])


class _Peeked(NamedTuple):
    """What is known of the records of slots."""

    scanned: U8
    key_lengths: U32
    value_lengths: U32
    versions: U64
    expiries: U64


def pack_cursor(store_id: bytes, table_id: int, fingerprint0: int) -> bytes:
    """Return the cursor of what begins at a fingerprint; empty if nothing does."""
    return b"" if fingerprint0 == END else _CURSOR.pack(_CURSOR_VERSION, store_id, table_id, fingerprint0)


def require_prefixes(layout: str) -> None:
    """Raise `InvalidArgumentError` if the keys of a table of this layout are numbers, of which none is a prefix."""
    if layout != BYTES_LAYOUT.name:
        raise InvalidArgumentError(
            f"a table of the layout {layout} has no prefixes: its keys are numbers", field="prefix"
        )


def unpack_cursor(cursor: bytes, store_id: bytes, table_id: int) -> int:
    """Return the fingerprint at which to go on; 0 for an empty cursor.

    Raises
    ------
    InvalidArgumentError
        If it is no cursor of this table of this store.
    """
    if not cursor:
        return 0
    if len(cursor) != _CURSOR.size or cursor[0] != _CURSOR_VERSION:
        raise InvalidArgumentError("these bytes are no cursor of a scan: begin without one", field="cursor")
    _, of_store, of_table, fingerprint0 = _CURSOR.unpack(cursor)
    if of_store != store_id:
        raise InvalidArgumentError("it is of another store: begin without one", field="cursor")
    if of_table != table_id:
        raise InvalidArgumentError(
            "it is of another table, or of one that was dropped and made anew: begin without one", field="cursor"
        )
    return int(fingerprint0)


class Scanner:
    """Reads parts of tables; the host's threads do it, whatever the backend.

    Parameters
    ----------
    backend, files
        Of the store.
    traffic
        Says whether others use it.
    """

    def __init__(self, backend: Backend, files: StoreFiles, traffic: Traffic) -> None:
        self._host = backend.host
        self._files = files
        self._traffic = traffic
        self._keys_max = _KEYS_FIRST  # of a step that takes about as long as it should

    def step(self, table: Table, cursor: bytes, wanted: Wanted, now_ms: int = 0) -> ScanPiece | list[bytes]:
        """Read the part of a table that begins at a cursor.

        Returns
        -------
        ScanPiece or list of bytes
            The keys that have expired, if there are some: they must go before the part may be seen.

        Raises
        ------
        InvalidArgumentError
            If the cursor is none of this table, or its keys have no prefix.
        """
        if wanted.prefix:
            require_prefixes(table.entry.layout)
        began = perf_counter()
        store_id, table_id = self._files.root.store_id, table.entry.id
        begin = unpack_cursor(cursor, store_id, table_id)
        self._host.begin()
        keys_max = self._keys_max
        if self._traffic.is_lately():
            keys_max = min(keys_max, _KEYS_IN_USE)
            wanted = wanted._replace(bytes_max=min(wanted.bytes_max, _BYTES_IN_USE))
        if not wanted.prefix:
            keys_max = min(keys_max, wanted.keys_max)
        known, end, damaged = self._gather(table, begin, keys_max)
        if table.index.has_records:
            weights = None
            if not wanted.keys_only and not wanted.prefix:
                weights = (known.word & _LENGTH_MASK) * np.uint64(UNIT_BYTES)
            gathered = known.first(cut(known.fingerprint0, keys_max, weights, wanted.bytes_max))
            peeked = self._peek(table, gathered, wanted.prefix, now_ms)
            if (peeked.scanned == _EXPIRED).any():
                return self._keys(table, gathered, peeked, peeked.scanned == _EXPIRED)
            end = self._end(gathered.fingerprint0, known.fingerprint0, end)
            part = self._records(table, gathered, peeked, wanted, end)
        else:
            gathered = known.first(cut(known.fingerprint0, keys_max, None, 0))
            end = self._end(gathered.fingerprint0, known.fingerprint0, end)
            part = self._numbers(table, gathered, wanted, end)
        self._adapt(perf_counter() - began, is_full=len(gathered.slot) >= self._keys_max)
        of_blocks = sum(count for first, count in damaged if begin <= first < part.end)
        return ScanPiece(
            *part.columns, part.damaged + of_blocks, pack_cursor(store_id, table_id, part.end), table.entry.layout
        )

    @staticmethod
    def _end(taken: U64, known: U64, end: int) -> int:
        """Return where the next part begins: at the first key that is left, else behind the blocks."""
        return int(known[len(taken)]) if len(taken) < len(known) else end

    def _adapt(self, seconds: float, *, is_full: bool) -> None:
        """Have the next steps take about as long as they should: records may be in memory, or on a slow disk."""
        if seconds > 2 * _SECONDS_AIM:
            self._keys_max = max(self._keys_max // 2, _KEYS_MIN)
        elif is_full and seconds < _SECONDS_AIM / 2:
            self._keys_max = min(self._keys_max * 2, _KEYS_MAX)

    def _gather(self, table: Table, begin: int, keys_max: int) -> tuple[_Gathered, int, list[tuple[int, int]]]:
        """Return the keys of some blocks, the fingerprint behind them, and what is misplaced in each block.

        The last is a list of pairs: the first fingerprint of a block, and the count.
        """
        index = table.index
        first = _number_of(index, begin)
        expected = -(-keys_max * index.live_blocks // max(1, table.records))  # blocks with so many keys
        blocks = min(expected, _BLOCKS_MAX, index.live_blocks - first)
        in_block = index.layout.block_slots
        key0, key1 = index.hash_keys
        fingerprint0, slot, word = (self._host.scratch(blocks * in_block, np.uint64) for _ in range(3))
        count, misplaced = np.empty((2, blocks), np.uint64)
        self._host.launch(
            f"scan_{index.layout.name}",
            blocks,
            keys_per_item=in_block,
            index=index,
            **index.geometry,
            first=first,
            begin=begin,
            hash_key0=key0,
            hash_key1=key1,
            fingerprint0=fingerprint0,
            slot=slot,
            word=word,
            count=count,
            misplaced=misplaced,
        )
        counts = count.tolist()
        joined = _Gathered(
            *(
                np.concatenate([column[n * in_block : n * in_block + counts[n]] for n in range(blocks)])
                for column in (fingerprint0, slot, word)
            )
        )
        damaged = [(_begin_of(index, first + n), wrong) for n, wrong in enumerate(misplaced.tolist()) if wrong]
        return joined, _begin_of(index, first + blocks), damaged

    def _peek(self, table: Table, gathered: _Gathered, prefix: bytes, now_ms: int) -> _Peeked:
        """Look at headers and keys."""
        n, index = len(gathered.slot), table.index
        peeked = _Peeked(
            self._host.scratch(n, np.uint8),
            *(self._host.scratch(n, np.uint32) for _ in range(2)),
            *(self._host.scratch(n, np.uint64) for _ in range(2)),
        )
        for lengths in (peeked.key_lengths, peeked.value_lengths):
            lengths.fill(0)  # of what is damaged
        key0, key1 = index.hash_keys
        self._launch_on_records(
            "peek",
            gathered.slot,
            index,
            table_id=table.entry.id,
            hash_key0=key0,
            hash_key1=key1,
            prefix=np.frombuffer(prefix, np.uint8),
            prefix_bytes=len(prefix),
            now_ms=now_ms,
            **peeked._asdict(),
        )
        return peeked

    def _launch_on_records(self, kernel: str, slot: U64, index: Index, /, **arguments: Argument) -> None:
        heap = self._files.heap
        self._host.launch(
            kernel,
            -(-len(slot) // _GROUP),
            keys_per_item=_GROUP,
            index=index,
            slot=np.ascontiguousarray(slot),
            slots=len(slot),
            heap=heap.address,
            heap_bytes=heap.bytes,
            record_format=self._files.root.store_format,
            **arguments,
        )

    def _records(self, table: Table, gathered: _Gathered, peeked: _Peeked, wanted: Wanted, end: int) -> _Part:
        """Return the part of what was peeked at, as much of it as fits."""
        lengths = peeked.key_lengths.astype(np.uint64)
        if not wanted.keys_only:
            lengths += peeked.value_lengths
        is_found = peeked.scanned == _FOUND
        keys_max = wanted.keys_max
        if wanted.prefix:  # else no more were looked at
            keys_max = max(int(np.searchsorted(np.cumsum(is_found), keys_max, side="right")), 1)
        count = cut(gathered.fingerprint0, keys_max, np.where(is_found, lengths, 0), wanted.bytes_max)
        end = self._end(gathered.fingerprint0[:count], gathered.fingerprint0, end)
        damaged = int(np.count_nonzero(peeked.scanned[:count] == _DAMAGED))
        chosen = np.flatnonzero(is_found[:count])
        while True:
            keys, values, scanned = self._take(table.index, gathered.slot[chosen], peeked, chosen, wanted)
            if (scanned == _FOUND).all():
                break
            damaged += int(np.count_nonzero(scanned != _FOUND))
            chosen = chosen[scanned == _FOUND]
        none32, none64 = np.empty(0, np.uint32), np.empty(0, np.uint64)
        expiries = peeked.expiries[chosen]
        columns = (
            keys,
            peeked.key_lengths[chosen],
            values,
            none32 if wanted.keys_only else peeked.value_lengths[chosen],
            peeked.versions[chosen],
            expiries if expiries.any() else none64,
        )
        return _Part(columns, damaged, end)

    def _take(
        self, index: Index, slot: U64, peeked: _Peeked, chosen: NDArray[np.int64], wanted: Wanted
    ) -> tuple[U8, U8, U8]:
        """Copy keys and values; return them, and of each record whether it is sound."""
        key_lengths = peeked.key_lengths[chosen]
        value_lengths = np.empty(0, np.uint32) if wanted.keys_only else peeked.value_lengths[chosen]
        keys, values = (
            np.empty(int(lengths.sum(dtype=np.uint64)), np.uint8) for lengths in (key_lengths, value_lengths)
        )
        scanned = np.empty(len(chosen), np.uint8)
        self._launch_on_records(
            "take_records",
            slot,
            index,
            **blob_file(self._files),
            with_values=int(not wanted.keys_only),
            key_offsets=offsets_of(key_lengths),
            value_offsets=offsets_of(value_lengths),
            keys=keys,
            values=values,
            scanned=scanned,
        )
        return keys, values, scanned

    def _keys(self, table: Table, gathered: _Gathered, peeked: _Peeked, mask: NDArray[np.bool_]) -> list[bytes]:
        """Return keys as Python objects; their records were found to be sound."""
        chosen = np.flatnonzero(mask)
        wanted = Wanted(b"", keys_only=True, keys_max=0, bytes_max=0)
        keys, _, _ = self._take(table.index, gathered.slot[chosen], peeked, chosen, wanted)
        ends = np.cumsum(peeked.key_lengths[chosen]).tolist()
        starts = [0, *ends[:-1]]
        return [keys[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]

    def _numbers(self, table: Table, gathered: _Gathered, wanted: Wanted, end: int) -> _Part:
        """Return the part of a table without records."""
        n = len(gathered.slot)
        keys = np.empty(n, np.uint64)
        self._host.launch("take_numbers", n, index=table.index, slot=np.ascontiguousarray(gathered.slot), keys=keys)
        none64, lengths = np.empty(0, np.uint64), constant(np.uint32(8), n)
        if wanted.keys_only:
            values, value_lengths = np.empty(0, np.uint8), np.empty(0, np.uint32)
        else:
            values, value_lengths = gathered.word.copy().view(np.uint8), lengths
        return _Part((keys.view(np.uint8), lengths, values, value_lengths, none64, none64), 0, end)


def cut(fingerprint0: U64, keys_max: int, weights: U64 | None, bytes_max: int) -> int:
    """Return how many keys, from the first on, a part takes: at least one, and those of one fingerprint together.

    Parameters
    ----------
    fingerprint0 : (n,) uint64
        Sorted.
    keys_max
        At least 1.
    weights : (n,) uint64, optional
        Bytes of each.
    bytes_max
        Of their sum.
    """
    count = min(len(fingerprint0), keys_max)
    if weights is not None and weights[:count].sum(dtype=np.uint64) > bytes_max:  # as a rule they fit
        fitting = int(np.searchsorted(np.cumsum(weights[:count], dtype=np.uint64), bytes_max, side="right"))
        count = max(fitting, 1)
    while 0 < count < len(fingerprint0) and fingerprint0[count] == fingerprint0[count - 1]:
        count += 1
    return count


def _number_of(index: Index, fingerprint0: int) -> int:
    """Return the number of the live block that holds a fingerprint, counted in the order of fingerprints."""
    block = fingerprint0 * index.blocks >> 64
    return block if block < index.unmoved else (fingerprint0 * 2 * index.blocks >> 64) - index.unmoved


def _begin_of(index: Index, number: int) -> int:
    """Return the first fingerprint of a live block; `END` behind the last one."""
    if number < index.unmoved:
        return -(-(number << 64) // index.blocks)
    return -(-((number + index.unmoved) << 64) // (2 * index.blocks))
