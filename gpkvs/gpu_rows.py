"""Arrays of a GPU as keys and rows: what a store with a GPU takes and gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs import dlpack
from gpkvs.backends.base import Backend
from gpkvs.batch import U8
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


class GpuRows:
    """What methods of `Rows` do with arrays of a GPU.

    Parameters
    ----------
    engine, backend
        Of the store.
    gpu
        Where it reads rows, as CUDA counts it.
    """

    def __init__(self, engine: Engine, backend: Backend, gpu: int) -> None:
        self._engine, self._backend, self._gpu = engine, backend, gpu

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
        given = _described("keys", keys)
        if given.element not in _KEYS or len(given.shape) != 1:
            raise InvalidArgumentError(
                f"an array of {given.element or 'another type'} with {len(given.shape)} dimensions; one of whole "
                "numbers with 1 is needed",
                field="keys",
            )
        return self._backend.adopt(keys)

    def _out(self, layout: RowLayout, out: Any, count: int) -> U8:
        if not dlpack.is_on_gpu(out):
            raise InvalidArgumentError("it is on the host, and the keys are on a GPU: leave it away", field="out")
        given = _described("out", out)
        require_rows(layout, given.element, given.shape, count, "out")
        if given.read_only:
            raise InvalidArgumentError("it cannot be written to", field="out")
        if given.size and given.number != self._gpu:
            raise InvalidArgumentError(
                f"it is on GPU {given.number}, and rows are read on GPU {self._gpu}", field="out"
            )
        memory: U8 = self._backend.adopt(out).reshape(-1).view(np.uint8)
        return memory

    def to_host(self, name: str, array: Any, /) -> Any:
        """See `GpuArrays.to_host`."""
        if not dlpack.is_on_gpu(array):
            return array
        given = _described(name, array)
        memory = self._backend.adopt(array).reshape(-1).view(np.uint8)
        return TypedMemory(given.element, given.shape, self._engine.to_host(memory))

    def where_keys_are(self, keys: Any, found: NDArray[np.bool_], /) -> NDArray[np.bool_]:
        """See `GpuArrays.where_keys_are`."""
        return self._engine.to_gpu(found) if dlpack.is_on_gpu(keys) else found


def _described(name: str, array: Any) -> Described:
    try:
        return dlpack.of_gpu(array)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error), field=name) from None
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"a {type(array).__name__} that gives no memory: {error}", field=name) from error
