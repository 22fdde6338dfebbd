"""Arrays of a GPU as keys and rows: what a store with a GPU takes and gives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.base import Backend
from gpkvs.backends.row_cache import RowCaches
from gpkvs.batch import U8
from gpkvs.columns import dlpack
from gpkvs.columns.dlpack import Described, TypedMemory
from gpkvs.columns.row_layout import RowLayout
from gpkvs.engine.engine import Engine
from gpkvs.errors import GpkvsError, InvalidArgumentError
from gpkvs.rows import default_of, keys_of, naming_memory, require_rows

_log = logging.getLogger("gpkvs")

_KEYS_MAX = (1 << 32) - 1
_KEYS = ("uint64", "int64", "uint32", "int32")


class AskedRows(NamedTuple):
    """Rows that are to be read on a GPU, as `Engine.read_rows` takes them."""

    keys: NDArray[np.integer[Any]]
    rows: U8 | None
    absent: U8 | None


class GpuRows:
    """What methods of `Rows` do with arrays of a GPU.

    Parameters
    ----------
    engine, backend
        Of the store.
    caches
        Those of its rows.
    run_alone
        Makes a call while nobody else uses the engine.
    """

    def __init__(
        self, engine: Engine, backend: Backend, caches: RowCaches, run_alone: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self._engine, self._backend, self._run_alone = engine, backend, run_alone
        self._gpu, self._stream = caches.gpu, caches.stream

    def asked(self, layout: RowLayout, keys: Any, out: Any, default: Any) -> AskedRows:
        """Return what `Rows.get` is given, checked; keys, `out` or both are on a GPU.

        Raises
        ------
        InvalidArgumentError
            As it says, or if there are more keys than a GPU numbers.
        """
        column = self._keys(keys) if dlpack.is_on_gpu(keys) else keys_of(keys)
        if len(column) > _KEYS_MAX:
            raise InvalidArgumentError(f"{len(column):,} keys, at most {_KEYS_MAX:,} are read at once", field="keys")
        row = default_of(layout, self._default(default))
        absent = None
        if row is not None:
            absent = np.ascontiguousarray(np.broadcast_to(row, layout.shape)).reshape(-1).view(np.uint8)
        return AskedRows(column, None if out is None else self._out(layout, out, len(column)), absent)

    def _keys(self, keys: Any) -> NDArray[np.integer[Any]]:
        given, column = self._column("keys", keys)
        if given.element not in _KEYS or len(given.shape) != 1:
            raise InvalidArgumentError(
                f"an array of {given.element or 'another type'} with {len(given.shape)} dimensions; one of whole "
                "numbers with 1 is needed",
                field="keys",
            )
        return column.view(given.element)

    def _default(self, default: Any) -> Any:
        """Return what a row is that is not there, on the host."""
        given = self.to_host("default", default)
        if not isinstance(given, TypedMemory):
            return given
        if not given.element:
            raise InvalidArgumentError("elements that are no numbers", field="default")
        bits = "uint16" if given.element == "bfloat16" else given.element  # NumPy has none
        return given.memory.view(bits).reshape(given.shape)

    def _out(self, layout: RowLayout, out: Any, count: int) -> U8:
        if not dlpack.is_on_gpu(out):
            raise InvalidArgumentError("it is on the host, and the keys are on a GPU: leave it away", field="out")
        given, memory = self._column("out", out)
        require_rows(layout, given.element, given.shape, count, "out")
        if given.read_only:
            raise InvalidArgumentError("it cannot be written to", field="out")
        if given.size and given.number != self._gpu:
            raise InvalidArgumentError(
                f"it is on GPU {given.number}, and rows are read on GPU {self._gpu}", field="out"
            )
        return memory

    def to_host(self, name: str, array: Any, /) -> Any:
        """See `GpuArrays.to_host`."""
        if not dlpack.is_on_gpu(array):
            return array
        given, memory = self._column(name, array)
        on_host: U8 = self._run_alone(partial(self._engine.to_host, memory))
        return TypedMemory(given.element, given.shape, on_host)

    def copied(self, rows: Any, /) -> tuple[Any, U8 | None]:
        """See `GpuArrays.copied`."""
        if not dlpack.is_on_gpu(rows):
            return rows, None
        given, memory = self._column("rows", rows)
        copy, on_host = self._run_alone(partial(self._engine.copied, memory))
        return TypedMemory(given.element, given.shape, on_host), copy if given.number == self._gpu else None

    def where_keys_are(self, keys: Any, found: NDArray[np.bool_], /) -> NDArray[np.bool_]:
        """See `GpuArrays.where_keys_are`."""
        if not dlpack.is_on_gpu(keys):
            return found
        try:
            on_gpu: NDArray[np.bool_] = self._run_alone(partial(self._engine.to_gpu, found))
            return on_gpu
        except GpkvsError as error:  # what it is about is done: to raise would say that it is not
            _log.warning("what was found stays on the host: %s", error)
            return found

    def _column(self, name: str, array: Any) -> tuple[Described, U8]:
        """Return what an array of a GPU is, and its bytes."""
        with naming_memory(name, array):
            given = dlpack.of_gpu(array, self._stream)
            return given, self._backend.adopt(given)
