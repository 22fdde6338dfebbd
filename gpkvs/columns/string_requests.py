"""Requests on many byte strings, as columns: those of `set_many` and its kind, and those of tables of rows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpkvs.batch import U8, U32, U64, Batch, Op, RequestResult, Status, constant, is_constant
from gpkvs.columns.buffers import OP_BYTES, PART_BYTES_MAX, RequestBounds
from gpkvs.columns.byte_strings import ByteStrings
from gpkvs.columns.numbers import found_of, joined_found, parts_of
from gpkvs.errors import CorruptRecordError, InvalidArgumentError
from gpkvs.request_checks import wrong_bytes
from gpkvs.text import counted

_NO_VERSIONS = np.empty(0, np.uint64)
_NONE = ByteStrings(np.empty(0, np.uint8), np.empty(0, np.uint32))


class StringRequests:
    """The requests of one kind of operation on many keys; none, where there are no keys.

    Parameters
    ----------
    op
        SET, ADD, GET or DELETE.
    keys, values
        As many; None for operations without values.
    bounds
        Of each request.
    atomic
        Whether all must go into one.
    returned_bytes
        Of each value that is read, where that is known.

    Raises
    ------
    InvalidArgumentError
        If there are not as many values as keys, one is out of the limits, or all must go into one request and are too
        many.

    Examples
    --------
    >>> while batch := requests.next():  # doctest: +SKIP
    ...     try:
    ...         requests.took(execute(batch))
    ...     except InvalidArgumentError as error:
    ...         requests.refused(error)
    """

    def __init__(
        self,
        op: Op,
        keys: ByteStrings,
        values: ByteStrings | None,
        bounds: RequestBounds,
        *,
        atomic: bool,
        returned_bytes: int = 0,
    ) -> None:
        if values is not None and len(values) != len(keys):
            raise InvalidArgumentError(f"{counted(len(keys), 'key')}, {counted(len(values), 'value')}", field="values")
        self._op, self._keys, self._values, self._atomic = op, keys, values, atomic
        self._ops_max = self._count_max = bounds.limits.request_ops_max
        if atomic:
            parts_of(len(keys), self._ops_max, atomic=True)
        limits = bounds.limits
        _check_lengths("keys", keys, limits.key_bytes_min, limits.key_bytes_max)
        if values is not None:
            _check_lengths("values", values, limits.value_bytes_min, limits.value_bytes_max)
        self._bytes_max = min(bounds.bytes_max, PART_BYTES_MAX)
        self._returned_bytes = returned_bytes
        self._first = self._last = 0
        self._results: list[RequestResult] = []

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """How many bytes there are up to the end of each operation."""
        lengths = self._keys.lengths.astype(np.int64) + (OP_BYTES + self._returned_bytes)
        return np.cumsum(lengths if self._values is None else lengths + self._values.lengths)

    def next(self) -> Batch | None:
        """Return the next request; None: all are done."""
        if self._first == len(self._keys):
            return None
        self._last = len(self._keys) if self._atomic else self._end()
        part = slice(self._first, self._last)
        keys, values = self._keys[part], _NONE if self._values is None else self._values[part]
        return Batch(
            ops=constant(np.uint8(self._op), len(keys)),
            keys=keys.data,
            key_lengths=keys.lengths,
            values=values.data,
            value_lengths=values.lengths,
        )

    def _end(self) -> int:
        """Return where the next part ends: it has one operation at least, and no more bytes than may go together."""
        first = self._first
        before = int(self._ends[first - 1]) if first else 0
        last = int(np.searchsorted(self._ends, before + self._bytes_max, side="right"))
        return min(max(last, first + 1), first + self._count_max)

    def took(self, result: RequestResult) -> None:
        """Take the result of the last request.

        Raises
        ------
        CorruptRecordError
            If an operation met a record that fails its checksum.
        """
        damaged = result.status == Status.CORRUPT.value
        if damaged.any():
            index = self._first + int(np.argmax(damaged))
            raise CorruptRecordError(
                f"operation {index}: the record fails its checksum, so no value is returned; the writes of the "
                "request, if any, are done"
            )
        self._results.append(result)
        self._first = self._last
        self._count_max = min(2 * self._count_max, self._ops_max)

    def refused(self, error: InvalidArgumentError) -> None:
        """Have a request of GETs that reads too much done in halves; raise any other error.

        Nobody knows before how long values are. What is over another limit ends as an error of one operation.
        """
        count = self._last - self._first
        if self._op is not Op.GET or self._atomic or error.field != "ops" or count == 1:
            raise error
        self._count_max = count // 2

    def found(self) -> NDArray[np.bool_]:
        """Return which keys were there."""
        return joined_found([found_of(result) for result in self._results])

    def versions(self) -> U64:
        """Return what each operation has told of versions (`RequestResult`)."""
        versions: U64 = np.concatenate([_NO_VERSIONS, *(result.versions for result in self._results)])
        return versions

    def values(self) -> ByteStrings:
        """Return the values that GETs have read."""
        results = self._results
        if len(results) == 1:
            return ByteStrings(results[0].values, results[0].value_lengths, self.found())
        data: U8 = np.concatenate([_NONE.data, *(result.values for result in results)])
        lengths: U32 = np.concatenate([_NONE.lengths, *(result.value_lengths for result in results)])
        return ByteStrings(data, lengths, self.found())


def _check_lengths(name: str, strings: ByteStrings, bytes_min: int, bytes_max: int) -> None:
    """Check all lengths, before anything is done; raises `InvalidArgumentError`."""
    lengths = strings.lengths[:1] if is_constant(strings.lengths) else strings.lengths
    wrong = (lengths < bytes_min) | (lengths > bytes_max)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise wrong_bytes(name[:-1], int(lengths[index]), bytes_min, bytes_max, field=name, index=index)
