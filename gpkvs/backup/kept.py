"""A folder of backups, each named by the time at which it was begun. The last ones are kept."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gpkvs.backup.manifest import MANIFEST_FILE, BackupReport
from gpkvs.backup.place import SUFFIX, claimed
from gpkvs.errors import GpkvsError, StoreLockedError
from gpkvs.media.directory import access_errors, make_directory, sync_path
from gpkvs.media.store_lock import lock_store
from gpkvs.process import failpoint

_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ")


def new_name() -> str:
    """Return the name of a backup that begins now."""
    return time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime())


class Kept(NamedTuple):
    """What became of a folder of backups.

    Attributes
    ----------
    report
        Of the new backup.
    removed
        The old ones that are gone.
    stays
        Why what should go could not be removed, a line each. What somebody uses goes another day, and is none.
    """

    report: BackupReport
    removed: list[Path]
    stays: list[str]


def keep_backups(folder: Path, keep: int, back_up: Callable[[Path], BackupReport]) -> Kept:
    """Make a backup in a folder, then remove all but the newest ones.

    Parameters
    ----------
    folder
        Of the backups; it is made if it is missing. Nothing in it but backups of such names is removed.
    keep
        So many stay, the new one included.
    back_up
        Makes a backup in a directory.
    """
    with access_errors(folder):
        make_directory(folder)
        report = back_up(folder / new_name())
        # Only now: until the new one is whole, the old ones may be all there is.
        return _remove_old(folder, keep, report)


def backups_in(folder: Path) -> list[Path]:
    """Return the backups in a folder, the oldest first."""
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / MANIFEST_FILE).is_file())


def remove_unfinished(folder: Path) -> None:
    """Remove from a folder what killed processes have left that made backups."""
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(SUFFIX)
        if name != path.name and _NAME.fullmatch(name):
            with suppress(StoreLockedError), claimed(folder / name):
                pass


def _remove_old(folder: Path, keep: int, report: BackupReport) -> Kept:
    """Remove what is too old; the new backup is whole, whatever becomes of that."""
    kept = Kept(report, [], [])
    backups = backups_in(folder)
    backups.sort(key=lambda path: path == report.directory)  # also if the clock was set back since the others were made
    with _noted(kept.stays):
        remove_unfinished(folder)
    for old in backups[:-keep]:
        with _noted(kept.stays), access_errors(old):
            remove_backup(old)
            kept.removed.append(old)
    return kept


@contextmanager
def _noted(stays: list[str]) -> Iterator[None]:
    try:
        yield
    except StoreLockedError:  # somebody uses it: it goes another day
        pass
    except GpkvsError as error:
        stays.append(str(error))


def remove_backup(backup: Path) -> None:
    """Remove a backup: first its name, so that nobody takes half of it for one."""
    with claimed(backup) as place:
        lock = lock_store(backup, shared=False)
        try:
            place.take()
            sync_path(backup.parent)
            failpoint.hit("mid_backup_removal")
        finally:
            lock.release()
