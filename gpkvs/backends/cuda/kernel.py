"""A kernel as it is launched on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpkvs.backends.fields import KernelFields


class GpuKernel:
    """One kernel: its code for the GPU, and how its arguments are packed.

    Parameters
    ----------
    fields
        What it takes, and what it is.
    code
        Callable as CuPy's kernels are; None of a kernel that runs on the host only.
    """

    def __init__(self, fields: KernelFields, code: Any) -> None:
        self.fields = fields
        self.code = code
        # The arguments as words, and the same memory as the struct that a launch copies.
        self.words = np.empty(len(fields.fields), np.uint64)
        self.struct = self.words.view(np.dtype((np.void, self.words.nbytes)))
