"""A kernel that stores to PM, launched with what belongs to it by one native call.

``kernels/commit/launch_stores.hpp`` says what that is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final

from gpkvs.backends.words import Words, places_of
from gpkvs.native import launched_kernels, library, stores_launch

_PLACES: Final = places_of(library.gpkvs_launch_stores_fields())
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
    packed, on_mirror = _packed(args), _packed(mirror_args)
    given |= {"kernel": _NUMBERS[kernel], "args": ctypes.addressof(packed)}
    if on_mirror:
        given["mirror_args"] = ctypes.addressof(on_mirror)
    stores = Words(_PLACES, **given)  # it lives until it is launched
    return stores_launch(stores.address)


def _packed(words: Iterable[int]) -> ctypes.Array[ctypes.c_uint64]:
    given = tuple(words)
    return (ctypes.c_uint64 * len(given))(*given)
