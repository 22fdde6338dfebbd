"""Memory of arrays that speak DLPack, as bytes, whatever their type is.

NumPy takes such arrays too, but it does not know all types (bfloat16), and takes an array for read-only whose library
says nothing of that. The layouts are those of ``dlpack.h``.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final, NamedTuple

import numpy as np

from gpkvs.batch import U8
from gpkvs.errors import InvalidArgumentError

_HOST: Final = {1, 3, 11}  # kDLCPU; kDLCUDAHost and kDLROCMHost, which are pinned memory of the host
_GPU: Final = {2, 13}  # kDLCUDA, kDLCUDAManaged
_READ_ONLY: Final = 1
_VERSION: Final = (1, 0)
_KINDS: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _VersionedTensor(ctypes.Structure):
    """``DLManagedTensorVersioned``; the older ``DLManagedTensor`` begins with its tensor."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_has_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))


class _Lent:
    """What `numpy.asarray` takes over; whoever has the array keeps the capsule, and so the memory."""

    __slots__ = ("__array_interface__", "_capsule")

    def __init__(self, capsule: object, address: int, size: int, *, read_only: bool) -> None:
        self._capsule = capsule
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, read_only)}


class TypedMemory(NamedTuple):
    """The memory of an array: what its elements are (``float32``, ``bfloat16``, ...; empty: others), and its shape."""

    element: str
    shape: tuple[int, ...]
    memory: U8


def memory_of(array: Any) -> U8:
    """Return the memory of an array with ``__dlpack__``, which is not copied; raises as `typed_memory_of`."""
    return typed_memory_of(array).memory


def typed_memory_of(array: Any) -> TypedMemory:
    """Return the memory of an array with ``__dlpack__``, which is not copied, and what it is.

    Raises
    ------
    InvalidArgumentError
        If it is not the host's, or not contiguous.
    BufferError, RuntimeError, TypeError, ValueError
        If its library does not give it.
    """
    device = int(array.__dlpack_device__()[0])
    if device not in _HOST:
        raise InvalidArgumentError(
            f"the array of {type(array).__name__} is in the memory of a device (its number in DLPack is {device}), and "
            "only the host's memory can be used: copy it there, as tensor.cpu() does"
        )
    described = _described(array)
    if not described.size:
        return TypedMemory(described.element, described.shape, np.empty(0, np.uint8))
    lent = _Lent(described.capsule, described.address, described.size, read_only=described.read_only)
    return TypedMemory(described.element, described.shape, np.asarray(lent))


def is_on_gpu(array: Any) -> bool:
    """Whether an array speaks DLPack, and lies in the memory of an NVIDIA GPU."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return False
    try:
        return int(array.__dlpack_device__()[0]) in _GPU
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError):  # as Arrow says of missing values
        return False


def of_gpu(array: Any, stream: int) -> Described:
    """Return what an array of a GPU is. What was launched before on its memory comes before what a stream does next.

    Raises
    ------
    InvalidArgumentError
        If it is not contiguous.
    BufferError, RuntimeError, TypeError, ValueError
        If its library does not give it.
    """
    return _described(array, stream=stream)


class Described(NamedTuple):
    """What an array is, and where: `element` and `shape` as of `TypedMemory`, and `size` bytes from `address` on.

    Whoever uses them keeps the capsule. `number` is the GPU's.
    """

    element: str
    shape: tuple[int, ...]
    address: int
    size: int
    read_only: bool
    number: int
    capsule: object


def _described(array: Any, **stream: int) -> Described:
    try:
        capsule = array.__dlpack__(max_version=_VERSION, **stream)
    except TypeError:  # a library from before DLPack 1.0
        capsule = array.__dlpack__(**stream)
    read_only = False
    if _has_name(capsule, b"dltensor_versioned"):
        versioned = _VersionedTensor.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if versioned.major != _VERSION[0]:
            raise BufferError(f"it speaks DLPack {versioned.major}, not {_VERSION[0]}")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    shape = tensor.shape[: tensor.dimensions]
    if tensor.strides and not _is_contiguous(shape, tensor.strides[: tensor.dimensions]):
        raise InvalidArgumentError("its memory is not contiguous: use a copy, as tensor.contiguous() makes one")
    size = -(-math.prod(shape) * tensor.bits * tensor.lanes // 8)
    kind = _KINDS.get(tensor.type_code, "") if tensor.lanes == 1 else ""
    element = f"{kind}{tensor.bits}" if kind else ""
    address = (tensor.data or 0) + tensor.byte_offset
    return Described(element, tuple(shape), address, size, read_only, tensor.device_id, capsule)


def _is_contiguous(shape: list[int], strides: list[int]) -> bool:
    """Whether elements lie one after the other, the last dimension's first."""
    expected = 1
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count != 1 and stride != expected:
            return not math.prod(shape)
        expected *= count
    return True
