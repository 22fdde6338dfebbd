"""The crash explorer: it finds nothing in the store as it is, and does find what is planted."""

from __future__ import annotations

import errno
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from typer.testing import CliRunner

import gpkvs
from gpkvs.cli.main import app
from gpkvs.config import DurabilityName
from gpkvs.errors import InvalidArgumentError
from gpkvs.media.files import StoreFiles
from gpkvs.media.layout import ROOT_OFFSETS
from gpkvs.media.root_copies import RootCopies, Roots
from gpkvs.native import library
from gpkvs.pm.domain import Domain, DomainName
from gpkvs.pm.region import Region
from gpkvs.recovery.proof.batch_runner import EngineName
from gpkvs.recovery.proof.powerfail.base_store import ExploredEngine
from gpkvs.recovery.proof.powerfail.campaign import Campaign, part_of
from gpkvs.recovery.proof.powerfail.crash_models import Model
from gpkvs.recovery.proof.powerfail.explorer import ExplorerOptions, StateName, StateViolation
from gpkvs.recovery.proof.powerfail.trace import Kind, Mutation
from gpkvs.recovery.proof.powerfail.workloads import EXPIRING, LETTERS, LOOKING, Workload, all_workloads

SIZES = {"index_bytes": 1 << 20, "heap_bytes": 1 << 20, "log_bytes": 1 << 20}
ROOT_WORKLOADS = ("bytes:O", "bytes:X", "u64:C", "bytes:Z")


def explore(options: ExplorerOptions, *workloads: str) -> tuple[int, list[StateViolation]]:
    """Return how many distinct states were visited, and what is wrong."""
    totals = Campaign(options).explore([Workload.parse(name) for name in workloads], lambda _: None)
    return totals.distinct, totals.violations


IS_CI = bool(os.environ.get("CI"))
# A workload of a pair takes half a minute.
PARTS = {"native": 4, "phases": 1, "pair": 1} if IS_CI else {"native": 6, "phases": 2, "pair": 2}


@pytest.mark.parametrize(("engine", "part"), PARTS.items())
def test_a_seeded_part_of_all_workloads_has_no_violation(engine: ExploredEngine, part: int) -> None:
    """`gpkvs crash` visits all of them."""
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    workloads = part_of(part, seed)
    visited = []
    options = ExplorerOptions(engine=engine, seed=seed)
    totals = Campaign(options).explore(workloads, visited.append)
    assert totals.violations == [], seed
    assert sorted(str(each.workload) for each in visited) == sorted(map(str, workloads))
    for each in visited:
        # In each model there is something to lose, unless the last batch, in which the crashes are, changes nothing:
        # it deletes missing keys (M), or makes expire what has expired (YY).
        if not each.workload.letters.endswith(("M", "YY")):
            assert len(each.distinct) > 15, each.workload
            assert min(each.states[model] for model in options.models) > 10, each.workload


@pytest.mark.parametrize("engine", ["native", "phases"])
def test_each_state_has_the_time_of_its_batches(engine: ExploredEngine) -> None:
    workloads = ("bytes:Y",) if IS_CI and engine == "phases" else ("bytes:EN", "bytes:A", "bytes:Y")
    assert explore(ExplorerOptions(engine=engine), *workloads)[1] == []


def test_a_pair_of_processors_has_no_violation() -> None:
    distinct, violations = explore(ExplorerOptions(engine="pair"), "bytes:N", "u64:NU")
    assert violations == []
    assert distinct > 300


def test_a_pair_of_processors_has_no_disk() -> None:
    assert Model.PAGE not in ExplorerOptions(engine="pair").models
    with pytest.raises(InvalidArgumentError, match="page"):
        ExplorerOptions(engine="pair", models=(Model.PAGE,))


def test_each_of_two_chunks_is_undone() -> None:
    """33 slots are a chunk of the GPU's and the host's, and one of the GPU's alone.

    So many units have more than a thousand pairs in each epoch: CI takes a part of them.
    """
    pairs = 32 if IS_CI else None
    distinct, violations = explore(ExplorerOptions(engine="pair", pairs=pairs), "u64:W")
    assert violations == []
    assert distinct > 300


@pytest.mark.parametrize("workload", ["bytes:N", "u64:N"])
@pytest.mark.parametrize("kernel", ["log_chunk", "mark_chunk"])
def test_a_chunk_that_is_not_durable_before_its_slots_is_seen(workload: str, kernel: str) -> None:
    """Without the fence of its entries, or of its marker."""
    layout = "" if kernel == "mark_chunk" else f"_{workload.partition(':')[0]}"
    mutation = Mutation(f"{kernel}{layout}", frozenset({Kind.FENCE}))
    options = ExplorerOptions(engine="pair", models=(Model.GPU,), mutation=mutation, stop_early=True)
    assert explore(options, workload)[1], f"without {mutation}, nothing is seen"


