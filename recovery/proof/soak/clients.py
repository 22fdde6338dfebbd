"""The clients of a soak: they keep the heap nearly full, and remember what they were told.

Some write records of all sizes, one writes numbers to a table of the layout u64, one makes tables, fills them, reads
them and drops them. They use the raw gRPC stubs, so that no retry hides a loss.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc

from gpkvs.config import DEFAULT_TABLE
from gpkvs.proto.v1 import admin_pb2, admin_pb2_grpc, kv_pb2_grpc
from gpkvs.recovery.proof.drill.clients import channel
from gpkvs.recovery.proof.drill.ledger import NUMBER_BYTES, VALUE_BYTES_MIN, Cell
from gpkvs.recovery.proof.servers.server_process import ready_file_of
from gpkvs.recovery.proof.soak.copying import Copying
from gpkvs.recovery.proof.soak.expiring import EXPIRING, ExpiringKeys
from gpkvs.recovery.proof.soak.heap_use import SHARE_MAX, SHARE_MIN, HeapUse, breaks_promise, heap_use
from gpkvs.recovery.proof.soak.tables import (
    CALL_SECONDS_MAX,
    KEY_BYTES,
    Layout,
    Refusal,
    SoakTable,
    Totals,
    refusal_of,
)
from gpkvs.server.signs.metrics_reader import Scrape, ScrapeError

NUMBERS = "numbers"

_GONE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
_REFUSED_PAUSE_SECONDS = 0.005
_LOOK_SECONDS = 0.25  # between two questions how full the heap is
_FORGET_SECONDS = 2.0
_WRITERS = 4
_CELL_KEYS_MAX = 60
_CELL_BYTES_MAX = 1 << 20
_CELLS_OF_HEAP_MIN = 64  # that fit into the heap, if each has as many bytes as it may
_SIZES = ((NUMBER_BYTES, NUMBER_BYTES), (VALUE_BYTES_MIN, 120), (120, 1_000), (1_000, 20_000))
_SIZES_WEIGHTS = (15, 45, 35, 5)
# Where large values lie in blobs: this share of the requests has one, as long as all blobs take no more than a quarter
# of what the heap may have. The store lets them have as much as the heap.
_BLOB_SHARE = 0.1
_BLOB_BYTES_MIN, _BLOB_BYTES_MAX = 60_000, 3 << 20
_BLOBS_OF_HEAP_MAX, _BLOB_OF_HEAP_MAX = 0.25, 1 / 20
_NUMBER_CELLS, _NUMBER_CELL_KEYS, _NUMBERS_INDEX_BYTES = 100, 200, 64 << 10
_UNTOUCHED_KEYS = 100
_PASSING_NAMES = 3  # used again and again
_PASSING_CELLS, _PASSING_CELL_KEYS, _PASSING_INDEX_BYTES = 30, 120, 64 << 10  # smaller than its keys need
_DROP_SHARE = 0.8


@dataclass
class _Cells:
    """The cells of one writer; `spare` ones may be empty."""

    full: list[Cell] = field(default_factory=list)
    spare: list[Cell] = field(default_factory=list)


class SoakClients:
    """The clients of one store, through all lives of its server.

    Parameters
    ----------
    data
        The store's directory, from whose servers they learn how full the heap is.
    seed
        Of their choices; the timing is up to the machine.
    copies
        A directory in which backups are taken, one after the other; None: none are.

    Attributes
    ----------
    totals : Totals
        What they did, and what the store holds.
    refused : Counter of str
        Requests that were refused, by what was full.
    refusal_text : str
        The reason of the last refusal in words.
    problems : list of str
        What is wrong beside the violations of the ledgers.
    use : HeapUse
        How full the heap was at the last look.
    shares : list of float
        The same at each look since somebody emptied the list.
    info : admin_pb2.InfoResponse
        What the server said about itself at the last look.
    copying : Copying or None
        What takes the backups.
    """

    def __init__(self, data: Path, seed: str, copies: Path | None = None) -> None:
        self._ready_file = ready_file_of(data)
        self.totals = Totals()
        self.refused: Counter[str] = Counter()
        self.refusal_text = ""
        self.problems: list[str] = []
        self.last_error = "none"
        self.use = HeapUse(0, 1)
        self.shares: list[float] = []
        self.info = admin_pb2.InfoResponse()
        self.tables_made = self.tables_dropped = 0
        self._random = random.Random(seed)
        self._is_told_to_stop = False
        self._live_at_look = 0
        self._names = 0
        self._records = SoakTable(DEFAULT_TABLE, "bytes", self.totals)
        self._records.ledger.add_cell([self._key() for _ in range(_UNTOUCHED_KEYS)])
        self._own = [_Cells() for _ in range(_WRITERS)]
        self._numbers = SoakTable(NUMBERS, "u64", self.totals)
        self._numbers.ledger.add_cell(_number_keys(_NUMBER_CELLS * _NUMBER_CELL_KEYS, _UNTOUCHED_KEYS))
        self._number_cells = [
            self._numbers.ledger.add_cell(_number_keys(cell * _NUMBER_CELL_KEYS, _NUMBER_CELL_KEYS))
            for cell in range(_NUMBER_CELLS)
        ]
        self._passing: dict[str, SoakTable] = {}
        self.expiring = ExpiringKeys(f"{seed} expiring")
        self.copying = Copying(copies, lambda: self._is_told_to_stop) if copies else None

    @property
    def tables(self) -> Iterator[SoakTable]:
        """All tables that are there, or may be."""
        yield self._records
        yield self._numbers
        yield from self._passing.values()

    @property
    def violations(self) -> list[str]:
        """All that is wrong."""
        return [*self.problems, *self.expiring.problems] + [
            violation for table in self.tables for violation in _violations(table)
        ]

    @property
    def share(self) -> float:
        """How full the heap is now: as the server said at the last look, and what the clients have done since."""
        since = self.totals.live_bytes - self._live_at_look
        return (self.use.used_bytes + since + self.totals.in_flight_bytes) / self.use.limit_bytes

    async def prepare(self, target: str) -> None:
        """Make the tables of numbers, and of keys that expire, in a new store."""
        async with channel(target) as connection:
            for name, layout in ((NUMBERS, "u64"), (EXPIRING, "bytes")):
                request = admin_pb2.CreateTableRequest(name=name, layout=layout, index_bytes=_NUMBERS_INDEX_BYTES)
                await admin_pb2_grpc.AdminStub(connection).CreateTable(request, timeout=CALL_SECONDS_MAX)

    async def run(self, target: str) -> None:
        """Let all clients work until each has lost its server, or `stop` is called."""
        turns: list[_Turn] = [partial(self._turn_of_records, cells) for cells in self._own]
        turns += [self._turn_of_numbers, self._turn_of_a_table, self._look_again]
        turns += [lambda calls: self.expiring.turn(calls.kv)]
        if self.copying:
            turns += [partial(self._turn_of_a_copy, self.copying, target)]
        async with _connection(target) as calls:
            if not await self._survives(self._look(calls)):
                return
        forgetting = asyncio.create_task(self._forget())
        try:
            await asyncio.gather(*(self._work(target, turn) for turn in turns))
        finally:
            forgetting.cancel()
            self._is_told_to_stop = False

    def stop(self) -> None:
        """Let all clients end after their present request."""
        self._is_told_to_stop = True

    async def settle(self, target: str) -> int:
        """Compare all tables and records with what must be there, while nobody writes; return the number of keys."""
        async with _connection(target) as calls:
            await self._look(calls)
            records = {table.name: table.records for table in self.info.tables}
            self._settle_tables(records)
            keys = sum([await table.settle(calls.kv) for table in self.tables])
            keys += await self.expiring.settle(calls.kv)
        self._count_records(records)
        self.totals.live_bytes = sum(table.live_bytes for table in self.tables)
        self.totals.blob_bytes = sum(table.blob_bytes for table in self.tables)
        self._compare_blobs()
        return keys

    async def compare_blobs(self, target: str) -> None:
        """Compare what blobs take, as a server says that has run for a while, with what they must; nobody writes."""
        async with _connection(target) as calls:
            await self._look(calls)
        self._compare_blobs()

    def _compare_blobs(self) -> None:
        expected, found = self.totals.blob_bytes, self.info.blobs_live_bytes
        if found != expected:
            self.problems.append(f"blobs must have {expected:,} bytes, and are said to have {found:,}")

    def _settle_tables(self, records: dict[str, int]) -> None:
        """Compare the tables that are there with those that must be."""
        for table in list(self._passing.values()):
            if table.name in records:
                table.fate = "there"
                continue
            if table.fate == "there":
                self.problems.append(f"table {table.name}: it was made, nobody dropped it, and it is gone")
            del self._passing[table.name]
        for name in records.keys() - {EXPIRING, *(table.name for table in self.tables)}:
            self.problems.append(f"table {name}: it is there, and must not be")

    def _count_records(self, records: dict[str, int]) -> None:
        """Compare the server's counts with the ledgers'."""
        for table in self.tables:
            expected, found = table.ledger.keys_present, records.get(table.name, 0)
            if found != expected:
                self.problems.append(f"table {table.name}: {expected:,} records must be there, {found:,} are counted")

    async def _work(self, target: str, turn: _Turn) -> None:
        """Take turns until the server is gone or the client is told to stop."""
        async with _connection(target) as calls:
            while not self._is_told_to_stop and await self._survives(turn(calls)):
                pass

    async def _survives(self, turn: Awaitable[None]) -> bool:
        """Take one turn; return whether the server is still there."""
        try:
            await turn
        except ScrapeError as error:
            self.last_error = str(error)
            return False
        except grpc.aio.AioRpcError as error:
            self.last_error = f"{error.code().name}: {error.details()}"
            if error.code() not in _GONE:
                self.problems.append(f"a request failed: {self.last_error}")
            return False
        return True

    async def _turn_of_records(self, cells: _Cells, calls: _Calls) -> None:
        """Write where there is room, delete where there is none, and between them overwrite, delete and read."""
        if self.share > SHARE_MAX and cells.full:
            await self._delete(cells, calls)
        elif self.share < SHARE_MIN or not cells.full:
            await self._add(cells, calls)
        else:
            kind = self._random.choices((self._overwrite, self._delete, self._read), (75, 5, 20))[0]
            await kind(cells, calls)

    async def _add(self, cells: _Cells, calls: _Calls) -> None:
        """Write a cell that is empty, or new."""
        if cells.spare:
            cell = cells.spare.pop()
        else:
            count = 1 if self._random.random() < 0.3 else self._random.randint(2, _CELL_KEYS_MAX)
            cell = self._records.ledger.add_cell([self._key() for _ in range(count)])
        if await self._write(self._records, calls, cell, self._sizes(len(cell.keys))):
            cells.full.append(cell)
            return
        cells.spare.append(cell)
        if cells.full:  # a store that cannot compact takes writes again when whole segments are empty
            await self._delete(cells, calls)

    async def _overwrite(self, cells: _Cells, calls: _Calls) -> None:
        cell = self._random.choice(cells.full)
        await self._write(self._records, calls, cell, self._sizes(len(cell.keys)))

    async def _delete(self, cells: _Cells, calls: _Calls) -> None:
        at = self._random.randrange(len(cells.full))
        cells.full[at], cells.full[-1] = cells.full[-1], cells.full[at]
        cell = cells.full.pop()
        cells.spare.append(cell)
        if not await self._write(self._records, calls, cell, [None] * len(cell.keys)):
            self.problems.append(f"a request that only deletes was refused: {self.refusal_text}")

    async def _read(self, cells: _Cells, calls: _Calls) -> None:
        await self._records.read(calls.kv, self._random.choice(cells.full))

    async def _turn_of_numbers(self, calls: _Calls) -> None:
        """Write or read a cell of the table of numbers."""
        cell = self._random.choice(self._number_cells)
        if self._random.random() < 0.3:
            await self._numbers.read(calls.kv, cell)
        else:
            sizes = [None if self._random.random() < 0.1 else NUMBER_BYTES for _ in cell.keys]
            await self._write(self._numbers, calls, cell, sizes)

    async def _turn_of_a_table(self, calls: _Calls) -> None:
        """Make a table, fill it, read it, and mostly drop it."""
        name = f"passing-{self._random.randrange(_PASSING_NAMES)}"
        table = self._passing.get(name) or await self._make_table(name, calls)
        if table is None:
            return
        for cell in table.ledger.cells:  # a new table is empty, whatever a dropped one of its name held
            await table.read(calls.kv, cell)
        for cell in table.ledger.cells:
            if self.share > SHARE_MAX or self._is_told_to_stop:
                break
            is_number = table.layout == "u64"
            sizes = [NUMBER_BYTES] * len(cell.keys) if is_number else self._sizes(len(cell.keys))
            await self._write(table, calls, cell, sizes)
            await table.read(calls.kv, cell)
        if self._random.random() < _DROP_SHARE:
            await self._drop_table(table, calls)

    async def _make_table(self, name: str, calls: _Calls) -> SoakTable | None:
        """Make a table and return it, if there is room for one."""
        layout: Layout = self._random.choice(("bytes", "u64"))
        request = admin_pb2.CreateTableRequest(name=name, layout=layout, index_bytes=_PASSING_INDEX_BYTES)
        table = self._passing[name] = SoakTable(name, layout, self.totals, "making")
        for number in range(_PASSING_CELLS):  # the same keys in each table of a name: what a drop has left would show
            table.ledger.add_cell(_number_keys(number * _PASSING_CELL_KEYS, _PASSING_CELL_KEYS))
        try:
            await calls.admin.CreateTable(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            del self._passing[name]
            await self._refused(refusal_of(error), calls)
            return None
        table.fate = "there"
        self.tables_made += 1
        return table

    async def _drop_table(self, table: SoakTable, calls: _Calls) -> None:
        table.fate = "dropping"
        await calls.admin.DropTable(admin_pb2.DropTableRequest(name=table.name), timeout=CALL_SECONDS_MAX)
        self.problems += _violations(table)
        del self._passing[table.name]
        self.totals.live_bytes -= table.live_bytes
        self.totals.blob_bytes -= table.blob_bytes
        self.totals.released_bytes += table.live_bytes
        self.tables_dropped += 1

    async def _turn_of_a_copy(self, copying: Copying, target: str, calls: _Calls) -> None:
        """Take a backup; only if the server has gone may it fail."""
        if problem := await copying.take(target):
            await self._look(calls)  # raises what says that it has
            self.problems.append(problem)

    async def _look_again(self, calls: _Calls) -> None:
        await asyncio.sleep(_LOOK_SECONDS)
        await self._look(calls)

    async def _look(self, calls: _Calls) -> None:
        """Ask the server how full its heap is."""
        live = self.totals.live_bytes
        self.info = await calls.admin.Info(admin_pb2.InfoRequest(), timeout=CALL_SECONDS_MAX)
        self.totals.has_blobs = self.info.store_format.startswith("4")
        self.use, self._live_at_look = heap_use(await asyncio.to_thread(self._scrape)), live
        self.shares.append(self.use.share)

    def _scrape(self) -> Scrape:
        """Read the metrics of the present server."""
        return Scrape(self._ready_file.read_text().split()[1])

    async def _forget(self) -> None:
        """Forget old values now and then: the requests that were sent before the last time have ended."""
        while True:
            marks = [(table, table.ledger.attempts_begun) for table in self.tables]
            await asyncio.sleep(_FORGET_SECONDS)
            for table, mark in marks:
                table.ledger.forget_attempts(mark)

    async def _write(self, table: SoakTable, calls: _Calls, cell: Cell, sizes: Sequence[int | None]) -> bool:
        """Write a cell; return whether the server took it."""
        refusal = await table.write(calls.kv, cell, sizes)
        if refusal:
            await self._refused(refusal, calls)
        return refusal is None

    async def _refused(self, refusal: Refusal, calls: _Calls) -> None:
        """Count a refusal; if it is for the heap, find out whether the heap was full."""
        self.refused[refusal.full] += 1
        self.refusal_text = refusal.text
        if refusal.full == "heap":
            await self._look(calls)
            if breaks_promise(refusal, self.use, self.totals.released_bytes):
                self.problems.append(
                    f"a write was refused with {self.use.share:.3f} of the heap in use; up to {SHARE_MAX} the store "
                    f"promises to take any: {refusal.text}"
                )
        await asyncio.sleep(_REFUSED_PAUSE_SECONDS)

    def _key(self) -> bytes:
        """Return a key that was never used; one in ten is long."""
        self._names += 1
        padding = self._random.randint(50, 500) if self._random.random() < 0.1 else 0
        return f"record-{self._names}-".encode() + b"k" * padding

    def _sizes(self, keys: int) -> list[int | None]:
        """Return sizes of values: of one key sometimes a large one, of several keys some absent."""
        sizes = self._usual_sizes(keys)
        if self.totals.has_blobs and self._random.random() < _BLOB_SHARE:
            high = min(_BLOB_BYTES_MAX, int(_BLOB_OF_HEAP_MAX * self.use.limit_bytes), self.info.value_bytes_max)
            size = self._log_uniform(_BLOB_BYTES_MIN, high)
            if self.totals.blob_bytes + size <= _BLOBS_OF_HEAP_MAX * self.use.limit_bytes:
                sizes[self._random.randrange(keys)] = size
        return sizes

    def _log_uniform(self, low: int, high: int) -> int:
        return int(math.exp(self._random.uniform(math.log(low), math.log(high))))

    def _usual_sizes(self, keys: int) -> list[int | None]:
        """Return sizes of values that mostly lie in the heap."""
        cell_bytes_max = min(_CELL_BYTES_MAX, self.use.limit_bytes // _CELLS_OF_HEAP_MIN, self.info.value_bytes_max)
        if keys == 1 and self._random.random() < 0.1 and cell_bytes_max > _SIZES[-1][1]:
            return [self._log_uniform(_SIZES[-1][1], cell_bytes_max)]
        sizes: list[int | None] = []
        for low, high in self._random.choices(_SIZES, _SIZES_WEIGHTS, k=keys):
            size = self._random.randint(low, min(high, max(cell_bytes_max // keys, low)))
            sizes.append(None if keys > 1 and self._random.random() < 0.03 else size)
        return sizes if any(sizes) else [NUMBER_BYTES] * keys


class _Calls(NamedTuple):
    """The stubs of one connection."""

    kv: kv_pb2_grpc.KVStub
    admin: admin_pb2_grpc.AdminStub


_Turn = Callable[[_Calls], Awaitable[None]]


@asynccontextmanager
async def _connection(target: str) -> AsyncIterator[_Calls]:
    """Connect to a server."""
    async with channel(target) as connection:
        yield _Calls(kv_pb2_grpc.KVStub(connection), admin_pb2_grpc.AdminStub(connection))


def _number_keys(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(KEY_BYTES, "little") for number in range(first, first + count)]


def _violations(table: SoakTable) -> list[str]:
    return [f"table {table.name}: {violation}" for violation in table.ledger.violations]
