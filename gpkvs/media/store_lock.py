"""The locks on a store, and the rule that each of its files has one name.

Two locks (flock) lie on a store:

- The one on its directory protects the names. It comes first: nobody else creates a store there, or makes, replaces or
  removes a file in it. It lies on the directory whatever leads to it: a symbolic link, a bind mount, a new name.
- The one on the file of the root protects the bytes of all files, which belong to the root that names them. It lies on
  the file whatever leads to it: a hard link or a symbolic link from another directory.

A file beside the root may still be shared with another store, by a link. So a store is refused if one of its files is
a symbolic link or has more than one name. This holds for readers, too: what they call right may change at once.

The operating system drops both when the process ends, however it ends. The child of a fork gives its copies away.
Over NFS, Linux turns the lock on a file into one of the server, which other machines see. The lock on a directory is
then of this machine only.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpkvs.errors import StoreError, StoreLockedError, StoreMissingError
from gpkvs.media.directory import LOCK_FILE, ROOT_FILE, require_store
from gpkvs.process.fork import release_in_child

_FILES = re.compile(
    r"(LOCK|CREATING|COPYING|root|log|heap|data|blobs|index-\d+-\d+|catalog-\d+\.json|recovery\.json)(\.tmp)?"
)


_locks: set[StoreLock] = set()  # who drops a store without closing it keeps its locks


class StoreLock:
    """The locks on a store, or on a directory that will hold one. Nothing is written.

    Parameters
    ----------
    path
        The directory.
    shared
        Whether the files are only read. Then their lock is one that readers share, and needs no right to write.

    Raises
    ------
    StoreLockedError
        If another process (or this one) has the directory or the files, with its pid.
    StoreError
        If a file is a link or has several names.
    OSError
        If the operating system refuses.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self._path = path
        self._descriptors: list[int] = []
        release_in_child(self)
        _locks.add(self)
        try:
            self._lock(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)
            if (path / ROOT_FILE).is_file():
                self.lock_root(shared=shared)
            _require_one_name(path)
        except BaseException:
            self.release()
            raise

    def lock_root(self, *, shared: bool = False) -> None:
        """Lock the file of the root, which is there: at once, or when the store has been created."""
        # NFS gives an exclusive lock only to who may write.
        access, kind = (os.O_RDONLY, fcntl.LOCK_SH) if shared else (os.O_RDWR, fcntl.LOCK_EX)
        self._lock(os.open(self._path / ROOT_FILE, access | os.O_CLOEXEC), kind)

    def _lock(self, descriptor: int, kind: int) -> None:
        self._descriptors.append(descriptor)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            is_here = any(os.path.samestat(os.fstat(descriptor), os.fstat(held)) for held in self._held_here())
            raise StoreLockedError(self._path, _owner(self._path / LOCK_FILE), is_here=is_here) from None

    def _held_here(self) -> Iterator[int]:
        """Return what other locks of this process lie on; its number does not tell, each container has a first one."""
        for other in list(_locks):
            if other is not self:
                yield from other._descriptors

    def sign(self) -> None:
        """Tell others who has it. Nothing is written before: the directory may turn out to be no store's."""
        _write_owner(self._path / LOCK_FILE)

    def release(self) -> None:
        """Let others open the store."""
        _locks.discard(self)
        while self._descriptors:
            os.close(self._descriptors.pop())


def lock_store(path: Path, *, shared: bool) -> StoreLock:
    """Lock a store that is there.

    Raises
    ------
    StoreMissingError
        If there is none.
    StoreLockedError, StoreError, OSError
        As `StoreLock`.
    """
    if not path.is_dir():
        raise StoreMissingError(f"there is no store at {path}")
    lock = StoreLock(path, shared=shared)
    try:
        require_store(path)  # locked: nobody creates one meanwhile
    except BaseException:
        lock.release()
        raise
    return lock


def _require_one_name(path: Path) -> None:
    """Raise `StoreError` unless all files of a store are files of their own."""
    for file in sorted(path.iterdir(), reverse=True):  # the root first: the other files follow from it
        if _FILES.fullmatch(file.name):
            _require_own(file, file.lstat())


def _require_own(file: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise shared_error(file, "is a symbolic link", file.parent)
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{file} is not a regular file: restore the store from a backup, or name another directory")
    if found.st_nlink > 1:
        raise shared_error(file, f"has {found.st_nlink} names (hard links)", file.parent)


def shared_error(file: Path, what: str, whole: Path) -> StoreError:
    """Return the error for a file that others reach by another name, with the way out.

    Parameters
    ----------
    file
        The file.
    what
        What is wrong with it.
    whole
        The directory or file that is to be copied.
    """
    return StoreError(
        f"{file} {what}: a write here would change what the other name leads to, too. Close whatever has it open, make "
        "a copy with files of its own, and use the copy: cp --archive --dereference --reflink=auto "
        f"{shlex.quote(str(whole))} NEW"
    )


def _write_owner(lock_file: Path) -> None:
    """Write this process's pid over what was there, without a truncation: a full disk could not take it again."""
    file = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):
            os.pwrite(file, f"{os.getpid():<20}\n".encode(), 0)
    finally:
        os.close(file)


def _owner(lock_file: Path) -> int | None:
    """Return the process that wrote the lock file, if it lives; `gpkvs check` locks without writing."""
    try:
        text = lock_file.read_text(errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and Path(f"/proc/{text}").exists() else None
