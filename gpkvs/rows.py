"""Rows of a table as arrays: many at a time, without a Python object for each.

A table of a layout of rows (`gpkvs.columns.row_layout`) has numbers as keys, and arrays of one type and shape as
values. `KeyValues.rows` gives its rows; `gpkvs.client.async_rows` has the same for asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U64, Batch, Condition, Op, constant
from gpkvs.columns import dlpack
from gpkvs.columns.arrow import bytes_of_rows, column_of_arrow, in_one_piece, layout_of_rows, pyarrow, speaks_arrow
from gpkvs.columns.buffers import RequestBounds
from gpkvs.columns.byte_strings import ByteStrings, column_given
from gpkvs.columns.numbers import column_of
from gpkvs.columns.row_layout import KEY_BYTES, RowLayout
from gpkvs.columns.string_requests import StringRequests
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from gpkvs.operations import Ttl, ttl_ms
from gpkvs.process.own_timeout import OWN_TIMEOUT, Timeout
from gpkvs.scan import ScanPiece, require_none_damaged
from gpkvs.text import counted

if TYPE_CHECKING:
    from gpkvs.face import KeyValues, Numbers

_PLACED_BYTES_MIN = 256  # of a row: to say where shorter ones go takes as long as to copy them

Array = Any
"""Rows: an array of NumPy, one that speaks DLPack (PyTorch), a column that speaks Arrow, or lists."""


class GpuArrays(Protocol):
    """What a store with a GPU does with arrays that lie there."""

    def to_host(self, name: str, array: Any, /) -> Any:
        """Return an array of a GPU as memory of the host (`dlpack.TypedMemory`), and anything else as it is."""

    def copied(self, rows: Any, /) -> tuple[Any, U8 | None]:
        """Return rows as `to_host` does, and a copy of the same bytes on the store's GPU, if they are on it."""

    def where_keys_are(self, keys: Any, found: NDArray[np.bool_], /) -> NDArray[np.bool_]:
        """Return what was found of keys as an array of the GPU, if they are on one."""


class RowRequests(StringRequests):
    """The requests of one kind of operation on many rows.

    Parameters
    ----------
    op
        GET, SET, ADD or DELETE.
    layout
        Of the table.
    keys
        As a caller gives them.
    rows
        As many, as a caller gives them; None for GETs and DELETEs.
    bounds
        Of each request.
    atomic
        Whether all must go into one.
    condition
        That every operation has.
    out
        Where the rows of GETs go, as a caller gives it.
    is_placed
        Whether the executor can put rows into our memory (`Batch.into`).

    Attributes
    ----------
    numbers : (n,) uint64
        The keys.

    Raises
    ------
    InvalidArgumentError
        If keys or rows are none of the table's, there are not as many rows as keys, `out` has another type or shape, or
        all must go into one request and are too many.
    """

    def __init__(
        self,
        op: Op,
        layout: RowLayout,
        keys: Any,
        rows: Any,
        bounds: RequestBounds,
        *,
        atomic: bool,
        condition: Condition = Condition.NONE,
        out: Any = None,
        is_placed: bool = False,
    ) -> None:
        self._layout, self._condition, self._out = layout, condition, out
        self.numbers = numbers = keys_of(keys)
        values = None
        if op in (Op.SET, Op.ADD):
            data = rows_of(layout, rows, len(numbers))
            values = ByteStrings(data, constant(np.uint32(layout.row_bytes), len(numbers)))
        column = ByteStrings(numbers.view(np.uint8), constant(np.uint32(KEY_BYTES), len(numbers)))
        returned_bytes = layout.row_bytes if op is Op.GET else 0
        super().__init__(op, column, values, bounds, atomic=atomic, returned_bytes=returned_bytes)
        self._memory: NDArray[Any] | None = None
        if out is not None:
            self._memory = _memory_for(layout, out, len(numbers))
        is_placed &= layout.row_bytes >= _PLACED_BYTES_MIN
        self._into = None if self._memory is None or not is_placed else _bytes_in(layout, self._memory)

    def next(self) -> Batch | None:
        """Return the next request; None: all are done."""
        batch = super().next()
        if batch is not None and self._condition is not Condition.NONE:
            return replace(batch, conditions=np.full(len(batch), self._condition, np.uint8))
        if batch is not None and self._into is not None:
            return replace(batch, into=self._into[self._first : self._last])
        return batch

    def rows(self, default: NDArray[Any] | None) -> tuple[Any, NDArray[np.bool_]]:
        """Return the rows that GETs have read, and which are there; as `Rows.get`, with what `default_of` returns."""
        found, memory = self.found(), self._memory
        self._require_rows(found)
        is_whole = bool(found.all())
        if memory is None:
            if is_whole:
                held: NDArray[Any] = self._layout.array_of(self.values().data)
                return held if held.flags.writeable else held.copy(), found
            memory = np.zeros((len(found), *self._layout.shape), self._layout.dtype)
        self._put_rows(memory, found)
        if not is_whole and default is not None:
            memory[~found] = default
        return memory if self._out is None else self._out, found

    def _require_rows(self, found: NDArray[np.bool_]) -> None:
        """Check that each value is a row."""
        lengths = np.concatenate([np.empty(0, np.uint32), *(result.value_lengths for result in self._results)])
        wrong = lengths != np.where(found, self._layout.row_bytes, 0)
        if wrong.any():
            index = int(wrong.argmax())
            raise CorruptRecordError(
                f"operation {index}: a value of {counted(int(lengths[index]), 'byte')}, which is no row of "
                f"{self._layout.name}: run `gpkvs check`"
            )

    def _put_rows(self, memory: NDArray[Any], found: NDArray[np.bool_]) -> None:
        """Put rows where they go, but for those that lie there already."""
        first = 0
        for result in self._results:
            last = first + len(result.status)
            if len(result.values):
                is_found = found[first:last]
                memory[first:last][... if is_found.all() else is_found] = self._layout.array_of(result.values)
            first = last


