"""A frame that is lost at the end of a journal, and shows in an index: it was durable once (W2)."""

from __future__ import annotations

from itertools import chain

from gpkvs.backends.base import Backend
from gpkvs.errors import CorruptStoreError
from gpkvs.media.catalog import TableEntry
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import BLOCK_BYTES, VERSION_MAX, slot_versions
from gpkvs.recovery.startup.salvage import audit


def require_no_lost_frame(files: StoreFiles, backend: Backend, next_sequence: int) -> None:
    """Raise `CorruptStoreError` if an index has a version that no batch of the journal gave, and its record is whole.

    A checkpoint wrote such a slot because its frame was durable. Without the refusal, the batch would be there in part.
    A slot that rotted may have such a version too, but no record that agrees: it is damage of its key.
    """
    for table in files.catalog.tables:
        if table.slot_layout.has_records and _shows_later(files, backend, table, next_sequence):
            raise CorruptStoreError(
                "journal",
                f"the frame that gave version {next_sequence} is damaged: table {table.name!r} shows later ones. "
                "Nothing was changed; restore the directory from a backup",
                path=files.indexes[table.id].region.path,
            )


def _shows_later(files: StoreFiles, backend: Backend, table: TableEntry, next_sequence: int) -> bool:
    index = files.indexes[table.id]
    for block in chain.from_iterable(range(*blocks) for blocks in index.live_ranges):
        words = index.region.words(block * BLOCK_BYTES, BLOCK_BYTES // 8)
        is_later = slot_versions(words) >= next_sequence
        if not is_later.any():
            continue
        is_whole = audit(files, backend, table, VERSION_MAX, blocks=(block, block + 1)) == 0
        if (is_later & is_whole).any():
            return True
    return False
