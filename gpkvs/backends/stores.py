"""A kernel that stores to PM, launched with what belongs to it by one native call.

``kernels/launch_stores.hpp`` says what that is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final

from gpkvs.backends.fields import fields_of
from gpkvs.native import launched_kernels, library, stores_launch

_FIELDS: Final = tuple(field.name for field in fields_of(library.gpkvs_launch_stores_fields()))
_AT: Final = {name: at for at, name in enumerate(_FIELDS)}
_NUMBERS: Final = {name: number for number, name in enumerate(launched_kernels())}


def launch_stores(kernel: str, args: Iterable[int], mirror_args: Iterable[int] = (), **given: int) -> int:
    """Launch a kernel that stores to PM.

    Parameters
    ----------
    kernel
        Its name.
    args, mirror_args
        Its arguments, and those by which it does the same to a mirror; none: there is no mirror.
    **given
        Other fields of the struct: numbers and addresses.

    Returns
    -------
    int
        An error of the driver, or 0.
    """
    words, packed, on_mirror = (ctypes.c_uint64 * len(_FIELDS))(), _packed(args), _packed(mirror_args)
    given |= {"kernel": _NUMBERS[kernel], "args": ctypes.addressof(packed)}
    if on_mirror:
        given["mirror_args"] = ctypes.addressof(on_mirror)
    for name, word in given.items():
        words[_AT[name]] = word
    return stores_launch(ctypes.addressof(words))


def _packed(words: Iterable[int]) -> ctypes.Array[ctypes.c_uint64]:
    given = tuple(words)
    return (ctypes.c_uint64 * len(given))(*given)
