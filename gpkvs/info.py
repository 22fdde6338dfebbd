"""What a store says about itself: to `gpkvs info`, to metrics, to a start-up log line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpkvs.config import MIB, Limits
from gpkvs.errors import TableExistsError
from gpkvs.process.process_io import ProcessIo


@dataclass(frozen=True)
class RecoveryReport:
    """What start-up recovery found and did; also written to ``recovery.json`` in the store's directory."""

    undone: bool  # a batch in progress was rolled back
    undone_entries: int
    replayed_batches: int  # of a journal, after its last checkpoint
    replayed_slots: int
    cut_batches: int  # at the journal's end, not whole: nobody was told of them
    dropped_slots: int  # of a store that was in use without an undo log: what could not be read
    root_copy_repaired: str  # "", "A" or "B"
    records: int
    heap_live_bytes: int
    seconds: float
    text: str  # one line for people


@dataclass(frozen=True)
class TableInfo:
    """One table: its sizes and how full it is."""

    name: str
    layout: str
    records: int
    slots: int
    index_bytes: int
    load_factor: float
    bytes_per_key: float  # of a slot, and of what a record takes in the heap on average
    growing_blocks: int = 0  # blocks of the index before its growth; 0: it does not grow
    moved_blocks: int = 0  # of them, those that are two now
    growth_waits: str = ""  # for what, and what to do
    index_bytes_max: int = 0  # to which the index may grow; 0: no limit of its own
    heap_bytes: int = 0  # that its records take in the heap
    expiring_keys: int = 0  # that have an expiry; those that have expired count until they are removed


def require_layout(table: TableInfo, layout: str) -> TableInfo:
    """Return the description of a table that is there already, if it has this layout.

    Raises
    ------
    TableExistsError
        If it has another one.
    """
    if table.layout != layout:
        raise TableExistsError(
            f"there is a table {table.name!r} already, of the layout {table.layout}, not {layout}", field="name"
        )
    return table


@dataclass(frozen=True)
class JournalInfo:
    """The journal of a store, and the checkpoints that make room in it."""

    is_direct: bool  # whether frames are written past the page cache
    used_bytes: int  # between the last checkpoint and the last batch
    capacity_bytes: int  # what may be in use: a segment less than the journal has
    batches_in_flight: int  # that are not durable yet
    room_seconds: float  # that batches have waited for room
    flushes: int  # each for all frames that waited
    flush_seconds: float  # that they took
    checkpoints: int  # that are complete
    checkpoint_bytes: int  # that all checkpoints have written
    dirty_bytes: int  # of the indexes, which their files do not have yet


@dataclass(frozen=True)
class StoreInfo:
    """A store as it is now."""

    version: str
    backend: str
    path: Path
    domain_found: str
    domain: str
    domain_note: str
    heap_bytes: int
    heap_bytes_max: int  # how large it may become
    heap_growth_waits: str  # why it cannot grow now, where it should; else nothing
    heap_live_bytes: int
    heap_free_bytes: int  # where records can be appended: in free segments but the reserve of compaction, and the tail
    heap_charged_bytes: int  # what records are charged: a large one takes more than its bytes
    heap_charged_bytes_max: int  # up to which any write is accepted
    heap_segments: int
    heap_free_segments: int  # in which nothing is live
    heap_moved_bytes: int  # by compaction, since the store was opened
    heap_given_bytes: int  # of the heap, whose space the file system has now
    blobs_live_bytes: int  # of the values that lie in the file of blobs
    blobs_bytes: int  # that this file has of the disk
    commit: str  # ``undo`` or ``journal``
    store_format: str  # of the files: ``3`` or ``4``
    log_bytes: int  # of the undo log, if there is one
    journal_bytes: int  # of the journal, if there is one
    journal: JournalInfo | None
    limits: Limits
    next_version: int
    next_opening: str  # what it will have to do
    tables: tuple[TableInfo, ...]
    recovery: RecoveryReport
    process_io: ProcessIo | None  # None where the system does not say


def next_opening(index_bytes: int, journal: JournalInfo | None) -> str:
    """Say what the next opening of a store will have to do."""
    text = f"reads and counts {index_bytes / MIB:,.1f} MiB of index"
    if not journal:
        return text
    used, dirty = journal.used_bytes / MIB, journal.dirty_bytes / MIB
    return (
        f"{text}, replays {used:,.1f} MiB of the journal; after a clean close it replays nothing, if {dirty:,.1f} MiB "
        "of the index can be written in a second"
    )


@cache
def package_version() -> str:
    """Return the installed version of gpkvs."""
    try:
        return version("gpkvs")
    except PackageNotFoundError:
        return "unknown"
