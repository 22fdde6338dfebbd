"""In-place versions: two of each array, of which the program writes the next one while the current one stays whole.

Where a checkpoint copies, this does not: programs that write their arrays anew in each step anyhow (iterative solvers
with an old and a new grid) write them straight to the version that does not count. `commit` makes it durable and has
one word say that it counts (in-place versioning, as "High Performance Data Persistence in Non-Volatile Memory for
Resilient High Performance Computing" has it, sections 4 and 5).

    state page   word 0 (`gpkvs.gpm.current_word`)
    data         all arrays of version 0, then those of version 1, each from a whole page on

Invariants (`verify`)
---------------------
gpm-current   as `gpkvs.gpm.current_word` says
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np

from gpkvs.columns.whole_number import whole_number
from gpkvs.config import DurabilityName
from gpkvs.errors import InvalidArgumentError
from gpkvs.gpm.array_form import dtype_of, form_of, require_names
from gpkvs.gpm.current_word import Current, none_saved, read_current, store_current
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.header import whole_pages
from gpkvs.gpm.helpers import Helpers
from gpkvs.gpm.opened import Opened, made, opened
from gpkvs.gpm.place import Place
from gpkvs.native import library

_WORD: Final = 0


class _Form(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    at: int  # in a version

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class _Version(Mapping[str, Any]):
    """The arrays of a version. Their elements are stored to; the arrays stay."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __setitem__(self, name: str, array: Any) -> None:
        if array is not self._arrays.get(name):  # `next["t"] += 1` comes here, too
            raise InvalidArgumentError(
                f"{name!r} is an array of the file: store into it, as next[{name!r}][...] = array"
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class Versions(Opened):
    """Arrays in two versions; `create` makes them, `open` opens them.

    Attributes
    ----------
    path : Path
        The file.
    place : Place
        Where kernels that store to them run.
    domain : Domain
        What "durable" means for the file.

    Examples
    --------
    >>> with Versions.create("heat.gpm", {"t": ((1024, 1024), "f4")}) as versions:
    ...     for _ in range(100):
    ...         step(versions.current["t"], versions.next["t"])
    ...         versions.commit()
    """

    KIND = "pair of versions"

    def __init__(self, file: GpmFile, place: Place) -> None:
        super().__init__(file, place)
        self._forms: dict[str, _Form] = {}
        at = 0
        for about in file.about["arrays"]:
            form = self._forms[about["name"]] = _Form(tuple(about["shape"]), dtype_of(about["dtype"]), at)
            at += whole_pages(form.bytes)
        self._version_bytes = at
        self._current = read_current(file, _WORD)
        place.reach(file.region)
        self._views = [_Version(self._view(version)) for version in range(2)]
        self._protect(1 - self._current.copy if file.writable else None)
        self._flusher = Helpers(1, "gpkvs-versions")
        self._flushing: list[Future[None]] = []
        self._flushed: dict[str, list[tuple[int, int]]] = {}

    def _view(self, version: int) -> dict[str, Any]:
        address = self._file.address + version * self._version_bytes
        return {
            name: self.place.view(address + form.at, form.dtype, form.shape, self._file.region)
            for name, form in self._forms.items()
        }

    @classmethod
    def create(
        cls,
        path: Path | str,
        arrays: Mapping[str, Any],
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        replace: bool = False,
    ) -> Self:
        """Make both versions, of zeros; version 0 is current, with the number 0.

        Parameters
        ----------
        path
            The file; its directory is there.
        arrays
            By name: arrays, or pairs (shape, dtype).
        place, durability, replace
            As `PersistentArray.create` has them. On an ordinary disk only the CPU can store to them.

        Raises
        ------
        InvalidArgumentError, NoSpaceError, BackendError, StoreMissingError, StoreAccessError, StoreLockedError
            As `PersistentArray.create` raises them.
        """
        require_names(arrays)
        forms = [{"name": name, **form_of(array)} for name, array in arrays.items()]
        sizes = [math.prod(form["shape"]) * dtype_of(form["dtype"]).itemsize for form in forms]
        data_bytes = 2 * sum(map(whole_pages, sizes))
        about, state = {"arrays": forms}, none_saved(1)
        return made(
            cls, path, about, max(1, data_bytes), place=place, durability=durability, replace=replace, state=state
        )

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        readonly: bool = False,
    ) -> Self:
        """Open both versions; what the next one holds means nothing.

        Parameters
        ----------
        path, place, durability, readonly
            As `PersistentArray.open` has them. A file that is only read is read on the host.

        Raises
        ------
        StoreMissingError, StoreLockedError, StoreAccessError, FormatError, CorruptStoreError, BackendError
            As `PersistentArray.open` raises them.
        """
        return opened(cls, path, place=place, durability=durability, readonly=readonly)

    @property
    def number(self) -> int:
        """How many versions were committed."""
        self._file.require_open()
        return self._current.number

    @property
    def current(self) -> Mapping[str, Any]:
        """The arrays that count, by name: those of the last commit. They are not to be stored to; NumPy refuses to."""
        self._file.require_open()
        return self._views[self._current.copy]

    @property
    def next(self) -> Mapping[str, Any]:
        """The arrays that the next commit makes current. Every element must be stored: they hold an older version.

        Ask for them anew after each commit, since the two change places.
        """
        self._file.require_writable()
        return self._views[1 - self._current.copy]

    def _about(self) -> str:
        return f"{', '.join(self._forms)}, {self._current.number} committed"

    def flush_ahead(self, name: str, first: int, last: int) -> None:
        """Begin to make rows of a next array durable, by another thread: the program is done with them.

        `commit` has less to wait for then. Rows are along the first axis. On a GPU this does nothing: whether a kernel
        has stored them is known when it is over, and `commit` waits for that.

        Raises
        ------
        InvalidArgumentError
            If there is no such array, or it has not those rows.
        """
        self._file.require_writable()
        form = self._form(name)
        rows = form.shape[0] if form.shape else 1
        first, last = whole_number("first", first), whole_number("last", last)
        if not 0 <= first <= last <= rows:
            raise InvalidArgumentError(f"rows {first} to {last} of {name}, which has {rows}")
        if self.place.is_gpu:
            return
        row_bytes = form.bytes // rows if rows else 0
        begin, end = first * row_bytes, last * row_bytes
        self._flushed.setdefault(name, []).append((begin, end))
        self._flushing.append(self._flusher.begin(self._flush_now, self._next_at + form.at, begin, end))

    def _flush_now(self, address: int, begin: int, end: int) -> None:
        self._flush(address, begin, end)
        self._file.persist_stores()  # of a disk: what is there already need not wait for the commit

    def commit(self) -> int:
        """Make the next version durable, then have it count.

        All elements of its arrays have been stored, by the host or by kernels that were launched. What `flush_ahead`
        was told is waited for, the rest is made durable here.

        Returns
        -------
        int
            The number of the version.

        Raises
        ------
        OSError
            If the operating system could not write; the current version counts.
        StoreAccessError
            If it could not before, be it in a helper's `flush_ahead`: open the file again.
        """
        self._file.require_writable()
        self.place.settle()
        flushing, self._flushing = self._flushing, []
        flushed, self._flushed = self._flushed, {}
        for part in flushing:
            part.result()
        for name, form in self._forms.items():
            at = 0
            for begin, end in [*sorted(flushed.get(name, [])), (form.bytes, form.bytes)]:
                self._flush(self._next_at + form.at, at, begin)
                at = max(at, end)
        self._file.persist_stores()
        new = Current(self._current.number + 1, 1 - self._current.copy)
        with self._file.changing():
            self._protect(None)  # until all is done, nobody knows which one counts
            store_current(self._file, _WORD, new)
            self._current = new
            self._protect(1 - new.copy)
        return new.number

    def _protect(self, written: int | None) -> None:
        """Have NumPy refuse stores to all versions but one, also to the one that counts and was `next` before."""
        for copy, version in enumerate(self._views):
            for array in version.values():
                if isinstance(array, np.ndarray):
                    array.flags.writeable = copy == written

    @property
    def _next_at(self) -> int:
        return self._file.address + (1 - self._current.copy) * self._version_bytes

    @staticmethod
    def _flush(address: int, begin: int, end: int) -> None:
        """Have lines of the cache written back, where the domain asks for it."""
        if begin < end:
            library.gpkvs_persist_range(address + begin, end - begin)

    def _form(self, name: str) -> _Form:
        try:
            return self._forms[name]
        except KeyError:
            raise InvalidArgumentError(f"there is no array {name!r}: there are {', '.join(self._forms)}") from None

    def verify(self) -> None:
        """Raise `FormatError` or `CorruptStoreError` unless header and word are right."""
        self._file.verify()
        read_current(self._file, _WORD)

    def close(self) -> None:
        """Let go of the file; what was not committed is lost. Views must not be used any more."""
        if self._file.is_closed:
            return
        self.place.settle()
        self._flusher.close()
        self.place.leave(self._file.region)
        self._views.clear()
        self._file.close()
