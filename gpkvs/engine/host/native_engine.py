"""The native engine: it runs batch after batch (``kernels/engine/native_engine.hpp``).

It runs in turns. Before each, and after it, Python does what runs beside batches; the turn ends when Python is wanted
again. A batch lacks something where the native engine leaves it: the crew does that, and has it run again.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from gpkvs.backends.base import Backend
from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import KernelFields, fields_of
from gpkvs.backends.path_costs import ALL_OPS, Mix
from gpkvs.batch import U64, Batch
from gpkvs.changes import ChangeKind
from gpkvs.columns.row_layout import row_layout_of
from gpkvs.engine.host.change_log import ChangeLog
from gpkvs.engine.host.native_planner import OPS_MAX, NativePlanner
from gpkvs.engine.seam.committer import Committer
from gpkvs.engine.seam.engine_batch import Engine
from gpkvs.engine.seam.left import Left
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.state.heap import Heap
from gpkvs.engine.state.table import Table
from gpkvs.engine.tables.expiry import Expiry
from gpkvs.media.files import StoreFiles
from gpkvs.media.image import Image
from gpkvs.media.layout import BYTES_LAYOUT, NO_GROWTH, U64_LAYOUT
from gpkvs.native import library, native_step
from gpkvs.process import failpoint

_log = logging.getLogger("gpkvs")

_TABLE: Final = tuple(field.name for field in fields_of(library.gpkvs_engine_table_fields()))
_GAINED, _RANGES = _TABLE.index("gained"), _TABLE.index("ranges")
# While a table grows, it is looked at again after so many new keys: as many as a block has, less in a small table.
_LOOKS_SHARE: Final = 64

DEVICE_LAYOUTS: Final = (BYTES_LAYOUT.name, U64_LAYOUT.name)
"""In native code's order."""
# So much of each value does not count in a batch that a door has gathered: its operation takes longer than to copy
# that, and the processors share a large batch better than a small one.
_SHORT_VALUE_BYTES: Final = 256
_TAKEN_SIZES: Final = 25  # by the bits of the operations; the last one is of all that have more

# What changes between turns. The sums of a turn come last.
_OF_TURN = (
    *("tables", "table_count", "leaves", "ops_max_bytes", "ops_max_u64"),
    *("ahead_us", "held_ms", "ends_at_ns", "heap_units_max", "closed", "log_ops_max", "device_ops"),
    *("taken", "taken_sizes", "gathered_max", "short_value_bytes", "gone"),
)
_SUMS = ("commits", "heap_units")


class Ran(IntEnum):
    """`EngineRan` in kernels/engine_batch.h."""

    DONE = 0
    LEFT = 1
    DUE = 2


class TurnLimits(NamedTuple):
    """How long batches may run before Python is wanted: seconds, and units of the heap."""

    seconds: float
    heap_units: int


class TurnSums(NamedTuple):
    """What the batches of a turn did: transactions that changed something, units of the heap, tables with new keys."""

    commits: int
    heap_units: int
    gained: Sequence[Table]


