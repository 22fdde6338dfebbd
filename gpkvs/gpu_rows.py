"""Arrays of a GPU as keys and rows: what a store with a GPU takes and gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs import dlpack
from gpkvs.backends.base import Backend
from gpkvs.backends.row_cache import KnownRows, RowCaches
from gpkvs.batch import U8, U64
from gpkvs.dlpack import Described, TypedMemory
from gpkvs.engine.engine import Engine
from gpkvs.errors import InvalidArgumentError
from gpkvs.row_layout import RowLayout
from gpkvs.rows import default_of, keys_of, require_rows

_KEYS = ("uint64", "int64", "uint32", "int32")


class AskedRows(NamedTuple):
    """Rows that are to be read on a GPU, as `Engine.read_rows` takes them."""

    keys: NDArray[np.integer[Any]]
    rows: U8 | None
    absent: U8 | None


class KeptRows(NamedTuple):
    """Rows that were stored, as `Engine.keep_rows` takes them."""

    keys: NDArray[np.integer[Any]]
    row_bytes: int
    rows: KnownRows


class GpuRows:
    """What methods of `Rows` do with arrays of a GPU.

    Parameters
    ----------
    engine, backend
        Of the store.
    caches
        Those of its rows.
    """

    def __init__(self, engine: Engine, backend: Backend, caches: RowCaches) -> None:
        self._engine, self._backend = engine, backend
        self._gpu, self._stream = caches.gpu, caches.stream

    def asked(self, layout: RowLayout, keys: Any, out: Any, default: Any) -> AskedRows:
        """Return what `Rows.get` is given, checked; keys, `out` or both are on a GPU.

        Raises
        ------
        InvalidArgumentError
            As it says.
        """
        column = self._keys(keys) if dlpack.is_on_gpu(keys) else keys_of(keys)
        row = default_of(layout, self.to_host("default", default))
        absent = None
        if row is not None:
            absent = np.ascontiguousarray(np.broadcast_to(row, layout.shape)).reshape(-1).view(np.uint8)
        return AskedRows(column, None if out is None else self._out(layout, out, len(column)), absent)

    def _keys(self, keys: Any) -> NDArray[np.integer[Any]]:
        given = self._described("keys", keys)
        if given.element not in _KEYS or len(given.shape) != 1:
            raise InvalidArgumentError(
                f"an array of {given.element or 'another type'} with {len(given.shape)} dimensions; one of whole "
                "numbers with 1 is needed",
                field="keys",
            )
        return self._backend.adopt(given)

    def _out(self, layout: RowLayout, out: Any, count: int) -> U8:
        if not dlpack.is_on_gpu(out):
            raise InvalidArgumentError("it is on the host, and the keys are on a GPU: leave it away", field="out")
        given = self._described("out", out)
        require_rows(layout, given.element, given.shape, count, "out")
        if given.read_only:
            raise InvalidArgumentError("it cannot be written to", field="out")
        if given.size and given.number != self._gpu:
            raise InvalidArgumentError(
                f"it is on GPU {given.number}, and rows are read on GPU {self._gpu}", field="out"
            )
        memory: U8 = self._backend.adopt(given).reshape(-1).view(np.uint8)
        return memory

    def to_host(self, name: str, array: Any, /) -> Any:
        """See `GpuArrays.to_host`."""
        if not dlpack.is_on_gpu(array):
            return array
        given = self._described(name, array)
        memory = self._backend.adopt(given).reshape(-1).view(np.uint8)
        return TypedMemory(given.element, given.shape, self._engine.to_host(memory))

    def where_keys_are(self, keys: Any, found: NDArray[np.bool_], /) -> NDArray[np.bool_]:
        """See `GpuArrays.where_keys_are`."""
        return self._engine.to_gpu(found) if dlpack.is_on_gpu(keys) else found

    def copied(self, rows: Any, /) -> tuple[Any, U8 | None]:
        """See `GpuArrays.copied`."""
        if not dlpack.is_on_gpu(rows):
            return rows, None
        given = self._described("rows", rows)
        memory = self._backend.adopt(given).reshape(-1).view(np.uint8)
        copy, on_host = self._engine.copied(memory)
        return TypedMemory(given.element, given.shape, on_host), copy if given.number == self._gpu else None

    def kept(self, layout: RowLayout, keys: Any, rows: U8, stored: NDArray[np.bool_], versions: U64) -> KeptRows:
        """Return rows that were stored as `Engine.keep_rows` takes them; `rows` are of `copied`."""
        return KeptRows(self._keys(keys), layout.row_bytes, KnownRows(rows, stored.view(np.uint8), versions))

    def _described(self, name: str, array: Any) -> Described:
        try:
            return dlpack.of_gpu(array, self._stream)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(str(error), field=name) from None
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"a {type(array).__name__} that gives no memory: {error}", field=name) from error
