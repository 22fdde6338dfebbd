"""Compaction keeps what it promises: any write is accepted while the charge is below its limit, and nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.space.compaction import Compactor
from gpkvs.errors import CorruptRecordError, NoMemoryError, NoSpaceError
from gpkvs.media.journal import Journal
from gpkvs.media.layout import UNIT_BYTES, reference_offset
from gpkvs.native import keyed_digest
from gpkvs.recovery.startup.check import check
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE
from tests.engine.heap_driver import SEGMENT_BYTES, HeapDriver, ValueBytes
from tests.engine.space.compaction_lives import step_for_many
from tests.record_header import IS_SHORT, LENGTHS_AT

Operation = tuple[Op, bytes] | tuple[Op, bytes, bytes]

VALUE_BYTES_MAX = 61_000  # with segments of 64 KiB

VALUES: dict[str, ValueBytes] = {
    "small": lambda rng: rng.randrange(8, 1500),
    "tenths": lambda rng: int(SEGMENT_BYTES * rng.uniform(0.05, 0.15)),
    "halves": lambda rng: int(SEGMENT_BYTES * rng.uniform(0.3, 0.7)),
    "mixed": lambda rng: int(8 * (VALUE_BYTES_MAX // 8) ** rng.random()),
    "any": lambda rng: rng.randrange(8, VALUE_BYTES_MAX),
    "one or the other": lambda rng: rng.choice([100, int(SEGMENT_BYTES * 0.51)]),
}


@pytest.fixture
def rng() -> Iterator[random.Random]:
    seed = int(os.environ.get("SEED", int.from_bytes(os.urandom(4))))
    print(f"SEED={seed}")
    return random.Random(seed)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("segments", [8, 20])
def test_any_write_is_accepted_below_the_limit(
    store_path: Path, segments: int, values: str, rng: random.Random
) -> None:
    churn_below_the_limit(store_path, segments, values, rng)


@pytest.mark.parametrize(("values", "segments"), [("mixed", 8), ("any", 20), ("small", 20)])
def test_any_write_is_accepted_beside_steps_of_many_victims(
    store_path: Path, segments: int, values: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compactor, "step", step_for_many)
    churn_below_the_limit(store_path, segments, values, rng)


def churn_below_the_limit(store_path: Path, segments: int, values: str, rng: random.Random) -> None:
    driver = HeapDriver(store_path, segments, rng)
    driver.fill(VALUES[values])
    for _ in range(2):
        driver.churn(VALUES[values], 1)
        driver.check()
    driver.store.close()


@pytest.mark.parametrize("seed", [4, 3318255841])
def test_what_waits_for_a_journal_gets_no_record_of_a_victim(
    store_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found with these seeds: many steps in a row put records behind the ends of emptied segments; none was free."""
    driver = HeapDriver(store_path, 8, random.Random(seed))
    free_space = driver.store._engine.free_space
    monkeypatch.setattr(free_space, "pay_for_turn", free_space.pay)  # many steps
    driver.fill(VALUES["small"])
    driver.churn(VALUES["small"], 2)
    driver.check()
    driver.store.close()


@pytest.mark.parametrize(("segments", "commit"), [(8, "undo"), (20, "undo"), (8, "journal")])
def test_kills_inside_steps_lose_nothing_and_wedge_nothing(
    tmp_path: Path, segments: int, commit: str, rng: random.Random
) -> None:
    done = run_lives(tmp_path, segments, commit, rng.randrange(1 << 30), 8)
    assert int(done) >= 3


