"""Small programs on gpkvs.gpm, each with its recovery, whose crashes are explored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from gpkvs.config import DurabilityName
from gpkvs.gpm import Checkpoint, CoalescedLog, Kernels, PartitionedLog, PersistentArray, Versions
from gpkvs.gpm.file import GpmFile
from gpkvs.gpm.place import HostPlace, Place
from gpkvs.gpm.transaction import EPOCH_MAX, State

Outcome = Any  # what a program holds after its recovery; compared with ==


@dataclass(frozen=True)
class GpmWorkload:
    """A program whose crashes are explored.

    Parameters
    ----------
    name
        On the command line.
    prepare
        Makes its files in a directory, before anything is explored.
    run
        Goes on from there; yields after each step that is durable.
    recover
        Opens the files, recovers, and returns what they hold.
    durability
        Of the files: `process` for the models of memory, `msync` for that of disks.
    ends_alike
        Whether recovery goes on to the end, so that every state must end as an undisturbed run.
    is_of_parts
        Whether what it holds is a list whose parts change one by one, as the entries of each thread do.
    """

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path], Iterator[None]]
    recover: Callable[[Path], Outcome]
    durability: DurabilityName = "process"
    ends_alike: bool = False
    is_of_parts: bool = False


@cache
def _place() -> Place:
    """Return one thread of the host: the traced build has no locks."""
    return HostPlace(1)


_SOURCE = """
#include "gpm.cuh"
struct Old { u64 at, value; };

// One thread logs, another one stores, as in examples/gpm/gpdb.py: the entry is durable before they meet.
#define UPDATE_ARGS(F) F(const GpmLog*, log) F(u64*, table) F(u64, first) F(u64, value)
GPM_BLOCK_KERNEL(update, UPDATE_ARGS, 3) {
    GPM_SHARED(Old, old, 3);
    GPM_SHARED(bool, is_logged, 3);
    GPM_THREADS(t, 3) {
        old[t].at = a.first + t;
        old[t].value = a.table[old[t].at];
        is_logged[t] = gpm_log_insert(a.log, t, &old[t]);
    }
    GPM_SYNC();
    GPM_THREADS(t, 3) {
        const u32 other = (t + 1) % 3;
        if (is_logged[other]) gpm_store(&a.table[old[other].at], a.value + other);
        gpm_persist();
    }
}

#define UNDO_ARGS(F) F(const GpmLog*, log) F(u64*, table)
GPM_KERNEL(undo, UNDO_ARGS) {
    for (u64 n = gpm_log_count(a.log, i); n > 0; n--) {
        Old old;
        if (gpm_log_read(a.log, i, n - 1, &old)) gpm_store(&a.table[old.at], old.value);
    }
}

// The last thread of a block stores behind the others, so what it stored says that all is there (GPM, section 5.4).
#define PARTIAL_ARGS(F) F(const u64*, given) F(u64*, partial)
GPM_BLOCK_KERNEL(partial_sums, PARTIAL_ARGS, 4) {
    const u64 first = b * 4;
    if (a.partial[first + 3]) return;
    GPM_THREADS(t, 3) {
        u64 sum = 0;
        for (u64 k = 0; k <= t; k++) sum += a.given[first + k];
        gpm_store(&a.partial[first + t], sum);
        gpm_persist();
    }
    GPM_SYNC();
    GPM_THREADS(t, 4) {
        if (t == 3) {
            gpm_store(&a.partial[first + 3], a.partial[first + 2] + a.given[first + 3]);
            gpm_persist();
        }
    }
}

// A breadth-first search in which one block goes on for several levels, as that of examples/gpm/bfs.py. A level is
// durable before `final` says how many nodes count.
#define SEARCH_ARGS(F) F(const u64*, begin) F(const u64*, edge) F(u64*, found) F(u64*, queue) F(u64*, level) \\
    F(u64, levels) F(u64*, cost) F(u64*, sequence) F(u64*, final)
