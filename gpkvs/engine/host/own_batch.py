"""The results of a batch that native code runs for this process (``kernels/engine/own_batch.hpp``)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping

import numpy as np

from gpkvs.backends.cpu.backend import address_of
from gpkvs.backends.fields import fields_of
from gpkvs.batch import U8, U32, U64, Batch, BatchPart, BatchResult, RequestResult, Status, constant
from gpkvs.engine.host.places import Places
from gpkvs.engine.seam.engine_batch import EngineRefusal
from gpkvs.engine.seam.left import Left
from gpkvs.errors import GpkvsError, NoMemoryError
from gpkvs.native import library

_FIRST_REQUEST = constant(np.int64(0), 1)  # the number of a batch's only request
_WORDS = struct.Struct(f"{len(fields_of(library.gpkvs_own_batch_fields()))}Q")
_NUMBER_BYTES = 8
_REFUSAL_BYTES = ctypes.sizeof(EngineRefusal)

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_delete = ctypes.cast(library.gpkvs_own_batch_delete, ctypes.c_void_p)
library.gpkvs_own_batch_set_python(ctypes.cast(ctypes.pythonapi.PyCapsule_GetPointer, ctypes.c_void_p))


class _Values:
    """Memory of native code's that `numpy.asarray` takes over; whoever has the array keeps the memory."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: object, address: int, count: int) -> None:
        self._memory = memory
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (count,), "data": (address, False)}


class OwnBatch:
    """Room for the results of one batch.

    How long the values are is known when the batch is planned, so native code takes their memory. A capsule frees it,
    in C: an interrupt that comes while a finalizer in Python runs is lost.

    Parameters
    ----------
    batch
        It.
    has_records
        Whether its table has records, and so versions.

    Attributes
    ----------
    addresses
        Of what native code stores to.
    found_words
        Address of the numbers that GETs find, which are the values if all find one; `None` for other batches.

    Raises
    ------
    MemoryError
        If there is no memory for it.
    """

    def __init__(self, batch: Batch, *, has_records: bool) -> None:
        self._batch = batch
        self._has_records = has_records
        n = len(batch)
        self._status: U8 = np.empty(n, np.uint8)
        # Numbers that are read are there, or not: all have one length.
        only_gets_numbers = batch.gets == n and not has_records
        self._lengths: U32 | None = None if only_gets_numbers else np.empty(n, np.uint32)
        self._found: U64 | None = np.empty(n, np.uint64) if only_gets_numbers else None
        self.found_words = None if self._found is None else address_of(self._found)
        # Without records all versions are 0, unless conditions fail: then they are numbers.
        self._versions: U64 | None = np.empty(n, np.uint64) if has_records or batch.looks_first else None
        address = library.gpkvs_own_batch_new()
        if not address:
            raise NoMemoryError
        self._memory = _new_capsule(address, None, _delete)
        self._words = (ctypes.c_char * _WORDS.size).from_address(address)
        versions = None if self._versions is None else address_of(self._versions)
        lengths = None if self._lengths is None else address_of(self._lengths)
        self._places = Places.of(batch.into) if batch.into is not None and has_records else None
        self.addresses = address, address_of(self._status), versions, lengths, *(self._places or (None, None, None))

    def result(self, lacking: Mapping[Left, GpkvsError]) -> tuple[BatchResult, int]:
        """Return the results of the batch that was run, and the gate before which nobody may see them.

        Requests that lacked something hear so in the words given.
        """
        requests, gate, operations, returning, value_bytes, refusals, data = _WORDS.unpack_from(self._words)
        rejected: dict[int, GpkvsError] = {}
        for at in range(data, data + refusals * _REFUSAL_BYTES, _REFUSAL_BYTES):
            refusal = EngineRefusal.from_address(at)
            rejected[refusal.request] = refusal.error(lacking)
        if len(rejected) == requests:
            return BatchResult(None, rejected, requests), gate
        values: U8 = np.empty(0, np.uint8)
        if self._found is not None and not refusals and value_bytes == _NUMBER_BYTES * operations:
            values = self._found[:operations].view(np.uint8)
        elif value_bytes and not self._places:
            values = np.asarray(_Values(self._memory, data + refusals * _REFUSAL_BYTES, value_bytes))
        status = self._status[:operations]
        versions, are_numbers = self._told(status)
        result = RequestResult(status, versions, self._lengths_of(status, returning, value_bytes), values, are_numbers)
        return BatchResult(self._part(requests, rejected, result), rejected, requests), gate

    def _lengths_of(self, status: U8, returning: int, value_bytes: int) -> U32:
        if self._lengths is not None:
            return self._lengths[:returning]
        if value_bytes == _NUMBER_BYTES * returning:
            return constant(np.uint32(_NUMBER_BYTES), returning)
        lengths: U32 = (status == Status.OK.value) * np.uint32(_NUMBER_BYTES)
        return lengths

    def _told(self, status: U8) -> tuple[U64, bool]:
        """Return the versions of the operations that were done, and whether they are numbers."""
        n = len(status)
        if self._has_records:
            assert self._versions is not None
            return self._versions[:n], False
        if self._versions is None or not bool((status == Status.CONDITION_FAILED.value).any()):
            return constant(np.uint64(0), n), False
        return self._versions[:n], True

    def _part(self, requests: int, rejected: dict[int, GpkvsError], result: RequestResult) -> BatchPart:
        batch = self._batch
        if not rejected and requests == len(batch.request_ops):
            numbers = _FIRST_REQUEST if requests == 1 else np.arange(requests)
            return BatchPart(numbers, batch, result)
        is_done = np.arange(len(batch.request_ops)) < requests
        is_done[list(rejected)] = False
        return BatchPart(np.flatnonzero(is_done), batch.take(is_done), result)
