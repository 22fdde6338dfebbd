"""Prefix sums that persist as they are computed: native persistence.

Element j of the result is the sum of the elements of the input up to j. Each block of threads sums one subarray into
persistent memory. Its last thread stores its sum after the others have persisted theirs, so a block whose last sum is
there is whole, and a run after a crash skips it. No log is needed, and no program for recovery. What the next kernel
reads of the sums is a copy in volatile memory: reading persistent memory is slow.

After GPM (ASPLOS '22), sections 4.3 and 5.4, figure 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpkvs import gpm
from gpkvs.bench.gpm.workload import Workload, main, persistent, require_room
from gpkvs.config import DurabilityName

SUBARRAY = 256  # elements, one for each thread of a block

SOURCE = f"""
#include "gpm.cuh"
const u32 SUBARRAY = {SUBARRAY};
const u32 EMPTY = 0;  // no element is 0, so no sum is

// `copy` is in volatile memory, for the next kernel.
#define PARTIAL_ARGS(F) F(const u32*, values) F(u32*, partial) F(u32*, copy)
GPM_BLOCK_KERNEL(partial_sums, PARTIAL_ARGS, SUBARRAY) {{
    const u64 first = b * SUBARRAY;
    if (a.partial[first + SUBARRAY - 1] != EMPTY) {{
        GPM_THREADS(t, SUBARRAY) {{ a.copy[first + t] = a.partial[first + t]; }}
        return;
    }}
    GPM_SHARED(u32, one, SUBARRAY);
    GPM_SHARED(u32, other, SUBARRAY);
    GPM_THREADS(t, SUBARRAY) {{ one[t] = a.values[first + t]; }}
    GPM_SYNC();
    u32 *sums = one, *next = other;
    for (u32 reach = 1; reach < SUBARRAY; reach *= 2) {{  // each sum reaches twice as far back
        GPM_THREADS(t, SUBARRAY) {{ next[t] = sums[t] + (t >= reach ? sums[t - reach] : 0); }}
        GPM_SYNC();
        u32* spare = sums;
        sums = next;
        next = spare;
    }}
    GPM_THREADS(t, SUBARRAY) {{
        a.copy[first + t] = sums[t];
        if (t < SUBARRAY - 1) gpm_store(&a.partial[first + t], sums[t]);
        gpm_persist();
    }}
    GPM_SYNC();
    GPM_THREADS(t, SUBARRAY) {{
        if (t == SUBARRAY - 1) gpm_store(&a.partial[first + t], sums[t]);
        gpm_persist();
    }}
}}

#define FINAL_ARGS(F) F(const u32*, partial) F(const u32*, before) F(u32*, sums)
GPM_BLOCK_KERNEL(final_sums, FINAL_ARGS, SUBARRAY) {{
    const u64 first = b * SUBARRAY;
    if (a.sums[first + SUBARRAY - 1] != EMPTY) return;
    GPM_THREADS(t, SUBARRAY) {{
        if (t < SUBARRAY - 1) gpm_store(&a.sums[first + t], a.before[b] + a.partial[first + t]);
        gpm_persist();
    }}
    GPM_SYNC();
    GPM_THREADS(t, SUBARRAY) {{
        if (t == SUBARRAY - 1) gpm_store(&a.sums[first + t], a.before[b] + a.partial[first + t]);
        gpm_persist();
    }}
}}
"""


@dataclass(frozen=True)
class Size:
    """How many subarrays there are."""

    subarrays: int

    @property
    def elements(self) -> int:
        """How many elements there are; each is 1, 2 or 3, and their sum must fit 32 bits."""
        return self.subarrays * SUBARRAY

    @property
    def file_bytes(self) -> int:
        """Partial and final sums."""
        return 8 * self.elements + (1 << 20)

    @property
    def memory_bytes(self) -> int:
        """The input, a copy of the partial sums, and the sums of subarrays."""
        return 9 * self.elements


class PrefixSum(Workload):
    """See the text above."""

    SIZES: ClassVar = {"tiny": Size(8), "small": Size(1 << 14), "paper": Size(1 << 22)}

    def __init__(
        self, folder: Path, size: Size, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None:
        self.size, self.place = size, gpm.find_place(place)
        require_room(folder, size, self.place)
        self._kernels = gpm.Kernels(SOURCE, self.place, name="prefix_sum")
        values = np.random.default_rng(1).integers(1, 4, size.elements, np.uint32)
        self.values = self.place.xp.asarray(values)
        self.copy = self.place.xp.empty_like(self.values)
        self.partial = persistent(folder / "partial.gpm", size.elements, "u4", self.place, durability)
        self.sums = persistent(folder / "sums.gpm", size.elements, "u4", self.place, durability)
        self.restart()

    def restart(self) -> None:
        """Begin with the first kernel; what is there stays."""
        self._steps = iter((self._sum_subarrays, self._add_what_is_before))

    def step(self) -> bool:
        """Run the next of two kernels; each leaves out what is there already."""
        step = next(self._steps, None)
        if step:
            step()
        return step is not None

    def _sum_subarrays(self) -> None:
        self._kernels.launch(
            "partial_sums", self.size.subarrays, values=self.values, partial=self.partial, copy=self.copy
        )

    def _add_what_is_before(self) -> None:
        xp = self.place.xp
        totals = self.copy[SUBARRAY - 1 :: SUBARRAY]
        before = xp.cumsum(totals, dtype=xp.uint32) - totals
        self._kernels.launch("final_sums", self.size.subarrays, partial=self.copy, before=before, sums=self.sums)

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the sums."""
        return {"sums": self.sums.host.copy()}

    def close(self) -> None:
        """Close both arrays."""
        self.partial.close()
        self.sums.close()


if __name__ == "__main__":
    main(PrefixSum, __doc__)
