"""A table that grows, as descriptors, frames and the root say it, and what catalogue and files must agree on.

Growth (T, n, m): the catalogue has n blocks of table T, and the first m of them have not moved. The file has room for
2n. When none is left, the catalogue of 2n is written: (T, n, 0) beside it says nothing more. Ids are never given again,
so growth of a table that the catalogue lacks is that of a dropped one.
"""

from __future__ import annotations

from gpkvs.errors import CorruptStoreError
from gpkvs.media.files import StoreFiles
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES, NO_GROWTH, Growth


def make_room(files: StoreFiles, growth: Growth) -> Index | None:
    """Have as much of an index in memory as a growth says: what a log or a frame names then lies inside.

    Returns
    -------
    Index or None
        That grows, or has grown; None if none does.

    Raises
    ------
    CorruptStoreError
        If the growth cannot be; nothing was changed.
    OSError, MemoryError
        If there is no memory.
    """
    if growth == NO_GROWTH:
        return None
    index = files.indexes.get(growth.table_id)
    if index is None:
        if growth.table_id >= files.catalog.next_table_id:
            raise _cannot_be(files, growth, "there was never such a table")
        return None
    if not 0 < growth.blocks <= index.blocks or growth.unmoved > growth.blocks:
        raise _cannot_be(files, growth, f"the catalogue has {index.blocks:,} blocks")
    if growth.blocks == index.blocks:
        needed, found = 2 * growth.blocks * BLOCK_BYTES, index.region.path.stat().st_size
        if found < needed:
            raise CorruptStoreError(
                "file-size",
                f"has {found:,} bytes, the table grows to {needed:,}: restore it from a backup",
                path=index.region.path,
                offset=found,
            )
        index.grow_region()
    return index


def adopt(files: StoreFiles, growth: Growth) -> None:
    """Take the growth of the last committed batch: its index knows which blocks have moved.

    Raises
    ------
    CorruptStoreError
        If the growth cannot be; nothing was changed.
    OSError, MemoryError
        If there is no memory.
    """
    index = make_room(files, growth)
    files.growth = NO_GROWTH
    if index is None:
        return
    if growth.blocks == index.blocks:
        index.set_unmoved(growth.unmoved)
        files.growth = growth
    elif 2 * growth.blocks != index.blocks or growth.unmoved:
        raise _cannot_be(files, growth, f"the catalogue has {index.blocks:,} blocks already")


def _cannot_be(files: StoreFiles, growth: Growth, why: str) -> CorruptStoreError:
    return CorruptStoreError(
        "growth",
        f"table {growth.table_id} is said to grow from {growth.blocks:,} blocks, of which {growth.unmoved:,} have not "
        f"moved, and {why}. Nothing was changed; restore the directory from a backup",
        path=files.path,
    )
