"""Opening a store that was in use without an undo log and was not closed: what cannot be read is dropped.

Without a log nothing says which batches are whole. What is kept is every slot that passes the audit of ``gpkvs check``;
a batch may be there in part, an older value may have come back, and a torn value of a u64 table is not noticed. The
UNSAFE mark stays until all is durable, so a crash in here means only that it is done again.
"""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Argument, Backend
from gpkvs.columns.row_layout import row_bytes_of
from gpkvs.errors import CorruptStoreError, UnsafeStoreError
from gpkvs.media.catalog import TableEntry
from gpkvs.media.files import StoreFiles, blob_file
from gpkvs.media.index import Index
from gpkvs.media.layout import BLOCK_BYTES, UNSAFE, VERSION_MAX, ChangeKind, Descriptor, make_epoch, slot_versions
from gpkvs.media.transaction import Transaction, read_descriptors
from gpkvs.native import audits

_DUPLICATE = audits().index("slot-unique")


def require_accepted_loss(files: StoreFiles, accept_loss: bool) -> None:
    """Raise `UnsafeStoreError` if the store has the UNSAFE mark and nobody accepts what that means."""
    if files.root.is_unsafe and not accept_loss:
        raise UnsafeStoreError(
            f"{files.path} was in use with durability=none and was not closed: any batch of that time may be lost or "
            "there in part. Restore it from a backup, or accept the loss and keep what can be read: --accept-loss "
            "(accept_loss=True in Python)"
        )


def newest_descriptor(files: StoreFiles) -> Descriptor:
    """Return the newest whole descriptor: without a log, flag and descriptors reach the storage in any order.

    Raises
    ------
    CorruptStoreError
        If there is none.
    """
    whole = [descriptor for descriptor in read_descriptors(files) if isinstance(descriptor, Descriptor)]
    if not whole:
        raise CorruptStoreError("descriptor", "none is whole: restore the directory from a backup", path=files.log.path)
    return max(whole, key=lambda descriptor: descriptor.epoch)


def salvage(files: StoreFiles, backend: Backend) -> int:
    """Drop every slot that fails its audit; return how many."""
    return sum(_salvage_table(files, backend, table) for table in files.catalog.tables)


def _salvage_table(files: StoreFiles, backend: Backend, table: TableEntry) -> int:
    dropped = 0
    while True:
        broken = audit(files, backend, table, VERSION_MAX)
        # An occupant that was on its way to its other bucket is there twice: one stays, and is audited again.
        twice = np.flatnonzero(broken == _DUPLICATE)
        kept = twice[np.unique(_keys(files, table)[twice], axis=0, return_index=True)[1]]
        broken[kept] = 0
        slots = np.flatnonzero(broken).astype(np.uint64)
        if not len(slots):
            files.indexes[table.id].region.persist_unlogged()
            return dropped
        _clear(files, backend, table, slots)
        dropped += len(slots)


