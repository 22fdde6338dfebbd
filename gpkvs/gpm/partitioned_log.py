"""A log of partitions with locks: the conventional one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U64
from gpkvs.columns.whole_number import whole_number
from gpkvs.config import DurabilityName
from gpkvs.errors import CorruptStoreError, InvalidArgumentError
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.log import COUNT_MAX, Log, tail_bytes
from gpkvs.gpm.opened import made
from gpkvs.gpm.place import Place, host_view
from gpkvs.gpm.transaction import NEW_FLAG


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
        partitions = whole_number("partitions", partitions, 1)
        partition_bytes = whole_number("partition_bytes", partition_bytes, 1)
        if partition_bytes % 8 or partition_bytes // 8 > COUNT_MAX:
            raise InvalidArgumentError(
                f"{partition_bytes}: a multiple of 8 up to 32 GiB is needed", field="partition_bytes"
            )
        about = {"partitions": partitions, "partition_bytes": partition_bytes}
        data_bytes = _data_bytes(partitions, partition_bytes)
        return made(cls, path, about, data_bytes, place=place, durability=durability, replace=replace, state=NEW_FLAG)

    @property
    def _tail_count(self) -> int:
        return self.partitions

    @property
    def _data_bytes(self) -> int:
        return _data_bytes(self.partitions, self.partition_bytes)

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
        begin = self._file.address + tail_bytes(self.partitions) + partition * self.partition_bytes
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


def _data_bytes(partitions: int, partition_bytes: int) -> int:
    return tail_bytes(partitions) + partitions * partition_bytes
