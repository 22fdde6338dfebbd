"""A kernel as it is launched on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpkvs.backends.fields import KernelFields
from gpkvs.kernels.source import group_kernels, pm_kernels

_LANES = 8  # of an item of a group kernel

_SERIAL = frozenset({"admit_bytes", "admit_u64", "admit_records"})


class GpuKernel:
    """One kernel: its code for the GPU, what it does, and how its arguments are packed.

    Parameters
    ----------
    name
        In ``gpkvs/kernels``.
    code
        Callable as CuPy's kernels are.
    """

    def __init__(self, name: str, code: Any) -> None:
        self.fields = KernelFields(name)
        self.code = code
        self.lanes = _LANES if name in group_kernels() else 1
        self.is_serial = name in _SERIAL
        self.stores_to_pm = name in pm_kernels()
        self.stores_to_index = "index" in self.fields.stored_to
        # The arguments as words, and the same memory as the struct that a launch copies.
        self.words = np.empty(len(self.fields.fields), np.uint64)
        self.struct = self.words.view(np.dtype((np.void, self.words.nbytes)))
