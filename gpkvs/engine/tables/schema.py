"""Tables made and dropped, durably: a new catalogue file, then the root that names it.

Each step leaves a store that opens: until the root names the new catalogue, the old one counts, and files that no
catalogue names are removed at the next opening. No batch runs while catalogue and roots are written, and the flag is
IDLE then; batches do run while an index is reserved, and while what a dropped table had in the heap is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpkvs.backends.base import Backend
from gpkvs.config import DEFAULT_TABLE, INDEX_BYTES_MAX
from gpkvs.errors import BackendError, InvalidArgumentError, NoSpaceError, TableExistsError
from gpkvs.media.catalog import Catalog, TableEntry, catalog_file_name
from gpkvs.media.directory import (
    NO_SPACE,
    disk_free_bytes,
    reserve_file,
    reserve_next,
    round_up,
    write_file,
)
from gpkvs.media.files import StoreFiles
from gpkvs.media.image import Image
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES, U64_LAYOUT, slot_layout_of
from gpkvs.native import crc32c
from gpkvs.pm.domain import Domain
from gpkvs.pm.region import Region
from gpkvs.process import failpoint
from gpkvs.process.fatal import whole_or_stop
from gpkvs.text import quoted

_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
_FILES = re.compile(r"(index-\d+-\d+|catalog-\d+\.json)(\.tmp)?")


def check_new_table(catalog: Catalog, name: str, layout: str, index_bytes: int, index_bytes_max: int = 0) -> None:
    """Check what a client asks for.

    Raises
    ------
    InvalidArgumentError
        If name, layout or size cannot be.
    TableExistsError
        If there is a table of that name.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{quoted(name)}: allowed are 1 to 64 of a-z 0-9 _ . -", field="name")
    slot_layout_of(layout)
    check_index_bytes(index_bytes)
    if index_bytes_max and not index_bytes <= index_bytes_max <= INDEX_BYTES_MAX:
        raise InvalidArgumentError(
            f"{index_bytes_max:,} bytes, allowed are {index_bytes:,} (index_bytes) to {INDEX_BYTES_MAX:,}",
            field="index_bytes_max",
        )
    if any(table.name == name for table in catalog.tables):
        raise TableExistsError(f"there is a table {quoted(name)} already", field="name")


def check_index_bytes(index_bytes: int) -> None:
    """Raise `InvalidArgumentError` unless a table's index can have this size."""
    if not BLOCK_BYTES <= index_bytes <= INDEX_BYTES_MAX:
        raise InvalidArgumentError(
            f"{index_bytes:,} bytes, allowed are {BLOCK_BYTES:,} to {INDEX_BYTES_MAX:,}", field="index_bytes"
        )


def check_drop(entry: TableEntry) -> None:
    """Raise `InvalidArgumentError` for the table that must stay."""
    if entry.name == DEFAULT_TABLE:
        raise InvalidArgumentError("the default table cannot be dropped", field="name")


def reserve_index(files: StoreFiles, entry: TableEntry) -> None:
    """Make the file of a table's index, all of it reserved; it takes the time that the disk needs, so batches may run.

    Raises
    ------
    NoSpaceError
        If the file system has no space; nothing is left behind then.
    OSError
        If it refuses otherwise; nothing is left behind either.
    """
    path, index_bytes = files.path / entry.file_name, entry.blocks * BLOCK_BYTES
    files.require_in_place()
    try:
        reserve_file(path, index_bytes, b"")
    except (OSError, MemoryError) as error:
        _remove(files, path)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise NoSpaceError(
                "disk",
                f"an index of {index_bytes:,} bytes was asked for, {disk_free_bytes(files.path):,} are free in "
                f"{files.path}: choose a smaller index, drop a table, or make room",
            ) from error
        raise


def create_table(
    files: StoreFiles, backend: Backend, domain: Domain, entry: TableEntry, then: Callable[[], None]
) -> Index:
    """Make an empty table, whose file is reserved; return its index.

    Parameters
    ----------
    files
        The open store.
    backend
        Writes the empty markers of a u64 index.
    domain
        Of the new region.
    entry
        With the catalogue's next id.
    then
        What must be known once the table is there; it cannot fail.

    Raises
    ------
    OSError
        If the file system refuses or has no space; nothing was changed then.
    """
    index: Index | None = None
    try:
        path = files.path / entry.file_name
        region = Image(path, write=True) if files.data else Region(path, domain)
        index = Index(entry, region, files.root.hash_keys)
        backend.attach_index(index)
        if index.layout is U64_LAYOUT:
            key0, key1 = index.hash_keys
            backend.launch("mark_empty", 2 * entry.blocks, index=index, hash_key0=key0, hash_key1=key1)
            index.region.persist()
            if isinstance(index.region, Image):
                index.region.write_all()
        catalog = Catalog((*files.catalog.tables, entry), files.catalog.next_table_id + 1)
        named = _write_catalog(files, catalog)
    except (OSError, MemoryError, BackendError):
        if index:
            backend.detach_index(index)
            index.region.close()
        _remove(files, files.path / entry.file_name)
        raise

    def know() -> None:
        files.indexes[entry.id] = index
        then()

    _switch_to(files, named, catalog, know)
    return index


