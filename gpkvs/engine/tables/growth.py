"""Growth: the index of a table doubles in its own file, step by step, between batches.

    file reserved -> index mapped for twice the blocks -> blocks moved, from the last to the first -> catalogue

One table grows at a time. Growth begins at a load of 0.65 and ends by 0.78: after each batch, as many blocks move as
its new keys ask for. The file is reserved before, the earlier the faster keys come. A batch whose new keys find no way
has the table grow at once, and is planned anew. Where growth cannot go on it waits, and is tried again. GETs, DELETEs,
overwrites and new keys that find a way go on meanwhile.

A block that is full while less than half of the slots are in use is no want of space: somebody aims at it, and a table
is not doubled for that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpkvs.backends.base import Backend
from gpkvs.columns.index_size import GROWTH_LOAD
from gpkvs.config import INDEX_BYTES_MAX, MIB
from gpkvs.engine.seam.capacity import IndexFullError
from gpkvs.engine.seam.committer import Committer
from gpkvs.engine.seam.write_set import WriteSet
from gpkvs.engine.state.table import Table
from gpkvs.engine.tables.index_room import Pages, Reservation
from gpkvs.engine.tables.schema import double_table
from gpkvs.errors import NoSpaceError
from gpkvs.media.directory import NO_SPACE, disk_free_bytes
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES, NO_GROWTH, Growth
from gpkvs.process import failpoint
from gpkvs.process.machine import free_bytes

# Of the slots before growth, so many hold a key when the file is reserved, when growth begins, and when it has ended.
PREPARE_LOAD, _BEGIN_LOAD, _END_LOAD = 0.5, GROWTH_LOAD, 0.78
# Of a file in memory: to reserve it takes no disk's time, and nobody else has what is reserved.
PREPARE_LOAD_IN_MEMORY = 0.62
_EARLIEST_LOAD = 0.3  # however fast keys come: who stops then has reserved in vain
# The rate of new keys is known after so many of the slots; and what follows a reservation takes about as long again.
_RATE_SHARE, _RESERVATIONS = 1 / 64, 2
_TELLING_BYTES = 16 * MIB  # reserved at once; of fewer, the time is that of a thread and a sync
_PACE_MIN = 0.05  # of the slots: growth that begins late takes so many new keys, not all at once
_ROOMY_LOAD = 0.7  # what an index takes of random keys for certain, even if all come in one batch
_AIMED_LOAD = 0.5  # below it, a full block is no want of space
_RETRY_SECONDS = 1.0
_LACK_SECONDS = 10.0  # so long a table with room says in any case why it did not grow for a batch


@dataclass(frozen=True)
class GrowthLimits:
    """How large indexes may become: one, and all together; None: no limit but the disk and the memory."""

    index_bytes_max: int | None = None
    tables_bytes_max: int | None = None


NO_LIMITS = GrowthLimits()


class _WaitsError(Exception):
    """Growth cannot go on now; the text says what it waits for."""


class Growing:
    """Has the tables of a store grow. The engine calls it between batches.

    Parameters
    ----------
    backend, files, tables
        Of the store.
    committer
        Makes the steps durable.
    limits
        How large indexes may become.

    Attributes
    ----------
    table
        That grows; None if none does.
    """

    def __init__(
        self,
        backend: Backend,
        files: StoreFiles,
        tables: dict[int, Table],
        committer: Committer,
        limits: GrowthLimits,
    ) -> None:
        self._backend = backend
        self._files = files
        self._tables = tables
        self._committer = committer
        self._limits = limits
        # A GPU needs time to register what is reserved.
        is_quick = files.root_region.is_volatile and backend.host is backend
        self._prepare_load = PREPARE_LOAD_IN_MEMORY if is_quick else PREPARE_LOAD
        self._seconds_per_byte = 0.0  # of reservations: of the last one
        self._seen: dict[int, tuple[float, int]] = {}  # by table id: when it was looked at, and how many keys it had
        self._reserving: Reservation | None = None
        self._pages: Pages | None = None
        self._waits: dict[int, tuple[float, str]] = {}  # by table id: when to try again, and what it waits for
        self.table: Table | None = None
        self._last_gate = 0  # of the last step: an opening found all that there is durable
        if files.growth != NO_GROWTH:
            self._begin_pace(tables[files.growth.table_id])

    def after(self, write_set: WriteSet) -> None:
        """Do what the new keys of a batch, which is committed, ask for."""
        self.gained([self._tables[writes.index.entry.id] for writes in write_set.tables if writes.new_keys])

    def gained(self, tables: Sequence[Table]) -> None:
        """Do what the new keys of tables ask for, after one batch or several."""
        if self.table and not self.table.index.unmoved:
            self._look(self.table)
        for table in tables:
            if table.records > table.looks_at:
                self._look(table)

    def look_again(self) -> None:
        """Look at the tables whose growth waits, though they gained no keys; between two batches."""
        for number, (retry_at, _) in list(self._waits.items()):
            table = self._tables[number]  # one that is dropped is forgotten
            if table is self.table or table.records > _BEGIN_LOAD * table.index.slots:
                self._look(table)
            elif time.monotonic() >= retry_at + _LACK_SECONDS:
                del self._waits[number]
                table.waits = ""

    @property
    def wants_batches(self) -> bool:
        """Whether something goes on beside the batches that is to be looked at soon."""
        return self.table is not None or (self._reserving is not None and not self._reserving.is_over)

    def _look(self, table: Table) -> None:
        """Begin, or go on with, the growth of a table that gained keys."""
        if self.table not in (None, table) or self._waits_for(table):
            return
        try:
            with self._waiting(table):
                if self.table is None:
                    self._prepare(table)
                if self.table is table:
                    self._advance(table, self._due(table))
        except _WaitsError:
            if table.records <= _BEGIN_LOAD * table.index.slots:
                table.waits = ""  # there is room yet

    def _prepare(self, table: Table) -> None:
        """Reserve the file when enough of the slots are in use, and begin at the load for it."""
        slots = table.index.slots
        prepares_at = self._prepares_at(table)
        if table.records <= prepares_at:
            table.looks_at = min(prepares_at, table.records + int(_RATE_SHARE * slots))
            return
        if not self.is_reserved(table, waits=False):
            return
        with suppress(OSError):  # it is tried again when the growth begins
            self._backend.prepare_growth(table.index)
        if table.records > _BEGIN_LOAD * slots:
            self.begin(table)
        else:
            table.looks_at = int(_BEGIN_LOAD * slots)

    def _prepares_at(self, table: Table) -> int:
        """Return with how many keys the file is to be reserved: it should be there when growth begins."""
        slots, (then, had) = table.index.slots, self._seen.get(table.entry.id, (0.0, 0))
        now = time.monotonic()
        self._seen[table.entry.id] = now, table.records
        usual = int(self._prepare_load * slots)
        if not had or table.records <= had:
            return usual
        rate = (table.records - had) / max(now - then, 1e-9)
        needed = _RESERVATIONS * self._seconds_per_byte * table.index.blocks * BLOCK_BYTES
        return min(usual, int(max(_BEGIN_LOAD * slots - rate * needed, _EARLIEST_LOAD * slots)))

    def make_room(self, full: Mapping[int, IndexFullError]) -> bool:
        """Have tables grow whose new keys found no way; return whether anything moved, so that they may find one."""
        grew = [self._make_room_in(refusal.table, refusal.new_keys) for refusal in full.values()]
        return any(grew)

    def _make_room_in(self, table: Table, new_keys: int) -> bool:
        grew = False
        try:
            with self._waiting(table):
                if self.table is not None:
                    grew = self.table is table
                    self._complete(self.table)
                wanted = table.records + new_keys
                if not grew and _is_aimed(table, new_keys):
                    return False
                while not grew or wanted > _ROOMY_LOAD * table.index.slots:
                    if not self.is_reserved(table, waits=True):
                        raise _WaitsError("its space could not be reserved: it is tried again")
                    self.begin(table)
                    self._complete(table)
                    grew = True
        except _WaitsError:
            pass
        return grew

    def refusal(self, refused: IndexFullError) -> IndexFullError:
        """Return why new keys are refused, now that growth was tried."""
        why = ""
        if _is_aimed(refused.table, refused.new_keys):
            why = "most of its slots are free, and it is not doubled for keys that all want the same ones"
        return IndexFullError(refused.table, refused.new_keys, why)

    @contextmanager
    def _waiting(self, table: Table) -> Iterator[None]:
        """Note what growth waits for; it is tried again after a while."""
        if waits := self._waits_for(table):
            table.waits = waits
            raise _WaitsError(waits)
        try:
            yield
        except _WaitsError as error:
            self._waits[table.entry.id] = time.monotonic() + _RETRY_SECONDS, str(error)
            table.waits = str(error)
            raise
        self._waits.pop(table.entry.id, None)
        table.waits = ""

    def _waits_for(self, table: Table) -> str:
        """Return what the growth of a table waits for, if it is not to be tried again yet."""
        retry_at, waits = self._waits.get(table.entry.id, (0.0, ""))
        return waits if time.monotonic() < retry_at else ""

    def is_reserved(self, table: Table, *, waits: bool) -> bool:
        """Whether the file has room for twice the blocks; if not, have it reserved.

        Parameters
        ----------
        waits
            Whether to return only when it is reserved.
        """
        path, size = table.index.region.path, 2 * table.index.blocks * BLOCK_BYTES
        self._check_limits(table.index, size)
        if self._reserving is None or (self._reserving.path, self._reserving.size) != (path, size):
            if not (self._reserving is None or self._reserving.is_over or waits):
                return False  # another table's is on its way
            self._end_reservation()
            # What an earlier life reserved is reserved again: it may not be durable.
            self._require_in_place(size)
            reserving = Reservation(path, size)
            # No batch of a GPU writes through this file's lock, and batches come faster: no pauses.
            reserving.begin(is_awaited=waits, is_paced=self._backend is self._backend.host)
            self._reserving = reserving  # after: who is interrupted in there has reserved nothing
        if waits:
            self._reserving.join()
        if not self._reserving.is_over:
            return False
        error = self._reserving.error
        if error:
            self._end_reservation()
            raise _waits_for_disk(error, self._files.path, size)
        if size // 2 >= _TELLING_BYTES:
            self._seconds_per_byte = self._reserving.seconds / (size // 2)
        return True

    def _require_in_place(self, size: int) -> None:
        try:
            self._files.require_in_place()
        except OSError as error:
            raise _waits_for_disk(error, self._files.path, size) from error

    def _check_limits(self, index: Index, size: int) -> None:
        limit_own = index.entry.index_bytes_max
        if limit_own and size > limit_own:
            raise _WaitsError(
                f"twice its {index.region.bytes:,} bytes are over the table's own index_bytes_max, {limit_own:,}, with "
                "which it was made: delete keys, or make a new table"
            )
        limit = min(self._limits.index_bytes_max or INDEX_BYTES_MAX, INDEX_BYTES_MAX)
        if size > limit:
            raise _WaitsError(
                f"twice its {index.region.bytes:,} bytes are over index_bytes_max (--index-bytes-max, {limit:,}): "
                "delete keys, or raise the limit"
            )
        limit_all = self._limits.tables_bytes_max
        if limit_all is None:
            return
        held = sum(other.region.bytes for other in self._files.indexes.values())
        if held - index.region.bytes + size > limit_all:
            raise _WaitsError(
                f"the indexes of all tables take {held:,} bytes, {size // 2:,} more are over tables_bytes_max "
                f"(--tables-bytes-max, {limit_all:,}): delete keys, drop a table, or raise the limit"
            )

    def begin(self, table: Table) -> None:
        """Map the index for twice its blocks, whose file is reserved."""
        index = table.index
        more = index.blocks * BLOCK_BYTES
        free = free_bytes() if self._files.data else None
        if free is not None and more > free:
            raise _WaitsError(
                f"its image needs {more:,} bytes more of memory, {free:,} are free: give the machine more"
            )
        self._end_pages()
        self._committer.land()
        self._files.remaps += 1  # before: an interrupt may come at any time after it
        try:
            with self._files.changing:  # no checkpoint looks at the image meanwhile
                self._backend.grow_index(index)
        except (NoSpaceError, OSError, MemoryError) as error:
            raise _WaitsError(f"it could not be mapped for {2 * more:,} bytes: {error}") from error
        self._end_reservation()
        self._files.growth = Growth(index.entry.id, index.blocks, index.blocks)
        if self._backend is self._backend.host:  # a GPU's are touched where they are registered
            self._pages = Pages(index.region)
            self._pages.begin()
        self._begin_pace(table)

    def _begin_pace(self, table: Table) -> None:
        """Take note where a growth begins: its blocks move with the keys that are new from here on."""
        slots = table.index.blocks * table.index.layout.block_slots
        self.table = table
        self._first_records, self._first_unmoved = table.records, table.index.unmoved
        self._last_records = max(_END_LOAD * slots, table.records + _PACE_MIN * slots)
        table.looks_at = 0

    def _due(self, table: Table) -> int:
        """Return how many blocks may be left unmoved."""
        left = self._last_records - table.records
        share = max(left / (self._last_records - self._first_records), 0.0)
        return int(self._first_unmoved * share)

    def _complete(self, table: Table) -> None:
        self.move_to(table, 0)
        self.finish(table)

    def _advance(self, table: Table, unmoved: int) -> None:
        self.move_to(table, unmoved)
        if table.index.unmoved == 0 and self._committer.is_durable(self._last_gate):
            self.finish(table)

    def idle_step(self, blocks: int) -> bool:
        """Move so many blocks while there is nothing else to do; return whether there is more."""
        table = self.table
        if table is None or self._waits_for(table):
            return False
        try:
            with self._waiting(table):
                self.move_to(table, max(table.index.unmoved - blocks, 0))
                if table.index.unmoved == 0:
                    self.finish(table)
        except _WaitsError:
            return False
        return self.table is not None

    def move_to(self, table: Table, unmoved: int) -> None:
        """Move blocks until so many are left."""
        assert self.table is table
        index = table.index
        self._committer.land()
        at_once = self._committer.blocks_at_once(index)
        while index.unmoved > unmoved:
            last = index.unmoved
            # No block may move to the place of one that moves with it.
            first = max(unmoved, (last + 1) // 2, last - at_once) if last > 1 else 0
            try:
                self._backend.reach_blocks(index, 2 * first)
                self._committer.move_blocks(index, first, last)
            except NoSpaceError as error:
                raise _WaitsError(str(error)) from error
            self._last_gate = self._committer.read_gate()

    def finish(self, table: Table) -> None:
        """Write the catalogue of twice the blocks; that all have moved is durable before (W7)."""
        self._committer.wait(self._last_gate)
        self._committer.land()
        failpoint.hit("before_growth_end")
        try:
            with self._files.changing:
                double_table(self._files, table.index, lambda: self._ended(table))
        except OSError as error:
            raise _waits_for_disk(error, self._files.path, 0) from error

    def _ended(self, table: Table) -> None:
        """Take note that a table has grown."""
        self._files.growth = NO_GROWTH
        self.table = None
        table.looks_at = 0

    def forget(self, table: Table) -> None:
        """Let go of a table that was dropped: the next descriptors do not name it any more."""
        if self._reserving and self._reserving.path == table.index.region.path:
            self._end_reservation()
        if self._pages and self._pages.region is table.index.region:
            self._end_pages()
        self._waits.pop(table.entry.id, None)
        self._seen.pop(table.entry.id, None)
        if self.table is table:
            self.table = None
            self._files.growth = NO_GROWTH

    def _end_reservation(self) -> None:
        if self._reserving:
            self._reserving.join()
            self._reserving = None

    def _end_pages(self) -> None:
        if self._pages:
            self._pages.end()
            self._pages = None

    def close(self) -> None:
        """Return when nothing runs in the background any more."""
        self._end_pages()
        self._end_reservation()


def _is_aimed(table: Table, new_keys: int) -> bool:
    """Whether a block is full though the table is not."""
    return table.records + new_keys < _AIMED_LOAD * table.index.slots


def _waits_for_disk(error: OSError, path: Path, size: int) -> _WaitsError:
    if error.errno in NO_SPACE:
        return _WaitsError(
            f"the disk has no room for {size:,} bytes, {disk_free_bytes(path):,} are free in {path}: delete keys, drop "
            "a table, or make room"
        )
    return _WaitsError(f"the file system refuses: {error}")