GPM_BLOCK_KERNEL(search, SEARCH_ARGS, 2) {
    u64 first = a.level[0], last = a.level[1], queued = last, cost = a.level[2];
    for (u64 done = 0; done < a.levels && first < last; done++) {
        cost++;
        GPM_THREADS(t, 2) {
            for (u64 place = first + t; place < last; place += 2)
                for (u64 e = a.begin[a.queue[place]]; e < a.begin[a.queue[place] + 1]; e++) {
                    const u64 next = a.edge[e];
                    if (a.found[next]) continue;
                    a.found[next] = cost;
                    a.queue[queued] = next;
                    gpm_store(&a.cost[next], cost);
                    gpm_store(&a.sequence[queued++], next);
                }
            gpm_persist();
        }
        GPM_SYNC();
        first = last;
        last = queued;
        GPM_THREADS(t, 2) {
            if (t == 0) gpm_store(a.final, last);
        }
        GPM_SYNC();
    }
    a.level[0] = first;
    a.level[1] = last;
    a.level[2] = cost;
}
"""


@cache
def compiled() -> Kernels:
    """Return the kernels of all workloads; they are compiled before anything is recorded."""
    return Kernels(_SOURCE, _place(), name="explored")


_SLOTS = 6


def _array(folder: Path, name: str = "table.gpm") -> PersistentArray:
    return PersistentArray.open(folder / name, place=_place(), durability="process")


def _log(folder: Path) -> CoalescedLog:
    return CoalescedLog.open(folder / "log.gpm", place=_place(), durability="process")


def _make_table(folder: Path) -> None:
    PersistentArray.create(folder / "table.gpm", _SLOTS, "u8", durability="process").close()
    CoalescedLog.create(folder / "log.gpm", 3, 16, entries=2, durability="process", place=_place()).close()


def _insert(folder: Path) -> Iterator[None]:
    with _log(folder) as log:
        for step in range(1, 3):
            log.insert(np.full((3, 2), step, np.uint64))
            yield
        log.remove()
        yield
        log.insert(np.full((2, 2), 3, np.uint64), first=1)
        yield
        log.clear()
        yield


def _entries(folder: Path) -> Outcome:
    """Return the entries of each thread."""
    with _log(folder) as log:
        log.verify()
        counts, entries = log.read()
        return [rows[:count].tolist() for rows, count in zip(entries, counts.tolist(), strict=True)]


def _make_worn(folder: Path) -> None:
    """Leave a log whose epochs have come to their end; the first of them comes again, and had entries."""
    _make_table(folder)
    with _log(folder) as log:
        log.clear()
        log.insert(np.full((3, 2), 9, np.uint64))
        log._flag.set(EPOCH_MAX, State.IDLE)


def _begin_anew(folder: Path) -> Iterator[None]:
    with _log(folder) as log:
        log.clear()
        yield
        log.insert(np.full((2, 2), 3, np.uint64), first=1)
        yield


def _partitions(folder: Path) -> Iterator[None]:
    with PartitionedLog.open(folder / "log.gpm", place=_place(), durability="process") as log:
        for step in range(1, 4):
            log.insert(np.array([0, 1], np.uint64), np.full((2, step), step, np.uint64))
            yield
        log.remove(1)
        yield
        log.clear()
        yield


def _make_partitions(folder: Path) -> None:
    PartitionedLog.create(folder / "log.gpm", 2, 128, durability="process", place=_place()).close()


def _partition_entries(folder: Path) -> Outcome:
    with PartitionedLog.open(folder / "log.gpm", place=_place(), durability="process") as log:
        log.verify()
        return [[entry.tolist() for entry in log.read(partition)] for partition in range(2)]


def _update(folder: Path) -> Iterator[None]:
    with _array(folder) as table, _log(folder) as log:
        for first, value in ((0, 10), (2, 20)):
            with log.transaction():
                for again in (value, value + 100):
                    compiled().launch("update", 1, log=log, table=table, first=first, value=again)
            yield


def _recover(folder: Path) -> Iterator[None]:
    with _array(folder) as table, _log(folder) as log:
        log.recover(lambda log: compiled().launch("undo", log.threads, log=log, table=table))
    yield


def _updated(folder: Path) -> Outcome:
    for _ in _recover(folder):
        pass
    with _array(folder) as table, _log(folder) as log:
        assert not log.is_active
        log.verify()
        return table.host.tolist()


def _make_interrupted(folder: Path) -> None:
    """Leave a transaction as a kill leaves it: its entries are there, and what it stored."""
    _make_table(folder)
    for _ in _update(folder):
        pass
    with suppress(InterruptedError), _array(folder) as table, _log(folder) as log, log.transaction():
        for again in (30, 130):
            compiled().launch("update", 1, log=log, table=table, first=1, value=again)
        raise InterruptedError


def _make_array(durability: DurabilityName, folder: Path) -> None:
    PersistentArray.create(folder / "table.gpm", (3, 2), "u8", durability=durability).close()


def _store(durability: DurabilityName, folder: Path) -> Iterator[None]:
    with PersistentArray.open(folder / "table.gpm", place=_place(), durability=durability) as table:
        for step in range(1, 3):
            table.host[:2] = step
            table.persist(0, 2)
            yield
        table.host[2] = 3
        table.persist(2, 3)
        yield


def _stored(durability: DurabilityName, folder: Path) -> Outcome:
    with PersistentArray.open(folder / "table.gpm", place=_place(), durability=durability) as table:
        table.verify()
        return table.host.reshape(-1).tolist()


def _make_nothing(_: Path) -> None:
    pass


def _create(folder: Path) -> Iterator[None]:
    for size in (6, 3):
        PersistentArray.create(folder / "table.gpm", size, "u8", durability="msync", replace=True).close()
        yield


def _created(folder: Path) -> Outcome:
    if not (folder / "table.gpm").exists():
        return None
    with PersistentArray.open(folder / "table.gpm", durability="msync") as table:
        return table.host.tolist()


def _make_checkpoint(durability: DurabilityName, folder: Path) -> None:
    group = {"x": (9, "u8"), "y": (3, "u8")}
    Checkpoint.create(folder / "c.gpm", {"g": group, "h": {"z": (2, "u8")}}, durability=durability).close()


def _save(durability: DurabilityName, folder: Path) -> Iterator[None]:
    with Checkpoint.open(folder / "c.gpm", place=_place(), durability=durability) as checkpoint:
        for step in range(1, 4):
            # The third is written over the first, which has the same `y`: that is not stored again.
            checkpoint.save("g", {"x": np.full(9, step, np.uint64), "y": np.full(3, step % 2, np.uint64)})
            yield
        checkpoint.save("h", {"z": np.full(2, 7, np.uint64)})
        yield


def _saved(durability: DurabilityName, folder: Path) -> Outcome:
    with Checkpoint.open(folder / "c.gpm", place=_place(), durability=durability) as checkpoint:
        checkpoint.verify()
        found = {name: checkpoint.load(name) for name in "gh" if checkpoint.number(name)}
        return {name: {key: array.tolist() for key, array in arrays.items()} for name, arrays in found.items()}


class _KilledError(Exception):
    """Stands for the end of a process."""


def _save_killed(folder: Path) -> Iterator[None]:
    """Save; be killed between the store of the next word and its sync; open, which goes by that word; save."""

    def arrays(step: int) -> dict[str, Any]:
        return {"x": np.full(9, step, np.uint64), "y": np.full(3, step, np.uint64)}

    def opened() -> Checkpoint:
        return Checkpoint.open(folder / "c.gpm", place=_place(), durability="msync")

    def persist_once(file: GpmFile) -> None:
        if not persists:
            raise _KilledError
        persists.pop()(file)

    persists = [GpmFile.persist_stores]  # that of the data
    with opened() as checkpoint:
        checkpoint.save("g", arrays(1))
        yield
        with suppress(_KilledError), patch.object(GpmFile, "persist_stores", persist_once):
            checkpoint.save("g", arrays(2))
    with opened() as checkpoint:
        yield
        checkpoint.save("g", arrays(3))
        yield


def _make_versions(durability: DurabilityName, folder: Path) -> None:
    Versions.create(folder / "v.gpm", {"t": (6, "u8")}, durability=durability, place=_place()).close()


def _commit(durability: DurabilityName, folder: Path) -> Iterator[None]:
    with Versions.open(folder / "v.gpm", durability=durability, place=_place()) as versions:
        for step in range(1, 4):
            versions.next["t"][:4] = step
            if step > 1:
                versions.flush_ahead("t", 0, 4)
                for part in versions._flushing:  # a trace is of one thread at a time
                    part.result()
            versions.next["t"][4:] = step
            versions.commit()
            yield


def _committed(durability: DurabilityName, folder: Path) -> Outcome:
    with Versions.open(folder / "v.gpm", durability=durability, place=_place()) as versions:
        versions.verify()
        return versions.current["t"].tolist()


_NUMBERS = np.arange(1, 17, dtype=np.uint64)


def _make_sums(folder: Path) -> None:
    PersistentArray.create(folder / "table.gpm", len(_NUMBERS), "u8", durability="process").close()


def _sum(folder: Path) -> Iterator[None]:
    with _array(folder) as partial_sums:
        compiled().launch("partial_sums", len(_NUMBERS) // 4, given=_NUMBERS, partial=partial_sums)
        yield


def _summed(folder: Path) -> Outcome:
    for _ in _sum(folder):
        pass
    with _array(folder) as partial_sums:
        return partial_sums.host.tolist()


_EDGES: tuple[list[int], ...] = ([1, 2], [3], [3, 4], [5], [5, 0], [6], [])
_BEGIN = np.cumsum([0, *map(len, _EDGES)], dtype=np.uint64)
_EDGE = np.array([node for nodes in _EDGES for node in nodes], np.uint64)


_LEVELS = 2  # of a launch


def _make_graph(folder: Path) -> None:
    for name, count in (("cost", len(_EDGES)), ("sequence", len(_EDGES)), ("final", 1)):
        with PersistentArray.create(folder / f"{name}.gpm", count, "u8", durability="process") as array:
            array.host[0] = name != "sequence"  # node 0 is the first, with cost 1
            array.persist()


def _search(folder: Path) -> Iterator[None]:
    """Search on from what is final; what lies beyond is forgotten."""
    names = "cost", "sequence", "final"
    with ExitStack() as stack:
        cost, sequence, final = (stack.enter_context(_array(folder, f"{name}.gpm")) for name in names)
        nodes = sequence.host[: int(final.host[0])]
        costs = cost.host[nodes]
        # A mutant may break that; the kernel would queue more nodes than there are.
        assert len(np.unique(nodes)) == len(nodes), "a node is final twice"
        assert costs.all(), "a final node has no cost"
        found, queue = np.zeros(len(_EDGES), np.uint64), np.zeros(len(_EDGES), np.uint64)
        found[nodes], queue[: len(nodes)] = costs, nodes
        level = np.array([np.searchsorted(costs, costs[-1]), len(nodes), costs[-1]], np.uint64)
        while level[0] < level[1]:
            compiled().launch(
                "search", 1, begin=_BEGIN, edge=_EDGE, found=found, queue=queue, level=level, levels=_LEVELS,
                cost=cost, sequence=sequence, final=final,
            )  # fmt: skip
            yield


def _searched(folder: Path) -> Outcome:
    for _ in _search(folder):
        pass
    with _array(folder, "cost.gpm") as cost, _array(folder, "final.gpm") as final:
        return cost.host.tolist(), int(final.host[0])


def _on_memory_and_disk(
    name: str,
    make: Callable[[DurabilityName, Path], None],
    run: Callable[[DurabilityName, Path], Iterator[None]],
    recover: Callable[[DurabilityName, Path], Outcome],
    *,
    is_of_parts: bool = False,
) -> list[GpmWorkload]:
    domains: tuple[tuple[str, DurabilityName], ...] = ((name, "process"), (f"{name}-on-disk", "msync"))
    return [
        GpmWorkload(
            full,
            partial(make, domain),
            partial(run, domain),
            partial(recover, domain),
            domain,
            is_of_parts=is_of_parts,
        )
        for full, domain in domains
    ]


WORKLOADS = (
    GpmWorkload("creation", _make_nothing, _create, _created, "msync"),
    *_on_memory_and_disk("array", _make_array, _store, _stored, is_of_parts=True),
    GpmWorkload("coalesced-log", _make_table, _insert, _entries, is_of_parts=True),
    GpmWorkload("epochs-begin-anew", _make_worn, _begin_anew, _entries, is_of_parts=True),
    GpmWorkload("partitioned-log", _make_partitions, _partitions, _partition_entries, is_of_parts=True),
    GpmWorkload("transaction", _make_table, _update, _updated),
    GpmWorkload("recovery", _make_interrupted, _recover, _updated, ends_alike=True),
    GpmWorkload("prefix-sum", _make_sums, _sum, _summed, ends_alike=True),
    GpmWorkload("bfs", _make_graph, _search, _searched, ends_alike=True),
    *_on_memory_and_disk("checkpoint", _make_checkpoint, _save, _saved),
    GpmWorkload(
        "checkpoint-killed", partial(_make_checkpoint, "msync"), _save_killed, partial(_saved, "msync"), "msync"
    ),
    *_on_memory_and_disk("versions", _make_versions, _commit, _committed),
)
"""All of them."""
