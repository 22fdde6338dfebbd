"""Checkpoints: groups of arrays, each in two copies, of which one counts.

    state page   a word for each group (`gpkvs.gpm.current_word`)
    copies       of each group two: the digests of its blocks, then its arrays, each from a whole page on

`save` writes the copy that does not count, makes it durable, and then has the word say that it counts. So a crash
leaves the last checkpoint or the new one, whole (GPM, ASPLOS '22, section 5.3). Blocks whose digest is that of what the
copy holds already are not written again. In memory that a place reaches, all of the copy is one kernel, and one native
call (`gpkvs.gpm.blocks`).

Invariants (`verify`)
---------------------
gpm-current           as `gpkvs.gpm.current_word` says
gpm-checkpoint-data   the blocks of the copy that counts have the digests that it says
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U64
from gpkvs.config import DurabilityName
from gpkvs.errors import CorruptStoreError, InvalidArgumentError
from gpkvs.gpm.array_form import dtype_of, form_of, require_names
from gpkvs.gpm.blocks import BLOCK_BYTES, DIGEST_BYTES, Blocks, Digests, Held, blocks_of
from gpkvs.gpm.current_word import WORDS_MAX, Current, none_saved, read_current, store_current
from gpkvs.gpm.direct_file import DirectFile
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.header import whole_pages
from gpkvs.gpm.helpers import do
from gpkvs.gpm.opened import Opened, made, opened
from gpkvs.gpm.place import Place, find_place, host_view
from gpkvs.pm.mapping import map_memory

Arrays = Mapping[str, Any]


class _Array(NamedTuple):
    """An array of a group: its form, where it begins in a copy, and which of the group's blocks are its."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bytes: int
    at: int
    blocks: slice


class _Group:
    """A group: its arrays, where its copies are, and which one counts."""

    def __init__(self, number: int, name: str, forms: list[dict[str, Any]], at: int) -> None:
        self.number, self.name, self.at = number, name, at
        sizes = [math.prod(form["shape"]) * dtype_of(form["dtype"]).itemsize for form in forms]
        first = whole_pages(DIGEST_BYTES * sum(map(blocks_of, sizes)))
        *begins, self.copy_bytes = accumulate(map(whole_pages, sizes), initial=first)
        self.blocks = Blocks(sizes, begins)
        self.arrays = [
            _Array(form["name"], tuple(form["shape"]), dtype_of(form["dtype"]), *where)
            for form, *where in zip(forms, sizes, begins, self.blocks.of_arrays, strict=True)
        ]
        self.names = frozenset(array.name for array in self.arrays)
        self.current = Current(0, 0)
        self.held: dict[int, Held] = {}  # by copy

    def copy_at(self, copy: int) -> int:
        """Return where a copy begins in the file's data."""
        return self.at + copy * self.copy_bytes


