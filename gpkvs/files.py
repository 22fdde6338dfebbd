"""The files of a store, checked and mapped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpkvs.catalog import Catalog, TableEntry, catalog_file_name
from gpkvs.directory import HEAP_FILE, LOG_FILE, ROOT_FILE
from gpkvs.errors import CorruptStoreError
from gpkvs.layout import (
    BLOCK_BYTES,
    ENTRY_BYTES,
    LOG_ENTRIES_OFFSET,
    ROOT_FILE_BYTES,
    STRIPE_ENTRIES,
    BadBytesError,
    Root,
)
from gpkvs.pm.domain import DomainName
from gpkvs.pm.region import Region
from gpkvs.roots import RootCopies


@dataclass(frozen=True)
class StoreFiles:
    """Every file of a store, mapped; `root` is what the newer root copy said when they were opened."""

    path: Path
    root: Root
    root_copies: RootCopies
    catalog: Catalog
    root_region: Region
    log: Region
    heap: Region
    indexes: tuple[Region, ...]  # of catalog.tables, in order

    @property
    def table(self) -> TableEntry:
        """The default table."""
        return self.catalog.tables[0]

    @property
    def index(self) -> Region:
        """The index of the default table."""
        return self.indexes[0]

    @property
    def log_entries_max(self) -> int:
        """Undo entries that the log holds: whole stripes only."""
        return (self.log.bytes - LOG_ENTRIES_OFFSET) // (STRIPE_ENTRIES * ENTRY_BYTES) * STRIPE_ENTRIES

    @property
    def log_address(self) -> int:
        """Where the entries begin, in memory."""
        return self.log.address + LOG_ENTRIES_OFFSET

    def close(self) -> None:
        """Unmap everything."""
        for region in (self.root_region, self.log, self.heap, *self.indexes):
            region.close()


def open_files(path: Path, domain: DomainName | None) -> StoreFiles:
    """Map the files of a store, checking each one's size before it is mapped.

    Parameters
    ----------
    path
        A directory that holds a store.
    domain
        How stores become durable; `None` maps everything read-only.

    Raises
    ------
    CorruptStoreError, FormatError
        If the root, the catalogue or a file's size is wrong; nothing was touched.
    OSError
        If the operating system refuses.
    """
    opened: list[Region] = []

    def region(name: str, size: int) -> Region:
        _check_size(path / name, size)
        opened.append(Region(path / name, domain))
        return opened[-1]

    try:
        root_region = region(ROOT_FILE, ROOT_FILE_BYTES)
        copies = RootCopies.read(root_region)
        root = copies.current(root_region)
        catalog = _read_catalog(path, root)
        return StoreFiles(
            path=path,
            root=root,
            root_copies=copies,
            catalog=catalog,
            root_region=root_region,
            log=region(LOG_FILE, root.log_bytes),
            heap=region(HEAP_FILE, root.heap_bytes),
            indexes=tuple(region(table.file_name, table.blocks * BLOCK_BYTES) for table in catalog.tables),
        )
    except BaseException:
        for mapped in opened:
            mapped.close()
        raise


def _check_size(path: Path, size: int) -> None:
    found = path.stat().st_size if path.exists() else None
    if found == size:
        return
    what = "is missing" if found is None else f"has {found:,} bytes"
    raise CorruptStoreError(
        "file-size",
        f"{what}, the store needs {size:,}: restore it from a backup",
        path=path,
        offset=found or 0,
    )


def _read_catalog(path: Path, root: Root) -> Catalog:
    file = path / catalog_file_name(root.catalog_generation)
    _check_size(file, root.catalog_bytes)
    try:
        return Catalog.unpack(file.read_bytes(), root.catalog_crc)
    except BadBytesError as error:
        raise CorruptStoreError("catalog", str(error), path=file) from error
