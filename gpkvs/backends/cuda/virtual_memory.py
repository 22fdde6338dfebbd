"""Memory of one GPU, or of several, that grows where it is: addresses are reserved, and chunks are mapped there.

With several GPUs its stripes are dealt to them in turn. All of them reach all of it at the same addresses, the other
GPUs' stripes over the link between them. CuPy has no functions for that, so these are the driver's own
(``cuMemAddressReserve``, ``cuMemMap``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from gpkvs.errors import BackendError

_HAS_VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handle_kinds", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class DriverRefusalError(BackendError):
    """The driver has no such memory, or no such addresses."""


class VirtualMemory:
    """Memory whose address stays when it grows.

    Parameters
    ----------
    room
        Bytes that it can become at most; addresses only, which take no memory.
    devices
        The GPUs that it lies on.
    stripe_bytes
        How much lies on one of them before the next one's turn; a multiple of the driver's granule (2 MiB).

    Attributes
    ----------
    bytes
        How many it has.

    Raises
    ------
    DriverRefusalError
        If the GPU has no virtual memory, or no addresses are left.
    """

    def __init__(self, room: int, devices: Sequence[int], stripe_bytes: int) -> None:
        self._devices = tuple(devices)
        self._stripe_bytes = stripe_bytes
        runtime.setDevice(devices[0])  # so that this thread has a context
        self._granule = max(_granule(device) for device in devices)
        self._room = _rounded(room, self._granule)
        self.bytes = 0
        self._chunks: list[tuple[int, int, int]] = []  # address, bytes, handle
        address = ctypes.c_uint64()
        _call("cuMemAddressReserve", ctypes.byref(address), self._room, 0, 0, 0)
        self.address = address.value

    def grow(self, size: int) -> None:
        """Have `size` bytes at least; what is new has any contents.

        Raises
        ------
        DriverRefusalError
            If the GPU has no memory for it; nothing has changed.
        """
        wanted = _rounded(size, self._granule)
        if wanted > self._room:
            raise DriverRefusalError(f"{size:,} bytes are more than the {self._room:,} that addresses are there for")
        had, chunks = self.bytes, len(self._chunks)
        try:
            while self.bytes < wanted:
                self._map(min(wanted, self._stripe_end()) - self.bytes)
        except BaseException:
            self._unmap(chunks)
            self.bytes = had
            raise

    def _stripe_end(self) -> int:
        """Return where the stripe ends that the next chunk belongs to; with one GPU there is only one."""
        return self._room if len(self._devices) == 1 else _rounded(self.bytes + 1, self._stripe_bytes)

    def _map(self, more: int) -> None:
        device = self._devices[self.bytes // self._stripe_bytes % len(self._devices)]
        handle = ctypes.c_uint64()
        _call("cuMemCreate", ctypes.byref(handle), more, ctypes.byref(_properties(device)), 0)
        at = self.address + self.bytes
        try:
            _call("cuMemMap", at, more, 0, handle, 0)
            try:
                users = sorted(set(self._devices))
                access = (_Access * len(users))(*[_Access(_Location(_ON_DEVICE, user), _READ_WRITE) for user in users])
                _call("cuMemSetAccess", at, more, access, len(users))
            except BaseException:
                _call("cuMemUnmap", at, more)
                raise
        except BaseException:
            _call("cuMemRelease", handle)
            raise
        self._chunks.append((at, more, handle.value))
        self.bytes += more

    def array(self, size: int) -> Any:
        """Return the first `size` bytes as an array; it must not be used after `close`."""
        assert size <= self.bytes
        memory = cupy.cuda.UnownedMemory(self.address, self.bytes, self, self._devices[0])
        return cupy.ndarray(size, np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def close(self) -> None:
        """Give all of it back, when no kernel uses it any more."""
        for device in self._devices[::-1]:  # the first one stays this thread's
            runtime.setDevice(device)
            runtime.deviceSynchronize()
        self._unmap(0)
        if self.address:
            _call("cuMemAddressFree", self.address, self._room)
        self.address = self.bytes = 0

    def _unmap(self, first: int) -> None:
        """Give back the chunks from a number on."""
        for address, size, handle in self._chunks[first:]:
            _call("cuMemUnmap", address, size)
            _call("cuMemRelease", ctypes.c_uint64(handle))
        del self._chunks[first:]


def _rounded(size: int, granule: int) -> int:
    return -(-size // granule) * granule


def _properties(device: int) -> _Properties:
    return _Properties(_PINNED, 0, _Location(_ON_DEVICE, device))


@cache
def _granule(device: int) -> int:
    """Return the unit of chunks."""
    has = ctypes.c_int()
    _call("cuDeviceGetAttribute", ctypes.byref(has), _HAS_VIRTUAL_MEMORY, device)
    if not has.value:
        raise DriverRefusalError(f"GPU {device} has no virtual memory")
    granule = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(granule), ctypes.byref(_properties(device)), 0)
    return granule.value


@cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        word, words, number, handle = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
        size = ctypes.c_size_t
        for name, arguments in {
            "cuDeviceGetAttribute": (words, number, number),
            "cuMemGetAllocationGranularity": (words, words, number),
            "cuMemAddressReserve": (words, size, size, word, word),
            "cuMemCreate": (words, size, words, word),
            "cuMemMap": (word, size, size, handle, word),
            "cuMemSetAccess": (word, size, words, size),
            "cuMemUnmap": (word, size),
            "cuMemRelease": (handle,),
            "cuMemAddressFree": (word, size),
        }.items():
            getattr(driver, name).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise DriverRefusalError(f"the driver has no virtual memory: {error}") from error
    return driver


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        raise DriverRefusalError(f"{name}: CUDA error {status}")