def double_table(files: StoreFiles, index: Index, then: Callable[[], None]) -> None:
    """Have the catalogue say that a table has twice the blocks, all of which have moved, durably (W7).

    Parameters
    ----------
    files, index
        Of the store and of the table.
    then
        What must be known here, too, once it says so; it cannot fail.

    Raises
    ------
    OSError
        If the file system refuses or has no space; nothing was changed then.
    """
    assert index.unmoved == 0
    grown = replace(index.entry, blocks=2 * index.blocks)
    tables = tuple(grown if table is index.entry else table for table in files.catalog.tables)
    catalog = replace(files.catalog, tables=tables)

    def know() -> None:
        index.set_entry(grown)
        then()

    _switch_to(files, _write_catalog(files, catalog), catalog, know)


def drop_table(files: StoreFiles, entry: TableEntry, then: Callable[[], None]) -> None:
    """Take a table out of the catalogue; `then` is what must be known after that. Its id is never given again.

    Its index is still mapped and nobody uses it any more: `remove_index` is what remains to be done.
    """
    tables = tuple(table for table in files.catalog.tables if table is not entry)
    catalog = replace(files.catalog, tables=tables)
    _switch_to(files, _write_catalog(files, catalog), catalog, then)


def remove_index(files: StoreFiles, backend: Backend, entry: TableEntry) -> None:
    """Unmap the index of a table that was dropped and remove its file."""
    index = files.indexes.pop(entry.id)
    backend.detach_index(index)
    index.region.close()
    _remove(files, index.region.path)


def _write_catalog(files: StoreFiles, catalog: Catalog) -> dict[str, int]:
    """Write a catalogue's file, durably; return the fields of the root that will name it.

    Until the root does, the file is worthless.
    """
    packed = catalog.pack()
    generation = files.root.catalog_generation + 1
    failpoint.hit("before_catalog")
    files.require_in_place()
    write_file(files.path / catalog_file_name(generation), packed)
    return {"catalog_generation": generation, "catalog_bytes": len(packed), "catalog_crc": crc32c(packed)}


def _switch_to(files: StoreFiles, named: dict[str, int], catalog: Catalog, then: Callable[[], None]) -> None:
    """Make a root durable that names a new catalogue, and have it known. Any failure in here ends the process."""
    # Either root may be durable when it fails, and a second try might seem to succeed: only the next start can tell.
    with whole_or_stop("the roots could not be written"):
        failpoint.hit("before_catalog_root")
        files.roots.change(**named)
        failpoint.hit("after_catalog_root")
        _remove(files, files.path / catalog_file_name(files.root.catalog_generation - 1))
        files.catalog = catalog
        then()
        reserve_catalog(files)


def reserve_catalog(files: StoreFiles) -> None:
    """Reserve room for the next catalogue, so that tables can be dropped on a full disk: one fewer needs no more."""
    root = files.root
    reserve_next(files.path / catalog_file_name(root.catalog_generation + 1), root.catalog_bytes)


def _remove(files: StoreFiles, path: Path) -> None:
    """Remove a file that no root names; if it cannot be, the next start tries again (`remove_orphans`)."""
    with suppress(OSError):
        files.require_in_place()
        path.unlink()


def remove_orphans(files: StoreFiles) -> list[str]:
    """Remove index and catalogue files that the current root does not name; return their names."""
    named = {table.file_name for table in files.catalog.tables} | {catalog_file_name(files.root.catalog_generation)}
    orphans = [path for path in files.path.iterdir() if _FILES.fullmatch(path.name) and path.name not in named]
    for path in orphans:
        path.unlink()
    return [path.name for path in orphans]


def new_entry(catalog: Catalog, name: str, layout: str, index_bytes: int, index_bytes_max: int = 0) -> TableEntry:
    """Return the catalogue entry of a table to be made."""
    blocks = round_up(index_bytes, BLOCK_BYTES) // BLOCK_BYTES
    return TableEntry(catalog.next_table_id, name, layout, 0, blocks, index_bytes_max)
