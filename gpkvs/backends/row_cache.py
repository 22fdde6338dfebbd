"""Rows that a GPU keeps in its own memory: the cache of each table, and what all of them may take.

``kernels/cu/rows.cu`` has the cells. Each time the index says whether a row is still its key's, so a cache hears of
nothing: not of writes, not of compaction, not of growth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from gpkvs.backends.base import Processor
from gpkvs.backends.words import Words, places_of
from gpkvs.batch import U8, U32, U64
from gpkvs.errors import NoMemoryError
from gpkvs.media.index import Index
from gpkvs.native import launch_read_rows, library

_PLACES: Final = places_of(library.gpkvs_read_rows_fields())
_ROUNDS: Final = (1 << 15) - 1  # of tags, from 1 on
_SET_CELLS: Final = 16
_CELL_STEP: Final = 16  # bytes that a GPU copies at once, at best
_KNOWN_BYTES: Final = 24  # of a cell: its tag, and what else is known
_CELLS_A_ROW_MIN: Final = 4 / 3  # with fewer, some rows find none
_CELLS_A_ROW: Final = 2  # of a table: all rows find one then, also those that ask side by side
_WORTH_IT: Final = 1.5  # times as many cells: then all rows are read anew
_FREE_PART: Final = 1 / 4  # of the memory that is free, if nobody says how much


class Reading(NamedTuple):
    """Where rows are read to; columns of the processor.

    Attributes
    ----------
    keys : (8 n,) uint8
        Of the rows.
    keys_max
        What no key may be above.
    rows : (n * row_bytes,) uint8
        Where they go.
    row_bytes
        Of each.
    absent : (row_bytes,) uint8
        What a row is that is not there; None: it stays as it is.
    seen : (n,) uint8
        Whether each is there: 1 or 0; more than 1 while that is left to the host (``SeenRow``).
    """

    keys: U8
    keys_max: int
    rows: U8
    row_bytes: int
    absent: U8 | None
    seen: U8


class KnownRows(NamedTuple):
    """Rows that the processor has not read from its cache, as its columns.

    Attributes
    ----------
    given : (m * row_bytes,) uint8
        The rows.
    there : (m,) uint8
        Whether each is there, 1 or 0.
    versions : (m,) uint64
        Of each.
    """

    given: U8
    there: U8
    versions: U64


class RowCache:
    """Cells for the rows of one table.

    Parameters
    ----------
    place
        Whose memory they are in.
    row_bytes
        Of a row.
    cells
        How many there are to be at most; 0: the host reads all rows.

    Attributes
    ----------
    cells
        How many there are.
    bytes
        What they take.
    """

    def __init__(self, place: Processor, row_bytes: int, cells: int) -> None:
        sets = cells // _SET_CELLS
        self.cells = sets * _SET_CELLS
        self.row_bytes = row_bytes
        self._place, self._round = place, 0
        cell_bytes = _cell_bytes(row_bytes)
        self.bytes = self.cells * (cell_bytes + _KNOWN_BYTES)
        self._tags: U64 = place.xp.zeros(self.cells, np.uint64)
        self._known: U64 = place.xp.empty(2 * self.cells, np.uint64)
        self._cells: U8 = place.xp.empty(self.cells * cell_bytes, np.uint8)
        self._counts: U64 = place.xp.empty(2, np.uint64)
        self._told: U64 = place.result_column(2, np.uint64)
        self._numbers = {"sets": sets, "cell_bytes": cell_bytes, "row_bytes": row_bytes}
        self._read_rows = Words(
            _PLACES,
            launcher=place.launcher,
            tags=place.address(self._tags),
            known=place.address(self._known),
            cells=place.address(self._cells),
            counts=place.address(self._counts),
            told=place.address(self._told),
            **self._numbers,
        )

    def read(self, index: Index, reading: Reading) -> tuple[int, int]:
        """Read rows; return how many are left to the host (`Reading.seen`), and how many keys are above `keys_max`."""
        place, address, (hash_key0, hash_key1) = self._place, self._place.address, index.hash_keys
        cell: U64 = place.xp.empty(len(reading.seen), np.uint64)
        self._read_rows.set(
            queue=place.queue,
            count=len(cell),
            keys=address(reading.keys),
            keys_max=reading.keys_max,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            index=address(index),
            **index.geometry,
            step=self._step(reading.rows, reading.absent),
            absent=0 if reading.absent is None else address(reading.absent),
            rows=address(reading.rows),
            seen=address(reading.seen),
            cell=address(cell),
        )
        place.run_native(partial(launch_read_rows, self._read_rows.address))
        self._settle()
        left, wrong = self._told.tolist()
        return left, wrong

    def keep(self, index: Index, keys: U8, rows: KnownRows) -> None:
        """Keep the rows of keys; of equal keys, any."""
        self._keep(index, keys, rows, numbers=0, absent=0, rows=0, seen=0, step=self._step(rows.given))

    def take_left(self, index: Index, reading: Reading, numbers: U32, rows: KnownRows) -> None:
        """Take rows of a reading that were left to the host: they go to where they are wanted, and to cells.

        Parameters
        ----------
        numbers : (m,) uint32
            Of their keys in the reading.
        """
        self._keep(
            index,
            reading.keys,
            rows,
            numbers=numbers,
            absent=0 if reading.absent is None else reading.absent,
            rows=reading.rows,
            seen=reading.seen,
            step=self._step(reading.rows, reading.absent),
        )

    def _keep(self, index: Index, keys: U8, known: KnownRows, **where: Any) -> None:
        self._round = self._round % _ROUNDS + 1
        hash_key0, hash_key1 = index.hash_keys
        self._place.launch(
            "keep_rows",
            len(known.there),
            given=known.given,
            there=known.there,
            versions=known.versions,
            keys=keys,
            hash_key0=hash_key0,
            hash_key1=hash_key1,
            index=index,
            **index.geometry,
            tags=self._tags,
            known=self._known,
            cells=self._cells,
            **self._numbers,
            round=self._round,
            **where,
        )
        self._settle()  # what was given may change from now on, and rows are read

    def _settle(self) -> None:
        """Wait: who is interrupted, too, since the GPU stores to columns that are given back."""
        try:
            self._place.settle()
        except BaseException:
            self._place.settle()
            raise

    def _step(self, *columns: U8 | None) -> int:
        """Return how many bytes of rows a GPU may copy at once: 16, 8, 4 or 1."""
        bits = self.row_bytes | _CELL_STEP
        for column in columns:
            bits |= 0 if column is None else self._place.address(column)
        lowest = bits & -bits
        return 1 if lowest == 2 else lowest  # there is no copy by 2


class RowCaches:
    """The caches of all tables of a store.

    Parameters
    ----------
    place
        Whose memory they are in.
    free_bytes
        Returns how much of it is free.
    gpu, stream
        Its number, as CUDA counts it, and where its kernels run.

    Attributes
    ----------
    bytes_max
        Of all; None: a quarter of what is free when the first row is kept.
    """

    def __init__(self, place: Processor, free_bytes: Callable[[], int], gpu: int = 0, stream: int = 0) -> None:
        self._place, self._free_bytes = place, free_bytes
        self.gpu, self.stream = gpu, stream
        self.bytes_max: int | None = None
        self._caches: dict[Index, RowCache] = {}

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(cache.bytes for cache in self._caches.values())

    def of(self, index: Index, rows: int, row_bytes: int) -> RowCache:
        """Return the cache of a table that holds so many rows; a new one, if there is room for many more now.

        Each table has what it wants, as long as there is room. Then none has more than its share.
        """
        cache = self._caches.get(index)
        had = cache.cells if cache and cache.row_bytes == row_bytes else 0
        if cache and had >= _CELLS_A_ROW_MIN * rows:
            return cache
        if self.bytes_max is None:
            self.bytes_max = int(self._free_bytes() * _FREE_PART)
        size = _cell_bytes(row_bytes) + _KNOWN_BYTES
        wanted = size * max(rows * _CELLS_A_ROW + _SET_CELLS, 2 * had)
        others = {key: other for key, other in self._caches.items() if key is not index}
        room = self.bytes_max - sum(other.bytes for other in others.values())
        share = self.bytes_max // (len(others) + 1)
        if room < min(wanted, share):
            for key in [key for key, other in others.items() if other.bytes > share]:
                self.forget(key)
            room = share
        cells = min(wanted, room, self._free_bytes() + had * size) // size
        if cache and had and cells < _WORTH_IT * had:
            return cache
        self.forget(index)
        del cache, others  # their memory is free now
        made = self._caches[index] = self._new(row_bytes, cells)
        return made

    def _new(self, row_bytes: int, cells: int) -> RowCache:
        while True:
            try:
                return RowCache(self._place, row_bytes, cells)
            except MemoryError as error:  # CuPy's is one
                if not cells:
                    raise NoMemoryError from error
                cells //= 2

    def forget(self, index: Index) -> None:
        """Let go of the rows of a table that goes."""
        self._caches.pop(index, None)

    def give_back(self) -> bool:
        """Let go of all rows: somebody needs the memory; return whether there were any."""
        had = bool(self._caches)
        self._caches.clear()
        return had


def _cell_bytes(row_bytes: int) -> int:
    return -(-row_bytes // _CELL_STEP) * _CELL_STEP