def run_lives(path: Path, segments: int, commit: str, seed: int, lives: int) -> str:
    """Return how many lives were killed inside a step."""
    command = [
        sys.executable,
        "-m",
        "tests.engine.space.compaction_lives",
        str(path),
        *map(str, (segments, seed, lives)),
    ]
    environment = os.environ | {COMMIT_VARIABLE: commit}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def test_large_batches_are_cut_and_accepted(store_path: Path, rng: random.Random) -> None:
    """Each request fits; all of them are more than is free at once."""
    driver = HeapDriver(store_path, 20, rng)
    driver.fill(lambda rng: rng.randrange(200, 1500))
    for _ in range(3):
        keys = list(driver.expected)
        rng.shuffle(keys)
        left = [Batch.of([(Op.SET, key, rng.randbytes(len(driver.expected[key])))]) for key in keys]
        batches = 0
        while left:
            result = driver.store.execute_requests(Batch.concatenate(left))
            assert not result.rejected
            for key, batch in zip(keys, left[: result.requests], strict=False):
                driver.set_expected(key, batch.values.tobytes())
            del keys[: result.requests], left[: result.requests]
            batches += 1
        assert batches > 1
    driver.check()
    driver.store.close()


def test_a_request_that_is_too_large_for_what_is_free_is_refused_whole(store_path: Path, rng: random.Random) -> None:
    driver = HeapDriver(store_path, 8, rng)
    driver.fill(lambda _: 1000)
    before = dict(driver.expected)
    all_keys = Batch.of([(Op.SET, key, b"x" * 1000) for key in before])
    with pytest.raises(NoSpaceError, match=r"heap full: one request takes .* send smaller requests"):
        driver.store.execute(all_keys)
    assert all(driver.store.get(key) == value for key, value in before.items())
    driver.churn(lambda _: 1000, 1)
    driver.check()
    driver.store.close()


@pytest.mark.parametrize("host_ops_max", [1 << 16, 0], ids=["at-once", "by-phases"])
def test_who_is_refused_at_the_limit(
    store_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, host_ops_max: int
) -> None:
    """All requests if they need no more than there is, else those that it is too much for, in arrival order."""
    driver = HeapDriver(store_path, 20, rng)
    driver.fill(lambda rng: rng.randrange(200, 4000))
    monkeypatch.setattr(driver.store._backend, "host_ops_max", host_ops_max)
    refusals = 0
    for _ in range(100):
        keys = sorted({*rng.sample(sorted(driver.expected), 15), *[b"new%d" % i for i in rng.sample(range(50), 10)]})
        rng.shuffle(keys)
        requests = [random_request(driver, rng, keys) for _ in range(rng.randrange(1, 8))]
        result = driver.store.execute_requests(Batch.concatenate([Batch.of(request) for request in requests]))
        assert result.requests == len(requests)
        refused = refused_of(driver, requests)
        assert set(result.rejected) == refused
        refusals += len(refused)
        for number, request in enumerate(requests):
            for op, key, *value in request if number not in refused else ():
                driver.set_expected(key, value[0] if op is Op.SET else None)
        assert driver.heap.charged == driver.charged
    assert refusals > 5
    driver.check()
    driver.store.close()


def random_request(driver: HeapDriver, rng: random.Random, keys: list[bytes]) -> list[Operation]:
    return [
        (Op.SET, keys.pop(), rng.randbytes(rng.randrange(200, 4000))) if rng.random() < 0.9 else (Op.DELETE, keys.pop())
        for _ in range(rng.randrange(1, 4))
    ]


def refused_of(driver: HeapDriver, requests: list[list[Operation]]) -> set[int]:
    """Return who is refused."""
    room = driver.heap.charged_max - driver.charged
    raised = [
        sum(
            (driver.charge_units(key, len(value[0])) if value else 0) - driver.charge_of_key(key)
            for _, key, *value in request
        )
        for request in requests
    ]
    used, refused = 0, set()
    for number, units in enumerate(raised if sum(raised) > room else []):
        if units > 0 and used + units > room:
            refused.add(number)
        else:
            used += units
    return refused


