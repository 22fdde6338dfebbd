"""Whole requests on one table, as native code takes them (``kernels/engine_batch.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpkvs.backends.cpu.backend import address_of
from gpkvs.batch import Batch
from gpkvs.engine.left import Left
from gpkvs.errors import ConflictError, GpkvsError
from gpkvs.native import library
from gpkvs.structs import describe

_ONE = np.ones(1, np.uint32)


class EngineBatch(ctypes.Structure):
    """``struct EngineBatch``."""


class EngineRefusal(ctypes.Structure):
    """``struct EngineRefusal``: a request that was not done."""

    @classmethod
    def of(cls, error: ConflictError) -> EngineRefusal:
        """Return that of a request that a check stopped."""
        return cls(0, 0, error.index, error.found is not None, error.found or 0)

    def conflict(self) -> ConflictError:
        """Return the same as an error."""
        return ConflictError(int(self.failed_check), int(self.found) if self.is_there else None)

    def error(self, lacking: Mapping[Left, GpkvsError]) -> GpkvsError:
        """Return why a request was not done, of one that lacks something in these words."""
        return lacking[Left(self.lacks)] if self.lacks else self.conflict()


class EngineRoom(ctypes.Structure):
    """``struct EngineRoom``: where results go."""


class Engine(ctypes.Structure):
    """``struct Engine``: its calls."""


describe(
    library.gpkvs_engine_structs(),
    EngineBatch=EngineBatch,
    EngineRefusal=EngineRefusal,
    EngineRoom=EngineRoom,
    Engine=Engine,
)


class GivenBatch:
    """A batch on one table, for native code: each request is a message of its own.

    Parameters
    ----------
    batch
        Its columns, which lie on the host.
    value_bytes_max
        Of values that it may return, and make of others, unless it is one request: else a part of it is run.
    found_words
        Address of a word for each operation, of GETs of numbers alone: they leave there what they find.

    Attributes
    ----------
    struct
        Has the columns' addresses.
    """

    def __init__(self, batch: Batch, value_bytes_max: int, found_words: int | None) -> None:
        ops = batch.ops if batch.ops.flags.c_contiguous else np.full(len(batch.ops), batch.ops[0])
        requests = len(batch.request_ops)
        messages = _ONE if requests == 1 else np.ones(requests, np.uint32)
        self._columns = batch, ops, messages  # as long as their addresses are used
        values, value_lengths = batch.values, batch.value_lengths
        self.struct = EngineBatch(
            len(ops),
            address_of(ops),
            address_of_column(batch.keys),
            address_of_column(batch.key_lengths),
            batch.key_lengths.strides[0] // 4,
            address_of_column(values) if len(values) else None,
            address_of_column(value_lengths) if len(value_lengths) else None,
            value_lengths.strides[0] // 4,
            None if batch.expiries is None else address_of(batch.expiries),
            None if batch.conditions is None else address_of(batch.conditions),
            None if batch.expected is None else address_of(batch.expected),
            address_of(batch.request_ops),
            requests,
            address_of(messages),
            requests,
            value_bytes_max,
            batch.table,
            found_words,
            lends_blobs=False,
            versions=None if batch.versions is None else address_of(batch.versions),
        )


def address_of_column(column: NDArray[Any]) -> int:
    """Return where a column begins, also one that is one number for all operations."""
    return address_of(column) if column.flags.c_contiguous else int(column.ctypes.data)
