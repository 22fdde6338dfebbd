"""The names of files of gpkvs.gpm: nobody has a file that somebody else makes, replaces or stores to.

A file is locked before it has its name. It gets it by a hard link, which fails where one is. What is replaced is locked
until it is gone. Who opens a file looks again, when it is locked, whether the name still leads to it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from gpkvs.errors import (
    FormatError,
    GpkvsError,
    InvalidArgumentError,
    NoSpaceError,
    StoreAccessError,
    StoreLockedError,
    StoreMissingError,
)
from gpkvs.gpm.header import MAGIC
from gpkvs.media.directory import NO_SPACE, sync_path
from gpkvs.media.store_lock import shared_error

_LEFT_SECONDS = 60  # a file that is being made is younger, or locked


def require_name(path: Path | str, *, replace: bool) -> None:
    """Raise as `unnamed` or `replaceable` would, before anything is made."""
    real = real_path(path)
    with replaceable(real) if replace else unnamed(real):
        pass


@contextmanager
def replaceable(path: Path) -> Iterator[Callable[[Path], None]]:
    """Keep others from a file that is to be replaced; what is returned gives its name to another one, durably.

    Raises
    ------
    InvalidArgumentError
        If something is there that is no file of gpkvs.gpm.
    StoreLockedError
        If somebody has it.
    StoreAccessError
        If the operating system refuses.
    """
    try:
        file = open_locked(path, os.O_RDONLY, shared=False)
    except StoreMissingError:
        with unnamed(path) as name:
            yield name
        return
    except FormatError as error:
        raise InvalidArgumentError(f"{error}: it is not replaced") from None
    try:
        if os.pread(file, len(MAGIC), 0) != MAGIC:
            raise InvalidArgumentError(f"{path} is there, and is no file of gpkvs.gpm: it is not replaced")
        yield partial(_named, path, os.rename)
    finally:
        os.close(file)


@contextmanager
def unnamed(path: Path) -> Iterator[Callable[[Path], None]]:
    """Do the same where no file is; raises `InvalidArgumentError` if one is there."""
    try:
        is_there = path.exists()
    except OSError as error:
        raise StoreAccessError(f"{path}: {error.strerror}") from error
    if is_there:
        raise InvalidArgumentError(f"{path} is there already: open it, or give replace=True")
    yield partial(_named, path, _link)


def _named(path: Path, rename: Callable[[Path, Path], None], begun: Path) -> None:
    try:
        rename(begun, path)
        sync_path(path.parent)
    except FileExistsError:
        raise InvalidArgumentError(f"{path} is there already: somebody has made it meanwhile") from None
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: Path, error: OSError, needs: str = "") -> NoSpaceError | StoreAccessError:
    """Return what to raise where no file is made: a file system may lack bytes, or a place for one more file."""
    text = f"{path}{needs}: {error.strerror}"
    return NoSpaceError("disk", text) if error.errno in NO_SPACE else StoreAccessError(text)


def _link(begun: Path, path: Path) -> None:
    """Rename a file; unlike `os.rename`, fail where one is."""
    try:
        os.link(begun, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        begun.rename(path)
    else:
        begun.unlink()


def open_locked(path: Path, access: int, *, shared: bool) -> int:
    """Open and lock what has a name, and has it still when it is locked: it may have been replaced before."""
    while True:
        try:
            file = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK)  # or a pipe would wait for somebody
        except FileNotFoundError as error:
            raise StoreMissingError(f"there is no file {path}: create it first") from error
        except OSError as error:
            raise StoreAccessError(f"{path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise FormatError(f"{path} is no file")
            lock(path, file, shared=shared)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def real_path(path: Path | str) -> Path:
    """Return a path without symbolic links: what they lead to is made, or replaced.

    Raises
    ------
    InvalidArgumentError
        If it cannot be a path.
    """
    try:
        found = Path(os.path.realpath(path))
        os.fsencode(found)
        return found
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{path!r} is no path: {error}") from None


def opened_as(path: Path, file: int) -> Path:
    """Return a name by which an open file is opened once more, whatever its own name leads to by now."""
    descriptor = Path(f"/proc/self/fd/{file}")
    return descriptor if descriptor.exists() else path


def passing_name(path: Path) -> Path:
    """Return a name for a file that gets another one soon. Of the same file, remove what killed processes have left."""
    for left in _passing_names(path):
        with suppress(OSError, GpkvsError):
            if left.stat().st_mtime < time.time() - _LEFT_SECONDS:
                file = open_locked(left, os.O_RDONLY, shared=False)
                try:
                    left.unlink()
                finally:
                    os.close(file)
    return path.with_name(f"{_prefix(path)}{secrets.token_hex(4)}.new")


def require_one_name(path: Path, file: int) -> None:
    """Raise `StoreError` if an open file has several names: who writes to it changes what the others lead to.

    The name that it had while it was made does not count. A kill may have left it.
    """
    found = os.fstat(file)
    names = found.st_nlink
    for left in _passing_names(path) if names > 1 else ():
        with suppress(FileNotFoundError):
            names -= os.path.samestat(found, left.lstat())
    if names > 1:
        raise shared_error(path, f"has {names} names (hard links)", path)


def _prefix(path: Path) -> str:
    return f".{zlib.crc32(os.fsencode(path.name)):08x}."


def _passing_names(path: Path) -> Iterator[Path]:
    return path.parent.glob(f"{_prefix(path)}*.new")


def lock(path: Path, file: int, *, shared: bool) -> None:
    """Lock an open file until it is closed, or raise `StoreLockedError`; several may share it."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreLockedError(path, None, is_file=True) from error