class Rows:
    """The rows of a table; made by ``rows`` of a store, a client or a table's handle.

    What a method writes is durable when it returns. A call is one transaction, as of one moment, unless it is told
    ``atomic=False``: then what is too much for one request goes in several, one after the other, and an error leaves
    those before it done. A client's methods take `timeout`, as all of its methods do.

    Keys are whole numbers from 0 to 2**64 - 1: (n,) uint64, other whole numbers that are not negative, lists, columns
    that speak Arrow, arrays that speak DLPack. Rows are (n, ...) of the table's type and shape: arrays of NumPy, also
    strided ones, which are copied; arrays that speak DLPack (PyTorch, CuPy); columns of Arrow, lists of a fixed size;
    lists. Arrays of a GPU are for stores that have it (`takes_gpu_arrays`). Nobody changes them during a call. No type
    is converted but that of lists. bfloat16, which NumPy has not, is uint16 there, its bits.

    Attributes
    ----------
    layout
        Of the table.
    """

    def __init__(self, db: KeyValues, layout: RowLayout, table: str | None) -> None:
        self.layout = layout
        self._db, self._table = db, table

    def __repr__(self) -> str:
        return f"<rows {self.layout.name} of {self._db!r}>"

    @property
    def read_bytes_max(self) -> int:
        """Bytes of rows that one `get` may read."""
        return self._db._request_bounds(self._table).bytes_max

    def get(
        self,
        keys: Numbers,
        *,
        out: Any = None,
        default: Any = None,
        atomic: bool = True,
        timeout: Timeout = OWN_TIMEOUT,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Read rows.

        Parameters
        ----------
        out : (n, ...)
            Where to leave them: an array of NumPy, also a strided one, or one that speaks DLPack and is contiguous, of
            the host or of the store's GPU. By default a new array: of the GPU if the keys are there, else of NumPy. A
            call that fails may have left some there.
        default
            What a row that is not there is: a number, or an array or a list of the shape of a row. For bfloat16 an
            array. None: it is zeros, and `out` keeps what it has there.

        Returns
        -------
        rows : (n, ...)
            Or `out`.
        found : (n,) bool
            Which are there; of the GPU if the rows are.

        Raises
        ------
        InvalidArgumentError
            If keys are none, `out` or `default` has another type or shape, or all is too much for one request.
        CorruptRecordError
            If a row is damaged.
        """
        if self._db._gpu_rows and (dlpack.is_on_gpu(keys) or dlpack.is_on_gpu(out)):
            self._db._require_open()
            self._db._require_timeout(timeout)
            return self._db._read_rows(self.layout, keys, out, default, self._table)
        row = default_of(self.layout, default)
        return self._run(Op.GET, keys, None, atomic=atomic, out=out, timeout=timeout).rows(row)

    @property
    def takes_gpu_arrays(self) -> bool:
        """Whether keys, rows and `out` may be arrays of a GPU: of a store with the backend ``cuda``."""
        return self._db._gpu_rows is not None

    def set(
        self, keys: Numbers, rows: Array, *, ttl: Ttl = None, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT
    ) -> None:
        """Store rows; the last of equal keys wins.

        Parameters
        ----------
        ttl
            Seconds until they expire, or a `timedelta`; None: they stay.

        Raises
        ------
        InvalidArgumentError
            If keys or rows are none of the table's, or too many for one request; nothing was stored.
        NoSpaceError
            If they do not fit; none was stored.
        """
        self._run(Op.SET, keys, rows, ttl=ttl, atomic=atomic, timeout=timeout)

    def set_if_absent(
        self, keys: Numbers, rows: Array, *, ttl: Ttl = None, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT
    ) -> NDArray[np.bool_]:
        """Store the rows of those keys that are not there; return which (n,) bool; further as `set`.

        Of equal keys the first one is stored.
        """
        run = self._run(Op.SET, keys, rows, ttl=ttl, atomic=atomic, condition=Condition.ABSENT, timeout=timeout)
        return self._where_keys_are(keys, run.found())

    def add(self, keys: Numbers, deltas: Array, *, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT) -> None:
        """Add to rows, element by element; one that is not there is zeros. Errors as `set`.

        Equal keys add one after the other, in their order, and each sum is rounded: two runs of the same calls leave
        the same bits. Whole numbers wrap around.
        """
        self._run(Op.ADD, keys, deltas, atomic=atomic, timeout=timeout)

    def delete(self, keys: Numbers, *, atomic: bool = True, timeout: Timeout = OWN_TIMEOUT) -> NDArray[np.bool_]:
        """Remove rows; return which were there, (n,) bool."""
        found = self._run(Op.DELETE, keys, None, atomic=atomic, timeout=timeout).found()
        return self._where_keys_are(keys, found)

    def _where_keys_are(self, keys: Any, found: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return self._db._gpu_rows.where_keys_are(keys, found) if self._db._gpu_rows else found

    def scan(self, *, timeout: Timeout = OWN_TIMEOUT) -> Iterator[tuple[U64, NDArray[Any]]]:
        """Return all keys with their rows, in pieces and in no order that means anything: (n,) and (n, ...).

        Each row that is there throughout comes exactly once; batches run between the pieces (`KeyValues.scan`).

        Raises
        ------
        CorruptRecordError
            After the last piece, if rows were left out since they fail their checks.
        """
        damaged = 0
        for piece in self._db.scan_pieces(table=self._table, timeout=timeout):
            damaged += piece.damaged
            if len(piece):
                yield scanned(self.layout, piece)
        require_none_damaged(damaged)

    def count(self, *, timeout: Timeout = OWN_TIMEOUT) -> int:
        """Return how many rows there are."""
        return self._db.count(table=self._table, timeout=timeout)

    def _run(
        self,
        op: Op,
        keys: Any,
        rows: Any,
        *,
        ttl: Ttl = None,
        atomic: bool,
        condition: Condition = Condition.NONE,
        out: Any = None,
        timeout: Timeout,
    ) -> RowRequests:
        db = self._db
        db._require_open()
        given, copy = (keys, rows), None
        if gpu := db._gpu_rows:
            # What is kept there is what is stored, also if somebody changes an array meanwhile.
            is_kept = op is Op.SET and ttl is None and dlpack.is_on_gpu(keys)
            host_rows, copy = gpu.copied(rows) if is_kept else (gpu.to_host("rows", rows), None)
            given = gpu.to_host("keys", keys), host_rows
        requests = RowRequests(
            op,
            self.layout,
            *given,
            db._request_bounds(self._table),
            atomic=atomic,
            condition=condition,
            out=out,
            is_placed=db._puts_values,
        )
        db._run_requests(requests, ttl_ms(ttl), self._table, timeout, self.layout.name)
        if copy is not None and len(copy):
            db._keep_rows(self.layout, requests.numbers, copy, requests.found(), requests.versions(), self._table)
        return requests


def keys_of(keys: Any) -> U64:
    """Return a column of keys; raises InvalidArgumentError if they are none."""
    column = keys if isinstance(keys, dlpack.TypedMemory) else column_given("keys", keys)
    if isinstance(column, ByteStrings):
        if len(column):
            raise InvalidArgumentError("bytes: the keys of a table of rows are whole numbers", field="keys")
        return np.empty(0, np.uint64)
    if _is_memory(column):
        element, shape, memory = _typed_memory("keys", column)
        if element not in ("int64", "uint64", "int32", "uint32") or len(shape) != 1:
            raise InvalidArgumentError(
                f"an array of {element or 'another type'} with {len(shape)} dimensions; one of whole numbers with 1 is "
                "needed",
                field="keys",
            )
        column = memory.view(element)
    return column_of("keys", column)


def rows_of(layout: RowLayout, rows: Any, count: int, name: str = "rows") -> U8:
    """Return the bytes of `count` rows, one after the other; nothing is copied that lies so. `name`: for the error.

    Raises
    ------
    InvalidArgumentError
        If they are of another type or shape, not as many, or masked.
    """
    if not isinstance(rows, np.ndarray) and speaks_arrow(rows):
        return _rows_of_arrow(layout, rows, count)
    if _is_memory(rows):
        element, shape, memory = _typed_memory(name, rows)
        require_rows(layout, element, shape, count, name)
        return memory
    if np.ma.is_masked(rows):
        raise InvalidArgumentError("some are masked: fill them, or leave them out", field=name)
    array = np.asarray(rows if hasattr(rows, "__array__") else _of_lists(layout, rows, name))
    require_rows(layout, _element_of(array.dtype), array.shape, count, name)
    held: U8 = np.ascontiguousarray(array.view(_bits(layout, array)), layout.dtype).reshape(-1).view(np.uint8)
    return held


def default_of(layout: RowLayout, default: Any) -> NDArray[Any] | None:
    """Return what rows are that are not there, as a row or one element of it; None: the caller says nothing.

    Raises
    ------
    InvalidArgumentError
        If it is neither a number that the elements have, nor an array or a list of the shape of a row.
    """
    if default is None:
        return None
    if not isinstance(default, list | tuple) and np.ndim(default):
        row: NDArray[Any] = layout.array_of(rows_of(layout, default[None], 1, "default"))[0]
        return row.copy()  # it may lie in `out`
    given = _of_lists(layout, default, "default")
    if given.shape not in ((), layout.shape):
        raise InvalidArgumentError(
            f"a list with the shape {given.shape}; a number, or a row with the shape {layout.shape} is needed",
            field="default",
        )
    return given


def _memory_for(layout: RowLayout, out: Any, count: int) -> NDArray[Any]:
    """Return a caller's memory for `count` rows as an array.

    Raises
    ------
    InvalidArgumentError
        If it is of another type or shape, or cannot be written to.
    """
    if isinstance(out, np.ndarray):
        require_rows(layout, _element_of(out.dtype), out.shape, count, "out")
        array = out
    elif hasattr(out, "__dlpack__"):
        element, shape, memory = _typed_memory("out", out)
        require_rows(layout, element, shape, count, "out")
        array = memory.view(layout.dtype).reshape(shape)
    else:
        raise InvalidArgumentError(
            f"a {type(out).__name__}; an array of NumPy, or one that speaks DLPack, is needed", field="out"
        )
    if not array.flags.writeable:
        raise InvalidArgumentError("it cannot be written to", field="out")
    return array.view(_bits(layout, array))


def _bytes_in(layout: RowLayout, memory: NDArray[Any]) -> U8 | None:
    """Return memory for rows as (n, row_bytes), if each lies there as the table has it, and apart from the others."""
    is_same = memory.dtype == layout.dtype and memory[:1].flags.c_contiguous and not np.ma.isMaskedArray(memory)
    if not len(memory) or not is_same or (len(memory) > 1 and abs(memory.strides[0]) < layout.row_bytes):
        return None
    rows: U8 = memory.reshape(len(memory), -1).view(np.uint8)
    return rows


def scanned(layout: RowLayout, piece: ScanPiece) -> tuple[U64, NDArray[Any]]:
    """Return a piece of a scan as keys and rows; raises InvalidArgumentError if the table has another layout."""
    if piece.layout != layout.name:
        raise InvalidArgumentError(f"the table has the layout {piece.layout}, not {layout.name}", field="table")
    return piece.rows()


def _is_memory(array: Any) -> bool:
    """Whether an array is one of another library, or has become memory already."""
    return isinstance(array, dlpack.TypedMemory) or (not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"))


def _typed_memory(name: str, array: Any) -> dlpack.TypedMemory:
    if isinstance(array, dlpack.TypedMemory):
        return array
    with naming_memory(name, array):
        return dlpack.typed_memory_of(array)


@contextmanager
def naming_memory(name: str, array: Any) -> Iterator[None]:
    """Have errors of `dlpack` say which argument they are about."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error), field=name) from None
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"a {type(array).__name__} that gives no memory: {error}", field=name) from error


