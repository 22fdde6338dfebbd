"""Where a backup is made: in DIR.partial, beside DIR, until it is whole.

    DIR.partial/store      the store that is filled; it becomes DIR by a rename
    DIR.partial/changes    the changes that were read while it was

Invariants:

- DIR is absent or whole: it gets its name when all of it is durable and checked.
- One process at a time uses DIR.partial: it has a lock on that directory.
- What a process that was killed left in DIR.partial is removed by the next one; nothing else is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpkvs.errors import StoreError, StoreLockedError
from gpkvs.media.directory import access_errors, make_directory, sync_path
from gpkvs.process import failpoint

SUFFIX = ".partial"


class Place:
    """A directory that this process alone uses, for one backup.

    Attributes
    ----------
    directory
        Where the backup will be.
    store, changes
        Where its store is filled, and where the changes wait.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._partial = partial_of(directory)
        self.store, self.changes = self._partial / "store", self._partial / "changes"

    def publish(self) -> None:
        """Give the store its name: it is whole, closed and durable.

        Raises
        ------
        StoreError
            If somebody has made something of that name meanwhile.
        """
        failpoint.hit("before_backup_rename")
        try:
            self.store.rename(self.directory)
        except (FileExistsError, NotADirectoryError) as error:
            raise _there(self.directory) from error
        except OSError:
            require_free(self.directory)
            raise
        sync_path(self.directory.parent)
        failpoint.hit("after_backup_rename")

    def take(self) -> None:
        """Take the backup's name away again: what it holds goes with this place."""
        self.directory.rename(self.store)

    def clear(self) -> None:
        """Remove what is there, if backups alone have made it.

        Raises
        ------
        StoreError
            If something else is there.
        """
        others = {entry.name for entry in self._partial.iterdir()} - {self.store.name, self.changes.name}
        if others:
            raise StoreError(
                f"{self._partial} holds {min(others)!r}, which no backup has made: move it away, or take another name"
            )
        self.changes.unlink(missing_ok=True)
        if self.store.exists():
            shutil.rmtree(self.store)

    def remove(self) -> None:
        """Remove the directory of this place, and what is in it."""
        self.clear()
        self._partial.rmdir()


def partial_of(directory: Path) -> Path:
    """Return where a backup is made that will have this name."""
    return directory.with_name(directory.name + SUFFIX)


def require_free(directory: Path) -> None:
    """Raise `StoreError` if there is anything of this name."""
    if directory.exists() or directory.is_symlink():
        raise _there(directory)


def _there(directory: Path) -> StoreError:
    return StoreError(
        f"{directory} is there already: a backup makes its directory; name another one, or take --keep for a folder "
        "of backups"
    )


@contextmanager
def claimed(directory: Path) -> Iterator[Place]:
    """Have the place of a backup alone; it is empty, and it is removed in the end.

    Raises
    ------
    StoreLockedError
        If another process has it.
    StoreError
        If something else is there.
    StoreAccessError, NoSpaceError
        If the operating system refuses.
    """
    place, descriptor = Place(directory), None
    with access_errors(directory):
        try:
            descriptor = locked_directory(partial_of(directory))
            place.clear()
            yield place
        finally:
            with suppress(OSError, StoreError):  # the next backup removes it
                if descriptor is None:  # an interrupt came first
                    descriptor = locked_directory(partial_of(directory))
                place.remove()
            if descriptor is not None:
                os.close(descriptor)


def locked_directory(path: Path) -> int:
    """Make a directory, or take the one that is there, and lock it; return the descriptor that holds the lock.

    Raises
    ------
    StoreLockedError
        If another process has it.
    OSError
        If the operating system refuses.
    """
    while True:
        make_directory(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                return descriptor
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise StoreLockedError(path, None) from None
            raise
        os.close(descriptor)  # who had it has just removed it


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
