"""The files of a store, checked and mapped."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.errors import CorruptStoreError
from gpkvs.media.catalog import Catalog, TableEntry, catalog_file_name
from gpkvs.media.data_file import DataFile
from gpkvs.media.directory import (
    BLOBS_FILE,
    DATA_FILE,
    HEAP_FILE,
    LOG_FILE,
    ROOT_FILE,
    sync_above,
    sync_path,
)
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.media.journal import Ring
from gpkvs.media.layout import (
    BLOCK_BYTES,
    BYTES_LAYOUT,
    LOG_ENTRIES_OFFSET,
    NO_GROWTH,
    PAGE_BYTES,
    ROOT_FILE_BYTES,
    RUNS_MAX,
    STRIPE_ENTRIES,
    UNIT_BYTES,
    BadBytesError,
    Growth,
    LogRun,
    Root,
    RunKind,
)
from gpkvs.media.root_copies import Roots, UnpackRoot
from gpkvs.pm.domain import Domain
from gpkvs.pm.region import Region

_GLANCE_PAUSES = (0.01, 0.05, 0.2)  # seconds, before a look is tried again
_STRIPE_WORDS = STRIPE_ENTRIES * BYTES_LAYOUT.entry_bytes // 8


@dataclass
class StoreFiles:
    """Every file of a store, mapped.

    Tables come and go: `gpkvs.engine.tables.schema` changes `catalog` and `indexes`. Who changes them, or the roots,
    holds `changing`: a checkpoint does so beside the batches.
    """

    path: Path
    directory: os.stat_result  # what the path led to when the files were opened
    roots: Roots
    catalog: Catalog
    root_region: Region
    undo_log: Region | None  # or there is a journal
    data: DataFile | None  # the journal and the heap
    heap: Region
    blobs: Region | None  # of a store of format 4
    indexes: dict[int, Index]  # by table id
    log_waits: str = ""  # why the journal does not grow, although a batch needs it
    growth: Growth = NO_GROWTH  # as the descriptor of the next batch says it
    remaps: int = 0  # how often an index began to be mapped anew: its address may change from then on
    changing: threading.Lock = field(default_factory=threading.Lock)

    def require_in_place(self) -> None:
        """Raise `OSError` if the path does not lead to the store's directory any more.

        Who makes, extends or removes a file of the store by its name asks first: where the directory was renamed, the
        name may be another store's.
        """
        with suppress(FileNotFoundError):
            if os.path.samestat(self.directory, self.path.stat()):
                return
        raise OSError(
            errno.ESTALE,
            "the directory of this open store was moved or removed",
            str(self.path),
        )

    @property
    def log(self) -> Region:
        """The undo log, of a store that has one."""
        assert self.undo_log
        return self.undo_log

    @property
    def run_kind(self) -> RunKind:
        """What the entries of a batch of the host's threads hold: slots before it, or after it."""
        return RunKind.REDO if self.root.has_journal else RunKind.UNDO

    @property
    def root(self) -> Root:
        """The root as it is now."""
        return self.roots.current

    @property
    def segments(self) -> int:
        """Segments of the heap; it may end inside the last one."""
        return -(-self.root.heap_bytes // self.root.segment_bytes)

    @property
    def journal_segments(self) -> NDArray[np.int64]:
        """Segments of the heap's space that are the journal's."""
        extents = self.root.journal_extents
        parts = [np.arange(extent.first_segment, extent.first_segment + extent.segments) for extent in extents]
        return np.concatenate([np.empty(0, np.int64), *parts])

    @property
    def segment_units(self) -> int:
        """Units of a segment of the heap."""
        return self.root.segment_bytes // UNIT_BYTES

    def holds_tail(self, tail_segment: int, tail_bytes: int) -> bool:
        """Whether a tail lies in the heap."""
        root = self.root
        end = tail_segment * root.segment_bytes + tail_bytes
        is_journal = any(0 <= tail_segment - extent.first_segment < extent.segments for extent in root.journal_extents)
        return (
            tail_segment < self.segments
            and tail_bytes <= root.segment_bytes
            and end <= root.heap_bytes
            and not is_journal
        )

    def table(self, table_id: int) -> TableEntry:
        """Return the catalogue entry of a table that exists."""
        return next(table for table in self.catalog.tables if table.id == table_id)

    @property
    def log_words_max(self) -> int:
        """Words that a batch has for entries, in the undo log or in a frame."""
        root = self.root
        return Ring.of(root).frame_words_max if root.has_journal else _log_words_of(root.log_bytes)

    @property
    def log_entries_max(self) -> int:
        """Entries that a batch surely has room for: of the larger layout, in whole stripes, some lost between runs."""
        return _entries_in(self.log_words_max)

    def log_entries_of(self, size: int) -> int:
        """Return the same for an undo log, or a journal, of another size."""
        root = self.root
        if root.has_journal:
            return _entries_in(Ring.of_size(root.journal_segment_bytes, size).frame_words_max)
        return _entries_in(_log_words_of(size))

    def run_address(self, run: LogRun) -> int:
        """Return where a run of entries begins, in memory."""
        return self.log.address + LOG_ENTRIES_OFFSET + 8 * run.first_word

    @property
    def regions(self) -> tuple[Region | Image, ...]:
        """Every file in memory."""
        mapped = (self.root_region, self.heap, *(index.region for index in self.indexes.values()))
        return (*mapped, *(region for region in (self.undo_log, self.blobs) if region))

    def fsync(self) -> None:
        """Make durable what earlier lives left, whatever their domain was, and a copy that was never synced.

        The root comes last: what it and its flag name is durable before. It is touched: after a batch whose sync
        failed, undo or the next batch stores again what counts in the other files, and nothing does in this one.
        """
        if self.data:
            self.data.sync()
        else:
            self.log.fsync()
            self.heap.fsync()
        if self.blobs:
            self.blobs.fsync()
        for index in self.indexes.values():
            index.region.fsync()
        sync_path(self.path / catalog_file_name(self.root.catalog_generation))
        sync_path(self.path)
        sync_above(self.path)
        self.root_region.redirty()
        self.root_region.fsync()

    def persist_unlogged(self) -> None:
        """Make every earlier store durable, also where the domain is `none`."""
        for region in self.regions:
            region.persist_unlogged()

    def close(self) -> None:
        """Unmap everything."""
        for region in self.regions:
            region.close()
        if self.data:
            self.data.close()


def _log_words_of(log_bytes: int) -> int:
    return (log_bytes - LOG_ENTRIES_OFFSET) // 8


def _entries_in(words: int) -> int:
    return (words // _STRIPE_WORDS - RUNS_MAX) * STRIPE_ENTRIES


def log_words_for(entries: int) -> int:
    """Return the words in which a batch surely has room for so many entries (`StoreFiles.log_entries_max`)."""
    return _STRIPE_WORDS * (RUNS_MAX + -(-entries // STRIPE_ENTRIES))


def log_bytes_for(entries: int) -> int:
    """Return the size of an undo log that surely has room for so many entries (`StoreFiles.log_entries_max`)."""
    return LOG_ENTRIES_OFFSET + 8 * log_words_for(entries)


def open_files(
    path: Path, domain: Domain | None, *, root_file: str = ROOT_FILE, unpack_root: UnpackRoot = Root.unpack
) -> StoreFiles:
    """Map the files of a store, checking each one's size before it is mapped.

    Parameters
    ----------
    path
        A directory that holds a store.
    domain
        How stores become durable; `None` maps everything read-only.
    root_file
        The name of the root's file, which a store that is being made has under another name.
    unpack_root
        Reads a root copy; an older format has its own.

    Raises
    ------
    CorruptStoreError, FormatError
        If the root, the catalogue or a file's size is wrong; nothing was touched.
    OSError
        If the operating system refuses.
    """
    opened: list[Region | Image | DataFile] = []

    def region(name: str, size: int, *, may_be_longer: bool = False) -> Region:
        _check_size(path / name, size, may_be_longer=may_be_longer)
        mapped = Region(path / name, domain, size=size)
        opened.append(mapped)
        return mapped

    def data_file(size: int) -> DataFile:
        _check_size(path / DATA_FILE, size, may_be_longer=True)
        data = DataFile(path / DATA_FILE, write=domain is not None)
        opened.append(data)
        return data

    def heap(root: Root) -> Region:
        if not root.has_journal:
            return region(HEAP_FILE, root.heap_bytes, may_be_longer=True)
        # Records are written to the file: nothing may store to the mapping.
        mapped = Region(path / DATA_FILE, None, root.journal_bytes, root.heap_bytes)
        mapped.is_paged = root_region.is_paged
        opened.append(mapped)
        return mapped

    def blobs(root: Root) -> Region | None:
        if not root.has_blobs:
            return None
        _check_size(path / BLOBS_FILE, PAGE_BYTES, may_be_longer=True)
        size = (path / BLOBS_FILE).stat().st_size // PAGE_BYTES * PAGE_BYTES
        # With a journal, values are written to the file, as records are.
        stored_by = None if root.has_journal else domain
        mapped = Region(path / BLOBS_FILE, stored_by, size=size, reads_ahead=True, writes_file=domain is not None)
        opened.append(mapped)
        return mapped

    def index(root: Root, table: TableEntry) -> Index:
        # A file may be longer: a growth was prepared.
        file, size = path / table.file_name, table.blocks * BLOCK_BYTES
        _check_size(file, size, may_be_longer=True)
        mapped: Region | Image
        if root.has_journal:
            mapped = Image(file, write=domain is not None, size=size)
        else:
            mapped = Region(file, domain, size=size)
        opened.append(mapped)
        return Index(table, mapped, root.hash_keys)

    try:
        root_region = region(root_file, ROOT_FILE_BYTES)
        roots = Roots(root_region, unpack_root)
        root = roots.current
        _check_extents(root, path / DATA_FILE)
        catalog = _read_catalog(path, root)
        return StoreFiles(
            path=path,
            directory=path.stat(),
            roots=roots,
            catalog=catalog,
            root_region=root_region,
            undo_log=None if root.has_journal else region(LOG_FILE, root.log_bytes, may_be_longer=True),
            data=data_file(root.journal_bytes + root.heap_bytes) if root.has_journal else None,
            heap=heap(root),
            blobs=blobs(root),
            indexes={table.id: index(root, table) for table in catalog.tables},
        )
    except BaseException:
        for mapped in opened:
            mapped.close()
        raise


class Glance(NamedTuple):
    """What a look at a store finds that does not open it."""

    root: Root
    catalog: Catalog


def glance(path: Path) -> Glance:
    """Read a store's root and catalogue without a lock, and without a write: a server may have the store meanwhile.

    A server that writes both at this moment is given time to end.

    Raises
    ------
    CorruptStoreError, FormatError
        If they cannot be read, nor a moment later.
    OSError
        If the operating system refuses.
    """
    for pause in _GLANCE_PAUSES:
        try:
            return _glance(path)
        except (CorruptStoreError, FileNotFoundError):
            time.sleep(pause)
    return _glance(path)


def _glance(path: Path) -> Glance:
    _check_size(path / ROOT_FILE, ROOT_FILE_BYTES)
    region = Region(path / ROOT_FILE, None, size=ROOT_FILE_BYTES)
    try:
        root = Roots(region).current
    finally:
        region.close()
    return Glance(root, _read_catalog(path, root))


def _check_size(path: Path, size: int, *, may_be_longer: bool = False) -> None:
    """Raise `CorruptStoreError` unless a file has its size; one that grows is extended before the root says so."""
    found = path.stat().st_size if path.exists() else None
    if found == size or (may_be_longer and found is not None and found > size):
        return
    what = "is missing" if found is None else f"has {found:,} bytes"
    raise CorruptStoreError(
        "file-size",
        f"{what}, the store needs {size:,}: restore it from a backup",
        path=path,
        offset=found or 0,
    )


def _check_extents(root: Root, path: Path) -> None:
    """Raise `CorruptStoreError` unless the journal's extents are whole, in the heap's space, one behind the other."""
    end = 0
    for extent in root.journal_extents:
        begin, end_before = extent.first_segment * root.segment_bytes, end
        end = begin + extent.segments * root.segment_bytes
        is_whole = root.has_journal and not (end - begin) % root.journal_segment_bytes
        if begin < end_before or end > root.heap_bytes or not is_whole:
            raise CorruptStoreError(
                "journal-extent",
                f"{extent.segments:,} segments from {extent.first_segment:,} on cannot be the journal's: restore the "
                "directory from a backup",
                path=path,
                offset=root.journal_bytes + begin,
            )


def _read_catalog(path: Path, root: Root) -> Catalog:
    file = path / catalog_file_name(root.catalog_generation)
    _check_size(file, root.catalog_bytes)
    try:
        return Catalog.unpack(file.read_bytes(), root.catalog_crc)
    except BadBytesError as error:
        raise CorruptStoreError("catalog", str(error), path=file) from error


def blob_file(files: StoreFiles) -> dict[str, int]:
    """Return what kernels must know of the file of blobs (`BLOB_FILE_ARGS` in kernels/base/record.cuh)."""
    blobs = files.blobs
    return {"blobs": blobs.address if blobs else 0, "blob_file_pages": blobs.bytes // PAGE_BYTES if blobs else 0}
