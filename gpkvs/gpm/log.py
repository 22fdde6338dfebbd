"""Logs in persistent memory, for transactions on structures of a user's own.

    tails     one word for each thread or partition: (epoch << 32 | count)
    entries   from a whole page on

``kernels/gpm_log.cuh`` has the layout of the entries and what kernels call. An entry is durable before the tail that
counts it, so a crash leaves whole entries only.

Invariants (`verify`)
---------------------
gpm-log-flag   as `gpkvs.gpm.transaction` says
gpm-log-tail   a tail is of no later epoch than the flag's, and counts no more than there is room for
               (an opening looks, too, since kernels rely on it)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64
from gpkvs.config import DurabilityName
from gpkvs.errors import CorruptStoreError, InvalidArgumentError, NoSpaceError
from gpkvs.gpm.file import GpmFile, whole_pages
from gpkvs.gpm.kernels import Kernels, own_kernels
from gpkvs.gpm.opened import Opened, made, opened
from gpkvs.gpm.place import Place, host_view
from gpkvs.gpm.transaction import EPOCH_MAX, NEW_FLAG, Flag, State
from gpkvs.native import library

LANES: Final = 32  # threads whose entries lie side by side (GPM_LANES)
_COUNT_MAX: Final = (1 << 32) - 1
_FULL: Final = 1
_REFUSALS: Final = {  # other values of GpmRefusal
    2: "an entry of a thread that the log has not",
    3: "an entry for a partition that the log has not",
    4: "entries of a type of another size than the log's",
}
_DAMAGED: Final = 5


class Log(Opened):
    """What both kinds of logs have; `CoalescedLog` and `PartitionedLog` are made and opened.

    Attributes
    ----------
    path : Path
        The file.
    place : Place
        Where kernels that use it run.
    """

    _STRUCT: ClassVar[str]  # in kernels/gpm_log.cuh

    def __init__(self, file: GpmFile, place: Place) -> None:
        super().__init__(file, place)
        self._flag = Flag(file)
        self._tails: U64 | None = host_view(file.address, np.dtype(np.uint64), (self._tail_count,), file.region)
        self._require_tails()
        self._kernels: Kernels | None = None
        if file.writable:
            place.require_stores(file.region)
            place.reach(file.region)
            self._kernels = own_kernels(place)
            self._counts, self._refusal = place.words(self._tails), place.words([0])
            self._hand_over()

    @property
    @abstractmethod
    def _tail_count(self) -> int: ...

    @property
    @abstractmethod
    def _room(self) -> int:
        """What a tail counts at most."""

    @abstractmethod
    def _geometry(self) -> Sequence[int]:
        """Return the words of the struct that kernels read, after the addresses and before the epoch."""

    def _hand_over(self) -> None:
        """Make the struct that kernels read; it holds the epoch."""
        address = self.place.address
        near = [address(self._counts), address(self._refusal)]
        words = [self._file.address, self._file.address + _tail_bytes(self._tail_count), *near, *self._geometry()]
        self._words = self.place.words([*words, self._flag.epoch])

    @property
    def kernel_type(self) -> str:
        """See `Handed.kernel_type`."""
        return self._STRUCT

    def kernel_address(self, place: Place, /) -> int:
        """See `Handed.kernel_address`."""
        self._require_own(place)
        return self.place.address(self._words)

    @property
    def is_active(self) -> bool:
        """Whether a transaction is under way, or was when the process ended: then it must be recovered."""
        self._file.require_open()
        return self._flag.state is State.ACTIVE

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Run a transaction: kernels insert what undoes a store, and then store in place.

        ACTIVE is durable when the block begins, with an empty log. When it ends, all stores of kernels are awaited,
        and IDLE is durable. If it raises, the transaction stays ACTIVE: call `recover`.

        Every place is stored to by one thread only in a transaction: nobody knows which of two old values is older.

        Raises
        ------
        InvalidArgumentError
            If a transaction is under way already; after a crash, `recover` ends it.
        NoSpaceError, InvalidArgumentError
            At the end, as `require_room`; the transaction is ACTIVE then, and `recover` undoes it.
        """
        self._file.require_writable()
        if self.is_active:
            raise InvalidArgumentError(f"{self.path}: a transaction is under way: call recover, then begin anew")
        self._next_epoch(State.ACTIVE)
        yield self
        self.place.settle()
        self.require_room()
        self._flag.set(self._flag.epoch, State.IDLE)

    def recover(self, undo: Callable[[Self], None]) -> bool:
        """Undo a transaction that a crash, or an error, has interrupted; the log is empty then.

        Parameters
        ----------
        undo
            Puts old values back, durably; it may be interrupted, too, and then runs again on the same entries.

        Returns
        -------
        bool
            Whether there was one.

        Raises
        ------
        InvalidArgumentError
            If a kernel of `undo` reads entries of another size; the transaction is ACTIVE still.
        """
        self._file.require_writable()
        if not self.is_active:
            return False
        self._refusal[...] = 0
        undo(self)
        self.place.settle()
        self.require_room()
        self._next_epoch(State.IDLE)
        return True

    def clear(self) -> None:
        """Make all entries worthless, at once.

        Raises
        ------
        InvalidArgumentError
            If a transaction is under way: it needs them.
        """
        self._file.require_writable()
        if self.is_active:
            raise InvalidArgumentError(f"{self.path}: a transaction is under way, and needs the entries: call recover")
        self._next_epoch(State.IDLE)

    def _next_epoch(self, state: State) -> None:
        self.place.settle()
        if self._flag.epoch == EPOCH_MAX:
            self._forget_epochs()
        self._refusal[...] = 0
        self._flag.set(self._flag.epoch + 1, state)
        self._hand_over()

    def _forget_epochs(self) -> None:
        """Begin to count epochs anew; the tails of old ones must be gone before."""
        assert self._tails is not None
        self._flag.set(EPOCH_MAX, State.IDLE)
        self._tails[:] = 0
        library.gpkvs_persist_range(self._file.address, self._tails.nbytes)
        self._counts = self.place.words(self._tails)
        self._flag.set(0, State.IDLE)

    def _run_checked(self, kernel: str, items: int, **arguments: Any) -> None:
        """Run a kernel that may refuse. What was refused before a transaction, or outside of one, was told then."""
        self._file.require_writable()
        if not self.is_active:
            self._refusal[...] = 0
        self._run(kernel, items, **arguments)
        self.require_room()

    def require_room(self) -> None:
        """Raise if an entry was refused since the log was cleared, or the transaction began.

        `insert` and the end of a transaction call it. After kernels of your own outside of one, you do.

        Raises
        ------
        NoSpaceError
            If one had no room.
        InvalidArgumentError
            If one had another size than the log's entries, or its thread or partition is not there.
        CorruptStoreError
            If one that was to be removed is damaged.
        """
        self._file.require_open()
        refusal = int(self.place.to_host(self._refusal)[0]) if self._kernels else 0
        if refusal == _FULL:
            raise NoSpaceError(
                "log", f"{self.path}: an entry had no room, and was not inserted: make the log larger ({self._sizes})"
            )
        if refusal == _DAMAGED:
            raise CorruptStoreError("gpm-log-tail", "an entry does not say how long it is", path=self.path)
        if refusal:
            raise InvalidArgumentError(f"{self.path}: a kernel has {_REFUSALS[refusal]} ({self._sizes})")

    @property
    @abstractmethod
    def _sizes(self) -> str:
        """What decides how large it is, for people."""

    def _about(self) -> str:
        return self._sizes

    def _counted(self) -> U64:
        """Return what the tails of the current epoch count."""
        self._file.require_open()
        self.place.settle()
        assert self._tails is not None
        counted: U64 = np.where(self._tails >> 32 == self._flag.epoch, self._tails & _COUNT_MAX, 0)
        return counted

    def _run(self, kernel: str, items: int, **arguments: Any) -> None:
        self._file.require_writable()
        assert self._kernels
        self._kernels.launch(kernel, items, log=self, **arguments)

    def verify(self) -> None:
        """Raise unless header, flag and tails are right.

        Raises
        ------
        FormatError, CorruptStoreError
            If they are not.
        """
        self._file.verify()
        Flag(self._file)
        self._require_tails()

    def _require_tails(self) -> None:
        assert self._tails is not None
        wrong = (self._tails >> 32 > self._flag.epoch) | (self._tails & _COUNT_MAX > self._room)
        if wrong.any():
            number = int(np.flatnonzero(wrong)[0])
            raise CorruptStoreError(
                "gpm-log-tail",
                f"{int(self._tails[number]):#x} is no tail: restore the file from a backup",
                path=self.path,
                offset=self._file.data_at + 8 * number,
            )

    def close(self) -> None:
        """Let go of the file. Entries stay, and a transaction that is under way stays so."""
        if self._file.is_closed:
            return
        if self._kernels:
            self.place.settle()
            self.place.leave(self._file.region)
        self._tails = None
        self._file.close()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        readonly: bool = False,
    ) -> Self:
        """Open a log.

        Parameters
        ----------
        path, place, durability, readonly
            As `PersistentArray.open` has them.

        Raises
        ------
        BackendError
            If what kernels of the place store there is not durable when their fence returns.
        StoreMissingError, StoreLockedError, StoreAccessError, FormatError, CorruptStoreError
            As `PersistentArray.open` raises them.
        """
        return opened(cls, path, place=place, durability=durability, readonly=readonly)


