"""Restores a store as it was at a moment: a base is copied, and what changed behind it is applied.

Rules:

- NEW is absent or whole: it gets its name when all of it is durable and checked.
- Entries are applied whole and in order, all from the base's position to the moment's. One that is missing is an error.
- Nothing in the archive or the backup is changed.
- The new store has an id of its own, and its versions go on where the base's would.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from gpkvs.archive.contents import Chosen, Run, read_contents
from gpkvs.archive.moment import Moment
from gpkvs.backup.copier import filling, verify
from gpkvs.backup.manifest import MANIFEST_FILE, BackupReport, digest_text, read_manifest
from gpkvs.backup.place import Place, claimed
from gpkvs.backup.source import Described, Source
from gpkvs.changes import Position
from gpkvs.config import Making, StoreConfig
from gpkvs.errors import InvalidArgumentError, StoreError
from gpkvs.media.directory import ROOT_FILE, Progress
from gpkvs.process import failpoint
from gpkvs.recovery.copy.copy import CopyReport, CopySizes, copy_store
from gpkvs.store import Store
from gpkvs.text import quoted

_COPIED, _APPLIED = 0.4, 0.9  # shares of the work
_ENTRIES_BETWEEN_REPORTS = 1000


@dataclass(frozen=True)
class RestoreReport:
    """What was restored.

    Parameters
    ----------
    directory
        Of the new store.
    base
        Of which it was made.
    position
        The last transaction that is in it; None: the backup was a store that says nothing of itself.
    time_ms
        When the last one was that was applied, in milliseconds since 1970; 0: none was.
    entries
        So many were applied.
    keys
        In all tables.
    seconds
        That it took.
    note
        What else is to be known; empty: nothing.
    """

    directory: Path
    base: Path
    position: Position | None
    time_ms: int
    entries: int
    keys: int
    seconds: float
    note: str = ""


def restore(source: Path, new: Path, until: Moment | None, on_progress: Progress) -> RestoreReport:
    """Make a store of an archive or of a backup.

    Parameters
    ----------
    source
        An archive, or a backup.
    new
        Where the store will be. There is nothing of that name; there is a whole store when this returns, and nothing
        if this raises.
    until
        The moment; None: the newest.
    on_progress
        Called with the name of a step and the share of the work done, 0 to 1.

    Raises
    ------
    InvalidArgumentError
        If the moment cannot be restored.
    StoreError
        If something is damaged or missing, or is there already.
    NoSpaceError
        If the store does not fit the disk.
    """
    began = time.perf_counter()
    if new.exists() or new.is_symlink():
        raise StoreError(f"{new} is there already: name a directory for the new store that is not there")
    is_backup = (source / ROOT_FILE).exists()
    if is_backup and until is not None:
        raise InvalidArgumentError(f"{source} is a backup, and no archive: it has one moment, its own", field="until")
    chosen = None if is_backup else read_contents(source).choose(until)
    base = chosen.base.directory if chosen else source
    with claimed(new) as place:
        keys = _copied(base, place, on_progress)
        entries, time_ms = 0, 0
        if chosen and chosen.run and chosen.position != chosen.base.position:
            entries, time_ms, keys = _applied(chosen, chosen.run, place, on_progress)
            on_progress("checking", _APPLIED)
            verify(place.store, keys)
        failpoint.hit("before_restore_publish")
        place.publish()
    on_progress("restored", 1.0)
    return RestoreReport(
        new,
        base,
        chosen.position if chosen else None,
        time_ms,
        entries,
        keys,
        time.perf_counter() - began,
        chosen.note if chosen else "",
    )


def _copied(base: Path, place: Place, on_progress: Progress) -> int:
    """Copy a base; return how many keys it has."""
    report = copy_store(base, place.store, CopySizes(), lambda step, share: on_progress(step, _COPIED * share))
    failpoint.hit("after_restore_copy")
    if (base / MANIFEST_FILE).exists():
        _require_unchanged(read_manifest(base), report, _described(place.store).next_version)
    return report.keys


def _require_unchanged(manifest: BackupReport, copied: CopyReport, next_version: int) -> None:
    """Raise `StoreError` if somebody has written to a backup since it was made, or its numbers have rotted."""
    if (copied.keys, next_version) != (manifest.keys, manifest.next_version):
        raise StoreError(
            f"{manifest.directory} is not as it was made, with {manifest.keys:,} keys: somebody has written to it. "
            "gpkvs copy takes it as it is now"
        )
    digests = {table.name: digest_text(table.digest) for table in copied.tables}
    for table in manifest.tables:
        if table.digest and digests.get(table.name) != table.digest:
            raise StoreError(
                f"{manifest.directory}: table {quoted(table.name)} does not hold the numbers that were written there: "
                "check the disk, and take another backup, or an earlier base"
            )


def _described(path: Path) -> Described:
    """Return what a copied store is like."""
    with Store(path, StoreConfig("cpu", making=Making(1))) as store:
        return Source(str(path), store, store.follow).describe()


def _applied(chosen: Chosen, run: Run, place: Place, on_progress: Progress) -> tuple[int, int, int]:
    """Bring the copied base to the moment; return how many entries that took, the last one's time, and the keys."""
    first, last = chosen.base.position.number, chosen.position.number
    count, time_ms, number = 0, 0, first
    like = _described(place.store)
    with filling(Store, place.store, like, Making(like.next_version)) as filled:
        for count, entry in enumerate(run.entries(first, last), 1):
            filled.apply(entry)
            failpoint.hit("mid_restore_apply")
            number, time_ms = entry.number, entry.time_ms
            if not count % _ENTRIES_BETWEEN_REPORTS:
                share = (number - first) / (last - first)
                on_progress("applying what changed", _COPIED + (_APPLIED - _COPIED) * share)
        if number != last:
            raise StoreError(f"{run.segments[-1].path.parent}: the changes behind {number} are not there")
        tables = filled.end()
    return count, time_ms, sum(table.records for table in tables)
