"""The new store's files, while a copy fills them: the only part of a copy that knows which files there are."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpkvs.batch import U8, U64
from gpkvs.errors import NoSpaceError, StoreError
from gpkvs.media.catalog import Catalog, TableEntry, catalog_file_name
from gpkvs.media.directory import (
    BLOBS_FILE,
    COPYING_FILE,
    DATA_FILE,
    FIRST_BLOB_BYTES,
    FIRST_DESCRIPTOR,
    HEAP_FILE,
    LOCK_FILE,
    LOG_FILE,
    ROOT_FILE,
    finish_creation,
    first_log,
    reserve_file,
    root_file,
    sync_path,
    write_file,
    write_unnamed,
)
from gpkvs.media.layout import (
    BLOCK_BYTES,
    FIRST_CHECKPOINT,
    PAGE_BYTES,
    REFERENCE_LENGTH_BITS,
    UNIT_BYTES,
    Checkpoint,
    Descriptor,
    Root,
    blob_pages,
)
from gpkvs.native import library
from gpkvs.process import failpoint

# What a copy makes before the root; only this may be removed when a copy begins again.
_MADE = re.compile(r"(log|heap|data|blobs|index-\d+-0|catalog-0\.json|catalog-0\.json\.tmp|root\.tmp)")


def require_no_store(path: Path) -> None:
    """Raise `StoreError` unless a directory is missing, empty, or holds a copy that was cut short."""
    if not path.is_dir():
        if path.exists() or path.is_symlink():
            raise StoreError(f"{path} is no directory: name one that is empty, or that is not there yet")
        return
    names = {entry.name for entry in path.iterdir()} - {LOCK_FILE}
    leftovers = COPYING_FILE in names and all(_MADE.fullmatch(name) for name in names - {COPYING_FILE})
    if names and not leftovers:
        what = "holds a store" if ROOT_FILE in names else f"is not empty (it holds {min(names)!r})"
        raise StoreError(f"{path} {what}: a copy needs an empty directory, or one that is not there yet")


class StoreWriter:
    """Fills an empty store, of either commit kind.

    Until `publish` renames the root's file there is no store. A mark in the directory says that a copy was cut short:
    an opening then refuses, and the next copy begins anew.

    Parameters
    ----------
    path
        A directory that `require_no_store` found fit, locked.
    root
        Of the new store.
    catalog
        The tables, each with the blocks that it will have.
    """

    def __init__(self, path: Path, root: Root, catalog: Catalog) -> None:
        self._path = path
        self._root = root
        self._catalog = catalog
        self._blob_page = 0  # the next one

    def _reserved(self) -> dict[str, int]:
        """Return the size of each file whose space is reserved."""
        root = self._root
        indexes = {table.file_name: table.blocks * BLOCK_BYTES for table in self._catalog.tables}
        if root.has_blobs:
            indexes[BLOBS_FILE] = FIRST_BLOB_BYTES
        if root.has_journal:
            return {DATA_FILE: root.journal_bytes + root.heap_bytes, **indexes}
        return {LOG_FILE: root.log_bytes, HEAP_FILE: root.heap_bytes, **indexes}

    def reserve(self) -> None:
        """Make all files, their space reserved.

        Raises
        ------
        NoSpaceError
            If the disk is too small.
        """
        self._remove_leftovers()
        (self._path / COPYING_FILE).touch(mode=0o600)
        sync_path(self._path)
        failpoint.hit("before_copy_files")
        files = self._reserved()
        try:
            for name, size in files.items():
                zeroed = self._root.journal_bytes if name == DATA_FILE else 0
                reserve_file(self._path / name, size, b"", zeroed=zeroed)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            disk = os.statvfs(self._path)
            raise NoSpaceError(
                "disk",
                f"the new store takes {sum(files.values()):,} bytes in {self._path}; "
                f"{disk.f_bavail * disk.f_frsize:,} are free beside what was made of it: choose smaller --index-bytes, "
                f"--heap-bytes, {'--journal-bytes' if self._root.has_journal else '--log-bytes'}, or another disk",
            ) from error

    def write_records(self, offset: int, data: U8) -> None:
        """Write a run of records at a byte of the heap."""
        if self._root.has_journal:
            self._write(DATA_FILE, [(self._root.journal_bytes + offset, data)])
        else:
            self._write(HEAP_FILE, [(offset, data)])

    def write_blob(self, address: int, value_bytes: int) -> tuple[int, int]:
        """Write a value, behind those before; return the reference of its blob, and the CRC of its checksums.

        Raises
        ------
        OSError
            If the disk is too small.
        """
        first, pages = self._blob_page, blob_pages(value_bytes)
        file = os.open(self._path / BLOBS_FILE, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.posix_fallocate(file, first * PAGE_BYTES, pages * PAGE_BYTES)
            crc = library.gpkvs_copied_blob(address, value_bytes, file, first)
        finally:
            os.close(file)
        self._blob_page += pages
        return first << REFERENCE_LENGTH_BITS | pages, crc

    def write_blocks(self, entry: TableEntry, first_block: int, words: U64) -> None:
        """Write blocks of a table's index. Pages of zeros are left out: the file has them already."""
        pages = words.reshape(-1, PAGE_BYTES // 8)
        used = np.concatenate(([False], pages.any(axis=1), [False]))
        bounds = np.flatnonzero(used[1:] != used[:-1]).reshape(-1, 2).tolist()
        begin = first_block * BLOCK_BYTES
        self._write(
            entry.file_name,
            [(begin + first * PAGE_BYTES, pages[first:last].view(np.uint8).ravel()) for first, last in bounds],
        )

    def _write(self, name: str, parts: list[tuple[int, U8]]) -> None:
        file = os.open(self._path / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offset, data in parts:
                written = 0
                while written < data.nbytes:
                    written += os.pwrite(file, data[written:].data, offset + written)
        finally:
            os.close(file)

    def make_durable(self, current: Descriptor, heap_end: int) -> str:
        """Write log and catalogue, make everything durable, then the root under another name; return that name.

        What is read afterwards comes from the disk, where the file system can forget what it has in memory.

        Parameters
        ----------
        current
            The descriptor of the old store's last batch: sequence, time horizon and applied sequence go on from it.
        heap_end
            The unit after the last record.
        """
        failpoint.hit("before_copy_durable")
        segment_units = self._root.segment_bytes // UNIT_BYTES
        segment = max(heap_end - 1, 0) // segment_units
        first = FIRST_DESCRIPTOR._replace(
            tail_segment=segment,
            tail_bytes=(heap_end - segment * segment_units) * UNIT_BYTES,
            first_sequence=current.next_sequence,
            next_sequence=current.next_sequence,
            time_horizon_ms=current.time_horizon_ms,
            applied_sequence=current.applied_sequence,
        )
        root = self._root
        if root.has_journal:
            root = replace(root, checkpoint=_checkpoint_of(first))
        else:
            self._write(LOG_FILE, [(0, np.frombuffer(first_log(first), np.uint8))])
        for name in self._reserved():
            _sync_and_forget(self._path / name)
        write_file(self._path / catalog_file_name(0), self._catalog.pack())
        failpoint.hit("before_copy_root")
        return write_unnamed(self._path / ROOT_FILE, root_file(root)).name

    def publish(self) -> None:
        """Make it a store: all of it is durable, now the root gets its name."""
        failpoint.hit("before_copy_publish")
        (self._path / f"{ROOT_FILE}.tmp").rename(self._path / ROOT_FILE)
        failpoint.hit("after_copy_publish")
        finish_creation(self._path)

    def discard(self) -> None:
        """Remove what was made."""
        # The root goes first: beside it nothing may be missing.
        (self._path / ROOT_FILE).unlink(missing_ok=True)
        self._remove_leftovers()
        (self._path / COPYING_FILE).unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        for entry in self._path.iterdir():
            if _MADE.fullmatch(entry.name):
                entry.unlink()


def _checkpoint_of(descriptor: Descriptor) -> Checkpoint:
    """Return the checkpoint that says what a first descriptor says."""
    return FIRST_CHECKPOINT._replace(
        tail_segment=descriptor.tail_segment,
        tail_bytes=descriptor.tail_bytes,
        next_sequence=descriptor.next_sequence,
        time_horizon_ms=descriptor.time_horizon_ms,
        applied_sequence=descriptor.applied_sequence,
    )


def _sync_and_forget(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