def _tail_bytes(tails: int) -> int:
    return whole_pages(8 * tails)


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, (int, np.integer)):
            raise InvalidArgumentError(f"{size!r}: a whole number is needed", field=name)
        if size < 1:
            raise InvalidArgumentError(f"{size}: at least 1 is needed", field=name)


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
        _require_positive(threads=threads, entry_bytes=entry_bytes, entries=entries)
        if entry_bytes % 8:
            raise InvalidArgumentError(f"{entry_bytes}: a multiple of 8 is needed", field="entry_bytes")
        about = {"threads": int(threads), "entry_bytes": int(entry_bytes), "entries": int(entries)}
        rounded = -(-threads // LANES) * LANES
        data_bytes = _tail_bytes(rounded) + rounded * entries * entry_bytes
        return made(cls, path, about, data_bytes, place=place, durability=durability, replace=replace, state=NEW_FLAG)

    @property
    def _tail_count(self) -> int:
        return -(-self.threads // LANES) * LANES

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
        address = self._file.address + _tail_bytes(self._tail_count)
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


class PartitionedLog(Log):
    """A log of partitions, each appended to under a lock: the conventional one, for few entries of any length.

    Attributes
    ----------
    partitions : int
        Numbered from 0.
    partition_bytes : int
        Of each.
    """

    KIND = "partitioned log"
    _STRUCT = "GpmPartitions"

    def __init__(self, file: GpmFile, place: Place) -> None:
        self.partitions: int = file.about["partitions"]
        self.partition_bytes: int = file.about["partition_bytes"]
        self._locks = place.words(np.zeros(self.partitions, np.uint64))
        super().__init__(file, place)

    @classmethod
    def create(
        cls,
        path: Path | str,
        partitions: int,
        partition_bytes: int,
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        replace: bool = False,
    ) -> Self:
        """Make an empty log.

        Parameters
        ----------
        path
            The file; its directory is there.
        partitions
            How many. Insertions into the same one wait for each other.
        partition_bytes
            Of each, a multiple of 8. An entry takes 8 bytes besides its own.
        place, durability, replace
            As `PersistentArray.create` has them.

        Raises
        ------
        InvalidArgumentError, NoSpaceError, BackendError, StoreMissingError, StoreAccessError, StoreLockedError
            As `CoalescedLog.create` raises them.
        """
        _require_positive(partitions=partitions, partition_bytes=partition_bytes)
        if partition_bytes % 8 or partition_bytes // 8 > _COUNT_MAX:
            raise InvalidArgumentError(
                f"{partition_bytes}: a multiple of 8 up to 32 GiB is needed", field="partition_bytes"
            )
        about = {"partitions": int(partitions), "partition_bytes": int(partition_bytes)}
        data_bytes = _tail_bytes(partitions) + partitions * partition_bytes
        return made(cls, path, about, data_bytes, place=place, durability=durability, replace=replace, state=NEW_FLAG)

    @property
    def _tail_count(self) -> int:
        return self.partitions

    @property
    def _room(self) -> int:
        return self.partition_bytes // 8

    def _geometry(self) -> Sequence[int]:
        return self.place.address(self._locks), self.partitions, self.partition_bytes // 8

    @property
    def _sizes(self) -> str:
        return f"partitions={self.partitions}, partition_bytes={self.partition_bytes}"

    def insert(self, partitions: Any, entries: Any) -> None:
        """Append entries of one length, durably; those of one partition in any order.

        Parameters
        ----------
        partitions : (n,) uint64
            Of each entry; an array of the place.
        entries : (n, words) uint64
            An array of the place.

        Raises
        ------
        InvalidArgumentError
            If the arrays are of other shapes or types.
            Or if a partition is not there; the other entries are inserted.
        NoSpaceError
            If a partition has no room; the other entries are inserted.
        """
        if entries.ndim != 2 or len(entries) != len(partitions):
            raise InvalidArgumentError(f"{len(partitions)} partitions and entries of shape {entries.shape}")
        self._run_checked("gpm_part_append", len(entries), partition=partitions, entry=entries, words=entries.shape[1])

    def read(self, partition: int) -> list[U64]:
        """Return the entries of a partition, the oldest first, as words on the host."""
        self._require_partition(partition)
        used = int(self._counted()[partition])
        begin = self._file.address + _tail_bytes(self.partitions) + partition * self.partition_bytes
        words: NDArray[np.uint64] = host_view(begin, np.dtype(np.uint64), (used,), self._file.region)
        entries: list[U64] = []
        while used:
            length = int(words[used - 1])
            if length >= used:
                raise CorruptStoreError(
                    "gpm-log-tail", f"an entry of partition {partition} has {length} words", path=self.path
                )
            entries.append(words[used - 1 - length : used - 1].copy())
            used -= 1 + length
        return entries[::-1]

    def remove(self, partition: int) -> None:
        """Take the last entry of a partition off, durably.

        Raises
        ------
        InvalidArgumentError
            If there is no such partition.
        CorruptStoreError
            If the entry is damaged.
        """
        self._require_partition(partition)
        self._run_checked("gpm_part_take", 1, partition=self.place.words([partition]))

    def verify(self) -> None:
        """Raise unless header, flag, tails and the lengths of all entries are right.

        Raises
        ------
        FormatError, CorruptStoreError
            If they are not.
        """
        super().verify()
        for partition in np.flatnonzero(self._counted()).tolist():
            self.read(partition)

    def _require_partition(self, partition: int) -> None:
        if not 0 <= partition < self.partitions:
            raise InvalidArgumentError(f"{partition}: there are {self.partitions}", field="partition")
