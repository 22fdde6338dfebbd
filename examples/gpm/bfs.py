"""Breadth-first search that persists costs and the search sequence: native persistence.

The search goes level by level. A kernel visits the neighbours of the last level's nodes, and stores the cost of each
new node and its place in the search sequence to persistent memory. When the kernel is done, one word says how many
nodes of the sequence are final. A run after a crash forgets what lies beyond that word, and does that level again.

The graph is read only, and lies in volatile memory, as do copies of what kernels read of their own results: reading
persistent memory is slow (section 4.3). It is like a map of roads: a grid whose edges are there with probability 0.8.

After GPM (ASPLOS '22), section 4.3.
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

SOURCE = """
#include "gpm.cuh"

// One thread for each node of the last level. `found` and `queue` are the volatile copies of `cost` and `sequence`.
#define VISIT_ARGS(F)                                                                       \\
    F(const u32*, first_edge) F(const u32*, neighbour) F(u32*, found) F(u32*, queue)        \\
    F(u32*, queued) F(u64, level_begin) F(u64, new_cost) F(u32*, cost) F(u32*, sequence)
GPM_KERNEL(visit, VISIT_ARGS) {
    const u32 node = a.queue[a.level_begin + i];
    for (u32 edge = a.first_edge[node]; edge < a.first_edge[node + 1]; edge++) {
        const u32 next = a.neighbour[edge];
        if (a.found[next] != 0 || !gpm_replace(&a.found[next], 0u, (u32)a.new_cost)) continue;
        const u32 place = gpm_fetch_add(a.queued, 1u);
        a.queue[place] = next;
        gpm_store(&a.cost[next], (u32)a.new_cost);
        gpm_store(&a.sequence[place], next);
    }
}
"""


@dataclass(frozen=True)
class Size:
    """The sides of the grid."""

    rows: int
    columns: int

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.rows * self.columns

    @property
    def file_bytes(self) -> int:
        """Costs and the sequence."""
        return 8 * self.nodes + (1 << 20)

    @property
    def memory_bytes(self) -> int:
        """The graph, and copies of costs and sequence."""
        return 28 * self.nodes


class Bfs(Workload):
    """See the text above. A cost is the number of edges from the source, and 1; a node that is not reached has 0."""

    SIZES: ClassVar = {"tiny": Size(4, 8), "small": Size(300, 400), "paper": Size(4096, 5856)}

    def __init__(
        self, folder: Path, size: Size, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None:
        self.size, self.place = size, gpm.find_place(place)
        require_room(folder, size, self.place)
        self._kernels = gpm.Kernels(SOURCE, self.place, name="bfs")
        xp = self.place.xp
        self.first_edge, self.neighbour = (xp.asarray(array) for array in _roads(size))
        self.cost = persistent(folder / "cost.gpm", size.nodes, "u4", self.place, durability)
        self.sequence = persistent(folder / "sequence.gpm", size.nodes, "u4", self.place, durability)
        self.final = persistent(folder / "final.gpm", 1, "u8", self.place, durability)
        if self.final.host[0]:
            self._copy()
        else:
            self.restart()

    def restart(self) -> None:
        """Forget all but the source, in the middle of the grid."""
        source = self.size.rows // 2 * self.size.columns + self.size.columns // 2
        self.cost.host[source] = 1
        self.sequence.host[0] = source
        self.cost.persist(source, source + 1)
        self.sequence.persist(0, 1)
        self._set_final(1)
        self._copy()

    def _set_final(self, nodes: int) -> None:
        """Make the first nodes of the sequence final, by one word: they and their costs are durable already."""
        self.final.host[0] = nodes
        self.final.persist()

    def _copy(self) -> None:
        """Copy what is final to volatile memory."""
        xp, final = self.place.xp, int(self.final.host[0])
        sequence = self.sequence.host[:final]
        costs = self.cost.host[sequence]
        self.level = int(costs[-1])
        self.level_begin, self.level_end = int(np.searchsorted(costs, self.level)), final
        found = np.zeros(self.size.nodes, np.uint32)
        found[sequence] = costs
        self.found = xp.asarray(found)
        self.queue = xp.zeros(self.size.nodes, np.uint32)
        self.queue[:final] = xp.asarray(sequence)
        self.queued = xp.full(1, final, np.uint32)

    def step(self) -> bool:
        """Search one level."""
        self._kernels.launch(
            "visit",
            self.level_end - self.level_begin,
            first_edge=self.first_edge,
            neighbour=self.neighbour,
            found=self.found,
            queue=self.queue,
            queued=self.queued,
            level_begin=self.level_begin,
            new_cost=self.level + 1,
            cost=self.cost,
            sequence=self.sequence,
        )
        queued = int(self.queued[0])
        if queued == self.level_end:
            return False
        self._set_final(queued)
        self.level, self.level_begin, self.level_end = self.level + 1, self.level_end, queued
        return True

    def result(self) -> dict[str, NDArray[Any]]:
        """Return the costs of final nodes, and how many those are; the order of a level's nodes is any."""
        final = self.final.host.copy()
        sequence = self.sequence.host[: int(final[0])]
        cost = np.zeros(self.size.nodes, np.uint32)
        cost[sequence] = self.cost.host[sequence]
        return {"cost": cost, "final": final}

    def close(self) -> None:
        """Close the arrays."""
        for array in (self.cost, self.sequence, self.final):
            array.close()


def _roads(size: Size) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return a graph: where each node's edges begin, and to which nodes they lead."""
    rng = np.random.default_rng(2)
    right = rng.random((size.rows, size.columns), np.float32) < 0.8
    down = rng.random((size.rows, size.columns), np.float32) < 0.8
    right[:, -1] = down[-1, :] = False
    left, up = np.roll(right, 1, 1), np.roll(down, 1, 0)
    exists = np.stack([right, down, left, up], -1).reshape(-1, 4)
    nodes = np.arange(size.nodes, dtype=np.int64)[:, None]
    ends = (nodes + np.array([1, size.columns, -1, -size.columns])).astype(np.uint32)
    first_edge = np.zeros(size.nodes + 1, np.uint32)
    np.cumsum(exists.sum(1), out=first_edge[1:])
    return first_edge, ends[exists]


if __name__ == "__main__":
    main(Bfs, __doc__)