def _rows_of_arrow(layout: RowLayout, rows: Any, count: int) -> U8:
    pa = pyarrow()
    try:
        column = in_one_piece(column_of_arrow(rows))
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"a {type(rows).__name__} that cannot be read: {error}", field="rows") from error
    found = layout_of_rows(column.type)
    element = found.element if found else str(column.type)
    require_rows(layout, element, (len(column), *(found.shape if found else ())), count, "rows")
    return bytes_of_rows(column)


def _of_lists(layout: RowLayout, rows: Any, name: str) -> NDArray[Any]:
    """Return lists of numbers, or one number, which have no type, as an array of the table's."""
    if layout.element == "bfloat16":
        raise InvalidArgumentError("a number, which cannot say bits of bfloat16: give an array of them", field=name)
    wanted = layout.dtype
    is_whole = wanted.kind in "iu"
    try:
        given = np.asarray(rows, object if is_whole else None)  # else NumPy makes fractions of large numbers
    except ValueError as error:
        raise InvalidArgumentError(f"lists that are no array: {error}", field=name) from None
    if not given.size:
        return given.astype(wanted) if given.ndim > 1 else np.empty((0, *layout.shape), wanted)
    is_right = given.dtype.kind in "iuf"
    if is_whole:
        limits = np.iinfo(wanted)
        is_right = all(
            type(number) is not bool and isinstance(number, int | np.integer) and limits.min <= number <= limits.max
            for number in given.flat
        )
    if is_right:
        with np.errstate(over="ignore"):
            array = given.astype(wanted)
        is_right = is_whole or np.array_equal(np.isinf(array), np.isinf(given))
    if not is_right:
        raise InvalidArgumentError(f"numbers that are none of {layout.element}", field=name)
    return array


def _meant(layout: RowLayout, element: str) -> str:
    """Return the type of an array's elements; uint16 may be bfloat16."""
    return layout.element if layout.element == "bfloat16" and element == "uint16" else element


def _element_of(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("=").name


def _bits(layout: RowLayout, array: NDArray[Any]) -> np.dtype[Any]:
    """Return the type that an array of rows is seen as: a bfloat16 of another library as its bits."""
    return layout.dtype if array.dtype.name == "bfloat16" else array.dtype


def require_rows(layout: RowLayout, element: str, shape: tuple[int, ...], count: int, name: str) -> None:
    """Raise `InvalidArgumentError` unless an array of elements of a type, with a shape, is `count` rows."""
    if _meant(layout, element) != layout.element or shape[1:] != layout.shape or not shape:
        raise InvalidArgumentError(
            f"an array of {element or 'another type'} with the shape {shape}; one of {layout.element} with the shape "
            f"({count}, {', '.join(map(str, layout.shape))}) is needed",
            field=name,
        )
    if shape[0] != count:
        raise InvalidArgumentError(f"{counted(count, 'key')}, {counted(shape[0], 'row')}", field=name)
