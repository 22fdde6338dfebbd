"""Breadth-first search that persists costs and the search sequence: native persistence.

The search goes level by level. A kernel visits the neighbours of the last level's nodes, and stores the cost of each
new node and its place in the search sequence to persistent memory. When a level is durable, one word says how many
nodes of the sequence are final. A run after a crash forgets what lies beyond that word, and does that level again.

A map of roads has thousands of levels, and few nodes in each. So one block of threads goes on by itself for many
levels, which it can because the host need not persist them. A wide level gets a kernel with all threads.

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

THREADS = 1024  # of the block that goes on by itself
NARROW = 16 * THREADS  # nodes of a level that it takes

SOURCE = f"""
#include "gpm.cuh"
const u32 THREADS = {THREADS}, NARROW = {NARROW};
"""
SOURCE += """
struct Graph {
    const u32 *first_edge, *neighbour;
    u32 *found, *queue;  // the volatile copies of `cost` and `sequence`
    u32 *cost, *sequence;
};

// Stores the neighbours of a node that nobody has found before, behind those that are `queued`.
GPM_DEVICE void visit(const Graph& of, u32 node, u32 new_cost, u32* queued) {
    for (u32 edge = of.first_edge[node]; edge < of.first_edge[node + 1]; edge++) {
        const u32 next = of.neighbour[edge];
        if (of.found[next] != 0 || !gpm_replace(&of.found[next], 0u, new_cost)) continue;
        const u32 place = gpm_fetch_add(queued, 1u);
        of.queue[place] = next;
        gpm_store(&of.cost[next], new_cost);
        gpm_store(&of.sequence[place], next);
    }
}

#define GRAPH_ARGS(F)                                                                  \\
    F(const u32*, first_edge) F(const u32*, neighbour) F(u32*, found) F(u32*, queue)   \\
    F(u32*, cost) F(u32*, sequence)
#define GRAPH_OF(a) {a.first_edge, a.neighbour, a.found, a.queue, a.cost, a.sequence}

// One thread for each node of a level, which begins at `begin`.
#define WIDE_ARGS(F) GRAPH_ARGS(F) F(u64, begin) F(u64, new_cost) F(u32*, queued)
GPM_KERNEL(visit_level, WIDE_ARGS) {
    const Graph graph = GRAPH_OF(a);
    visit(graph, a.queue[a.begin + i], (u32)a.new_cost, a.queued);
}

// One block for several levels, as long as they are narrow. `level` is where the last one begins and ends, and its
// cost.
#define NARROW_ARGS(F) GRAPH_ARGS(F) F(u64, levels) F(u64*, level) F(u64*, final)
GPM_BLOCK_KERNEL(visit_levels, NARROW_ARGS, THREADS) {
    const Graph graph = GRAPH_OF(a);
    GPM_SHARED(u32, queued, 1);
    u64 begin = a.level[0], end = a.level[1], cost = a.level[2];
    GPM_THREADS(t, THREADS) {
        if (t == 0) queued[0] = (u32)end;
    }
    GPM_SYNC();
    for (u64 done = 0; done < a.levels && begin < end && end - begin <= NARROW; done++) {
        cost++;
        GPM_THREADS(t, THREADS) {
            for (u64 place = begin + t; place < end; place += THREADS) visit(graph, a.queue[place], (u32)cost, queued);
            gpm_persist();
        }
        GPM_SYNC();  // this level is durable
        begin = end;
        end = queued[0];
        GPM_THREADS(t, THREADS) {
            if (t == 0) gpm_store(a.final, end);  // durable with what this thread stores next
        }
        GPM_SYNC();  // all know where the next level ends before it grows
    }
    GPM_THREADS(t, THREADS) {
        if (t == 0) {
            a.level[0] = begin;
            a.level[1] = end;
            a.level[2] = cost;
        }
    }
}
"""


@dataclass(frozen=True)
class Size:
    """The sides of the grid, and how many levels a step searches."""

    rows: int
    columns: int
    levels: int

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

    SIZES: ClassVar = {"tiny": Size(4, 8, 3), "small": Size(300, 400, 20), "paper": Size(4096, 5856, 500)}

    def __init__(
        self, folder: Path, size: Size, place: gpm.Place | str = "cpu", durability: DurabilityName = "auto"
    ) -> None:
        self.size, self.place, self.levels = size, gpm.find_place(place), size.levels
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
        self._set_level(int(np.searchsorted(costs, costs[-1])), final, int(costs[-1]))
        found = np.zeros(self.size.nodes, np.uint32)
        found[sequence] = costs
        self.found = xp.asarray(found)
        self.queue = xp.zeros(self.size.nodes, np.uint32)
        self.queue[:final] = xp.asarray(sequence)

    def _set_level(self, begin: int, end: int, cost: int) -> None:
        """Say which nodes of the sequence are the last level."""
        self.level_begin, self.level_end, self.cost_of_level = begin, end, cost

    def step(self) -> bool:
        """Search some levels: one if it is wide."""
        before = self.level_end
        if before - self.level_begin > NARROW:
            self._search_wide()
        else:
            self._search_narrow()
        return self.level_end > before

    def _search_wide(self) -> None:
        queued = self.place.xp.full(1, self.level_end, np.uint32)
        cost = self.cost_of_level + 1
        self._launch(
            "visit_level", self.level_end - self.level_begin, begin=self.level_begin, new_cost=cost, queued=queued
        )
        self._set_level(self.level_end, int(queued[0]), cost)
        self._set_final(self.level_end)

    def _search_narrow(self) -> None:
        level = self.place.words([self.level_begin, self.level_end, self.cost_of_level])
        self._launch("visit_levels", 1, levels=self.levels, level=level, final=self.final)
        self._set_level(*self.place.to_host(level).tolist())

    def _launch(self, kernel: str, items: int, **more: Any) -> None:
        self._kernels.launch(
            kernel,
            items,
            first_edge=self.first_edge,
            neighbour=self.neighbour,
            found=self.found,
            queue=self.queue,
            cost=self.cost,
            sequence=self.sequence,
            **more,
        )

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
