"""Kernels of a user, for the CPU and for GPUs from one source."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Protocol

import numpy as np

from gpkvs.backends.fields import Field
from gpkvs.backends.user_kernel import UserKernel
from gpkvs.columns.whole_number import whole_number
from gpkvs.errors import InvalidArgumentError
from gpkvs.gpm.place import Place, double_word, find_place
from gpkvs.kernels.gpu_source import with_headers


def header() -> str:
    """Return ``gpm.cuh`` as text, for kernels that CuPy or another compiler of CUDA C++ takes as they are.

    `Kernels` needs it not. A `cupy.RawModule` is compiled with it in front and ``options=("--std=c++17",)``; its
    kernels then have `gpm_store`, `gpm_persist` and the logs, and get ``array.device``.
    """
    return with_headers('#include "gpm.cuh"\n', "gpm")


_LOGS: Final = ("GpmLog", "GpmPartitions")


class Handed(Protocol):
    """What can be handed to a kernel: an array or a log in persistent memory."""

    @property
    def kernel_type(self) -> str | np.dtype[Any]:
        """What a kernel's pointer points to: elements, or a structure of ``gpm_log.cuh`` by its name."""

    def kernel_address(self, place: Place, /) -> int:
        """Return the pointer that kernels of a place get.

        Raises
        ------
        InvalidArgumentError
            If it was opened for another place.
        """


@cache
def own_kernels(place: Place) -> Kernels:
    """Return the library's own kernels, for a place."""
    return Kernels("", place)


class Kernels:
    """Kernels compiled for a place.

    Parameters
    ----------
    source
        C++ that includes ``gpm.cuh`` and defines kernels with ``GPM_KERNEL`` and ``GPM_BLOCK_KERNEL``; the header says
        how. The same source runs on the CPU and on GPUs.
    place
        "cpu", "cuda", "cuda:1", or what `find_place` returned.
    name
        What the compiler's messages call it.

    Raises
    ------
    BackendError
        If the place cannot run here, or with the compiler's messages.
    """

    def __init__(self, source: str, place: Place | str = "cpu", *, name: str = "kernels") -> None:
        self.place = find_place(place)
        self._find = self.place.compile(source, name) if source else self.place.own_kernels()
        self._found: dict[str, UserKernel] = {}

    def launch(self, kernel: str, items: int, /, *, wait: bool = True, **arguments: Any) -> None:
        """Run a kernel, after those launched before.

        Parameters
        ----------
        kernel
            Its name.
        items
            How many threads it has; of a block kernel, how many blocks.
        wait
            Whether to return only when it is done: what it stored to persistent memory is durable then. Without,
            `settle` waits.
        **arguments
            Every argument by its name: an array of the place, a `PersistentArray`, a log, or a number.

        Raises
        ------
        InvalidArgumentError
            If there is no such kernel, or an argument is missing, too many, or of a wrong kind.

        Notes
        -----
        A kernel stores where it likes: that its threads stay inside their arrays is its own affair.
        """
        code = self._found.get(kernel) or self._look_up(kernel)
        items = whole_number("items", items, 0)
        names = [field.name for field in code.fields]
        if sorted(names) != sorted(arguments):
            raise InvalidArgumentError(f"the kernel {kernel} takes {', '.join(names)}; got {', '.join(arguments)}")
        words = [self._word(kernel, field, arguments[field.name]) for field in code.fields]
        if items > 0:
            self.place.launch(code, items, words)
        if wait:
            self.place.settle()

    def settle(self) -> None:
        """Return when all kernels that were launched are done."""
        self.place.settle()

    def _look_up(self, kernel: str) -> UserKernel:
        try:
            return self._found.setdefault(kernel, self._find(kernel))
        except KeyError:
            raise InvalidArgumentError(f"there is no kernel {kernel} in this source") from None

    def _word(self, kernel: str, field: Field, argument: Any) -> int:
        if isinstance(argument, (int, np.integer, float, np.floating)):
            return _number_word(kernel, field, argument)
        if not field.is_pointer:
            raise InvalidArgumentError(f"{kernel}: {field.name} is a number, and got a {type(argument).__name__}")
        if hasattr(argument, "kernel_address"):
            handed: Handed = argument
            _require_type(kernel, field, handed.kernel_type)
            return handed.kernel_address(self.place)
        address = self.place.address(argument)
        _require_type(kernel, field, argument.dtype)
        if field.is_stored_to and isinstance(argument, np.ndarray) and not argument.flags.writeable:
            raise InvalidArgumentError(f"{kernel}: {field.name} is stored to, and got an array that is read only")
        return address


def _require_type(kernel: str, field: Field, got: str | np.dtype[Any]) -> None:
    """Raise unless a pointer takes an array of a dtype, or a log; structures of a user's own are taken on trust."""
    wanted: str | np.dtype[Any] = field.pointed_to if field.dtype is None else field.dtype
    if got != wanted and (field.dtype is not None or isinstance(got, str) or wanted in _LOGS):
        raise InvalidArgumentError(f"{kernel}: {field.name} is of {wanted}, and got {got}")


def _number_word(kernel: str, field: Field, number: Any) -> int:
    if field.is_pointer:
        raise InvalidArgumentError(f"{kernel}: {field.name} is a pointer, and got a number")
    if field.kind == "double":
        return double_word(float(number))
    if isinstance(number, (float, np.floating)):
        raise InvalidArgumentError(f"{kernel}: {field.name} is a {field.kind}, and got {number}")
    low, high = (-(1 << 63), 1 << 63) if field.kind == "i64" else (0, 1 << 64)
    if not low <= number < high:
        raise InvalidArgumentError(f"{kernel}: {field.name} is a {field.kind}, which {number} does not fit")
    return int(number) % (1 << 64)
