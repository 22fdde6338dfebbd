"""The embedded store: `gpkvs.open` and what one can do with what it returns."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.row_cache import KnownRows
from gpkvs.batch import U8, U64, Batch, BatchResult, RequestColumns, RequestResult, Status
from gpkvs.changes import Position
from gpkvs.columns.buffers import RequestBounds, placed, placed_of
from gpkvs.columns.byte_strings import ByteStrings, byte_strings_of, column_given
from gpkvs.columns.index_size import index_bytes_asked
from gpkvs.columns.numbers import (
    column_of,
    deletes_of,
    found_of,
    gets_of,
    is_column,
    joined,
    joined_found,
    pairs_of,
    sets_of,
    values_of,
)
from gpkvs.columns.row_layout import RowLayout, row_layout_of
from gpkvs.columns.whole_number import whole_number
from gpkvs.config import (
    DEFAULT_TABLE,
    RESULT_BYTES_USUAL,
    VALUE_BYTES_MOST,
    VALUE_BYTES_USUAL,
    BackendName,
    CommitName,
    DurabilityName,
    FormatName,
    Limits,
    Sizes,
    StoreConfig,
)
from gpkvs.config_checks import require_settings
from gpkvs.engine.begun_batch import BegunBatch
from gpkvs.engine.commit.choose_committer import choose_committer
from gpkvs.engine.engine import Engine
from gpkvs.engine.host.own_turn import OPS_MAX, READ_BYTES_MAX, Answer
from gpkvs.engine.host.places import Places
from gpkvs.engine.seam import counted_time
from gpkvs.engine.seam.meter import Meter
from gpkvs.engine.state.table import Held, Table
from gpkvs.engine.tables.expiry import TableExpiry
from gpkvs.engine.tables.growth import GrowthLimits
from gpkvs.engine.tables.scan import Wanted, pack_cursor, require_prefixes, unpack_cursor
from gpkvs.engine.tables.schema import (
    check_drop,
    check_new_table,
    create_table,
    drop_table,
    new_entry,
    remove_index,
    reserve_index,
)
from gpkvs.engine.tables.table_quota import Quota, require_room_for_table
from gpkvs.errors import (
    BackendError,
    CorruptRecordError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    StoreClosedError,
    UnknownTableError,
    memory_refused,
)
from gpkvs.face import KeyValues, Numbers, TableHandle
from gpkvs.following import Following
from gpkvs.gpu_rows import GpuRows
from gpkvs.info import StoreInfo, TableInfo, next_opening, package_version, require_layout
from gpkvs.media.directory import Progress, access_errors, record_bytes_max
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import (
    BYTES_LAYOUT,
    KEY_BYTES_MAX,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    U64_LAYOUT,
    UNIT_BYTES,
    value_bytes_in,
)
from gpkvs.operations import Bytes, OperationList, Result, ResultLists, as_bytes, number_of
from gpkvs.process.fatal import whole_or_stop
from gpkvs.process.fork import Origin
from gpkvs.process.machine import anonymous_bytes
from gpkvs.process.own_timeout import OWN_TIMEOUT, Timeout
from gpkvs.process.process_io import process_io
from gpkvs.process.turn_mutex import TurnMutex
from gpkvs.recovery.startup.memory import require_memory
from gpkvs.recovery.startup.opening import open_directory
from gpkvs.recovery.startup.salvage import set_unsafe
from gpkvs.scan import LIMIT_MAX, PIECE_BYTES_MAX, PIECE_KEYS_MAX, ScanPiece
from gpkvs.submitted import Submitted
from gpkvs.text import no_such, quoted

if TYPE_CHECKING:
    from gpkvs.backup.manifest import BackupReport
    from gpkvs.watch import Follows, Selection

_log = logging.getLogger("gpkvs")

Taken = TypeVar("Taken")

_KEEP_SECONDS = 600.0  # after an opening, for those who followed before
_STEP_BYTES = 1 << 20  # of an index, that one step of maintenance looks at


@dataclass(frozen=True)
class OpenTable:
    """What a caller must know of a table to make a request."""

    id: int
    name: str
    layout: str
    limits: Limits

    def require_numbers(self) -> OpenTable:
        """Return the table itself, if it is one of numbers.

        Raises
        ------
        InvalidArgumentError
            If its layout is another one.
        """
        if self.layout == U64_LAYOUT.name:
            return self
        advice = (
            "its keys and values are bytes. Only a table of the layout u64 takes ints and arrays of numbers: "
            'create_table(name, layout="u64"), or gpkvs table create NAME --layout u64'
        )
        if row_layout_of(self.layout):
            advice = f'rows("{self.layout}", table="{self.name}") reads and writes its rows'
        raise InvalidArgumentError(f"table {quoted(self.name)} has the layout {self.layout}: {advice}", field="table")

    def require_layout(self, layout: str) -> OpenTable:
        """Return the table itself, if it has this layout; an empty text is any.

        Raises
        ------
        InvalidArgumentError
            If it has another one.
        """
        if layout and layout != self.layout:
            raise InvalidArgumentError(
                f"table {quoted(self.name)} has the layout {self.layout}, not {quoted(layout)}", field="table"
            )
        return self


def _no_progress(step: str, share: float) -> None:
    """Report nothing."""


class Store(KeyValues):
    """An open store; made by `gpkvs.open`. Its methods may be called from any thread of the process that opened it.

    In the child of a fork every method raises `ForkedError` and touches nothing: the child has the memory but not the
    kernels' threads, and two processes must not write one store.

    Parameters
    ----------
    path
        Its directory, which exists.
    config
        How to open it.
    create
        Whether to create a store in an empty directory.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.
    """

    _puts_values = True
    _gpu_rows: GpuRows | None = None

    def __init__(
        self, path: Path, config: StoreConfig, *, create: bool = True, on_progress: Progress = _no_progress
    ) -> None:
        self.path = path
        self._origin = Origin(f"the store at {path}")
        self._mutex: threading.Lock | TurnMutex = threading.Lock()  # one batch at a time
        self._schema_mutex = threading.Lock()  # one table made or dropped at a time; taken before the other one
        self._closed = self._is_closing = self._is_given_back = False
        self.meter = Meter()
        self._opened = open_directory(path, config, create=create, on_progress=on_progress)
        try:
            with access_errors(path):
                self._begin(config)
        except BaseException:
            self._opened.close()
            raise

    def _begin(self, config: StoreConfig) -> None:
        """Take over what was opened, and make the engine."""
        opened, recovered = self._opened, self._opened.recovered
        self._making = config.making
        self._files, self._backend, self.domain = opened.files, opened.backend, opened.domain
        self.is_new = opened.is_new
        self.recovery = recovered.report
        self._quota = Quota(config.tables_max, config.tables_bytes_max)
        root = self._files.root
        if root.has_journal:
            self._log_bytes_max = max(config.journal_size_max, root.journal_bytes_all)
        else:
            self._log_bytes_max = max(config.log_size_max, root.log_bytes)
        self.limits = _limits_of(self._files, config, self._log_bytes_max)
        self._number_limits = replace(
            self.limits, key_bytes_min=8, key_bytes_max=8, value_bytes_min=8, value_bytes_max=8
        )
        indexes = self._files.indexes
        tables = {table_id: Table(index, recovered.held[table_id]) for table_id, index in indexes.items()}
        logged = self.domain.is_logged
        committer = choose_committer(
            self._backend, self._files, tables, recovered.heap, recovered.log, self.meter, logged=logged
        )
        try:
            self._engine = Engine(
                self._backend,
                self._files,
                tables,
                recovered.heap,
                committer,
                self.limits.result_bytes_max,
                max(config.batch_result_bytes_max, self.limits.result_bytes_max),
                self.limits.value_bytes_max,
                self.meter,
                GrowthLimits(config.index_bytes_max, config.tables_bytes_max),
                self._log_bytes_max,
                config.heap_bytes or 0,
                config.changes_bytes,
                counted_time.NEVER if config.making else counted_time.MACHINE,
                follows_index=config.journal_follows_index,
            )
        except BaseException:
            committer.close()
            raise
        self._is_on_host = self._engine.is_on_host
        if caches := self._backend.row_caches:
            caches.bytes_max = config.gpu_rows_bytes
            self._gpu_rows = GpuRows(self._engine, self._backend, caches, self._run_alone)
        self._tables = {table.entry.name: table for table in tables.values()}
        self._open_tables = {name: self._opened_table(table) for name, table in self._tables.items()}
        self._own_turn = self._engine.own_turn  # lives on while nobody holds the mutex, unless a server has turns, too
        self._engine.changes.keep(self._table_names(), _KEEP_SECONDS)
        if not self.domain.is_logged:
            _log.warning("%s: durability=none: %s", self.path, self.domain.note)
            set_unsafe(self._files, True)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._backend.description
        return f"<gpkvs store at {self.path}, {state}>"

    def execute(self, batch: Batch, *, table: str = DEFAULT_TABLE) -> RequestResult:
        """Run one request: all of its operations, in order, as one durable transaction.

        Raises
        ------
        InvalidArgumentError
            If an operation or column is wrong.
        NoSpaceError
            If it does not fit, also into memory (`NoMemoryError`); nothing of it was written.
        StoreClosedError
            If the store was closed.
        """
        return self.execute_requests(self._request(batch, table)).request(0)

    def _request(self, batch: Batch, table: str) -> Batch:
        """Return one request, which is valid, on its table."""
        found = self.open_table(table)
        if len(batch.request_ops) != 1:
            raise InvalidArgumentError(
                f"{len(batch.request_ops)} requests: `execute` and `submit` run one, `execute_requests` several",
                field="request_ops",
            )
        batch.validate(found.limits)
        if batch.versions is not None:
            self._require_versions(batch)
        return batch.on_table(found.id)

    def _require_versions(self, batch: Batch) -> None:
        """Refuse versions that a batch may not bring."""
        making, versions = self._making, batch.versions
        assert versions is not None
        is_right = making and len(versions) == len(batch) and not batch.looks_first
        if not making or not is_right or int(versions.max()) >= making.first_version:
            raise InvalidArgumentError(
                "only a store in the making takes versions: one for each SET and DELETE, lower than its first one",
                field="versions",
            )

    def submit(self, batch: Batch, *, table: str = DEFAULT_TABLE) -> Submitted[RequestResult]:
        """Hand in one request, as `execute` does, and go on before it is durable.

        The next one may be planned while this one is stored: on a GPU two batches are in flight, with a journal many.
        One more waits here until there is room for it.

        Returns
        -------
        Submitted
            Its `result` is what `execute` returns, or the error that it raises but for a wrong argument.

        Raises
        ------
        InvalidArgumentError, StoreClosedError
            As `execute`; nothing was handed in.
        """
        return self._submit(self._request(batch, table), lambda result: result)

    def submit_set_many(self, keys: Numbers, values: Numbers, *, table: str | None = None) -> Submitted[None]:
        """Hand in what `set_many` stores, as one request, and go on before it is durable (`submit`)."""
        keys, values = self._column("keys", keys), self._column("values", values)
        pairs_of(keys, values)
        if self._is_nothing(keys, table):
            return Submitted.of(None)
        return self._submit(self._of_numbers(sets_of(keys, values), table), lambda _: None)

    def submit_get_many(self, keys: Numbers, *, table: str | None = None) -> Submitted[tuple[U64, NDArray[np.bool_]]]:
        """Hand in what `get_many` reads, as one request: it sees all that was submitted before (`submit`)."""
        keys = self._column("keys", keys)
        if self._is_nothing(keys, table):
            return Submitted.of(joined([], keys))
        return self._submit(self._of_numbers(gets_of(keys), table), lambda result: values_of(result, found_of(result)))

    def submit_delete_many(self, keys: Numbers, *, table: str | None = None) -> Submitted[NDArray[np.bool_]]:
        """Hand in what `delete_many` removes, as one request, and go on before it is durable (`submit`)."""
        keys = self._column("keys", keys)
        if self._is_nothing(keys, table):
            return Submitted.of(joined_found([]))
        return self._submit(self._of_numbers(deletes_of(keys), table), found_of)

    def _is_nothing(self, keys: U64, table: str | None) -> bool:
        """Whether there are no keys, for a table that is one of numbers."""
        self.open_table(table or DEFAULT_TABLE).require_numbers()
        return not len(keys)

    def _submit(self, batch: Batch, take: Callable[[RequestResult], Taken]) -> Submitted[Taken]:
        """Hand in one request that is valid; `take` makes its result of its columns."""
        try:
            begun = self.begin_requests(batch)
        except (NoSpaceError, BackendError) as error:
            return Submitted.refused(error)
        self._engine.committer.go_on()

        def finish() -> Taken:
            return take(begun.finish().request(0))

        return Submitted(self._origin.require, lambda: begun.is_durable, finish)

    def execute_requests(self, batch: Batch) -> BatchResult:
        """Run a batch of requests that are valid (`Batch.validate`); each is there whole or rejected whole.

        The result says how many requests it covers: a batch too large for one transaction is cut between requests, and
        the caller runs the rest again.
        """
        return self.begin_requests(batch).finish()

    def begin_requests(self, batch: Batch) -> BegunBatch:
        """Run a batch as `execute_requests` does, but let the caller wait for its end; the next may run meanwhile."""
        self._origin.require()  # before any lock, which another thread may have held at the fork
        with self._mutex:
            if self._closed:
                raise self._closed_error()
            begun = self._engine.execute(batch)
            if isinstance(self._mutex, TurnMutex):
                self._own_turn.end()
            return BegunBatch(self._engine, *begun)

    def begin_turns(self, end_turn: Callable[[], None]) -> None:
        """Let the engine be used in long turns from now on (`turn`); nobody uses the store meanwhile.

        Parameters
        ----------
        end_turn
            Makes the turn end that is under way, or else the next one as soon as it begins. It is called from any
            thread, when that thread wants the engine.
        """
        self._origin.require()
        with self._mutex, self._turn_over():
            self._mutex = TurnMutex(end_turn)

    def _turn_over(self) -> AbstractContextManager[None]:
        """End what batches have under way: after the mutex, for who wants the engine alone.

        The mutex itself is taken by `with` alone. A frame of Python's around it would hold it for as long as the
        traceback of an interrupt lives, and who handles that may close the store.
        """
        self._own_turn.end()
        self._engine.committer.land()
        return nullcontext()

    @contextmanager
    def turn(self) -> Iterator[Engine]:
        """Have the engine alone, for batch after batch; after `begin_turns`.

        Raises
        ------
        StoreClosedError
            If the store was closed.
        """
        self._origin.require()
        assert isinstance(self._mutex, TurnMutex)
        with self._mutex.turn():
            if self._closed:
                raise self._closed_error()
            yield self._engine

    def _require_timeout(self, timeout: Timeout) -> None:
        if timeout is not OWN_TIMEOUT:
            raise TypeError("a store in this process takes no timeout: it waits for no network")

    def _commit(self, operations: OperationList, table: str | None, timeout: Timeout) -> list[Result]:
        self._require_timeout(timeout)
        name = table or DEFAULT_TABLE
        found = self.open_table(name)
        if operations.is_of_numbers:
            found.require_numbers()
        columns = operations.columns(found.limits, lambda: self.now_ms)
        answer = self._run_natively(columns, found)
        result: RequestResult | ResultLists
        if answer is not None:
            result = ResultLists(answer.statuses, answer.versions, answer.values)
        else:
            with memory_refused():
                batch = columns.batch(found.id)
            result = self.execute_requests(batch).request(0)
        try:
            return operations.take(result, lambda: self.now_ms)
        except CorruptRecordError as error:
            raise self._damaged(name, error) from None

    def _damaged(self, table: str | None, error: CorruptRecordError) -> CorruptRecordError:
        return CorruptRecordError(f"table {quoted(table or DEFAULT_TABLE)}, {error}; run `gpkvs check {self.path}`")

    def _request_bounds(self, table: str | None) -> RequestBounds:
        limits = self.open_table(table or DEFAULT_TABLE).limits
        return RequestBounds(limits, limits.result_bytes_max)

    def _read_into(
        self, operations: OperationList, buffers: list[U8], table: str | None, timeout: Timeout
    ) -> list[int | None]:
        self._require_timeout(timeout)
        name = table or DEFAULT_TABLE
        found = self.open_table(name)
        columns = operations.columns(found.limits, lambda: self.now_ms)
        answer = None
        if found.layout != U64_LAYOUT.name and sum(map(len, buffers)) <= READ_BYTES_MAX:
            answer = self._run_natively(columns, found, Places.of(buffers))
        try:
            if answer is not None:
                return placed(answer.statuses, answer.lengths, None, operations.keys, buffers)
            with memory_refused():
                batch = replace(columns.batch(found.id), into=buffers)
            result = self.execute_requests(batch).request(0)
            return placed_of(result, operations.keys, buffers)
        except CorruptRecordError as error:
            raise self._damaged(name, error) from None

    def _run_natively(self, columns: RequestColumns, found: OpenTable, into: Places | None = None) -> Answer | None:
        """Run a small request as it is; None: it must become a batch, and nothing has happened."""
        operations = len(columns.ops)
        if operations > OPS_MAX or (not self._is_on_host and operations > self._engine.few_ops_max):
            return None
        self._origin.require()
        with self._mutex:
            if self._closed:
                raise self._closed_error()
            answer = self._own_turn.run(found.id, columns, into)
            if isinstance(self._mutex, TurnMutex):
                self._own_turn.end()
        if answer is None:
            return None
        if answer.gate:
            self._engine.wait_for(answer.gate)
        if answer.refusal:
            raise answer.refusal
        return answer

    def _column(self, name: str, numbers: Numbers) -> NDArray[Any]:
        """Return numbers as an array of the backend's, without a copy if they are one."""
        numbers = column_given(name, numbers)
        if not hasattr(numbers, "__dlpack__") or isinstance(numbers, np.ndarray | ByteStrings):
            return self._backend.adopt(column_of(name, numbers))
        column = self._backend.adopt(numbers)
        if isinstance(column, np.ndarray):
            return column_of(name, column)
        return column.view(np.uint64) if column.dtype == np.int64 else column  # PyTorch has few operations on uint64

    def _numbers_max(self, table: str | None) -> int:
        return self.open_table(table or DEFAULT_TABLE).require_numbers().limits.request_ops_max

    def _commit_numbers(self, batch: Batch, table: str | None, timeout: Timeout) -> RequestResult:
        self._require_timeout(timeout)
        return self.execute_requests(self._of_numbers(batch, table)).request(0)

    def _commit_columns(
        self, batch: Batch, ttl: int, table: str | None, timeout: Timeout, layout: str = ""
    ) -> RequestResult:
        self._require_timeout(timeout)
        found = self.open_table(table or DEFAULT_TABLE).require_layout(layout)
        if ttl:
            batch = replace(batch, expiries=np.full(len(batch), self.now_ms + ttl, np.uint64))
        batch.validate(found.limits)
        return self.execute_requests(batch.on_table(found.id)).request(0)

    def _require_rows(self, layout: str, table: str | None) -> None:
        self.open_table(table or DEFAULT_TABLE).require_layout(layout)

    def _read_rows(
        self, layout: RowLayout, keys: Any, out: Any, default: Any, table: str | None
    ) -> tuple[Any, NDArray[np.bool_]]:
        found = self.open_table(table or DEFAULT_TABLE).require_layout(layout.name)
        self._origin.require()
        assert self._gpu_rows
        asked = self._gpu_rows.asked(layout, keys, out, default)
        with self._mutex, self._turn_over():
            if self._closed:
                raise self._closed_error()
            read = self._engine.read_rows(found.id, asked.keys, layout.row_bytes, asked.rows, asked.absent)
            gate = self._engine.committer.read_gate()
        if read is None:  # the table was dropped just now
            self.open_table(table or DEFAULT_TABLE)
            raise InvalidArgumentError("the table was made anew: try again", field="table")
        # Nobody may see before the gate what a crash could take back (I4, W1).
        self._engine.wait_for(gate)
        rows, there = read
        return layout.array_of(rows).reshape(len(there), *layout.shape) if out is None else out, there

    def _keep_rows(
        self, layout: RowLayout, keys: U64, rows: U8, stored: NDArray[np.bool_], versions: U64, table: str | None
    ) -> None:
        known = KnownRows(rows, stored.view(np.uint8), versions)
        try:
            with self._mutex, self._turn_over():
                if self._closed:
                    raise self._closed_error()
                found = self._open_tables.get(table or DEFAULT_TABLE)
                if found and found.layout == layout.name:  # else it was made anew since
                    self._engine.keep_rows(found.id, keys, layout.row_bytes, known)
        except GpkvsError as error:  # they are stored: who reads them next asks the host
            _log.warning("rows that were stored could not be kept on the GPU: %s", error)

    def _run_alone(self, call: Callable[[], Taken]) -> Taken:
        """Make a call that uses the engine's backend, while nobody else uses the engine."""
        with self._mutex, self._turn_over():
            if self._closed:
                raise self._closed_error()
            return call()

    def _keys_of(self, keys: Any, table: str | None) -> Any:
        column = super()._keys_of(keys, table)
        if not isinstance(column, ByteStrings | np.ndarray) or len(column):
            return column
        is_of_bytes = self.open_table(table or DEFAULT_TABLE).layout != U64_LAYOUT.name  # only the table tells
        return byte_strings_of("keys", []) if is_of_bytes else np.empty(0, np.uint64)

    def _of_numbers(self, batch: Batch, table: str | None) -> Batch:
        """Return one request of numbers, which has a right size, on its table."""
        found = self.open_table(table or DEFAULT_TABLE).require_numbers()
        batch.check_size(found.limits)
        return batch.on_table(found.id)

    def _get_numbers(self, keys: U64, table: str | None, timeout: Timeout) -> tuple[U64, NDArray[np.bool_]]:
        found = self.open_table(table or DEFAULT_TABLE).require_numbers()
        if not self._engine.is_on_host and is_column(keys) and 8 * len(keys) <= self.limits.result_bytes_max:
            self._origin.require()
            with self._mutex:
                if self._closed:
                    raise self._closed_error()
                looked_up = self._engine.find_numbers(found.id, keys)
                gate = self._engine.committer.read_gate()
                if isinstance(self._mutex, TurnMutex):
                    self._own_turn.end()
            if looked_up:
                self._engine.wait_for(gate)
                return looked_up
        return super()._get_numbers(keys, table, timeout)

    def _values_found(self, result: RequestResult) -> tuple[U64, NDArray[np.bool_]]:
        status = result.status  # nobody else's: used again, since fresh memory would cost page faults
        return values_of(result, np.equal(status, Status.OK.value, out=status.view(np.bool_)))

    def scan_step(
        self,
        table: str = DEFAULT_TABLE,
        cursor: bytes = b"",
        prefix: bytes = b"",
        *,
        keys_only: bool = False,
        keys_max: int = PIECE_KEYS_MAX,
        bytes_max: int = PIECE_BYTES_MAX,
    ) -> ScanPiece:
        """Return the next piece of a table: a few milliseconds' work, less while batches run; all of it durable.

        The pieces of a scan have all keys of the table, in no order that means anything. A key that is there throughout
        is in exactly one of them, through growth, compaction and openings of the store. One that comes or goes
        meanwhile is in one of them, or in none.

        Parameters
        ----------
        cursor
            Of the piece before; empty: from the beginning.
        prefix
            Only keys that begin with it. A piece may then have none.
        keys_only
            Whether to leave out the values, which are then not read: only their records' headers and keys are checked.
        keys_max, bytes_max
            Of the piece. It has one key at least, however long, unless none is there to return.

        Raises
        ------
        InvalidArgumentError
            If the cursor is none of this table of this store, or there is a prefix and the table's keys are numbers.
        StoreClosedError
            If the store was closed.
        """
        if keys_max < 1 or bytes_max < 1:
            raise InvalidArgumentError("it must be at least 1", field="keys_max" if keys_max < 1 else "bytes_max")
        wanted = Wanted(prefix, keys_only, keys_max, bytes_max)
        self._origin.require()
        with self._mutex, self._turn_over(), memory_refused():
            if self._closed:
                raise self._closed_error()
            piece, gate = self._engine.scan(self._tables[self.open_table(table).name], cursor, wanted)
        # Nobody may see before the gate what a crash could take back (I4, W1).
        self._engine.committer.wait(gate)
        return piece

    def scan_pieces(
        self,
        prefix: bytes = b"",
        *,
        cursor: bytes = b"",
        keys_only: bool = False,
        limit: int | None = None,
        table: str | None = None,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> Iterator[ScanPiece]:
        """Return all keys of a table as columns, in pieces (`scan_step`); batches run between them."""
        self._require_timeout(timeout)
        if limit is not None:
            limit = number_of("limit", limit, 1, LIMIT_MAX)
        self._require_open()
        return self._pieces(table or DEFAULT_TABLE, cursor, as_bytes("prefix", prefix), keys_only, limit)

    def _pieces(
        self, table: str, cursor: bytes, prefix: bytes, keys_only: bool, limit: int | None
    ) -> Iterator[ScanPiece]:
        left = limit
        while left is None or left > 0:
            keys_max = PIECE_KEYS_MAX if left is None else min(PIECE_KEYS_MAX, left)
            piece = self.scan_step(table, cursor, prefix, keys_only=keys_only, keys_max=keys_max)
            yield piece
            left = None if left is None else left - len(piece)
            cursor = piece.cursor
            if not cursor:
                return

    def follow(self, since: Position | None = None, *, keep_seconds: float = 0.0) -> Following:
        """Have every change of the store told, as columns, from now on or from a position on.

        While anybody follows, the newest changes are held in memory (64 MiB of them), and batches run on the host's
        threads, also where there is a GPU.

        Parameters
        ----------
        since
            Where an earlier following stopped (`Following.position`): in this opening of the store, or where the one
            before ended.
        keep_seconds
            So long changes are held after the following was closed, for who goes on.

        Raises
        ------
        ChangesLostError
            If the changes behind `since` are no longer held, or `since` is of another store.
        StoreClosedError
            If the store was closed.
        """
        self._origin.require()
        with self._mutex, self._turn_over():
            self._require_open()
            changes = self._engine.changes
            begin = changes.here(since) if since is not None else changes.newest
            self._keep_timeline(changes.timeline)
            number = changes.turn_on(self._table_names())
            leave = partial(changes.leave, number, keep_seconds)
            following = Following(changes, begin, leave, self._origin.require, self._require_open)
            gate = self._engine.committer.read_gate()
        self._engine.committer.wait(gate)  # what is not told is durable, as what is told is
        return following

    def _table_names(self) -> dict[int, str]:
        """Return the names of all tables, by their numbers."""
        return {table.entry.id: name for name, table in self._tables.items()}

    def _keep_timeline(self, timeline: int) -> None:
        """Have the roots name a timeline, durably, before anybody has a position of it: the next opening knows it."""
        root = self._files.root
        if not root.has_timelines or root.opened.timeline == timeline:
            return
        with self._files.changing, whole_or_stop("the roots could not be written"):
            self._files.roots.change(opened=root.opened._replace(timeline=timeline))

    def backup(self, directory: str | Path, *, on_progress: Progress = _no_progress) -> BackupReport:
        """Make a backup of the store while it is used: a store of its own, as this one was at one moment.

        Nobody who writes waits for it. The moment is that of the end of the scan: all that was acknowledged before the
        call is in the backup. `BackupReport.position` says where in the changes it stands.

        Parameters
        ----------
        directory
            Where the backup will be: there must be nothing of that name. While it is made, it is `directory` with
            ``.partial`` behind its name.
        on_progress
            Called with the name of a step and the share of the work done, 0 to 1.

        Raises
        ------
        StoreError
            If the directory is there already, or cannot be used.
        NoSpaceError
            If the backup does not fit the disk.
        CorruptRecordError
            If records of the store fail their checks: a backup without them would look whole.
        ChangesLostError
            If the store changes faster than the changes can be read.
        StoreClosedError
            If the store is closed, also meanwhile.
        """
        # A server has no use for it.
        from gpkvs.backup.copier import back_up  # noqa: PLC0415
        from gpkvs.backup.source import Source  # noqa: PLC0415

        self._require_open()
        directory = Path(directory)
        own = self.path.resolve()
        if own in (directory.resolve(), *directory.resolve().parents):
            raise InvalidArgumentError(f"{directory} lies in the store: name another one", field="directory")
        return back_up(Source(str(self.path), self, self.follow), directory, Store, on_progress)

    def count(self, prefix: Bytes = b"", *, table: str | None = None, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many keys a table has, or how many begin with a prefix: for that all keys are read.

        Without a prefix, keys that have expired count until they are swept.
        """
        self._require_timeout(timeout)
        prefix = as_bytes("prefix", prefix)
        if not prefix:
            return self.records(table or DEFAULT_TABLE)
        return sum(map(len, self.scan_pieces(prefix, keys_only=True, table=table)))

    def selection(self, table: str, prefix: bytes) -> Selection:
        """Return what says which changes of a table are wanted (an empty name means the default).

        Raises
        ------
        UnknownTableError
            If there is none of that name.
        InvalidArgumentError
            If its keys are numbers, which have no prefixes; or if no key is as long as the prefix.
        """
        found = self.open_table(table)
        if len(prefix) > found.limits.key_bytes_max:
            raise InvalidArgumentError(
                f"a prefix of {len(prefix):,} bytes, and keys have {found.limits.key_bytes_max:,} at most",
                field="prefix",
            )
        if prefix:
            require_prefixes(found.layout)
        from gpkvs.watch import Selection  # noqa: PLC0415 - with the first watch: few stores have any

        return Selection(found.name, prefix)

    def _follow(self, since: Position | None, prefix: bytes, table: str | None) -> Follows:
        from gpkvs.watch import Selected  # noqa: PLC0415

        selection = self.selection(table or DEFAULT_TABLE, prefix)
        return Selected(self.follow(since), selection)

    def records(self, table: str = DEFAULT_TABLE) -> int:
        """Return how many keys a table has; expired ones count until they are removed."""
        self._require_open()
        records = self._tables[self.open_table(table).name].records
        self._engine.settle()  # they may be of a batch that a crash could take back
        return records

    def table(self, name: str) -> StoreTable:
        """Return one table, with the same methods for keys as the store; raises UnknownTableError if there is none."""
        return StoreTable(self, self.open_table(name).name)

    def open_table(self, name: str) -> OpenTable:
        """Return what a caller must know of a table to make a request (an empty name means the default).

        Raises
        ------
        UnknownTableError
            If there is none of that name.
        """
        self._require_open()
        found = self._open_tables.get(name or DEFAULT_TABLE)
        if found is None:
            raise UnknownTableError(no_such("table", name, list(self._tables)), field="table")
        return found

    def _opened_table(self, table: Table) -> OpenTable:
        entry = table.entry
        limits = self._number_limits if entry.layout == U64_LAYOUT.name else self.limits
        if rows := row_layout_of(entry.layout):
            limits = rows.limits_of(limits)
        return OpenTable(entry.id, entry.name, entry.layout, limits)

    def open_tables(self) -> list[OpenTable]:
        """Return the same of all tables."""
        self._require_open()
        return list(self._open_tables.values())  # at once: another thread may drop one

    def table_expiry(self, table_id: int) -> TableExpiry:
        """Return how the keys of a table expire, by its number."""
        self._require_open()
        return self._engine.expiry.of_table(table_id)

    def create_table(
        self,
        name: str,
        *,
        layout: str = BYTES_LAYOUT.name,
        index_bytes: int = 0,
        records: int | None = None,
        index_bytes_max: int = 0,
        exist_ok: bool = False,
    ) -> TableInfo:
        """Make an empty table, durably when this returns; batches run while its space is reserved.

        Parameters
        ----------
        name
            1 to 64 of ``a-z 0-9 _ . -``.
        layout
            ``bytes`` (any keys and values), ``u64`` (8-byte keys and values, without versions), or a layout of rows:
            the type and the shape of arrays that are the values of 8-byte keys, such as ``float32[128]`` (`rows`).
        index_bytes
            Size of its index; 16 bytes for each slot of ``u64``, 32 for one of another layout. 0: 4 MiB. It grows.
        records
            Instead: the records that it is expected to hold. It holds them before it grows.
        index_bytes_max
            Size to which its index may grow, for good; 0: no limit of its own. That of the store holds too.
        exist_ok
            Return the table of this name if there is one, whatever its sizes; its layout must be the same.

        Raises
        ------
        InvalidArgumentError, TableExistsError
            If it cannot be.
        NoSpaceError
            If the disk is full, the index does not fit the memory (where there is a journal), or tables, their bytes or
            open files are as many as allowed; nothing was changed.
        """
        index_bytes = index_bytes_asked(index_bytes, records, layout) or Sizes.index_bytes
        with self._schema_mutex:
            self._require_open()
            if exist_ok and (there := self._tables.get(name)):
                return require_layout(self._described(there), layout)
            check_new_table(self._files.catalog, name, layout, index_bytes, index_bytes_max)
            if rows := row_layout_of(layout):
                rows.check(self.limits)
            with access_errors(self.path):
                self._files.require_in_place()
            require_room_for_table(self._files, index_bytes, self._quota)
            if self._files.data:
                unfilled = sum(index.region.bytes for index in self._files.indexes.values()) - anonymous_bytes()
                require_memory(index_bytes + max(unfilled, 0))
            entry = new_entry(self._files.catalog, name, layout, index_bytes, index_bytes_max)
            with access_errors(self.path):
                reserve_index(self._files, entry)  # batches run meanwhile
            with self._mutex, self._turn_over(), access_errors(self.path):
                self._engine.committer.take_number()
                changes = self._engine.changes
                with self._files.changing:
                    index = create_table(self._files, self._backend, self.domain, entry, partial(changes.made, entry))
                    table = self._engine.tables[entry.id] = self._tables[name] = Table(index, Held())
                    self._open_tables[name] = self._opened_table(table)
            return _describe(table)

    def _described(self, table: Table) -> TableInfo:
        return next(info for info in self._describe_now().tables if info.name == table.entry.name)

    def list_tables(self) -> list[TableInfo]:
        """Describe all tables."""
        return list(self.info().tables)

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a table with all it holds, durably when this returns; batches run while its records are counted.

        Raises
        ------
        UnknownTableError
            If there is none of that name, and `missing_ok` is false.
        InvalidArgumentError
            If it is the default table.
        """
        with self._schema_mutex:
            self._require_open()
            if missing_ok and (name or DEFAULT_TABLE) not in self._tables:
                return
            table = self._tables[self.open_table(name).name]
            check_drop(table.entry)
            with self._mutex, self._turn_over(), access_errors(self.path):
                self._engine.committer.take_number()
                self._engine.settle()
                with self._files.changing:
                    drop_table(self._files, table.entry, partial(self._engine.changes.dropped, table.entry))
                    self._engine.growth.forget(table)  # a frame between the two may still name its growth
                    del self._engine.tables[table.entry.id], self._tables[name], self._open_tables[name]
            try:
                self._free_records(table)
            finally:
                with self._mutex, self._turn_over(), self._files.changing:
                    self._engine.free_space.forget(table.index)  # an interrupted count must not go on: the index goes
                    remove_index(self._files, self._backend, table.entry)

    def _free_records(self, dropped: Table) -> None:
        """Have the engine count and free what a dropped table had in the heap; batches run between its steps.

        The table is gone: a failure here is no refusal. Its records then count as live until the next opening.
        """
        if not dropped.records:
            return
        try:
            with self._mutex, self._turn_over():
                self._engine.free_space.release(dropped.index)
            while self._engine.free_space.is_counting and self._maintain():
                pass
        except (MemoryError, OSError) as error:
            _log.warning("the records of table %s are freed at the next opening: %r", dropped.entry.name, error)

    def _maintain(self) -> bool:
        """Run a step of maintenance, then leave as much time to batches; return whether there is more to do."""
        began = time.perf_counter()
        more = self.maintain()
        seconds = time.perf_counter() - began
        if more:
            time.sleep(seconds)
        return more and not self._is_closing

    def maintain(self) -> bool:
        """Do a step of the work that batches leave behind, in idle time; return whether there is more.

        It moves blocks of a table that grows, removes keys that have expired, empties segments of the heap that are
        mostly garbage, and gives back space that was not needed for a minute. It need never be called: batches do what
        they need, and they give space back too. A process that has nothing to do for long calls it each few seconds; a
        server does.
        """
        self._origin.require()
        with self._mutex, self._turn_over():
            return not self._closed and self._engine.maintain(_STEP_BYTES)

    def cursor_at(self, table: str, position: int) -> bytes:
        """Return the cursor (`scan_step`) of a position; empty: the table ends before it."""
        return pack_cursor(self._files.root.store_id, self.open_table(table).id, position)

    def position_of(self, table: str, cursor: bytes) -> int:
        """Return the position of a cursor, a number of 64 bits; positions rise. 0: the beginning, or the end.

        Raises
        ------
        InvalidArgumentError
            If it is none of this table of this store.
        """
        return unpack_cursor(cursor, self._files.root.store_id, self.open_table(table).id)

    @property
    def now_ms(self) -> int:
        """The time by which keys expire, in milliseconds since 1970: the clock's, but it never goes back."""
        return self.now_us // 1000

    @property
    def now_us(self) -> int:
        """The time by which keys expire, in microseconds since 1970."""
        return self._engine.expiry.time.now_us()

    @property
    def clock_back_seconds(self) -> float:
        """How far the clock was set back behind that time, in seconds."""
        return self._engine.expiry.time.behind_ms() / 1000

    def reset_time(self) -> None:
        """Let the time by which keys expire be the clock's again, durably, where it went on ahead of it.

        Keys that expire keep their moment, so they live longer by as much as the time goes back.
        """
        self._origin.require()
        with self._mutex, self._turn_over():
            self._require_open()
            self._engine.expiry.begin_time_anew()

    def end_making(self, time_ms: int) -> None:
        """End the making of a copy (`gpkvs.config.Making`), before it is closed: the time goes on from another store's.

        Raises
        ------
        NoMemoryError
            If there is no memory for it.
        """
        self._origin.require()
        with self._mutex, self._turn_over():
            self._require_open()
            if self._engine.expiry.is_used:
                self._engine.committer.keep_time(time_ms)

    def _require_open(self) -> None:
        self._origin.require()
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> StoreClosedError:
        return StoreClosedError(f"the store at {self.path} is closed")

    @property
    def is_in_use(self) -> bool:
        """Whether batches have run within the last moment: what can wait then leaves time to them."""
        return self._engine.traffic.is_lately()

    @property
    def changes_held_bytes(self) -> int:
        """What is held of the newest changes, while anybody follows."""
        return self._engine.changes.held_bytes

    @property
    def newest_change(self) -> Position:
        """Behind the newest transaction that was executed, durable or not."""
        return self._engine.changes.newest

    def info(self) -> StoreInfo:
        """Describe the store as it is now.

        A client's `info` returns the message of its server, ``InfoResponse``. Most fields of both have the same names;
        `AsyncClient.info` names the others.
        """
        self._require_open()
        described = self._describe_now()
        self._engine.settle()  # what it counts may be of a batch that a crash could take back
        return described

    def _describe_now(self) -> StoreInfo:
        heap = self._engine.heap
        live = heap.live_bytes
        tables = list(self._tables.values())
        journal = self._engine.committer.journal_info()
        return StoreInfo(
            version=package_version(),
            backend=self._backend.description,
            path=self.path,
            domain_found=self.domain.found,
            domain=self.domain.name,
            domain_note=self.domain.note,
            heap_bytes=self._files.root.heap_bytes_own,
            heap_bytes_max=max(self._files.root.heap_bytes_max, self._files.root.heap_bytes_own),
            heap_growth_waits=self._engine.heap.growth_waits,
            heap_live_bytes=live,
            heap_free_bytes=heap.free_units * UNIT_BYTES,
            heap_charged_bytes=heap.charged * UNIT_BYTES,
            heap_charged_bytes_max=min(heap.charged_max * UNIT_BYTES, heap.present_bytes),
            heap_segments=heap.segments - len(self._files.journal_segments),
            heap_free_segments=heap.free_segments,
            heap_moved_bytes=heap.moved_units * UNIT_BYTES,
            heap_given_bytes=self._engine.heap_bytes_given,
            blobs_live_bytes=heap.blobs.live_bytes if heap.blobs else 0,
            blobs_bytes=heap.blobs.present_bytes if heap.blobs else 0,
            commit="journal" if self._files.root.has_journal else "undo",
            store_format=self._files.root.format_text,
            log_bytes=self._files.root.log_bytes,
            journal_bytes=self._files.root.journal_bytes_all,
            journal=journal,
            limits=self.limits,
            next_version=self._engine.next_sequence,
            next_opening=next_opening(sum(table.index.region.bytes for table in tables), journal),
            tables=tuple(map(_describe, tables)),
            recovery=self.recovery,
            process_io=process_io(),
        )

    def close(self) -> None:
        """Let go of the store; needed for safety with ``durability=none`` only, else batches are durable already."""
        self._origin.require()
        self._is_closing = True  # a dropped table is counted no further: the next opening counts anew
        with self._schema_mutex, self._mutex, self._turn_over():
            if self._is_given_back:
                return
            self._closed = True  # an interrupted close may be called again
            self._engine.expiry.before_closing()
            if not self.domain.is_logged:
                # All that was stored is durable before the mark goes.
                with access_errors(self.path):
                    self._files.persist_unlogged()
                    set_unsafe(self._files, False)
            self._engine.close()
            self._is_given_back = True
            self._opened.close()

    def __enter__(self) -> Self:
        self._origin.require()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StoreTable(TableHandle):
    """One table of a store, with all methods for keys; made by `Store.table`."""

    _db: Store

    @property
    def id(self) -> int:
        """The table's number in the store's files."""
        return self._db.open_table(self.name).id

    @property
    def layout(self) -> str:
        """``bytes``, ``u64``, or a type and a shape such as ``float32[128]``."""
        return self._db.open_table(self.name).layout

    @property
    def limits(self) -> Limits:
        """Of its keys, values and requests."""
        return self._db.open_table(self.name).limits


def _describe(table: Table) -> TableInfo:
    entry, index, held = table.entry, table.index, table.held
    heap_bytes = held.heap_units * UNIT_BYTES
    bytes_per_key = entry.slot_layout.slot_bytes + heap_bytes / held.records if held.records else 0.0
    return TableInfo(
        name=entry.name,
        layout=entry.layout,
        records=held.records,
        slots=index.slots,
        index_bytes=index.region.bytes,
        load_factor=held.records / index.slots,
        bytes_per_key=bytes_per_key,
        growing_blocks=index.blocks if index.is_growing else 0,
        moved_blocks=index.blocks - index.unmoved,
        growth_waits=table.waits,
        index_bytes_max=entry.index_bytes_max,
        heap_bytes=heap_bytes,
        expiring_keys=held.expiring,
    )


def _limits_of(files: StoreFiles, config: StoreConfig, log_bytes_max: int) -> Limits:
    """Return the limits that this store can keep: a record fits the heap, a request of DELETEs fits the log.

    Without blobs, a value that may be longer than any record is of at most the usual length.
    """
    limits = config.limits
    heap_bytes_max = max(files.root.heap_bytes_own, files.root.heap_bytes_max)  # without the journal's extents
    record_max = record_bytes_max(files.root.segment_bytes, heap_bytes_max) - RECORD_HEADER_BYTES
    key_bytes_max = min(limits.key_bytes_max, record_max // 2, KEY_BYTES_MAX[files.root.store_format])
    value_bytes_max, longest = limits.value_bytes_max, record_max - key_bytes_max
    if files.root.has_blobs:
        value_bytes_max = max(value_bytes_max, config.lent_value_bytes_max)
        value_bytes_max = min(value_bytes_max, VALUE_BYTES_MOST, value_bytes_in(heap_bytes_max // PAGE_BYTES))
    elif value_bytes_max > longest:
        value_bytes_max = min(VALUE_BYTES_USUAL, longest)
    result_bytes_max = limits.result_bytes_max
    if result_bytes_max >= RESULT_BYTES_USUAL:  # who allows less wants less
        result_bytes_max = max(result_bytes_max, value_bytes_max)
    return replace(
        limits,
        key_bytes_max=key_bytes_max,
        value_bytes_max=value_bytes_max,
        result_bytes_max=result_bytes_max,
        request_ops_max=min(limits.request_ops_max, files.log_entries_of(log_bytes_max)),
    )


def open(
    path: str | Path,
    *,
    backend: BackendName = "auto",
    gpus: str = "auto",
    gpu_rows_bytes: int | None = None,
    durability: DurabilityName = "auto",
    accept_loss: bool = False,
    threads: int = 0,
    index_bytes: int | None = None,
    records: int | None = None,
    heap_bytes: int | None = None,
    heap_bytes_max: int | None = None,
    log_bytes: int | None = None,
    log_bytes_max: int | None = None,
    commit: CommitName = "auto",
    store_format: FormatName = "auto",
    journal_bytes: int | None = None,
    journal_bytes_max: int | None = None,
    index_bytes_max: int | None = None,
    limits: Limits | None = None,
    create: bool = True,
    on_progress: Progress = _no_progress,
) -> Store:
    """Open the store in a directory, recovering it if its last user crashed.

    Parameters
    ----------
    path
        The directory. Missing or empty: a store is created there.
    backend
        ``cpu``, ``cuda``, or ``auto``: what ``GPKVS_BACKEND`` says, else the CPU.
    gpus
        Of the backend ``cuda``: the numbers of GPUs, as CUDA counts them (``0,1``), ``all``, or ``auto``: what
        ``GPKVS_GPUS`` says, else 0. Several GPUs hold the tables together and plan large batches together.
    gpu_rows_bytes
        Of the backend ``cuda``: how much memory of the first GPU rows may take, which are read there. None: a quarter
        of what is free when the first ones are read. Without any, the host reads all of them.
    durability
        The persistence domain: ``auto`` takes what is found, and `Store.domain` says what that survives. ``none`` turns
        the undo log off, for benchmarks: until the store is closed, a crash may lose or tear any batch.
    accept_loss
        Open a store that was in use with ``none`` and was not closed, dropping what cannot be read.
    threads
        Of the cpu backend; 0 takes one for each processor.
    index_bytes, heap_bytes, log_bytes
        Sizes of a new store (`gpkvs.config.Sizes` has the defaults); an existing one keeps its own, with a warning.
    records
        Instead of `index_bytes`: the records that the default table is expected to hold.
    heap_bytes_max
        How large the heap may become: it grows when it is needed. If only `heap_bytes` is given, that is the largest
        size too; if neither is, the heap grows until the disk is full. An existing store takes a new value.
    log_bytes_max
        How large the undo log may become, for requests of many operations. If only `log_bytes` is given, it does not
        grow.
    commit, journal_bytes
        How the batches of a new store become durable, and the size of its journal. ``auto`` is ``journal`` in the
        domain ``msync``, else ``undo``.
    store_format
        Of the files of a new store: ``4``, which ``auto`` is, or ``3``, for an older version, which opens no other
        one: records are longer, and values have at most 16 MiB.
    journal_bytes_max
        How large the journal may become, for larger indexes and for requests of many operations. If only
        `journal_bytes` is given, it does not grow.
    index_bytes_max
        Size to which the index of each table may grow; by default it grows as far as disk and memory go.
    limits
        Lower limits for requests than the defaults.
    create
        Whether to create a store where there is none.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.

    Raises
    ------
    InvalidArgumentError
        If an argument has a value that means nothing.
    StoreLockedError
        If another process has it open, under this name or another one.
    StoreMissingError
        If there is none and `create` is false.
    StoreError
        If the directory holds something else, or a file of the store is a symbolic link or has several names.
    UnsafeStoreError
        If it takes `accept_loss`; its files were not touched.
    CorruptStoreError, FormatError
        If its files are damaged or of another format; they were not touched.
    NoSpaceError
        If a new store does not fit the disk.
    StoreAccessError
        If the operating system refuses.

    Examples
    --------
    >>> with gpkvs.open("/tmp/example") as store:
    ...     store.set(b"key", b"value")
    ...     store.get(b"key")
    1
    b'value'
    """
    config = StoreConfig(
        backend=backend,
        gpus=gpus,
        durability=durability,
        accept_loss=accept_loss,
        threads=threads,
        index_bytes=index_bytes,
        heap_bytes=heap_bytes,
        heap_bytes_max=heap_bytes_max,
        log_bytes=log_bytes,
        log_bytes_max=log_bytes_max,
        commit=commit,
        store_format=store_format,
        journal_bytes=journal_bytes,
        journal_bytes_max=journal_bytes_max,
        index_bytes_max=index_bytes_max,
        limits=limits or Limits(),
    )
    require_settings(config)
    if gpu_rows_bytes is not None:
        config = replace(config, gpu_rows_bytes=whole_number("gpu_rows_bytes", gpu_rows_bytes, 0))
    if records is not None:
        records = whole_number("records", records, 0)
        config = replace(config, index_bytes=index_bytes_asked(index_bytes or 0, records))
    return Store(Path(path), config, create=create, on_progress=on_progress)