class NativeEngine:
    """Runs batches: those of a door, and the store's own.

    Parameters
    ----------
    backend, files, tables, heap, committer, meter, expiry
        Of the store.
    planner
        Plans the batches.
    changes
        Told what each transaction does, while it is on.
    before_turn, after_turn
        Do what runs beside batches.
    value_bytes_max
        Of the longest value that may be stored.
    made_bytes_max
        Of the values that a transaction may make of others.

    Attributes
    ----------
    address
        Of the calls that a door is given.
    engine_address
        Of the engine itself.
    never_waits
        Whether no batch waits for a disk.
    is_in_turn
        Whether a turn has begun, and not ended.
    ends_at_ns
        When the turn should end, by the monotonic clock.
    made_bytes_max
        Of values that a batch may return, or make of others.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        heap: Heap,
        committer: Committer,
        meter: Meter,
        expiry: Expiry,
        planner: NativePlanner,
        changes: ChangeLog,
        before_turn: Callable[[], TurnLimits],
        after_turn: Callable[[TurnSums], None],
        value_bytes_max: int,
        made_bytes_max: int,
    ) -> None:
        self._backend = backend
        self._files = files
        self._tables = tables
        self._committer = committer
        self._expiry = expiry
        self._planner = planner
        self._before_turn, self._after_turn = before_turn, after_turn
        names = [field.name for field in KernelFields("begin_turn").fields]
        self.made_bytes_max = made_bytes_max
        self._words = (ctypes.c_uint64 * len(names))()
        at = {name: number for number, name in enumerate(names)}
        self._of_turn = slice(0, len(_OF_TURN))
        self._sums = slice(len(_OF_TURN), len(_OF_TURN) + len(_SUMS))
        assert (*names[self._of_turn], *names[self._sums]) == (*_OF_TURN, *_SUMS)
        commit = committer.begin_turn()
        words = {
            "leaves": Left.TURN,  # until the first one begins
            "committer": commit.calls,
            "commit": commit.address,
            "meter": meter.address,
            "failpoint": failpoint.address(),
            "heap_state": address_of(heap.state),
            "planner_bytes": planner.struct_of("bytes")[0],
            "planner_u64": planner.struct_of("u64")[0],
            "result_bytes_max": planner.result_bytes_max,
            "value_bytes_max": value_bytes_max,
            "made_bytes_max": made_bytes_max,
            "changes": changes.address,
        }
        for name, word in words.items():
            self._words[at[name]] = word
        self._begin_turn = native_step("begin_turn", keeps_lock=True)
        self.engine_address = engine = ctypes.addressof(self._words)
        calls = (
            library.gpkvs_engine_run,
            library.gpkvs_engine_durable,
            library.gpkvs_engine_wait,
            library.gpkvs_engine_reserve,
        )
        self._calls = Engine(engine, *(ctypes.cast(call, ctypes.c_void_p) for call in calls))
        if not (heap.blobs and heap.blobs.stays):
            self._calls.reserve = None
        self._calls.never_waits = self.never_waits = files.undo_log is not None and not files.heap.is_paged
        self._calls.planned_ns = meter.planned_address
        self.address = ctypes.addressof(self._calls)
        self.is_in_turn, self.ends_at_ns = False, 0
        self._device_ops: U64 | None = None  # kept as long as native code may read it
        self._taken: U64 = np.zeros((len(DEVICE_LAYOUTS), len(Mix), _TAKEN_SIZES, 3), np.uint64)
        self._generation, self._remaps, self._growth = -1, 0, NO_GROWTH  # when the tables were described
        self._rows: U64 = np.zeros((0, len(_TABLE)), np.uint64)
        self._row_of: dict[int, int] = {}

    def begin_turn(
        self,
        held_ms: int = 0,
        closed: Collection[Left] = (),
        device_ops: U64 | None = None,
        *,
        is_of_door: bool = False,
        is_within: bool = False,
    ) -> None:
        """Do what is due beside batches, and let native code run them.

        Parameters
        ----------
        held_ms
            The time that counts for the next batch that runs, in milliseconds since 1970; 0: that of the clock. Where
            somebody has set the store's clock, and keys may expire, a turn is of one batch.
        closed
            The reasons for which nothing can be done: requests that lack one of them are refused.
        device_ops : (layouts, mixes) uint64
            From how many operations on a batch is left for a GPU (`Left.DEVICE`), by `DEVICE_LAYOUTS` and `Mix`.
            `None`: none is.
        is_of_door
            Whether batches are gathered by a door: of those with more than `OPS_MAX` operations the first messages run,
            and what they take is noted where a GPU could run them as well (`taken_by_host`).
        is_within
            Whether what is due beside batches is being done, and asks for this turn: to remove keys that have expired.
        """
        self.end_turn()
        limits = TurnLimits(0.0, 0) if is_within else self._before_turn()
        if not is_of_door:  # a request of this process keeps Python's lock; the batch of a door may be for a GPU again
            self._committer.land()
        self._committer.begin_turn()
        self._describe_tables()
        self._describe_expiries()
        planner, expiry = self._planner, self._expiry
        may_expire, seconds = expiry.is_used, limits.seconds
        if may_expire and not expiry.time.clocks.are_native:
            held_ms, seconds = held_ms or expiry.time.now_ms(), 0.0
            may_expire = held_ms > 0
        self._device_ops = device_ops
        self._calls.operations_max = OPS_MAX if device_ops is None else ALL_OPS
        self.ends_at_ns = time.monotonic_ns() + int(seconds * 1e9)
        self._words[self._of_turn] = [
            address_of(self._rows),
            len(self._rows),
            0,
            planner.struct_of("bytes")[1],
            planner.struct_of("u64")[1],
            expiry.time.address if may_expire else 0,
            held_ms,
            self.ends_at_ns,
            limits.heap_units,
            sum(1 << reason for reason in closed),
            self._files.log_entries_max,
            0 if device_ops is None else address_of(device_ops),
            address_of(self._taken) if is_of_door and self._backend.path_costs else 0,
            _TAKEN_SIZES,
            OPS_MAX if is_of_door else ALL_OPS,
            _SHORT_VALUE_BYTES if is_of_door else 0,
            ChangeKind.EXPIRED if is_within else ChangeKind.DELETED,
        ]
        self._begin_turn(ctypes.addressof(self._words), 0, 1)
        self.is_in_turn = True

    def has_records(self, batch: Batch) -> bool:
        """Whether the table of a batch has records; of a table that is gone, native code refuses it."""
        table = self._tables.get(batch.table)
        return table is None or table.index.has_records

    def taken_by_host(self) -> Iterator[tuple[str, Mix, int, float, int]]:
        """Yield what gathered batches took since the last call, of those that a GPU could run as well.

        For each layout, mix and size: operations and seconds of a mean batch, and how many there were.
        """
        layouts, mixes, sizes = np.nonzero(self._taken[..., 0])
        for layout, mix, size in zip(layouts.tolist(), mixes.tolist(), sizes.tolist(), strict=True):
            batches, operations, ns = self._taken[layout, mix, size].tolist()
            yield DEVICE_LAYOUTS[layout], tuple(Mix)[mix], operations // batches, ns / batches / 1e9, batches
        self._taken[:] = 0

    def leave_all(self) -> None:
        """Leave every batch of the next turn."""
        self._words[_OF_TURN.index("table_count")] = 0
        self._words[_OF_TURN.index("leaves")] = Left.TURN
        self._begin_turn(ctypes.addressof(self._words), 0, 1)

    def end_turn(self) -> None:
        """Do what the batches of the turn ask for, if there is one; what fails is tried again after the next turn."""
        if not self.is_in_turn:
            return
        self.is_in_turn = False
        try:
            self._end_turn()
        except Exception as error:  # noqa: BLE001 - the batches are done
            _log.warning("what batches leave behind could not be done: %r", error)

    def _end_turn(self) -> None:
        commits, heap_units = self._words[self._sums]
        if not commits:
            return
        rows = np.flatnonzero(self._rows[:, _GAINED])
        gained = [self._tables[number] for number in self._rows[rows, 0].tolist()]
        self._after_turn(TurnSums(commits, heap_units, gained))
        for table in gained:
            self._describe(table)

    def _describe_tables(self) -> None:
        """Describe the tables that have changed since the last turn."""
        generation, growth = self._files.root.catalog_generation, self._files.growth
        remaps = self._files.remaps
        # A growth that was interrupted when it began is not named, but its index may be in another place.
        if generation != self._generation or (remaps != self._remaps and growth == self._growth):
            self._rows = np.zeros((len(self._tables), len(_TABLE)), np.uint64)
            self._row_of = {number: row for row, number in enumerate(sorted(self._tables))}
            changed = set(self._tables)
        elif growth != self._growth:
            changed = {growth.table_id, self._growth.table_id} & set(self._row_of)
        else:
            return
        for number in changed:
            self._describe(self._tables[number])
        self._generation, self._remaps, self._growth = generation, remaps, growth

    def _describe_expiries(self) -> None:
        """Say when keys expire: in a table of which that is not said, native code gives no expiry."""
        self._rows[:, _RANGES:] = 0
        for number, earliest in self._expiry.earliest():
            self._rows[self._row_of[number], _RANGES:] = len(earliest), address_of(earliest)

    def _describe(self, table: Table) -> None:
        index, entry = table.index, table.entry
        region = index.region
        records, looks_at = table.records, table.looks_at
        if records > looks_at:
            looks_at = records + min(index.slots // _LOOKS_SHARE, index.layout.block_slots)
        file, marks = (0, address_of(region.marks)) if isinstance(region, Image) else (region.file, 0)
        self._rows[self._row_of[entry.id]] = [
            entry.id,
            entry.generation,
            index.layout.entry_bytes,
            index.address,
            file,
            index.blocks,
            index.unmoved,
            marks,
            table.held_address,
            self._backend.late_slots(index),
            rows.number if (rows := row_layout_of(entry.layout)) else 0,
            looks_at,
            0,
            0,
            0,
        ]
