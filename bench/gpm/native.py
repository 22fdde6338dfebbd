"""The native workloads: kernels persist what they compute, or the host does after each kernel (CAP).

Under CAP, the same kernels store to volatile memory. All of an operation is timed, computing too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpkvs import gpm
from gpkvs.bench.gpm.cap import Cap, VolatileArray
from gpkvs.bench.gpm.operation import Operation
from gpkvs.bench.gpm.workloads.bfs import Bfs
from gpkvs.bench.gpm.workloads.prefix_sum import PrefixSum
from gpkvs.bench.gpm.workloads.srad import Srad
from gpkvs.config import DurabilityName


def prefix_sum(folder: Path, size: str, place: gpm.Place, durability: DurabilityName) -> Iterator[Operation]:
    """Yield the sums of all elements."""
    elements = PrefixSum.SIZES[size].elements
    with PrefixSum(folder, PrefixSum.SIZES[size], place, durability) as work:
        persistent = work.partial, work.sums
        volatile: Any = VolatileArray(elements, "u4", place), VolatileArray(elements, "u4", place)

        def reset(cap: Cap | None) -> None:
            arrays = work.partial, work.sums = volatile if cap else persistent
            for array in arrays:
                array.device[...] = 0
            work.restart()

        def run_cap(cap: Cap) -> None:
            work.run()
            cap.persist(*(array.device for array in volatile))

        what = f"sums of {elements:,} elements"
        yield Operation("PS", "native", what, work.run, run_cap, 8 * elements, reset=reset)
        work.partial, work.sums = persistent


def bfs(folder: Path, size: str, place: gpm.Place, durability: DurabilityName) -> Iterator[Operation]:
    """Yield a search of the whole graph.

    Under CAP, the host persists each level's part of the sequence, so kernels come back to it after each level, and the
    costs once, at the end: they follow from the sequence.
    """
    with Bfs(folder, Bfs.SIZES[size], place, durability) as work:
        persistent = work.cost, work.sequence, work.final
        nodes = work.size.nodes
        volatile: Any = (
            VolatileArray(nodes, "u4", place),
            VolatileArray(nodes, "u4", place),
            VolatileArray(1, "u8", place),
        )

        def reset(cap: Cap | None) -> None:
            work.cost, work.sequence, work.final = volatile if cap else persistent
            work.levels = 1 if cap and cap.persists else work.size.levels  # the host has to see each
            work.restart()

        def run_cap(cap: Cap) -> None:
            while work.step():
                first = work.level_begin & ~15  # a line of the cache
                cap.persist(work.sequence.device[first : work.level_end], at=4 * first)
            cap.persist(work.cost.device, at=4 * nodes + 4095 & ~4095)

        work.run()
        found = int(work.final.host[0])
        yield Operation("BFS", "native", f"a search of {found:,} nodes", work.run, run_cap, 8 * found, reset=reset)
        work.cost, work.sequence, work.final = persistent


def srad(folder: Path, size: str, place: gpm.Place, durability: DurabilityName) -> Iterator[Operation]:
    """Yield one pass over the image: coefficients and the next image."""
    with Srad(folder, Srad.SIZES[size], place, durability) as work:
        pixels = work.size.pixels
        persistent = *work.images, work.coefficient, work.final
        volatile: Any = (*(VolatileArray(pixels, "f4", place) for _ in range(3)), VolatileArray(1, "u8", place))

        def reset(cap: Cap | None) -> None:
            *work.images, work.coefficient, work.final = volatile if cap else persistent
            work.final.host[0] = 0

        def run_gpm() -> None:
            work.step()
            work.step()

        def run_cap(cap: Cap) -> None:
            work.step()
            cap.persist(work.coefficient.device)
            work.step()
            cap.persist(work.images[1].device, at=4 * pixels)

        yield Operation("SRAD", "native", f"a pass over {pixels:,} pixels", run_gpm, run_cap, 8 * pixels, reset=reset)
        *work.images, work.coefficient, work.final = persistent
