"""A log in which every thread has room of its own (hierarchical coalesced logging)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from gpkvs.batch import U64
from gpkvs.columns.whole_number import whole_number
from gpkvs.config import DurabilityName
from gpkvs.errors import InvalidArgumentError
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.log import Log, tail_bytes
from gpkvs.gpm.opened import made
from gpkvs.gpm.place import Place, host_view
from gpkvs.gpm.transaction import NEW_FLAG

LANES: Final = 32  # threads whose entries lie side by side (GPM_LANES)


class CoalescedLog(Log):
    """A log in which every thread has room of its own, so that no thread waits for another.

    Hierarchical coalesced logging (GPM, ASPLOS '22, section 5.2): what 32 neighbours store together fills whole lines.

    Attributes
    ----------
    threads : int
        Logical threads, numbered from 0.
    entry_bytes : int
        Of an entry, a multiple of 8.
    entries : int
        That a thread has room for.

    Examples
    --------
    >>> log = CoalescedLog.create("undo.gpm", threads=1 << 20, entry_bytes=16)
    >>> with log.transaction():
    ...     kernels.launch("update", 1 << 20, log=log, table=table, new=new)

    where the kernel begins with ``gpm_log_insert(a.log, i, &entry)``.
    """

    KIND = "coalesced log"
    _STRUCT = "GpmLog"

    def __init__(self, file: GpmFile, place: Place) -> None:
        self.threads: int = file.about["threads"]
        self.entry_bytes: int = file.about["entry_bytes"]
        self.entries: int = file.about["entries"]
        super().__init__(file, place)

    @classmethod
    def create(
        cls,
        path: Path | str,
        threads: int,
        entry_bytes: int,
        *,
        entries: int = 1,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        replace: bool = False,
    ) -> Self:
        """Make an empty log.

        Parameters
        ----------
        path
            The file; its directory is there.
        threads
            How many logical threads insert entries.
        entry_bytes
            Of each entry, a multiple of 8.
        entries
            How many each thread inserts at most.
        place, durability, replace
            As `PersistentArray.create` has them.

        Raises
        ------
        InvalidArgumentError
            If a size is not positive, or `entry_bytes` no multiple of 8; or if the file is there.
        NoSpaceError, BackendError, StoreMissingError, StoreAccessError, StoreLockedError
            As `PersistentArray.create` and `open` raise them.
        """
        threads, entry_bytes = whole_number("threads", threads, 1), whole_number("entry_bytes", entry_bytes, 1)
        entries = whole_number("entries", entries, 1)
        if entry_bytes % 8:
            raise InvalidArgumentError(f"{entry_bytes}: a multiple of 8 is needed", field="entry_bytes")
        about = {"threads": threads, "entry_bytes": entry_bytes, "entries": entries}
        data_bytes = _data_bytes(threads, entries, entry_bytes)
        return made(cls, path, about, data_bytes, place=place, durability=durability, replace=replace, state=NEW_FLAG)

    @property
    def _tail_count(self) -> int:
        return -(-self.threads // LANES) * LANES

    @property
    def _data_bytes(self) -> int:
        return _data_bytes(self.threads, self.entries, self.entry_bytes)

    @property
    def _room(self) -> int:
        return self.entries

    def _geometry(self) -> Sequence[int]:
        return self.threads, self.entries, self.entry_bytes // 8

    @property
    def _sizes(self) -> str:
        return f"threads={self.threads}, entry_bytes={self.entry_bytes}, entries={self.entries}"

    def insert(self, entries: Any, first: int = 0) -> None:
        """Insert an entry for each of some threads, durably.

        Parameters
        ----------
        entries
            An array of the place, of `entry_bytes` for each thread: words, or structures.
        first
            The first thread.

        Raises
        ------
        InvalidArgumentError
            If the array is not made of whole entries, or there are not so many threads.
        NoSpaceError
            If a thread has no room; the entries of the others are inserted.
        """
        count, rest = divmod(entries.nbytes, self.entry_bytes)
        if rest or first < 0 or first + count > self.threads:
            raise InvalidArgumentError(
                f"{entries.nbytes} bytes for the threads from {first} on: entries have {self.entry_bytes} bytes, and "
                f"there are {self.threads} threads"
            )
        self._run_checked("gpm_insert", count, entry=entries.reshape(-1).view(np.uint64), first=first)

    def counts(self) -> U64:
        """Return how many entries each thread has, as (threads,) uint64 on the host."""
        return self._counted()[: self.threads]

    def read(self) -> tuple[U64, U64]:
        """Read all entries.

        Returns
        -------
        counts : (threads,) uint64
            How many each thread has.
        entries : (threads, entries, entry_bytes / 8) uint64
            Their words, on the host; zeros where there is no entry.
        """
        counts = self.counts()
        groups = self._tail_count // LANES
        address = self._file.address + tail_bytes(self._tail_count)
        shape = groups, self.entries, self.entry_bytes // 8, LANES
        striped: U64 = host_view(address, np.dtype(np.uint64), shape, self._file.region)
        entries = striped.transpose(0, 3, 1, 2).reshape(-1, *shape[1:3])[: self.threads]
        is_counted = np.arange(self.entries) < counts[:, None]
        return counts, np.where(is_counted[..., None], entries, 0)

    def remove(self, first: int = 0, last: int | None = None) -> None:
        """Take the last entry of the threads `first` to `last - 1` off, durably; by default of all.

        Raises
        ------
        InvalidArgumentError
            If there are not so many threads.
        """
        last = self.threads if last is None else last
        if not 0 <= first <= last <= self.threads:
            raise InvalidArgumentError(f"threads {first} to {last}: there are {self.threads}")
        self._run("gpm_remove", last - first, first=first)


def _data_bytes(threads: int, entries: int, entry_bytes: int) -> int:
    rounded = -(-threads // LANES) * LANES
    return tail_bytes(rounded) + rounded * entries * entry_bytes