def test_a_large_batch_takes_few_steps(store_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """They empty several victims each, count what all of them free, and move no more than is worth it."""
    steps: list[int] = []
    emptied = 0
    commit = Compactor._commit

    def count(compactor: Compactor, moves: Any) -> None:
        nonlocal emptied
        commit(compactor, moves)
        victims = moves.victims[: moves.victim + 1]
        emptied += int(np.count_nonzero(compactor._heap.charged_units[victims] == 0)) * compactor._heap.segment_units
        steps.append(len(victims))

    monkeypatch.setattr(Compactor, "_commit", count)
    driver = HeapDriver(store_path, 60, rng)
    heap, moved, most = driver.heap, 0, 0
    compactor = driver.store._engine.free_space.compactor
    while heap.charged < 0.7 * heap.charged_max:
        driver.write(b"key%d" % len(driver.expected), rng.randbytes(1000))
    keys = sorted(driver.expected)
    for _ in range(20):
        chosen = rng.sample(keys, 6 * SEGMENT_BYTES // 1000)
        values = [rng.randbytes(1000) for _ in chosen]
        steps.clear()
        before = heap.moved_units
        driver.store.execute(Batch.of([(Op.SET, key, value) for key, value in zip(chosen, values, strict=True)]))
        moved += heap.moved_units - before
        for key, value in zip(chosen, values, strict=True):
            driver.set_expected(key, value)
        assert len(steps) <= 4
        most = max(most, *steps, 0)
    assert most > 2
    assert 0 <= compactor.freed_units + heap.moved_units - emptied <= heap.segment_units  # a part of one victim
    assert 0 < moved < 3 * 20 * 6 * heap.segment_units
    driver.check()
    driver.store.close()


def test_a_step_that_gets_no_memory_is_taken_again(
    store_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was moved, so the next one begins where it began, and no slot is searched for what rot hides."""
    driver = HeapDriver(store_path, 60, rng)
    while driver.heap.charged < 0.7 * driver.heap.charged_max:
        driver.write(b"key%d" % len(driver.expected), rng.randbytes(1000))
    driver.churn(lambda _: 1000, 1)
    compactor, commit, refused = driver.store._engine.free_space.compactor, Compactor._commit, 0

    def refuse(compactor: Compactor, moves: Any) -> None:
        nonlocal refused
        if moves.victim and rng.random() < 0.5:
            refused += 1
            raise NoMemoryError
        commit(compactor, moves)

    def sweep(*_: Any) -> None:
        raise AssertionError("there is no rot")

    monkeypatch.setattr(Compactor, "_commit", refuse)
    monkeypatch.setattr(Compactor, "_sweep", sweep)
    while refused < 5:
        freed, moved = compactor.freed_units, driver.heap.moved_units
        try:
            if not step_for_many(compactor):
                driver.churn(lambda _: 1000, 1)
        except NoMemoryError:
            assert (compactor.freed_units, driver.heap.moved_units) == (freed, moved)
    driver.check()
    driver.store.close()


@pytest.mark.parametrize("wants_many", [False, True], ids=["as-wanted", "many"])
@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_what_rot_hides_moves_too(
    tmp_path: Path, commit: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch, *, wants_many: bool
) -> None:
    """A header that cannot be walked past hides what is behind it. Damaged records move, and stay damaged."""
    if wants_many:
        monkeypatch.setattr(Compactor, "step", step_for_many)
    store_path = tmp_path / "store"
    driver = HeapDriver(store_path, 20, rng, commit=commit)
    driver.fill(lambda rng: rng.randrange(200, 1500))
    damaged = {key for key in driver.expected if rng.random() < 0.02}
    before = record_offsets(driver, sorted(damaged))
    for number, at in enumerate(before.values()):
        if IS_SHORT:  # of the header: the length of the record, or the key's
            write_to_heap(driver, at + LENGTHS_AT[1], b"\xff" * 3 if number % 2 else bytes(3))
        else:
            write_to_heap(driver, at + LENGTHS_AT[0], b"\xff" * 4 if number % 2 else b"\x07")
    driver.churn_keys(sorted(driver.expected.keys() - damaged), lambda rng: rng.randrange(200, 1500), 3)
    assert not driver.store._engine.free_space.compactor._damaged
    after = record_offsets(driver, sorted(damaged))
    assert sum(before[key] != after[key] for key in damaged) > 5
    for key in damaged:
        with pytest.raises(CorruptRecordError):
            driver.store.get(key)
    for key in driver.expected.keys() - damaged:
        assert driver.store.get(key) == driver.expected[key]
    # The last steps are not covered, nor the writes between them: their records are verified.
    committer, moved = driver.store._engine.committer, driver.heap.moved_units
    durable = getattr(committer, "journal", None) and committer.journal.durable  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "durable", property(lambda _: durable))
        patch.setattr(committer, "is_native", False, raising=False)  # native code knows better
        emptied = 0
        for key in sorted(damaged)[:3]:
            if driver.heap.free_segments < 2:
                break  # what was moved from is not free before a frame is durable: more would find no room
            emptied += 1
            driver.store._engine.free_space.compactor.empty(record_offsets(driver, [key])[key] // SEGMENT_BYTES)
            driver.write(b"after " + key, b"x")
        driver.store._engine.settle()
    assert driver.heap.moved_units > moved or not emptied
    crashed = store_path.parent / "crashed"
    shutil.copytree(store_path, crashed, ignore=shutil.ignore_patterns("LOCK"))
    driver.store.close()
    report = check(store_path)
    assert {violation.invariant for violation in report.violations} <= {"record-bounds", "record-checksum"}
    assert len(report.violations) + report.more_violations == len(damaged)
    with gpkvs.open(crashed, backend="cpu") as store:  # frames that moved damaged records are whole
        for key in driver.expected.keys() - damaged:
            assert store.get(key) == driver.expected[key]
    for path in (crashed, store_path):
        shutil.rmtree(path)


def record_offsets(driver: HeapDriver, keys: list[bytes]) -> dict[bytes, int]:
    """Return where in the heap the records of keys begin."""
    files = driver.store._files
    index = files.indexes[0]
    words = index.region.words(0, index.entry.slots * 4).reshape(-1, 4)
    found = {}
    for key in keys:
        fingerprint = int.from_bytes(keyed_digest(files.root.hash_keys, key)[:8], "little")
        (slot,) = np.flatnonzero((words[:, 0] == fingerprint) & (words[:, 3] != 0))
        found[key] = int(reference_offset(words[slot, 2])) * UNIT_BYTES
    return found


def write_to_heap(driver: HeapDriver, at: int, data: bytes) -> None:
    files = driver.store._files
    path = files.data.path if files.data else files.heap.path
    with path.open("r+b") as file:
        file.seek(at + (files.root.journal_bytes if files.data else 0))
        file.write(data)


def test_an_idle_store_compacts_what_is_worth_it_and_ends(store_path: Path, rng: random.Random) -> None:
    driver = HeapDriver(store_path, 20, rng)
    store, heap = driver.store, driver.heap
    driver.fill(lambda rng: rng.randrange(200, 1500))
    driver.churn(lambda rng: rng.randrange(200, 1500), 1)
    used = 20 - heap.emptied_segments
    for key in [key for key in driver.expected if rng.random() < 0.05]:
        driver.delete(key)
    before_idle = heap.moved_units
    while store._maintain():
        pass
    assert heap.moved_units - before_idle <= 2 * heap.segment_units
    before = dict(store.meter.written_bytes), heap.moved_units
    assert not store._maintain()
    assert (dict(store.meter.written_bytes), heap.moved_units) == before
    for key in [key for key in driver.expected if rng.random() < 0.9]:
        driver.delete(key)
    steps = 0
    while store._maintain():
        steps += 1
        assert steps < 1000
    assert steps > 3
    live = -(-heap.charged // heap.segment_units)
    assert 20 - heap.emptied_segments <= 2 * live + 2 < used
    before = dict(store.meter.written_bytes), heap.moved_units
    assert not store._maintain()
    assert (dict(store.meter.written_bytes), heap.moved_units) == before
    driver.check()
    driver.store.close()