class Checkpoint(Opened):
    """Arrays that are saved together, atomically, again and again; `create` makes the file, `open` opens it.

    One thread at a time uses it.

    Attributes
    ----------
    path : Path
        The file.
    place : Place
        Where the arrays are: "cpu" takes those of NumPy, "cuda" those of CuPy, and both whatever speaks DLPack.
    domain : Domain
        What "durable" means for the file. It may be on an ordinary disk.
    last_bytes : int
        What the last save had to write of the arrays.

    Examples
    --------
    >>> model = {"weights": weights, "biases": biases}
    >>> with Checkpoint.create("model.gpm", {"model": model}) as checkpoint:
    ...     checkpoint.save("model", model)
    ...     checkpoint.restore("model", model)
    """

    KIND = "checkpoint"

    def __init__(self, file: GpmFile, place: Place) -> None:
        super().__init__(file, place)
        self.last_bytes = 0
        self._copies: int = file.about["copies"]
        self._groups: dict[str, _Group] = {}
        at = 0
        for number, about in enumerate(file.about["groups"]):
            group = _Group(number, about["name"], about["arrays"], at)
            group.current = read_current(file, number)
            at += self._copies * group.copy_bytes
            self._groups[group.name] = group
        self._digests = Digests(file.about["key"], place)
        self._disk: DirectFile | None = None
        if file.is_on_disk or not place.can_reach(file.region):
            self._disk = DirectFile(file.opened_as, writable=file.writable)
        else:
            place.reach(file.region)
        self._pending: Future[None] | None = None
        self._thread: Thread | None = None

    @classmethod
    def create(
        cls,
        path: Path | str,
        groups: Mapping[str, Arrays],
        *,
        place: Place | str = "cpu",
        durability: DurabilityName = "auto",
        replace: bool = False,
        once: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a file with room for two copies of each group; nothing is saved yet.

        Parameters
        ----------
        path
            The file; its directory is there. It takes twice the bytes of all arrays.
        groups
            By name; each has arrays by name, or pairs (shape, dtype).
        place, durability, replace
            As `PersistentArray.create` has them. On an ordinary disk, saves are written and synced.
        once
            Whether each group is saved once only, and there is room for one copy.
        about
            What else the header says, for `about`; JSON can write it.

        Raises
        ------
        InvalidArgumentError
            If there is no group, or more than 512; if one has no arrays by name; if elements are objects; or if the
            file is there.
        NoSpaceError, BackendError, StoreMissingError, StoreAccessError, StoreLockedError
            As `PersistentArray.create` raises them.
        """
        if not 0 < len(groups) <= WORDS_MAX:
            raise InvalidArgumentError(f"{len(groups)} groups: at least 1 is needed, and at most {WORDS_MAX}")
        require_names(groups)
        for name, arrays in groups.items():
            if not isinstance(arrays, Mapping):
                raise InvalidArgumentError(
                    f"the group {name!r} is a {type(arrays).__name__}: a group has arrays by name, as in "
                    "{'model': {'weights': weights}}"
                )
            require_names(arrays)
        forms: list[dict[str, Any]] = [
            {"name": name, "arrays": [{"name": key, **form_of(array)} for key, array in arrays.items()]}
            for name, arrays in groups.items()
        ]
        copies = 1 if once else 2
        header = {"key": secrets.randbits(64), "copies": copies, "groups": forms, "about": dict(about or {})}
        data_bytes = copies * sum(_Group(0, "", group["arrays"], 0).copy_bytes for group in forms)
        state = none_saved(len(groups))
        return made(
            cls, path, header, max(1, data_bytes), place=place, durability=durability, replace=replace, state=state
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
        """Open a file.

        Parameters
        ----------
        path, place, durability, readonly
            As `PersistentArray.open` has them.

        Raises
        ------
        StoreMissingError, StoreLockedError, StoreAccessError, FormatError, CorruptStoreError
            As `PersistentArray.open` raises them.
        """
        return opened(cls, path, place=place, durability=durability, readonly=readonly)

    @property
    def groups(self) -> dict[str, dict[str, tuple[tuple[int, ...], np.dtype[Any]]]]:
        """The arrays of each group, with shape and dtype."""
        return {
            name: {array.name: (array.shape, array.dtype) for array in group.arrays}
            for name, group in self._groups.items()
        }

    def _about(self) -> str:
        return ", ".join(f"{name} saved {group.current.number} times" for name, group in self._groups.items())

    @property
    def about(self) -> dict[str, Any]:
        """What `create` was told that the header says besides."""
        return dict(self._file.about["about"])

    def number(self, group: str) -> int:
        """Return how often a group was saved; 0: not yet."""
        return self._group(group).current.number

    def save(self, group: str, arrays: Arrays, *, wait: bool = True) -> int:
        """Save a group.

        Parameters
        ----------
        group
            Its name.
        arrays
            All its arrays, by name, with the shapes and dtypes that the file was made for.
        wait
            Whether to return only when the checkpoint is durable. Otherwise the arrays are copied at once, on their
            device, which takes as much of its memory; they may be changed then, and the checkpoint is written while
            the caller goes on. It counts when `wait` has returned, and is begun by the next save at the latest. Where
            there is no memory for that copy, the call waits after all.

        Returns
        -------
        int
            The number of this checkpoint.

        Raises
        ------
        InvalidArgumentError
            If there is no such group, or the arrays are not its.
        NoSpaceError, OSError
            If the operating system could not write; the last checkpoint counts.
        StoreAccessError
            If an earlier save could not make durable what it wrote, or was interrupted: open the file again.
        StoreClosedError, ForkedError
            If the file was closed, or opened before a fork.
        """
        self._file.require_writable()
        self.wait()
        found = self._group(group)
        if self._copies == 1 and found.current.number:
            raise InvalidArgumentError(f"{self.path} is for one save of each group: create it without once=True")
        checked = self._checked(found, arrays)
        number = found.current.next.number
        copies = None if wait else self.place.snapshot([_bytes_of(array) for array in checked])
        with self._file.changing():
            if copies is None:
                self._save(found, checked)
            else:
                self._begin(self.place.beside(partial(self._save, found, copies)))
        return number

    def _begin(self, save: Callable[[], None]) -> None:
        """Save in a thread of its own, which a program that ends waits for; at once, where the system gives none."""
        begun: Future[None] = Future()
        self._thread = Thread(target=do, args=(begun, save), name="gpkvs-checkpoint")
        try:
            self._thread.start()
        except RuntimeError:
            do(begun, save)
        self._pending = begun

    def wait(self) -> None:
        """Return when the last save is durable; raises what it raised."""
        if pending := self._pending:
            try:
                pending.result()
            finally:
                if pending.done():  # else the wait was interrupted, and the save goes on
                    self._pending = None

    def _save(self, group: _Group, arrays: list[Any]) -> None:
        new = group.current.next
        at, held = group.copy_at(new.copy), group.held.get(new.copy)
        if not held:
            held = group.held[new.copy] = Held(group.blocks.count, self.place)
        addresses = tuple(map(self.place.address, arrays))
        to = 0 if self._disk else self._file.address + at
        self.last_bytes = self._digests.save(group.blocks, addresses, held, to)
        if self._disk:
            self._write(self._disk, group, arrays, held, at)
        self._file.persist_stores()
        store_current(self._file, group.number, new)
        group.current, held.are_known = new, True

    def _write(self, disk: DirectFile, group: _Group, arrays: list[Any], held: Held, at: int) -> None:
        """Write what differs to a copy, and all digests."""
        for form, array in zip(group.arrays, arrays, strict=True):
            column = _bytes_of(array)
            for first, last in _runs(held.differs[form.blocks].view(np.bool_)):
                pieces = self.place.pieces(column, first * BLOCK_BYTES, min(last * BLOCK_BYTES, form.bytes))
                disk.write(self._file.data_at + at + form.at, pieces)
        self._file.region.store(self._file.data_at + at, self.place.to_host(held.digests).tobytes())

    def restore(self, group: str, arrays: Arrays) -> int:
        """Bring the last checkpoint of a group back into arrays.

        Parameters
        ----------
        group
            Its name.
        arrays
            All its arrays, by name; they are written over. If this raises, what they hold means nothing.

        Returns
        -------
        int
            The number of the checkpoint.

        Raises
        ------
        InvalidArgumentError
            If there is no such group, nothing was saved yet, or the arrays are not its or cannot be written to.
        CorruptStoreError
            If the checkpoint is damaged.
        OSError
            If the operating system could not read it.
        StoreClosedError, ForkedError
            If the file was closed, or opened before a fork.
        """
        self._file.require_open()
        self.wait()
        found = self._group(group)
        if not found.current.number:
            raise InvalidArgumentError(f"{self.path}: nothing was saved of the group {group} yet")
        columns = [_bytes_of(array) for array in self._checked(found, arrays, writes=True)]
        at = found.copy_at(found.current.copy)
        for array, column in zip(found.arrays, columns, strict=True):
            self._read(column, at + array.at)
        self.place.settle()
        self._require_digests(found, self._digests.of(found.blocks, tuple(map(self.place.address, columns))))
        return found.current.number

    def load(self, group: str) -> dict[str, Any]:
        """Return the last checkpoint of a group as new arrays of the place; raises as `restore`."""
        found = self._group(group)
        arrays = {array.name: self.place.xp.empty(array.shape, array.dtype) for array in found.arrays}
        self.restore(group, arrays)
        return arrays

    def _read(self, column: U8, at: int) -> None:
        if disk := self._disk:
            self.place.fill(column, lambda first, host: disk.read(self._file.data_at + at + first, host))
        else:
            self.place.copy_in(column, self._file.address + at)

    def _require_digests(self, group: _Group, digests: U64) -> None:
        at = group.copy_at(group.current.copy)
        words = self._file.region.words(self._file.data_at + at, 2 * group.blocks.count).reshape(-1, 2)
        wrong = np.flatnonzero((digests != words).any(1))
        if len(wrong):
            array = next(array for array in group.arrays if wrong[0] < array.blocks.stop)
            block = int(wrong[0]) - array.blocks.start
            raise CorruptStoreError(
                "gpm-checkpoint-data",
                f"block {block} of {group.name}/{array.name} is not what was saved: restore the file from a backup",
                path=self.path,
                offset=self._file.data_at + at + array.at + block * BLOCK_BYTES,
            )

    def verify(self) -> None:
        """Raise unless header, words and all checkpoints that count are right.

        Raises
        ------
        FormatError, CorruptStoreError
            If they are not.
        """
        self._file.verify()
        self.wait()
        digests = Digests(self._file.about["key"], find_place("cpu"))
        for group in self._groups.values():
            if read_current(self._file, group.number).number:
                at = group.copy_at(group.current.copy)
                # One array at a time: from a disk, each is read into memory.
                found = [self._digests_on_host(digests, at + array.at, array.bytes) for array in group.arrays]
                self._require_digests(group, np.concatenate([np.empty((0, 2), np.uint64), *found]))

    def _digests_on_host(self, digests: Digests, at: int, count: int) -> U64:
        memory = self._on_host(at, count)
        return digests.of(Blocks([count], [0]), (memory.ctypes.data,))

    def _on_host(self, at: int, count: int) -> U8:
        """Return bytes of the file: read, if it is on a disk, which is faster than to map page after page."""
        if self._disk and count:
            memory = map_memory(count)
            self._disk.read(self._file.data_at + at, memory.data)
            return memory
        return host_view(self._file.address + at, np.dtype(np.uint8), (count,), self._file.region)

    def _group(self, name: str) -> _Group:
        self._file.require_open()
        try:
            return self._groups[name]
        except KeyError:
            raise InvalidArgumentError(f"there is no group {name!r}: there are {', '.join(self._groups)}") from None

    def _checked(self, group: _Group, arrays: Arrays, *, writes: bool = False) -> list[Any]:
        """Return the arrays of a group in their order, contiguous; uncopied, if they are to be written to."""
        if arrays.keys() != group.names:
            if missing := group.names - arrays.keys():
                raise InvalidArgumentError(f"group {group.name}: {', '.join(sorted(missing))} is missing")
            raise InvalidArgumentError(f"group {group.name} has no {', '.join(sorted(arrays.keys() - group.names))}")
        return [self._array(group, form, arrays[form.name], writes=writes) for form in group.arrays]

    def _array(self, group: _Group, form: _Array, array: Any, *, writes: bool) -> Any:
        found = array if type(array) is self.place.xp.ndarray else _plain(group, form, self.place.adopt(array))
        if found.shape != form.shape or found.dtype != form.dtype:
            raise InvalidArgumentError(
                f"{group.name}/{form.name} is {found.shape} of {found.dtype}; the file has room for {form.shape} of "
                f"{form.dtype}"
            )
        if not found.flags.c_contiguous:
            if writes:
                raise InvalidArgumentError(f"{group.name}/{form.name} is not contiguous: restore into a new array")
            found = self.place.xp.ascontiguousarray(found)
        if writes and isinstance(found, np.ndarray) and not found.flags.writeable:
            raise InvalidArgumentError(f"{group.name}/{form.name} cannot be written to")
        return found

    def close(self) -> None:
        """Wait for the last save, and let go of the file; raises what that save raised."""
        if self._file.is_closed:
            return
        try:
            self.wait()
        finally:
            if self._thread and self._thread.ident:  # also if it was begun and the caller interrupted
                self._thread.join()
            if self._disk:
                self._disk.close()
            else:
                self.place.leave(self._file.region)
            self._file.close()


def _plain(group: _Group, array: _Array, found: Any) -> Any:
    """Return an array as one of NumPy's own kind: a matrix always has two axes, a masked array more than elements."""
    if isinstance(found, np.ma.MaskedArray):
        raise InvalidArgumentError(f"{group.name}/{array.name} is a masked array: save its data and its mask")
    return found.view(np.ndarray) if isinstance(found, np.ndarray) else found


def _bytes_of(array: Any) -> Any:
    """Return an array that is contiguous as a column of bytes, uncopied."""
    return array.reshape(-1).view(np.uint8)


def _runs(marks: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the runs of marks: the first one, and the one behind the last."""
    if marks.all():  # most arrays change as a whole, and there are many small ones
        return iter([(0, len(marks))] if len(marks) else [])
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]).astype(np.int8)))
    return iter(list(pairwise(edges.tolist()))[::2])
