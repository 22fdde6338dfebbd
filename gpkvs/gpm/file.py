"""A file of persistent memory: its header, its state page, its data, mapped.

    header       whole pages; never changes (`gpkvs.gpm.header`)
    state page   one page: the few words that say what of the data counts (flags, epochs, which copy)
    data         from a whole page on

A file gets its name only when its header, its state and its zeros are durable, so a file that can be opened is whole.
Everything is little-endian; docs/format.md has the fields.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from gpkvs.config import DurabilityName
from gpkvs.errors import (
    FormatError,
    InvalidArgumentError,
    NoSpaceError,
    StoreAccessError,
    StoreClosedError,
    StoreMissingError,
)
from gpkvs.gpm.header import STATE_BYTES, pack_header, read_header
from gpkvs.gpm.names import (
    lock,
    open_locked,
    opened_as,
    passing_name,
    real_path,
    refusal,
    replaceable,
    require_one_name,
    unnamed,
)
from gpkvs.media.directory import NO_SPACE, reserve
from gpkvs.pm.domain import Domain, DomainName, find_domain
from gpkvs.pm.region import Region
from gpkvs.process.fork import Origin, release_in_child

_DATA_BYTES_MAX: Final = 1 << 62


class GpmFile:
    """A file of persistent memory that is open; `create` and `open_file` return one.

    Attributes
    ----------
    path
        Where it is.
    kind
        What it is, such as "array" or "coalesced log".
    about
        What else its header says.
    domain
        What "durable" means for it (docs/persistence.md).
    region
        The file, mapped whole.
    begun
        Its name, if it is made and was not published yet.
    opened_as
        A name by which to open it once more.
    data_at
        Where its data begin, in bytes.
    data_bytes
        How many there are.
    """

    def __init__(self, path: Path, file: int, domain: Domain, *, writable: bool, begun: Path | None = None) -> None:
        self.path = path
        self.begun = begun
        self.domain = domain
        self.writable = writable
        self._file = file
        self._origin = Origin(str(path))
        self._failed: BaseException | None = None
        self.kind, self.about, self.data_at, self.data_bytes = read_header(path, file)
        # By the descriptor that is locked: the name may lead to another file by now.
        self.opened_as = opened_as(begun or path, file)
        self.region = Region(path, domain if writable else None, opened_as=self.opened_as)
        # The lock lasts as long as any view of the file, if nobody closes it; at the process's end, to the very end.
        self._unlock = weakref.finalize(self.region, os.close, file)
        self._unlock.atexit = False
        release_in_child(self)

    @property
    def state_at(self) -> int:
        """Where the state page begins, in bytes."""
        return self.data_at - STATE_BYTES

    @property
    def is_on_disk(self) -> bool:
        """Whether its bytes come from an ordinary disk, or stores to it need a call of the system."""
        return self.domain.name is DomainName.MSYNC or not (self.domain.is_volatile or self.domain.maps_synchronously)

    @property
    def address(self) -> int:
        """Where the data begin in memory."""
        return self.region.address + self.data_at

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._unlock.alive

    def require_open(self) -> None:
        """Raise `StoreClosedError` if it was closed, `ForkedError` in the child of a fork."""
        self._origin.require()
        if self.is_closed:
            raise StoreClosedError(f"{self.path} is closed: open it again")

    def require_writable(self) -> None:
        """Raise if it was closed, or opened to be read only, or could not be written."""
        self.require_open()
        if self._failed:
            why = str(self._failed) or type(self._failed).__name__
            raise StoreAccessError(f"{self.path} could not be written ({why}): close it and open it again")
        if not self.writable:
            raise InvalidArgumentError(f"{self.path} was opened to be read only: open it without readonly=True")

    def state(self, word: int) -> int:
        """Return a word of the state page."""
        self.require_open()
        return int(self.region.words(self.state_at + 8 * word, 1)[0])

    def set_state(self, word: int, value: int) -> None:
        """Store a word of the state page, and make it and all earlier stores of the host to the file durable.

        Eight aligned bytes are never torn.
        """
        self.require_writable()
        self.region.store(self.state_at + 8 * word, value.to_bytes(8, "little"))
        self.persist_stores()

    def persist_stores(self) -> None:
        """Make durable what the host stored to the file. If that fails, nothing is stored to it any more.

        Raises
        ------
        OSError
            If the operating system could not write. It takes for clean what it could not write, so nobody knows which
            stores the disk has: a second try would succeed and prove nothing.
        """
        try:
            self.region.persist()
        except OSError as error:
            self._failed = error
            raise

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change the file and what this process knows of it, both or none.

        An interruption in between, as by Ctrl-C, leaves the two apart. Nothing is stored to the file then any more:
        who opens it again finds what it says.
        """
        self.require_writable()
        try:
            yield
        except Exception:
            raise
        except BaseException as interrupted:
            self._failed = interrupted
            raise

    def settle(self) -> None:
        """Make durable what an earlier process stored, in whatever domain.

        It may have been killed between a store and its persist. Who opens the file goes by what it reads there, and
        stores over what was good before.

        Raises
        ------
        OSError
            If the operating system could not write.
        """
        self.region.redirty(self.state_at, STATE_BYTES)  # of a sync that failed, the system took the page for clean
        self.region.fsync()

    def verify(self) -> None:
        """Raise `CorruptStoreError` or `FormatError` unless header and size are right."""
        self.require_open()
        read_header(self.path, self._file)

    def close(self) -> None:
        """Let go of it. Nothing is lost: what was persisted is durable already."""
        if self.is_closed:
            return
        self.region.close()
        self.release()

    def release(self) -> None:
        """Give the lock away, and what keeps the file open."""
        self._unlock()


