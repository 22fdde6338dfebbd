"""The crash explorer: it finds nothing in the store as it is, and does find what is planted."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import gpkvs
from gpkvs.crash.campaign import Campaign, part_of
from gpkvs.crash.explore import Options, StateName, Violation
from gpkvs.crash.models import Model
from gpkvs.crash.trace import Kind, Mutation
from gpkvs.crash.workloads import LETTERS, Workload, all_workloads
from gpkvs.layout import ROOT_OFFSETS, STRUCTURE_BYTES
from gpkvs.native import library
from gpkvs.pm.domain import Domain, DomainName
from gpkvs.pm.region import Region
from gpkvs.roots import RootCopies, write_roots
from gpkvs.transaction import Transaction

ROOT_WORKLOADS = ("bytes:O", "bytes:X", "u64:C", "bytes:Z")


def explore(options: Options, *workloads: str) -> tuple[int, list[Violation]]:
    """Return how many distinct states were visited, and what is wrong."""
    totals = Campaign(options).explore([Workload.parse(name) for name in workloads], lambda _: None)
    return totals.distinct, totals.violations


def test_a_seeded_part_of_all_workloads_has_no_violation() -> None:
    """`gpkvs crash` visits all of them."""
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    workloads = part_of(30, seed)
    visited = []
    totals = Campaign(Options(seed=seed)).explore(workloads, lambda each: visited.append(str(each.workload)))
    assert totals.violations == [], seed
    assert sorted(visited) == sorted(map(str, workloads))
    assert totals.distinct > 5_000
    # In each model there is something to lose.
    assert min(totals.states[model] for model in Model) > 1_000


def test_a_crash_in_recovery_has_no_violation() -> None:
    distinct, violations = explore(Options(depth=2, first_states=1), "bytes:N", "u64:N", *ROOT_WORKLOADS)
    assert violations == []
    assert distinct > 500


def test_there_are_258_workloads_of_each_layout_and_the_extra_ones() -> None:
    names = [str(workload) for workload in all_workloads()]
    sequences = [name for name in names if set(name.partition(":")[2]) <= set(LETTERS)]
    assert len(sequences) == 2 * 258
    assert sum("+" in name for name in names) == 2 * 36
    assert len(set(names)) == len(names)
    assert [str(Workload.parse(name)) for name in names] == names


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(number for number, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("kinds", "site", "model"),
    [
        ({Kind.FENCE}, "log_undo_bytes", Model.GPU),
        ({Kind.WRITE_BACK}, "apply_bytes", Model.ADR),
        ({Kind.SYNC}, f"sync in transaction.activate:{line_of(Transaction.activate, '.persist()')}", Model.PAGE),
    ],
)
def test_a_persist_that_is_missing_is_seen_and_its_state_can_be_visited_again(
    kinds: set[Kind], site: str, model: Model
) -> None:
    mutation = Mutation(site, frozenset(kinds))
    assert Mutation.parse(str(mutation)) == mutation
    options = Options(models=(model,), mutation=mutation, stop_early=True)
    _, violations = explore(options, "bytes:N")
    assert violations, f"without {mutation}, nothing is seen"
    state = violations[0].state
    assert StateName.parse(str(state)) == state
    report = Campaign(options, 1).visit(state)
    assert report.message == violations[0].message
    assert {kept for kept, _ in report.changes} == {True, False}
    assert Campaign(Options(models=(model,)), 1).visit(StateName(state.workload, model, 0, ())).message == ""


def test_a_missing_persist_of_recovery_is_seen_at_depth_2() -> None:
    options = Options(
        models=(Model.GPU,), depth=2, mutation=Mutation("undo_bytes", frozenset({Kind.FENCE})), stop_early=True
    )
    _, violations = explore(options, "bytes:N")
    assert violations
    assert Campaign(options, 1).visit(violations[0].state).message == violations[0].message


def test_the_production_build_has_nothing_of_the_trace() -> None:
    """Not a symbol: there, GPKVS_TRACED is nothing."""
    assert not hasattr(library, "gpkvs_trace_begin")
    normal = Path(library._name)
    traced = normal.with_name("_kernels_trace.so")
    assert b"gpkvs_trace" in traced.read_bytes()
    assert b"trace" not in normal.read_bytes()


def test_the_command_says_what_it_visited_and_leaves_nothing() -> None:
    """States lie in memory: they must not stay there."""
    before = {path.name for path in Path("/dev/shm").glob("gpkvs-crash-*")}
    done = subprocess.run(
        [sys.executable, "-m", "gpkvs.cli.main", "crash", "--workload", "bytes:M", "--model", "kill"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "No violation" in done.stdout
    assert {path.name for path in Path("/dev/shm").glob("gpkvs-crash-*")} <= before


class Watched(Region):
    """A region that remembers where it was stored to."""

    stored: list[int]

    def store(self, offset: int, data: bytes) -> None:
        """See `Region.store`."""
        if self.read(offset, len(data)) != data:
            self.stored.append(offset)
        super().store(offset, data)


@pytest.mark.parametrize("damaged", [0, 1])
def test_the_only_whole_root_copy_is_stored_over_last(store_path: Path, damaged: int) -> None:
    """Found by the explorer, bytes:O at depth 2: both copies were lost if two crashes tore one each."""
    gpkvs.open(store_path, index_bytes=1 << 20, heap_bytes=1 << 20, log_bytes=1 << 20).close()
    file = bytearray((store_path / "root").read_bytes())
    file[ROOT_OFFSETS[damaged] + 20] ^= 1
    (store_path / "root").write_bytes(bytes(file))
    region = open_watched(store_path)
    current = RootCopies.read(region).current(region)
    write_roots(region, replace(current, sequence=current.sequence + 1))
    assert region.stored == [ROOT_OFFSETS[damaged], ROOT_OFFSETS[1 - damaged]]
    assert RootCopies.read(region).repaired == ""
    region.close()


def open_watched(path: Path) -> Watched:
    region = Watched(path / "root", Domain(DomainName.MSYNC, DomainName.MSYNC))
    region.stored = []
    return region


def test_a_root_copy_that_may_be_in_a_cache_only_is_stored_again_first(store_path: Path) -> None:
    """Found by the explorer, bytes:O at depth 2: a process killed after it stored B left B to be lost with A."""
    gpkvs.open(store_path, index_bytes=1 << 20, heap_bytes=1 << 20, log_bytes=1 << 20).close()
    region = open_watched(store_path)
    order: list[tuple[str, int]] = []
    region.store = lambda offset, data: order.append(("store", offset))  # type: ignore[method-assign]
    region.sync = lambda: order.append(("sync", 0))  # type: ignore[method-assign]
    write_roots(region, RootCopies.read(region).current(region))
    a, b = ROOT_OFFSETS
    assert order == [("store", b), ("sync", 0), ("store", a), ("sync", 0), ("store", b), ("sync", 0)]
    assert region.read(a, STRUCTURE_BYTES) == region.read(b, STRUCTURE_BYTES)
    region.close()


def test_a_creation_that_was_killed_before_its_marker_had_its_name_begins_again(store_path: Path) -> None:
    """Found by the explorer, bytes:Z: the directory was refused as one that holds something else."""
    store_path.mkdir()
    (store_path / "CREATING.tmp").touch()
    with gpkvs.open(store_path, index_bytes=1 << 20, heap_bytes=1 << 20, log_bytes=1 << 20) as store:
        store.set(b"key", b"value")
    assert not (store_path / "CREATING.tmp").exists()
