"""The structs that Python and native code share, as a library describes them (`STRUCT` in kernels/engine_batch.h)."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Final

_TYPES: Final[dict[str, Any]] = {
    "bool": ctypes.c_bool,
    "char": ctypes.c_char,
    "const char*": ctypes.c_char_p,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}
_STRUCT: Final = re.compile(r"(\w+)\{(.*?)\}")
_FIELD: Final = re.compile(r"(.+?) (\w+)((?:\[\d+\])*);")


def describe(text: bytes, **structs: type[ctypes.Structure]) -> None:
    """Give structs the fields that a library's text has for them, by their names in C; those not given are made."""
    for name, fields in _STRUCT.findall(text.decode()):
        struct = structs.setdefault(name, type(name, (ctypes.Structure,), {}))
        struct._fields_ = [(field, _type_of(kind, counts, structs)) for kind, field, counts in _FIELD.findall(fields)]


def _type_of(kind: str, counts: str, structs: dict[str, type[ctypes.Structure]]) -> Any:
    found = _TYPES.get(kind) or structs.get(kind)
    if kind.endswith("*") and not found:
        struct = structs.get(kind.removeprefix("const ").removesuffix("*"))
        found = ctypes.POINTER(struct) if struct else ctypes.c_void_p
    assert found, f"no type of Python's is known for {kind}"
    for count in reversed(re.findall(r"\d+", counts)):
        found *= int(count)
    return found