def create(
    path: Path | str,
    kind: str,
    about: Mapping[str, Any],
    data_bytes: int,
    durability: DurabilityName,
    *,
    state: Sequence[int] = (),
) -> GpmFile:
    """Make a file and open it; its data are zeros. It has another name until `publish`.

    Parameters
    ----------
    path
        Where; the directory is there.
    kind, about
        What its header says; `about` can be written as JSON.
    data_bytes
        How much data it has.
    durability
        As `gpkvs.open` has it.
    state
        The first words of its state page; the others are zeros.

    Raises
    ------
    NoSpaceError
        If the space is not there; nothing is left behind.
    StoreMissingError
        If the directory is not there.
    StoreAccessError
        If the operating system refuses.
    """
    path = real_path(path)
    if not 0 < data_bytes < _DATA_BYTES_MAX:
        raise NoSpaceError("disk", f"{path}: {data_bytes:,} bytes are more than a file has")
    header = pack_header(kind, about, data_bytes)
    needed = len(header) + STATE_BYTES + data_bytes
    begun = passing_name(path)
    try:
        file = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise StoreMissingError(f"there is no directory {path.parent}: make it first") from error
    except OSError as error:
        raise refusal(path, error, f" needs {needed:,} bytes") from error
    try:
        domain = find_domain(path.parent, durability)
        lock(path, file, shared=False)
        reserve(file, needed)
        os.write(file, header + b"".join(word.to_bytes(8, "little") for word in state))
        os.fsync(file)
        return GpmFile(path, file, domain, writable=True, begun=begun)
    except BaseException as error:
        begun.unlink(missing_ok=True)
        with suppress(OSError):  # an interruption came when it was somebody's already
            os.close(file)
        if isinstance(error, OSError):
            raise refusal(path, error, f" needs {needed:,} bytes") from error
        raise


def publish(file: GpmFile, *, replace: bool) -> None:
    """Give a file that was made its name, durably.

    Parameters
    ----------
    file
        That `create` has returned.
    replace
        Whether a file of gpkvs.gpm that is there is replaced; otherwise that is an error.

    Raises
    ------
    InvalidArgumentError
        If a file is there, or something else than a file of gpkvs.gpm.
    StoreLockedError
        If somebody has the file that is to be replaced.
    StoreAccessError
        If the operating system refuses.
    """
    assert file.begun
    with replaceable(file.path) if replace else unnamed(file.path) as name:
        name(file.begun)
    file.begun = None


def discard(file: GpmFile) -> None:
    """Remove a file that was made and not published."""
    if file.begun:
        file.begun.unlink(missing_ok=True)
    file.close()


def open_file(path: Path | str, kind: str | None, durability: DurabilityName, *, readonly: bool = False) -> GpmFile:
    """Open a file.

    Parameters
    ----------
    path
        Where it is.
    kind
        What it has to be; None: anything.
    durability
        As `gpkvs.open` has it.
    readonly
        Whether it is only read; then others may have it open, too.

    Raises
    ------
    StoreMissingError
        If there is none.
    StoreLockedError
        If another process, or another part of this one, has it open.
    StoreError
        If it has several names (hard links).
    FormatError
        If it is no file of gpkvs.gpm, of another format, or of another kind.
    CorruptStoreError
        If its header or its size is wrong.
    NoSpaceError
        If it has holes, as a sparse copy, and the file system has no room to fill them.
    StoreAccessError
        If the operating system refuses.
    """
    path = real_path(path)
    file = open_locked(path, os.O_RDONLY if readonly else os.O_RDWR, shared=readonly)
    try:
        require_one_name(path, file)
        found = GpmFile(path, file, find_domain(path.parent, durability), writable=not readonly)
    except OSError as error:
        os.close(file)
        raise StoreAccessError(f"{path}: {error.strerror}") from error
    except BaseException:
        os.close(file)
        raise
    try:
        if kind and found.kind != kind:
            raise FormatError(f"{path} holds {_a(found.kind)}, and {_a(kind)} is asked for")
        _require_no_holes(path, file, found)
        if not readonly:
            found.settle()
    except OSError as error:
        found.close()
        raise StoreAccessError(f"{path}: {error.strerror}") from error
    except BaseException:
        found.close()
        raise
    return found


def _require_no_holes(path: Path, file: int, opened: GpmFile) -> None:
    """Fill the holes of a sparse copy: in a full file system, a store to one would end the process.

    So would a load on a tmpfs, which fills them then. A disk reserves at once if nothing is missing; a tmpfs looks at
    every page, but says exactly what it has.
    """
    found = os.fstat(file)
    has = min(found.st_size, found.st_blocks * 512)
    if opened.domain.is_volatile and has == found.st_size:
        return
    if opened.writable:
        try:
            reserve(file, found.st_size, has)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise NoSpaceError("disk", f"{path} has holes, and no room to fill them: {error.strerror}") from error
    elif opened.domain.is_volatile:
        raise StoreAccessError(f"{path} has holes, which a tmpfs fills when they are read: open it to be written once")


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
