"""What both kinds of logs have, for transactions on structures of a user's own: tails, a flag, room.

    tails     one word for each thread or partition: (epoch << 32 | count)
    entries   from a whole page on

``kernels/gpm/gpm_log.cuh`` has the layout of the entries and what kernels call. An entry is durable before the tail
that counts it, so a crash leaves whole entries only.

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

from gpkvs.batch import U64
from gpkvs.config import DurabilityName
from gpkvs.errors import CorruptStoreError, InvalidArgumentError, NoSpaceError
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.header import whole_pages
from gpkvs.gpm.kernels import Kernels, own_kernels
from gpkvs.gpm.opened import Opened, opened
from gpkvs.gpm.place import Place, host_view
from gpkvs.gpm.transaction import EPOCH_MAX, Flag, State
from gpkvs.native import library

COUNT_MAX: Final = (1 << 32) - 1
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

    _STRUCT: ClassVar[str]  # in kernels/gpm/gpm_log.cuh

    def __init__(self, file: GpmFile, place: Place) -> None:
        super().__init__(file, place)
        if self._data_bytes > file.data_bytes:
            raise CorruptStoreError("gpm-header", f"{self._sizes} do not fit {file.data_bytes:,} bytes", path=file.path)
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
    def _data_bytes(self) -> int:
        """What tails and entries take."""

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
        words = [self._file.address, self._file.address + tail_bytes(self._tail_count), *near, *self._geometry()]
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
        with self._file.changing():  # kernels know the epoch, too
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
        counted: U64 = np.where(self._tails >> 32 == self._flag.epoch, self._tails & COUNT_MAX, 0)
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
        wrong = (self._tails >> 32 > self._flag.epoch) | (self._tails & COUNT_MAX > self._room)
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


def tail_bytes(tails: int) -> int:
    """Return how many bytes so many tails take: the entries follow."""
    return whole_pages(8 * tails)
