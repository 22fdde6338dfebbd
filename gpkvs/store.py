"""The embedded store: `gpkvs.open` and what one can do with what it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Self

from gpkvs.backends.base import Backend
from gpkvs.backends.choose import choose_backend
from gpkvs.batch import Batch, BatchResult, Op, RequestResult, Status
from gpkvs.config import DEFAULT_TABLE, BackendName, DurabilityName, Limits, Sizes, StoreConfig
from gpkvs.directory import DirectoryLock, access_errors, create_store, require_store, store_exists
from gpkvs.engine import Engine
from gpkvs.errors import CorruptRecordError, StoreClosedError, UnknownTableError
from gpkvs.files import StoreFiles, open_files
from gpkvs.info import StoreInfo, TableInfo
from gpkvs.layout import RECORD_HEADER_BYTES
from gpkvs.pm.domain import Domain, find_domain
from gpkvs.recovery.recover import recover
from gpkvs.table import Table

Progress = Callable[[str, float], None]


def _no_progress(step: str, share: float) -> None:
    """Report nothing."""


def _version() -> str:
    try:
        return version("gpkvs")
    except PackageNotFoundError:
        return "unknown"


class Store:
    """An open store; made by `gpkvs.open`. Its methods may be called from any thread.

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

    def __init__(
        self, path: Path, config: StoreConfig, *, create: bool = True, on_progress: Progress = _no_progress
    ) -> None:
        self.path = path
        self._mutex = threading.Lock()
        self._closed = False
        self._backend: Backend = choose_backend(config.backend, config.threads)
        with access_errors(path):
            if not create:
                require_store(path)
            path.mkdir(parents=True, exist_ok=True)
            self._lock = DirectoryLock(path, write=True)
            try:
                self._open(config, on_progress)
            except BaseException:
                self._lock.release()
                self._backend.close()
                raise

    def _open(self, config: StoreConfig, on_progress: Progress) -> None:
        self.domain: Domain = find_domain(self.path, config.durability)
        if not store_exists(self.path):
            create_store(self.path, config.sizes, on_progress)
        self._files: StoreFiles = open_files(self.path, self.domain.name)
        try:
            recovered = recover(self._files, self._backend, on_progress)
        except BaseException:
            self._files.close()
            raise
        self.recovery = recovered.report
        self.limits = _limits_of(self._files, config.limits)
        table = Table(
            self._backend,
            self._files,
            self._files.table,
            self._files.index,
            self.limits.reply_bytes_max,
            recovered.records,
        )
        self._engine = Engine(
            self._backend,
            self._files,
            table,
            recovered.heap,
            recovered.transaction,
            max(config.batch_reply_bytes_max, self.limits.reply_bytes_max),
        )

    def execute(self, batch: Batch, *, table: str = DEFAULT_TABLE) -> RequestResult:
        """Run one request: all of its operations, in order, as one durable transaction.

        Raises
        ------
        InvalidArgumentError
            If an operation or column is wrong.
        NoSpaceError
            If it does not fit; nothing of it was written.
        StoreClosedError
            If the store was closed.
        """
        self.check_table(table)
        batch.validate(self.limits)
        return self.execute_requests(batch).request(0)

    def execute_requests(self, batch: Batch) -> BatchResult:
        """Run a batch of requests that are valid (`Batch.validate`); each is there whole or rejected whole.

        The result says how many requests it covers: a batch too large for one transaction is cut between requests, and
        the caller runs the rest again.
        """
        with self._mutex:
            if self._closed:
                raise StoreClosedError(f"the store at {self.path} is closed")
            return self._engine.execute(batch)

    def get(self, key: bytes, *, table: str = DEFAULT_TABLE) -> bytes | None:
        """Return the value of `key`, or `None` if it is not there.

        Raises
        ------
        CorruptRecordError
            If its record is damaged.
        """
        result = self.execute(Batch.of([(Op.GET, key)]), table=table)
        if result.status[0] == Status.CORRUPT:
            raise CorruptRecordError(
                f"the record of key {key!r} in table {table!r} fails its check; run `gpkvs check {self.path}`"
            )
        return result.values.tobytes() if result.status[0] == Status.OK else None

    def set(self, key: bytes, value: bytes, *, table: str = DEFAULT_TABLE) -> int:
        """Store `value` under `key`, durably when this returns; return its version."""
        return int(self.execute(Batch.of([(Op.SET, key, value)]), table=table).versions[0])

    def delete(self, key: bytes, *, table: str = DEFAULT_TABLE) -> bool:
        """Remove `key`, durably when this returns; return whether it was there."""
        return bool(self.execute(Batch.of([(Op.DELETE, key)]), table=table).status[0] == Status.OK)

    def check_table(self, name: str) -> None:
        """Raise `UnknownTableError` unless there is a table of that name (an empty one means the default)."""
        names = [table.name for table in self._files.catalog.tables]
        if (name or DEFAULT_TABLE) not in names:
            raise UnknownTableError(f"there is no table {name!r}; there are {', '.join(names)}", field="table")

    def info(self) -> StoreInfo:
        """Describe the store as it is now."""
        if self._closed:
            raise StoreClosedError(f"the store at {self.path} is closed")
        table, records, live = self._files.table, self._engine.table.records, self._engine.heap.live_bytes
        index_bytes = self._files.index.bytes
        return StoreInfo(
            version=_version(),
            backend=self._backend.name,
            path=self.path,
            domain_found=self.domain.found,
            domain=self.domain.name,
            domain_note=self.domain.note,
            heap_bytes=self._files.heap.bytes,
            heap_live_bytes=live,
            log_bytes=self._files.log.bytes,
            limits=self.limits,
            next_version=self._engine.next_sequence,
            tables=(
                TableInfo(
                    name=table.name,
                    layout=table.layout,
                    records=records,
                    slots=table.slots,
                    index_bytes=index_bytes,
                    load_factor=records / table.slots,
                    bytes_per_key=(index_bytes + live) / records if records else 0.0,
                ),
            ),
            recovery=self.recovery,
        )

    def close(self) -> None:
        """Let go of the store; never needed for safety, every batch is durable when it returns."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self._files.close()
            self._backend.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _limits_of(files: StoreFiles, limits: Limits) -> Limits:
    """Return the limits that this store can keep: a record fits a segment, a request of DELETEs fits the log."""
    record_max = files.root.segment_bytes - RECORD_HEADER_BYTES
    key_bytes_max = min(limits.key_bytes_max, record_max // 2)
    return replace(
        limits,
        key_bytes_max=key_bytes_max,
        value_bytes_max=min(limits.value_bytes_max, record_max - key_bytes_max),
        request_ops_max=min(limits.request_ops_max, files.log_entries_max),
    )


def open_store(
    path: str | Path,
    *,
    backend: BackendName = "auto",
    durability: DurabilityName = "auto",
    threads: int = 0,
    index_bytes: int = Sizes.index_bytes,
    heap_bytes: int = Sizes.heap_bytes,
    log_bytes: int = Sizes.log_bytes,
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
        ``auto`` or ``cpu``.
    durability
        The persistence domain: ``auto`` takes what the file system gives, and `Store.domain` says what that survives.
    threads
        Of the cpu backend; 0 takes one for each processor.
    index_bytes, heap_bytes, log_bytes
        Sizes of a new store; an existing one keeps its own.
    limits
        Lower limits for requests than the defaults.
    create
        Whether to create a store where there is none.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.

    Raises
    ------
    StoreLockedError
        If another process has it open.
    StoreMissingError
        If there is none and `create` is false.
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
        durability=durability,
        threads=threads,
        sizes=Sizes(index_bytes=index_bytes, heap_bytes=heap_bytes, log_bytes=log_bytes),
        limits=limits or Limits(),
    )
    return Store(Path(path), config, create=create, on_progress=on_progress)