def _keys(files: StoreFiles, table: TableEntry) -> NDArray[np.uint64]:
    """Return the words of every slot that say which key it is."""
    index, words = files.indexes[table.id], table.slot_layout.slot_bytes // 8
    return index.region.words(0, index.slots_mapped * words).reshape(-1, words)[:, : words // 2]


def _clear(files: StoreFiles, backend: Backend, table: TableEntry, slots: NDArray[np.uint64]) -> None:
    """Store the layout's empty slot, by the kernels that a DELETE runs."""
    count, layout = len(slots), table.slot_layout
    nothing = np.zeros(count, np.uint64)
    key0, key1 = files.root.hash_keys
    of_layout: dict[str, Argument] = (
        {
            "chain_fingerprint0": nothing,
            "chain_fingerprint1": nothing,
            "reference": nothing,
            "key_lengths": np.zeros(count, np.uint32),
            "value_lengths": np.zeros(count, np.uint32),
            "record_format": files.root.store_format,
            "expiries": 0,
            "first_sequence": 0,
            "given_versions": 0,
        }
        if layout.has_records
        else {
            "keys": np.zeros(0, np.uint8),
            "values": np.zeros(0, np.uint8),
            "value_offsets": nothing,
            "hash_key0": key0,
            "hash_key1": key1,
        }
    )
    changed_slot = np.empty(count, np.uint64)
    contents = np.empty((count, layout.slot_bytes // 8), np.uint64)
    backend.launch(
        f"stage_{layout.name}",
        count,
        keys_per_item=1,
        changed_chain=np.arange(count, dtype=np.uint32),
        change=np.full(count, ChangeKind.REMOVE, np.uint8),
        final_op=np.zeros(count, np.uint32),
        slot=slots,
        changed_slot=changed_slot,
        contents=contents,
        **of_layout,
    )
    backend.launch(
        f"apply_{layout.name}",
        count,
        changed_slot=changed_slot,
        contents=contents,
        index=files.indexes[table.id],
    )


def audit(
    files: StoreFiles,
    backend: Backend,
    table: TableEntry,
    next_sequence: int,
    *,
    blocks: tuple[int, int] | None = None,
) -> NDArray[np.uint8]:
    """Return for each slot of a table the number of the first invariant that it breaks; 0 if none, or if it is dead.

    Parameters
    ----------
    next_sequence
        Versions from here on are not given yet.
    blocks
        The first and last + 1 of those to audit, which are live; without it all live ones are.
    """
    index, in_block = files.indexes[table.id], table.slot_layout.block_slots
    begin, end = blocks or (0, index.slots_mapped // in_block)
    broken = np.zeros((end - begin) * in_block, np.uint8)
    for first, last in (blocks,) if blocks else index.live_ranges:
        part = broken[(first - begin) * in_block : (last - begin) * in_block]
        _audit_blocks(files, backend, index, next_sequence, first, part)
    return broken


def _audit_blocks(
    files: StoreFiles, backend: Backend, index: Index, next_sequence: int, first: int, broken: NDArray[np.uint8]
) -> None:
    """Audit the slots of some blocks, from one on."""
    layout = index.layout
    index.region.prefetch(first * BLOCK_BYTES, len(broken) * layout.slot_bytes)
    key0, key1 = files.root.hash_keys
    arguments: dict[str, Argument] = {
        "index": index,
        **index.geometry,
        "first": first * layout.block_slots,
        "hash_key0": key0,
        "hash_key1": key1,
        "broken": broken,
    }
    if layout.has_records:
        if len(broken) > layout.block_slots:
            _prefetch_heap(files)
        arguments |= {
            "heap": files.heap.address,
            "heap_bytes": files.heap.bytes,
            "segment_units": files.segment_units,
            "table_id": index.entry.id,
            "next_sequence": next_sequence,
            "may_expire": int(files.root.may_expire),
            "row_bytes": row_bytes_of(index.entry.layout),
            "record_format": files.root.store_format,
            **blob_file(files),
        }
    backend.launch(f"audit_{layout.name}", len(broken), keys_per_item=1, **arguments)


def _prefetch_heap(files: StoreFiles) -> None:
    """Begin to read the whole heap, if it fits the memory that is free: every record is about to be looked at."""
    if files.heap.bytes <= os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        files.heap.prefetch(0, files.heap.bytes)


def after_loss(files: StoreFiles, current: Descriptor) -> Transaction:
    """Give the salvaged store a descriptor that fits what it holds, then take the UNSAFE mark away.

    The heap's tail goes to the end of its segment, so that new records go to a free one; versions go on above the
    highest that is left.
    """
    highest = 0
    for table in files.catalog.tables:
        if table.slot_layout.has_records:
            index = files.indexes[table.id]
            for first, last in index.live_ranges:
                words = index.region.words(first * BLOCK_BYTES, (last - first) * BLOCK_BYTES // 8)
                highest = max(highest, int(slot_versions(words).max()))
    tail = current.tail_segment
    transaction = Transaction(files, current)
    following = max(current.next_sequence, highest + 1)
    fitting = current._replace(
        epoch=make_epoch(files.root.incarnation, 0),  # batches count from 1
        runs=(),
        log_digest=0,
        tail_bytes=min(files.root.segment_bytes, files.root.heap_bytes - tail * files.root.segment_bytes),
        first_sequence=following,
        next_sequence=following,
    )
    transaction.describe(fitting)
    transaction.commit(fitting)
    files.log.persist_unlogged()
    files.root_region.persist_unlogged()
    set_unsafe(files, False)
    return transaction


def set_unsafe(files: StoreFiles, unsafe: bool) -> None:
    """Put the UNSAFE mark into both root copies or take it away, durably."""
    files.roots.change(flags=files.root.flags & ~UNSAFE | UNSAFE * unsafe)
