"""Why the native engine leaves a batch (``EngineLeft`` in kernels/engine_batch.h)."""

from __future__ import annotations

import ctypes
from enum import IntEnum, auto
from typing import Final

from gpkvs.native import library


class Left(IntEnum):
    """A reason; the list in C says what each of them means."""

    TURN = 1
    TABLE = auto()
    COLUMNS = auto()
    LAYOUT = auto()
    LARGE_READS = auto()
    LARGE_VALUES = auto()
    EXPIRED = auto()
    EXPIRY = auto()
    GROW_INDEX = auto()
    FREE_HEAP = auto()
    GROW_HEAP = auto()
    GROW_BLOBS = auto()
    GROW_LOG = auto()
    RENEW = auto()
    MEMORY = auto()
    DEVICE = auto()


GROWS: Final = frozenset({Left.GROW_INDEX, Left.GROW_HEAP, Left.GROW_BLOBS, Left.GROW_LOG})
"""Something has to grow; it takes steps, each as large as may be then."""

_names = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "gpkvs_engine_left_reasons"))).decode()
assert [reason.name for reason in Left] == _names.split()