def test_both_engines_leave_the_same_states() -> None:
    totals = {}
    for engine in get_args(EngineName):
        options = ExplorerOptions(models=(Model.KILL,), engine=engine)
        totals[engine] = Campaign(options, 1).explore([Workload.parse("bytes:NS"), Workload.parse("u64:J")], print)
        assert totals[engine].violations == []
    # The batches of N, J, and S, which looks first: no GPU runs that.
    assert {engine: of_engine.natively for engine, of_engine in totals.items()} == {"native": 3, "phases": 1}
    assert totals["native"].distinct == totals["phases"].distinct


def test_a_crash_in_recovery_has_no_violation() -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    workloads = Random(seed).sample(("bytes:N", "u64:N", *ROOT_WORKLOADS), 2 if IS_CI else 3)
    distinct, violations = explore(ExplorerOptions(depth=2, first_states=1), *workloads)
    assert violations == [], workloads
    assert distinct > 300


def test_a_marker_of_creation_stays_until_the_name_of_the_root_is_durable() -> None:
    """Found by the explorer at depth 2: a kill between the two, then a power failure."""
    options = ExplorerOptions(models=(Model.PAGE,), depth=2, first_states=1)
    _, violations = explore(options, "bytes:Z")
    assert violations == []


def test_there_are_258_workloads_of_each_layout_and_the_extra_ones() -> None:
    names = [str(workload) for workload in all_workloads()]
    sequences = [name for name in names if set(name.partition(":")[2]) <= set(LETTERS)]
    assert len(sequences) == 2 * 258
    assert sum("+" in name for name in names) == 2 * 36
    expiring = [name for name in names if set(name.partition(":")[2]) & set(EXPIRING)]
    assert len(expiring) == 3 + 12 * 12 - 9 * 9, "of the layout bytes alone"
    looking = [name for name in names if set(name.partition(":")[2]) & set(LOOKING) and name not in expiring]
    assert len(looking) == 2 * (3 + 9 * 9 - 6 * 6)
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
        ({Kind.SYNC}, "sync of ACTIVE in commit_undo", Model.PAGE),
    ],
)
def test_a_persist_that_is_missing_is_seen_and_its_state_can_be_visited_again(
    kinds: set[Kind], site: str, model: Model
) -> None:
    mutation = Mutation(site, frozenset(kinds))
    assert Mutation.parse(str(mutation)) == mutation
    options = ExplorerOptions(models=(model,), mutation=mutation, stop_early=True)
    _, violations = explore(options, "bytes:N")
    assert violations, f"without {mutation}, nothing is seen"
    state = violations[0].state
    assert StateName.parse(str(state)) == state
    report = Campaign(options, 1).visit(state)
    assert report.message == violations[0].message
    assert {kept for kept, _ in report.changes} == {True, False}
    assert Campaign(ExplorerOptions(models=(model,)), 1).visit(StateName(state.workload, model, 0, ())).message == ""


def test_blobs_of_a_crash_are_whole() -> None:
    """Also after a crash of the recovery. Without what `readable` leaves out of blobs, this would take minutes."""
    distinct, violations = explore(ExplorerOptions(), "bytes:H", "bytes:R")
    assert violations == []
    assert 150 < distinct < 1000
    _, violations = explore(ExplorerOptions(depth=2, first_states=1, models=(Model.PAGE, Model.ADR)), "bytes:H")
    assert violations == []


def test_a_blob_that_is_kept_survives_a_crash() -> None:
    """Whether the old record names it afterwards or the new one: what the judge stores then takes no page of it."""
    distinct, violations = explore(ExplorerOptions(), "bytes:h", "bytes:r")
    assert violations == []
    assert distinct > 150
    _, violations = explore(ExplorerOptions(depth=2, first_states=1, models=(Model.PAGE, Model.ADR)), "bytes:h")
    assert violations == []


@pytest.mark.parametrize(
    ("kind", "site", "model"),
    [
        (Kind.SYNC, "sync of blobs in commit_undo", Model.PAGE),
        (Kind.FENCE, "store_pieces", Model.GPU),
        (Kind.WRITE_BACK, "store_pieces", Model.ADR),
        (Kind.WRITE_BACK, "store_words", Model.ADR8),
    ],
)
def test_a_flag_before_blobs_are_durable_is_seen(kind: Kind, site: str, model: Model) -> None:
    options = ExplorerOptions(models=(model,), mutation=Mutation(site, frozenset({kind})), stop_early=True)
    _, violations = explore(options, "bytes:H")
    assert "blob-checksum" in violations[0].message


