"""A file of the store, mapped: the one place where the host stores to PM and makes stores durable.

Kernels store through `pm_store` and fence through `pm_persist`; the host does both here and nowhere else, so that
whatever watches the order of stores needs to look at two places only.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.native import library
from gpkvs.pm.domain import MAP_SHARED_VALIDATE_SYNC, Domain, DomainName
from gpkvs.pm.mapping import (
    advise,
    grow_mapping,
    map_file,
    map_into_room,
    reserve_room,
    room_of,
    take_room,
    touch_pages,
)
from gpkvs.process.fatal import whole_or_stop

_PREFETCHED_AT_ONCE = 128 << 10  # bytes; of one call, the system takes no more than a device's usual read-ahead


_UNMAPPED = "a growing file could not be mapped"


class Region:
    """A file mapped into memory, whole or from a page on.

    Parameters
    ----------
    path
        The file; it has at least the size that the root says (the caller checks).
    domain
        How `persist` makes stores durable; `None` maps it read-only. In the domain `flush`, all kernels and stores of
        this process write cache lines back from now on.
    offset
        Where the mapped part begins in the file.
    size
        Bytes of the mapped part; by default all that the file has.
    opened_as
        Another name of the file, by which it is opened; errors have `path`.
    reads_ahead
        Whether the system may read ahead in it, and hold it in large pages.
    writes_file
        Whether the file is written to, and not through the mapping.

    Attributes
    ----------
    file
        Its descriptor.
    is_writable
        Whether it is mapped to be stored to.
    syncs
        Whether stores become durable by a call of the system.

    Raises
    ------
    OSError
        If it cannot be opened or mapped.
    """

    def __init__(
        self,
        path: Path,
        domain: Domain | None,
        offset: int = 0,
        size: int | None = None,
        *,
        opened_as: Path | None = None,
        reads_ahead: bool = False,
        writes_file: bool = False,
    ) -> None:
        self.path = path
        self._offset = offset
        self._domain = domain.name if domain else None
        self.is_paged = domain is not None and not (domain.is_volatile or domain.maps_synchronously)  # from a disk
        self._is_cached = domain is None or self.is_paged  # read-only: of whatever file system
        self.is_writable = domain is not None
        self.is_volatile = domain is not None and domain.is_volatile
        self.takes_gpu_stores = domain is not None and domain.takes_gpu_stores
        self.syncs = self._domain is DomainName.MSYNC
        self.needs_ddio_off = domain is not None and domain.needs_ddio_off
        if self._domain is DomainName.FLUSH:
            library.gpkvs_write_back_on(library.gpkvs_write_back_best())
        opened_for = os.O_RDWR if domain or writes_file else os.O_RDONLY
        self.file = os.open(opened_as or path, opened_for | os.O_CLOEXEC)
        try:
            self.bytes = os.fstat(self.file).st_size - offset if size is None else size
            access = mmap.PROT_READ | (mmap.PROT_WRITE if domain else 0)
            # Only so is the file's place on the device durable before a store can reach it: the fences rely on it.
            flags = MAP_SHARED_VALIDATE_SYNC if domain and domain.maps_synchronously else mmap.MAP_SHARED
            self._mapped_as = flags, access
            view = map_file(self.file, self.bytes, flags, access, offset)
        except BaseException:
            os.close(self.file)
            raise
        if self._is_cached and not reads_ahead:
            self._read_single_pages(view)
        self._view: NDArray[np.uint8] | None = view
        self._mapped_bytes = self.bytes  # with what is mapped ahead
        self._name_mapping(view)
        # Not at the process's end: a thread for which that does not wait may still write, and syncs what it wrote.
        self._close_file = weakref.finalize(self, os.close, self.file)
        self._close_file.atexit = False

    def _name_mapping(self, view: NDArray[np.uint8]) -> None:
        """Take a mapping's address. If the file is truncated under us, the process ends with a line that names it."""
        self.address = int(view.ctypes.data)
        library.gpkvs_mapped(self.address, self.bytes, os.fsencode(self.path))

    @property
    def room(self) -> int:
        """How long it can become where it is: bytes."""
        assert self._view is not None
        return room_of(self._view)

    def reserve(self, room: int) -> bool:
        """Keep `room` bytes of addresses for the region, so that it grows where it is; its address changes, once.

        Nobody uses the region meanwhile, and no GPU has registered it. Where the system has no such addresses, the
        region stays as it is: it moves when it grows. Returns whether it has the addresses.
        """
        assert self._view is not None
        if room <= room_of(self._view):
            return True
        with suppress(OSError), whole_or_stop(_UNMAPPED, OSError):
            view = reserve_room(self._view, room)
            library.gpkvs_unmapped(self.address)
            self._view = view
            self._name_mapping(view)
            return True
        return False

    def map_ahead(self, size: int) -> bool:
        """Map more of the file, which is that long already, behind the region; return whether it stays in its place.

        It is not a part of the region before `grow`.

        Raises
        ------
        OSError
            If the operating system refuses.
        """
        assert self._view is not None
        if size > room_of(self._view):
            return False
        if size > self._mapped_bytes:
            offset = self._offset + self._mapped_bytes
            map_into_room(self._view, self._mapped_bytes, size, *self._mapped_as, self.file, offset)
            self._mapped_bytes = size
        return True

    def grow(self, size: int) -> None:
        """Map more of the file, which is that long already; the address may change, unless `map_ahead` says it stays.

        No batch runs meanwhile, and if the address changes, a GPU has let go of the region.

        Raises
        ------
        OSError
            If the operating system refuses; the region is as it was.
        """
        assert self._view is not None
        assert size >= self.bytes
        with whole_or_stop(_UNMAPPED, OSError, MemoryError):
            view = take_room(self._view, size) if self.map_ahead(size) else grow_mapping(self._view, size)
            library.gpkvs_unmapped(self.address)
            self._view, self.bytes, self._mapped_bytes = view, size, max(size, self._mapped_bytes)
            self._name_mapping(view)

    @property
    def is_memory(self) -> bool:
        """Whether the file is memory, so that pages of it cost nothing but the time to touch them."""
        return self.is_volatile

    def touch(self, offset: int, count: int) -> bool:
        """Have pages mapped that stores will come to, from any thread; return whether that could be.

        The region is not grown meanwhile. If it is closed, the mapping goes when this returns.
        """
        view = self._view
        return view is not None and touch_pages(view, offset, count)

    def _read_single_pages(self, view: NDArray[np.uint8]) -> None:
        """Let the page cache hold this file in single pages.

        Read-ahead makes it hold large folios, and a store to one byte then writes back up to 2 MiB.
        """
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)
        advise(view, mmap.MADV_RANDOM)

    def prefetch(self, offset: int, count: int) -> None:
        """Begin to read bytes that are needed soon from the disk, in single pages but many at once.

        Where the file is memory, this does nothing.
        """
        if self._is_cached:
            for first in range(offset, offset + count, _PREFETCHED_AT_ONCE):
                length = min(_PREFETCHED_AT_ONCE, offset + count - first)
                os.posix_fadvise(self.file, self._offset + first, length, os.POSIX_FADV_WILLNEED)

    def forget(self) -> None:
        """Have what is read from now on come from the device; nothing was read of the mapping, and all is synced."""
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset`."""
        assert self._view is not None
        assert offset + count <= self.bytes
        return self._view[offset : offset + count].tobytes()

    def words(self, offset: int, count: int) -> NDArray[np.uint64]:
        """Return a read-only view of `count` words from byte `offset`."""
        assert self._view is not None
        view = self._view[offset : offset + 8 * count].view(np.uint64)
        view.flags.writeable = False
        return view

    def store(self, offset: int, data: bytes) -> None:
        """Store whole 8-byte words at an aligned offset, then fence; not durable before `persist`."""
        assert self._domain is not None
        assert offset % 8 == 0
        assert len(data) % 8 == 0
        assert offset + len(data) <= self.bytes
        library.gpkvs_pm_store(self.address + offset, data, len(data) // 8)

    def persist(self) -> None:
        """Make every earlier store to this file durable, as the domain asks.

        Raises
        ------
        OSError
            If the operating system could not write; it must not be tried again (what was dirty may be lost).
        """
        # In `fence`, `flush` and `process`, the fence that ends each kernel and `store` already persisted them.
        if self.syncs:
            os.fdatasync(self.file)

    def persist_unlogged(self) -> None:
        """Make every earlier store durable as `persist` does, also where the domain is `none`; raises as it does."""
        if self._domain is DomainName.NONE:
            os.fdatasync(self.file)
        else:
            self.persist()

    def redirty(self, offset: int = 0, count: int | None = None) -> None:
        """Store bytes again as they are, by default all, so that the operating system takes their pages for changed.

        What it could not write when a sync failed, it takes for clean: only what is stored to again is written later.
        """
        assert self._view is not None
        part = self._view[offset : self.bytes if count is None else offset + count]
        part[:] = part.copy()

    def fsync(self) -> None:
        """Make durable whatever was ever stored to this file, by whom and in which domain; raises as `persist` does.

        What a process stored in a weaker domain, or before it was killed, may be in the page cache or in cache lines
        only: a file system on PM writes both back. In `process` nothing needs to survive a power loss.
        """
        if self._domain is not DomainName.PROCESS:
            os.fsync(self.file)

    def close(self) -> None:
        """Unmap; if a caller still holds a view, the mapping goes when the view does."""
        self._view = None
        library.gpkvs_unmapped(self.address)
        self._close_file()
