"""A backup of a store that is in use: the store as it was at one position of its changes.

    follow       from p0 on; a thread reads the changes into a file
    scan         every table, into a new store
    p1           the position of the newest change when the scan has ended; the thread reads on until it has it
    apply        what the thread has read, in order
    check        every structure and checksum of the new store, and its counts
    publish      the store gets its name

Rules:

- p0 comes before the first step of the scan. So what the scan misses, since it changed behind its back, is read.
- Nothing is applied before the scan has ended: what a scan brings of a key may be older than what an entry says of it.
- Whatever the scan saw lies at p1 or before. So behind p1 the new store is one state that its source had.
- The changes up to p1 are durable in the source before the backup is whole. So a backup has nothing that its source
  may lose in a crash.
- Entries are applied whole: the new store has no name before the last one is.
- Keys keep their versions and their expiries. The new store's own versions begin far above: none is given twice.
- No key expires in the new store before it is whole: its source says which ones are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from gpkvs.backup.filled import Filled, NewStore, room_in
from gpkvs.backup.manifest import BackedUpTable, BackupReport, digest_text, write_manifest
from gpkvs.backup.notes import BackupNote, BackupState
from gpkvs.backup.place import Place, claimed, require_free
from gpkvs.backup.reader import ChangesReader, FollowsAll, Told
from gpkvs.backup.source import Described, Source
from gpkvs.backup.spill import read_spill
from gpkvs.config import DEFAULT_TABLE, HEAP_BYTES_MAX, Making, StoreConfig
from gpkvs.errors import CorruptRecordError, InvalidArgumentError, StoreError, UnknownTableError
from gpkvs.media.directory import UNFINISHED_FILE, Progress, disk_bytes, sync_path
from gpkvs.media.layout import KEY_BYTES_MAX
from gpkvs.process import failpoint
from gpkvs.recovery.copy.copy import digests_of_numbers
from gpkvs.recovery.startup.check import check
from gpkvs.scan import ScanPiece
from gpkvs.text import quoted

_VERSIONS_SKIPPED, _VERSIONS_A_SECOND = 1 << 40, 1 << 20

_HEAP_ROOM = 8  # while it is filled, its heap may be so many times as large as its source's
_TABLES_MAX = 1 << 20  # a table of the source is no table too many
_SCANNED, _APPLIED = 0.6, 0.8  # shares of the work
_ENTRIES_BETWEEN_REPORTS = 1000

OpenNew = Callable[[Path, StoreConfig], NewStore]
"""Opens the store that is filled, and makes it if it is not there."""


def back_up(source: Source, directory: Path, open_new: OpenNew, on_progress: Progress) -> BackupReport:
    """Make a backup.

    Parameters
    ----------
    source
        What is copied.
    directory
        Where the backup will be. There is nothing of that name; there is a whole backup when this returns, and nothing
        if this raises.
    open_new
        Opens the new store.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.

    Raises
    ------
    StoreError
        If the directory is there already, or cannot be used; or if the new store is not as it was written.
    NoSpaceError
        If the backup does not fit the disk.
    CorruptRecordError
        If records of the source fail their checks.
    ChangesLostError
        If the source changes faster than they could be read, or was opened anew meanwhile and had not told all before.
    GpkvsError
        Whatever else the source raises.
    """
    began = time.perf_counter()
    directory = directory.absolute()
    require_free(directory)  # before all else: "/" has no name beside which something could be made
    with claimed(directory) as place:
        require_free(directory)
        failpoint.hit("before_backup_store")
        with closing(source.follow()) as following:
            source.notes.backup(BackupNote(BackupState.BEGUN, 0.0))
            try:
                report, size = _make(source, following, place, open_new, on_progress, began)
            except BaseException:
                source.notes.backup(BackupNote(BackupState.FAILED, time.perf_counter() - began))
                raise
        source.notes.backup(BackupNote(BackupState.WHOLE, report.seconds, report.time_ms, report.keys, size))
        on_progress("backed up", 1.0)
        return report


def _make(
    source: Source, following: FollowsAll, place: Place, open_new: OpenNew, on_progress: Progress, began: float
) -> tuple[BackupReport, int]:
    """Make a backup in its place, and give it its name; return what it holds, and the bytes of the disk that it has."""
    with _new_store(open_new, place.store, source.describe()) as filled:
        told = _copy(source, following, filled, place, on_progress)
        changes = _apply(filled, place, told, on_progress)
        tables = filled.end()
    on_progress("checking", _APPLIED)
    verify(place.store, sum(table.records for table in tables))
    digests = {name: digest_text(digest) for name, digest in digests_of_numbers(place.store).items()}
    report = BackupReport(
        place.directory,
        source.name,
        told.position,
        told.time_ms,
        tuple(BackedUpTable(table.name, table.layout, table.records, digests.get(table.name, "")) for table in tables),
        sum(table.records for table in tables),
        filled.next_version,
        changes,
        time.perf_counter() - began,
    )
    failpoint.hit("before_backup_manifest")
    write_manifest(report, place.store)
    size = disk_bytes(place.store)
    place.publish()
    return report, size


@contextmanager
def _new_store(open_new: OpenNew, path: Path, like: Described) -> Iterator[Filled]:
    """Make a store like another one, give it to be filled, and close it.

    The segments of its heap have the lengths of the other one's, and it may become as large. But while it is filled it
    may be larger: it then holds keys that are gone, beside those that came.
    """
    making = Making(_first_version(like.next_version, time.time()))
    of_source = StoreConfig("cpu", heap_bytes_max=like.heap_bytes_max, tables_max=_TABLES_MAX, making=making)
    with room_in(path.parent):
        open_and_close(open_new, path, replace(of_source, store_format=like.store_format, index_bytes=like.index_bytes))
    with filling(open_new, path, like, making) as filled:
        yield filled


@contextmanager
def filling(open_new: OpenNew, path: Path, like: Described, making: Making) -> Iterator[Filled]:
    """Open a store that is like another one, give it to be filled, and close it."""
    config = StoreConfig("cpu", heap_bytes_max=like.heap_bytes_max, tables_max=_TABLES_MAX, making=making)
    with_room = replace(config, heap_bytes_max=min(_HEAP_ROOM * like.heap_bytes_max, HEAP_BYTES_MAX))
    mark = path / UNFINISHED_FILE
    store = open_new(path, with_room)
    try:
        mark.touch(mode=0o600)
        sync_path(path)
        filled = Filled(store, path.parent, KEY_BYTES_MAX[int(like.store_format)])
        yield filled
    finally:
        store.close()
    mark.unlink()
    filled.next_version = open_and_close(open_new, path, config)


def open_and_close(open_new: OpenNew, path: Path, config: StoreConfig) -> int:
    """Let a store become what a config says; return the version that it gives next."""
    with closing(open_new(path, config)) as store:
        next_version: int = store.info().next_version
        return next_version


def _first_version(next_version: int, seconds: float) -> int:
    """Return the first version that a backup gives.

    It lies far above those of its source: what the source gives later is not given twice. And it rises with the time:
    what one backup gives in use, another one of a later day does not give again. It is exact in a JSON number.
    """
    return max(next_version + _VERSIONS_SKIPPED, int(seconds) * _VERSIONS_A_SECOND)


def _copy(source: Source, following: FollowsAll, filled: Filled, place: Place, on_progress: Progress) -> Told:
    """Scan all tables into the new store, read meanwhile what changes, and follow no longer; return what was read."""
    with closing(following), ChangesReader(following, place.changes) as reader:
        tables = source.tables()  # the source is followed: those that come or go later are told
        keys, done = max(sum(table.records for table in tables), 1), 0
        for table in tables:
            if table.name != DEFAULT_TABLE:
                filled.add_table(table.name, table.layout, table.index_bytes, table.index_bytes_max)
            for piece in _pieces(source, table.name, filled):
                failpoint.hit("mid_backup_scan")
                reader.require_going()
                _require_sound(source, table.name, piece)
                if not filled.add_piece(table.name, piece):
                    break
                done += len(piece)
                on_progress(f"scanning table {table.name}", _SCANNED * min(done / keys, 1.0))
        return reader.finish(lambda: on_progress("reading what has changed", _SCANNED))


def _pieces(source: Source, table: str, filled: Filled) -> Iterator[ScanPiece]:
    """Yield what a table holds, until it is gone."""
    try:
        yield from source.pieces(table)
    except InvalidArgumentError as error:
        if not isinstance(error, UnknownTableError) and error.field != "cursor":
            raise
        filled.expect_drop(table)


def _require_sound(source: Source, table: str, piece: ScanPiece) -> None:
    if piece.damaged:
        raise CorruptRecordError(
            f"table {quoted(table)} of {source.name} holds records that fail their checks, and a backup without them "
            "would look whole: see GpkvsCorruptRecords in docs/runbook.md; gpkvs export takes the others"
        )


def _apply(filled: Filled, place: Place, told: Told, on_progress: Progress) -> int:
    """Bring the new store to the position behind all that was read; return how many changes of keys that took."""
    failpoint.hit("before_backup_apply")
    changes = 0
    for number, entry in enumerate(read_spill(place.changes, told.entries), 1):
        filled.apply(entry)
        changes += len(entry)
        failpoint.hit("mid_backup_apply")
        if not number % _ENTRIES_BETWEEN_REPORTS:
            on_progress("applying what has changed", _SCANNED + (_APPLIED - _SCANNED) * number / told.entries)
    return changes


def verify(path: Path, keys: int) -> None:
    """Raise `StoreError` unless a new store is sound, and has so many keys."""
    failpoint.hit("before_backup_check")
    found = check(path)
    if not found.is_clean or found.records != keys:
        wrong = found.violations[0].message if found.violations else f"{found.records:,} keys of {keys:,} are there"
        raise StoreError(f"{path} is not as it was written: {wrong}. Check the disk; nothing was kept")
