"""Memory of callers that values are read into and stored from, without copies on the way.

A buffer is anything with contiguous memory of the host: an array of NumPy, `bytearray`, `memoryview`, `mmap`, or an
array of a library that speaks DLPack, such as a tensor of PyTorch. All are checked before anything is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from gpkvs.batch import U8, RequestResult, Status
from gpkvs.columns import dlpack
from gpkvs.columns.numbers import parts_of
from gpkvs.config import Limits
from gpkvs.errors import InvalidArgumentError
from gpkvs.operations import Bytes, OperationList, ResultLists, Ttl, as_bytes
from gpkvs.text import counted, quoted

Buffer: TypeAlias = Any
"""Contiguous memory of the host."""
Told = TypeVar("Told")

_NOT_CONTIGUOUS = "its memory is not contiguous (in the order of C): use a copy, as numpy.ascontiguousarray makes one"
_OBJECTS = "an array of Python objects: its memory holds addresses, and no values"
PART_BYTES_MAX = 16 << 20  # of a request of several: others run between them, and a server of little memory takes it
OP_BYTES = 17  # of an operation in a message, at most, beside its key and value


class RequestBounds(NamedTuple):
    """What requests hold, one or several.

    Parameters
    ----------
    limits
        Of each.
    bytes_max
        Of keys and values, where it is one of several.
    """

    limits: Limits
    bytes_max: int


class KeyBuffers:
    """Keys, and a buffer for each; checked.

    Parameters
    ----------
    keys, buffers
        Several, or one key and one buffer.
    writable
        Whether the buffers are to be stored to: then they may not overlap.

    Raises
    ------
    InvalidArgumentError
        If a buffer cannot be used, or they are not as many as the keys.
    TypeError
        If a key is not like bytes.
    """

    def __init__(self, keys: Bytes | Iterable[Bytes], buffers: Any, *, writable: bool) -> None:
        self._is_one = _is_key(keys)
        given = [buffers] if self._is_one else _listed(buffers)
        self._keys = [as_bytes("key", key) for key in ([keys] if self._is_one else keys)]  # type: ignore[arg-type]
        if len(given) != len(self._keys):
            raise InvalidArgumentError(
                f"{counted(len(self._keys), 'key')}, {counted(len(given), 'buffer')}: each key has one", field="buffers"
            )
        self._buffers = [_memory(index, buffer, writable=writable) for index, buffer in enumerate(given)]
        if writable and len(given) > 1:
            _require_apart(self._buffers)

    def gets(self, bounds: RequestBounds, *, atomic: bool) -> list[tuple[OperationList, list[U8]]]:
        """Return the requests that read the values, each with the buffers for its own.

        Parameters
        ----------
        bounds
            Of each.
        atomic
            Whether all must go into one.

        Raises
        ------
        InvalidArgumentError
            If a key is out of the limits, or all must go into one request and are too many.
        """
        requests = []
        for part in self._parts(bounds, atomic=atomic):
            operations = OperationList((), bounds.limits)
            for key in self._keys[part]:
                operations.get(key)
            requests.append((operations, self._buffers[part]))
        return requests

    def sets(self, bounds: RequestBounds, ttl: Ttl, *, atomic: bool) -> list[OperationList]:
        """Return the requests that store the values; parameters and errors as `gets`."""
        requests = []
        for part in self._parts(bounds, atomic=atomic):
            operations = OperationList((), bounds.limits)
            for key, buffer in zip(self._keys[part], self._buffers[part], strict=True):
                operations.set_from(key, buffer.data, ttl=ttl)
            requests.append(operations)
        return requests

    def _parts(self, bounds: RequestBounds, *, atomic: bool) -> list[slice]:
        """Return how they are cut into requests: into none, where there are none."""
        keys = self._keys
        if atomic:
            return parts_of(len(keys), bounds.limits.request_ops_max, atomic=True)
        cuts, size, bytes_max = [0], 0, min(bounds.bytes_max, PART_BYTES_MAX)
        for index, (key, buffer) in enumerate(zip(keys, self._buffers, strict=True)):
            more = len(key) + len(buffer) + OP_BYTES
            size += more
            if index > cuts[-1] and (size > bytes_max or index - cuts[-1] == bounds.limits.request_ops_max):
                cuts.append(index)
                size = more
        return [slice(*ends) for ends in pairwise([*cuts, len(keys)])] if keys else []

    def told(self, results: Sequence[Told]) -> Any:
        """Return a result for each key as a list, or that of the one key."""
        return results[0] if self._is_one else list(results)


def placed_of(result: RequestResult, keys: Sequence[bytes], buffers: Sequence[U8]) -> list[int | None]:
    """Put the values of a result into buffers, unless they lie there already (`Batch.into`); as `placed`."""
    values = result.values if len(result.values) else None
    return placed(result.status.tolist(), result.value_lengths.tolist(), values, keys, buffers)


def placed(
    statuses: Sequence[int], lengths: Sequence[int], values: U8 | None, keys: Sequence[bytes], buffers: Sequence[U8]
) -> list[int | None]:
    """Put the values that GETs return into their buffers; return how long each is, None for a miss.

    Parameters
    ----------
    statuses, lengths
        Of the GETs and their values.
    values
        One after the other; None: they lie in their buffers already.
    keys, buffers
        Of the GETs.

    Raises
    ------
    CorruptRecordError
        If a record is damaged; no buffer has changed.
    InvalidArgumentError
        If a value is longer than its buffer; no buffer has changed.
    """
    ResultLists(statuses, (), ()).require_sound()
    for index, (key, length, buffer) in enumerate(zip(keys, lengths, buffers, strict=True)):
        if length > len(buffer):
            raise InvalidArgumentError(
                f"the value of key {quoted(key)} has {counted(length, 'byte')}, its buffer {len(buffer):,}; no buffer "
                "of the request was changed",
                field="buffers",
                index=index,
            )
    first = 0
    if values is not None:
        for length, buffer in zip(lengths, buffers, strict=True):
            buffer[:length] = values[first : first + length]
            first += length
    return [length if status == Status.OK else None for status, length in zip(statuses, lengths, strict=True)]


def _is_key(keys: object) -> bool:
    """Whether it is one key, or should be one: several are a list, or an array whose rows are keys."""
    return isinstance(keys, bytes | bytearray | memoryview | str | int) or (
        isinstance(keys, np.ndarray) and keys.ndim == 1
    )


def _listed(buffers: Any) -> list[Any]:
    try:
        return list(buffers)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"several keys take several buffers: {error}", field="buffers") from None


def _memory(index: int, given: Any, *, writable: bool) -> U8:
    """Return the memory of one buffer."""

    def refused(reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(reason, field="buffers", index=index)

    try:
        memory = _bytes_of(given)
    except InvalidArgumentError as error:
        raise refused(str(error)) from None
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise refused(f"the memory of {type(given).__name__} cannot be used: {error}") from error
    if writable and not memory.flags.writeable:
        raise refused(f"the memory of {type(given).__name__} is read-only, and a value is to be stored there")
    return memory


def _bytes_of(given: Any) -> U8:
    """Return memory as bytes."""
    if isinstance(given, np.ndarray):
        return _bytes_of_array(np.asarray(given))
    try:
        view = memoryview(given)
    except TypeError:
        if not hasattr(given, "__dlpack__"):
            raise
        return dlpack.memory_of(given)
    if not view.c_contiguous:
        raise InvalidArgumentError(_NOT_CONTIGUOUS)
    if "O" in view.format and np.asarray(view).dtype.hasobject:
        raise InvalidArgumentError(_OBJECTS)
    return np.frombuffer(view, np.uint8)


def _bytes_of_array(array: np.ndarray[Any, Any]) -> U8:
    """Return the memory of an array of NumPy, also of a type that the buffer protocol does not know."""
    if array.dtype.hasobject:
        raise InvalidArgumentError(_OBJECTS)
    if not array.flags.c_contiguous:
        raise InvalidArgumentError(_NOT_CONTIGUOUS)
    return array.reshape(-1).view(np.uint8)


def _require_apart(buffers: Sequence[U8]) -> None:
    """Refuse buffers that overlap: what one of them held would be lost."""
    spans = sorted((buffer.ctypes.data, len(buffer), index) for index, buffer in enumerate(buffers) if len(buffer))
    for (before, size, one), (begin, _, other) in pairwise(spans):
        if before + size > begin:
            first, second = sorted((one, other))
            raise InvalidArgumentError(
                f"its memory overlaps that of buffer {first}: each value needs its own", field="buffers", index=second
            )
