"""An array that persists: NumPy's on the host, CuPy's on a GPU, over one mapping of a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpkvs.config import DurabilityName
from gpkvs.errors import CorruptStoreError, InvalidArgumentError
from gpkvs.gpm.array_form import dtype_of, form_of
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.opened import Opened, made, opened
from gpkvs.gpm.place import Place, host_view
from gpkvs.native import library


class PersistentArray(Opened):
    """An array in a file; `create` makes it, `open` opens it.

    `host` and `device` are views of the same bytes. A store is durable after `persist`, or after the fence of the
    kernel that stored it. GPM has this as `gpm_map` and `gpm_persist` (ASPLOS '22, section 5.1 and table 2).

    Attributes
    ----------
    path : Path
        The file.
    shape : tuple of int
    dtype : numpy.dtype
    place : Place
        Where kernels that use it run.
    domain : Domain
        What "durable" means for the file (docs/persistence.md).

    Examples
    --------
    >>> with PersistentArray.create("grid.gpm", (1024, 1024), "f4") as grid:
    ...     grid.host[0, :] = 1.0
    ...     grid.persist(0, 1)
    """

    KIND = "array"

    def __init__(self, file: GpmFile, place: Place) -> None:
        super().__init__(file, place)
        self.shape, self.dtype = _form(file)
        self._host: NDArray[Any] | None = host_view(file.address, self.dtype, self.shape, file.region)
        if not file.writable:
            self._host.flags.writeable = False
        self._is_reached = False

    @classmethod
    def create(
        cls,
        path: Path | str,
        shape: int | np.integer[Any] | tuple[int, ...],
        dtype: DTypeLike = np.float32,
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        replace: bool = False,
    ) -> Self:
        """Make an array of zeros.

        Parameters
        ----------
        path
            The file; its directory is there.
        shape, dtype
            As NumPy has them. Elements are numbers, truth values, or structures of them.
        place
            Where kernels run: "cpu", "cuda", "cuda:1".
        durability
            As `gpkvs.open` has it; by default what the file's directory gives.
        replace
            Whether a file that is there is replaced.

        Raises
        ------
        InvalidArgumentError
            If the file is there, or the elements are objects.
        NoSpaceError
            If the file system has not the space; nothing is left behind.
        StoreMissingError, StoreAccessError, StoreLockedError
            As `gpkvs.open` raises them.
        """
        about = form_of((shape, dtype))
        data_bytes = max(1, math.prod(about["shape"]) * dtype_of(about["dtype"]).itemsize)
        return made(cls, path, about, data_bytes, place=place, durability=durability, replace=replace)

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        readonly: bool = False,
    ) -> Self:
        """Open an array.

        Parameters
        ----------
        path, place, durability
            As `create` has them.
        readonly
            Whether it is only read, on the host; then others may have it open, too.

        Raises
        ------
        StoreMissingError, StoreLockedError, StoreAccessError
            If there is no such file, it is open elsewhere, or the operating system refuses.
        FormatError, CorruptStoreError
            If it is no array of this format, or is damaged.
        """
        return opened(cls, path, place=place, durability=durability, readonly=readonly)

    @property
    def host(self) -> NDArray[Any]:
        """The array as one of NumPy, on the host."""
        self._file.require_open()
        assert self._host is not None
        return self._host

    @property
    def device(self) -> Any:
        """The array as one of its place's module; on the CPU that is `host`.

        Raises
        ------
        BackendError
            If the place does not reach the file.
        """
        self._file.require_writable()
        self._reach()
        return self.place.view(self._file.address, self.dtype, self.shape, self._file.region)

    @property
    def kernel_type(self) -> np.dtype[Any]:
        """See `Handed.kernel_type`."""
        return self.dtype

    def kernel_address(self, place: Place, /) -> int:
        """See `Handed.kernel_address`."""
        self._require_own(place)
        self.place.require_stores(self._file.region)
        self._reach()
        return self._file.address

    def _reach(self) -> None:
        if not self._is_reached:
            self.place.reach(self._file.region)
            self._is_reached = True

    def persist(self, first: int = 0, last: int | None = None) -> None:
        """Make durable what the host stored to rows `first` to `last - 1`; by default to all.

        Rows are along the first axis; of an array of one axis, they are its elements.

        Raises
        ------
        InvalidArgumentError
            If there are not those rows.
        OSError
            If the operating system could not write. Do not go on: what was stored may be lost.
        StoreAccessError
            If it could not before: open the file again.
        StoreClosedError, ForkedError
            If the file was closed, or opened before a fork.
        """
        self._file.require_writable()
        rows = self.shape[0] if self.shape else 1
        last = rows if last is None else last
        if not 0 <= first <= last <= rows:
            raise InvalidArgumentError(f"{self.path}: rows {first} to {last}: there are {rows}")
        row_bytes = self.host.nbytes // rows if rows else 0
        if last > first:
            library.gpkvs_persist_range(self._file.address + first * row_bytes, (last - first) * row_bytes)
            self._file.persist_stores()

    def verify(self) -> None:
        """Raise unless the file's header and size are right; what the array holds is the user's.

        Raises
        ------
        FormatError, CorruptStoreError
            If they are not.
        """
        self._file.verify()

    def close(self) -> None:
        """Let go of the file; views of the array must not be used any more."""
        if self._file.is_closed:
            return
        if self._is_reached:
            self.place.settle()
            self.place.leave(self._file.region)
            self._is_reached = False
        self._host = None
        self._file.close()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False and dtype not in (None, self.dtype):
            raise ValueError(f"{self.dtype} as {dtype} needs a copy")
        return np.array(self.host, dtype) if copy else np.asarray(self.host, dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.device.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.device.__dlpack_device__()

    def _about(self) -> str:
        return f"{self.shape} of {self.dtype}"


def _form(file: GpmFile) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape = tuple(file.about["shape"])
    dtype = dtype_of(file.about["dtype"])
    if math.prod(shape) * dtype.itemsize > file.data_bytes:
        raise CorruptStoreError(
            "gpm-header", f"{shape} of {dtype} does not fit {file.data_bytes} bytes", path=file.path
        )
    return shape, dtype
