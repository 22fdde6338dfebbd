"""The arguments of a kernel, as the compiled library tells them: one list for every backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from gpkvs.backends.base import Argument
from gpkvs.errors import InvalidArgumentError
from gpkvs.native import kernel_symbol

_DTYPES: dict[str, np.dtype[np.generic]] = {
    "u8": np.dtype(np.uint8),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "i64": np.dtype(np.int64),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
}
_NUMBERS = ("u64", "i64", "double")  # of 8 bytes, as every argument


@dataclass(frozen=True)
class Field:
    """One argument: a number, or a pointer."""

    name: str
    kind: str  # its type in C++
    is_pointer: bool
    is_stored_to: bool
    dtype: np.dtype[np.generic] | None  # of what it points to; None for structures

    @property
    def pointed_to(self) -> str:
        """The type in C++ of what it points to."""
        return self.kind.removeprefix("const ").removesuffix("*").strip()


class KernelFields:
    """What a kernel takes, in the order of its struct of 8-byte words, and what it is, as the library exports it.

    Attributes
    ----------
    lanes
        Threads of a GPU that one item takes.
    stores_to_pm
        Whether the kernel stores to PM.
    is_serial
        Whether it is one item, for a thread of the host.
    """

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        symbol = kernel_symbol(kernel)
        self.fields: tuple[Field, ...] = fields_of(symbol.fields)
        self.lanes: int = symbol.lanes
        self.stores_to_pm = bool(symbol.stores_to_pm)
        self.is_serial = bool(symbol.is_serial)

    @cached_property
    def names(self) -> set[str]:
        """Names of all fields."""
        return {field.name for field in self.fields}

    @cached_property
    def stored_to(self) -> tuple[str, ...]:
        """Names of the fields through which the kernel stores."""
        return tuple(field.name for field in self.fields if field.is_stored_to)

    @cached_property
    def pointers(self) -> tuple[Field, ...]:
        """The fields that are addresses."""
        return tuple(field for field in self.fields if field.is_pointer)

    def check(self, arguments: Mapping[str, Argument]) -> tuple[Field, ...]:
        """Return the fields; a missing or extra argument is our own bug."""
        assert arguments.keys() == self.names, f"{self.kernel} takes {sorted(self.names)}, got {sorted(arguments)}"
        return self.fields


def fields_of_user(kernel: str, text: bytes) -> tuple[Field, ...]:
    """Return the fields of a user's kernel.

    Raises
    ------
    InvalidArgumentError
        If one is of a type that cannot be handed over.
    """
    fields = fields_of(text)
    for field in fields:
        if not field.is_pointer and field.kind not in _NUMBERS:
            raise InvalidArgumentError(f"{kernel}: {field.name} is a {field.kind}: numbers are u64, i64 or double")
    return fields


@cache  # each opening of a store asks for the same few
def fields_of(text: bytes) -> tuple[Field, ...]:
    """Return the fields of a struct that the library describes."""
    return tuple(_field(field) for field in text.decode().rstrip(";").split(";"))


def _field(text: str) -> Field:
    kind, _, name = text.rpartition(" ")
    is_pointer = kind.endswith("*")
    dtype = _DTYPES.get(kind.removeprefix("const ").removesuffix("*")) if is_pointer else None
    return Field(name, kind, is_pointer, is_pointer and not kind.startswith("const "), dtype)