def test_a_missing_persist_of_recovery_is_seen_at_depth_2() -> None:
    options = ExplorerOptions(
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


def test_the_command_says_what_it_visited() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpkvs.cli", "crash", "--workload", "bytes:M", "--model", "kill"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "No violation" in done.stdout


def test_the_command_ends_when_it_is_told_to_and_leaves_nothing() -> None:
    """States lie in memory: they must not stay there."""
    command = subprocess.Popen([sys.executable, "-m", "gpkvs.cli", "crash"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(Path("/dev/shm").glob(f"gpkvs-crash-{command.pid}-*/*/base-*")):
        assert time.monotonic() < deadline, "no worker has begun"
        time.sleep(0.1)
    command.terminate()
    assert command.wait(60) == 128 + signal.SIGTERM
    assert list(Path("/dev/shm").glob(f"gpkvs-crash-{command.pid}-*")) == []


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
    gpkvs.open(store_path, **SIZES).close()
    file = bytearray((store_path / "root").read_bytes())
    file[ROOT_OFFSETS[damaged] + 20] ^= 1
    (store_path / "root").write_bytes(bytes(file))
    region = open_watched(store_path)
    Roots(region).change()
    assert region.stored == [ROOT_OFFSETS[damaged], ROOT_OFFSETS[1 - damaged]]
    assert RootCopies.read(region).repaired == ""
    region.close()


def open_watched(path: Path) -> Watched:
    region = Watched(path / "root", Domain(DomainName.MSYNC, DomainName.MSYNC))
    region.stored = []
    return region


@pytest.mark.parametrize(("durability", "synced"), [("msync", True), ("process", False), ("none", True)])
def test_what_is_there_is_made_durable_before_anything_is_stored(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, durability: DurabilityName, synced: bool
) -> None:
    """A life in a weaker domain, a kill or a copy leaves it in a cache; what names the rest comes last."""
    gpkvs.open(store_path, commit="undo", **SIZES).close()
    order: list[str] = []
    fsync, store, touch = os.fsync, Region.store, Region.redirty

    def note_sync(file: int) -> None:
        order.append(Path(f"/proc/self/fd/{file}").readlink().name)
        fsync(file)

    def note_touch(region: Region) -> None:
        order.append(f"touched {region.path.name}")
        touch(region)

    def note_store(region: Region, offset: int, data: bytes) -> None:
        order.append("a store")
        store(region, offset, data)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Region, "store", note_store)
    monkeypatch.setattr(Region, "redirty", note_touch)
    gpkvs.open(store_path, durability=durability).close()
    before = order[: order.index("a store")]
    mapped = ["log", "heap", "index-0-0", "root"]
    assert [name for name in before if name in mapped] == (mapped if synced else [])
    assert {"catalog-0.json", store_path.name, store_path.parent.name} <= set(before)
    # Its pages may be taken for clean after a sync that failed: then they are written only if they are stored to.
    assert before[-1 - synced :] == ["touched root", "root"][: 1 + synced]


def test_the_directory_above_a_store_need_not_be_readable(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpkvs.open(store_path, **SIZES).close()
    real = os.open

    def refuse(path: Path, *arguments: int) -> int:
        if Path(path) == store_path.parent:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    gpkvs.open(store_path).close()


@pytest.mark.parametrize(
    ("text", "workload"), [("log", "u64:P"), ("heap", "bytes:P"), ("index.region", "bytes:K"), ("blobs", "bytes:k")]
)
def test_a_life_in_a_weaker_domain_is_not_relied_on(text: str, workload: str) -> None:
    """Without the sync of one file at the opening, a power failure after it takes away what the others name."""
    site = f"sync in files.fsync:{line_of(StoreFiles.fsync, f'{text}.fsync()')}"
    options = ExplorerOptions(
        models=(Model.PAGE,), mutation=Mutation(site, frozenset({Kind.FILE_SYNC})), stop_early=True
    )
    _, violations = explore(options, workload)
    assert violations, f"without {site}, nothing is seen"
    if workload != "bytes:k" or not IS_CI:  # which has ten times as many states as another one
        _, violations = explore(replace(options, mutation=None), workload)
        assert violations == []


def test_a_state_that_is_not_there_is_named_in_one_line() -> None:
    result = CliRunner().invoke(app, ["crash", "--state", "bytes:N/adr8/0/1.1", "--processes", "1"])
    assert result.exit_code == 1
    assert result.stderr == "gpkvs: state: bytes:N/adr8/0/1.1: there is no such state; was the seed another one?\n"


def test_nothing_outlives_a_command_that_is_killed(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "gpkvs.cli", "crash", "--processes", "2"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        wait_until(lambda: len(session(command.pid)) >= 4)  # itself, whom they are forks of, and two at work
        command.kill()
        command.wait()
        wait_until(lambda: not session(command.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()


def session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _parent, _group, its_session = (directory / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == leader and state not in "ZX":
                found.append(int(directory.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited 60 s in vain"
        time.sleep(0.02)
