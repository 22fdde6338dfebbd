"""Native code launches the kernels of a plan: here on threads that stand for a GPU."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, SHARDS, VARIABLE
from gpkvs.backends.cpu.backend import HOST_OPS_MAX, CpuBackend
from gpkvs.batch import Batch, Op
from gpkvs.config import Limits
from gpkvs.engine.device.batch_plan import BatchPlan, Counts, Step
from gpkvs.engine.device.phase_planner import PhasePlanner
from gpkvs.engine.seam.counted_time import clocks_set_by
from gpkvs.engine.seam.left import Left
from gpkvs.errors import InvalidArgumentError, NoSpaceError, StoreClosedError, UnknownTableError
from gpkvs.native import launch_sum, launched_kernels, library
from tests.engine.numbers_model import NumbersModel, random_batch

SIZES: dict[str, Any] = {"index_bytes": 1 << 20, "heap_bytes": 1 << 22, "log_bytes": 1 << 22, "durability": "process"}


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture(params=[PAIR, SHARDS])
def _launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, request.param)


@pytest.mark.usefixtures("_launches")
@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_batches_are_answered_as_by_a_dictionary(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, pick: Random, commit: str
) -> None:
    launched: list[int] = []
    run = BatchPlan.run

    def noted(self: BatchPlan, steps: int) -> None:
        launched.append(steps)
        run(self, steps)

    monkeypatch.setattr(BatchPlan, "run", noted)
    # One block to begin with: batches find no way until it has grown.
    with gpkvs.open(store_path, **SIZES, commit=commit) as store:
        store.create_table("t", layout="u64", index_bytes=1 << 16)
        table_id = store.table("t").id
        model = NumbersModel()
        for _ in range(40):
            batch = random_batch(pick, model, table_id, count=pick.randrange(2, 3000), gets=pick.choice([0, 0.3, 0.8]))
            model.check(batch, store.execute_requests(batch).request(0))
    for step in set(Step) - {Step.STAGE_MOVED, Step.KEEP}:  # the one is seldom, the other of records
        assert sum(bool(steps & step) for steps in launched) > 3, step
    with gpkvs.open(store_path) as store:
        values, there = store.table("t").get_many(model.keys)
        assert there.all()
        assert values.tolist() == model.values.tolist()


@pytest.mark.parametrize(
    ("kinds", "calls"),
    [
        ([Op.SET], [Step.LOCATE | Step.ORDER, Step.STAGE | Step.TELL]),
        ([Op.SET, Op.DELETE], [Step.LOCATE, Step.SELECT | Step.ORDER, Step.STAGE | Step.TELL]),
        (
            [Op.SET, Op.GET],
            [Step.LOCATE, Step.SELECT | Step.TELL, Step.ORDER | Step.STAGE | Step.TELL | Step.VALUES],
        ),
    ],
)
def test_a_plan_is_launched_by_few_calls(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[Op], calls: list[Step]
) -> None:
    """Between two of them Python copies what the next one needs, or looks at what was told."""
    monkeypatch.setenv(VARIABLE, PAIR)
    monkeypatch.setenv(HOST_OPS_MAX, "0")
    launched: list[int] = []
    run = BatchPlan.run

    def noted(self: BatchPlan, steps: int) -> None:
        launched.append(steps)
        run(self, steps)

    with gpkvs.open(store_path, **SIZES) as store:
        store.create_table("t", layout="u64", index_bytes=1 << 20)
        monkeypatch.setattr(BatchPlan, "run", noted)
        key = (7).to_bytes(8, "little")
        operations: Any = [(kind, key, key) if kind is Op.SET else (kind, key) for kind in kinds for _ in range(50)]
        assert not store.execute_requests(Batch.of(operations).on_table(store.table("t").id)).rejected
    assert launched == calls


def test_a_table_fills_up_until_a_key_finds_no_way(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, pick: Random
) -> None:
    monkeypatch.setenv(VARIABLE, PAIR)
    moved: list[int] = []
    run = BatchPlan.run

    def noted(self: BatchPlan, steps: int) -> None:
        if steps & Step.STAGE_MOVED:
            moved.append(self.get("changes"))
        run(self, steps)

    monkeypatch.setattr(BatchPlan, "run", noted)
    keys = np.array(pick.sample(range(1 << 40), 5000), np.uint64)
    with gpkvs.open(store_path, **SIZES, index_bytes_max=1 << 16) as store:
        store.create_table("t", layout="u64", index_bytes=1 << 16)
        stored = 0
        while stored < len(keys):
            part = keys[stored : stored + 100]
            try:
                store.set_many(part, part + np.uint64(1), table="t")
            except NoSpaceError:
                break
            stored += 100
        assert store.meter.helped_batches[Left.DEVICE] > 0  # the host knew who is refused, and may find other ways
        assert moved
        assert 3500 < stored < 4096  # ways
        values, there = store.get_many(keys, table="t")
        assert there.sum() == stored
        assert (values[:stored] == keys[:stored] + np.uint64(1)).all()


def test_overwrites_near_the_limit_of_the_heap_are_planned(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are charged what they bring, less what they free."""
    monkeypatch.setenv(VARIABLE, PAIR)
    value, count, many = b"v" * 1000, 2500, 400
    sets: list[Any] = [(Op.SET, b"key %d" % number, value) for number in range(count)]
    with gpkvs.open(store_path, **SIZES, heap_bytes_max=SIZES["heap_bytes"]) as store:
        for first in range(0, count, 50):
            store.execute(Batch.of(sets[first : first + 50]))
        heap, meter = store._engine.heap, store.meter
        assert heap.charged + many * heap.charged // count > heap.charged_max
        before = meter.left_batches[Left.DEVICE], meter.helped_batches[Left.DEVICE], meter.transactions
        for first in range(0, count - many, many):
            store.execute(Batch.of(sets[first : first + many]))
        after = meter.left_batches[Left.DEVICE], meter.helped_batches[Left.DEVICE], meter.transactions
        assert np.subtract(after, before).tolist() == [6, 0, 6]


def test_a_key_that_has_expired_makes_a_batch_the_hosts(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PAIR)
    now = [time.time_ns() // 1_000_000]
    with gpkvs.open(store_path, **SIZES) as store:
        store._engine.expiry.time.clocks = clocks_set_by(lambda: now[0])
        store.set(b"short", b"value", ttl=5)
        store.set(b"long", b"value")
        reads = Batch.of([(Op.GET, b"short"), (Op.GET, b"long"), (Op.SET, b"new", b"value")])
        helped, transactions = store.meter.helped_batches[Left.DEVICE], store.meter.transactions
        assert store.execute(reads).value_list() == [b"value", b"value"]
        assert store.meter.helped_batches[Left.DEVICE] == helped
        now[0] += 10_000
        assert store.execute(reads).value_list() == [b"", b"value"]
        assert store.meter.helped_batches[Left.DEVICE] == helped + 1
        assert store.meter.transactions == transactions + 3  # the removal is one, too


def test_the_bytes_are_those_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: Random) -> None:
    # Two stores that hash keys alike.
    monkeypatch.setattr("gpkvs.media.directory.secrets.token_bytes", lambda count: bytes(range(count)))
    monkeypatch.setattr("gpkvs.media.directory.time.time_ns", lambda: 0)
    stores = []
    for name in (PAIR, "cpu"):
        monkeypatch.setenv(VARIABLE, name)
        store = gpkvs.open(tmp_path / name, **SIZES, index_bytes_max=1 << 16, commit="undo")
        store.create_table("t", layout="u64", index_bytes=1 << 16)
        stores.append(store)
    launched, host = stores
    model, table_id = NumbersModel(), launched.table("t").id

    def run(batch: Batch) -> bool:
        one, other = (store.execute_requests(batch) for store in stores)
        assert [str(why) for why in one.rejected.values()] == [str(why) for why in other.rejected.values()]
        if not one.rejected:
            model.check(batch, one.request(0))
            assert other.request(0).status.tolist() == one.request(0).status.tolist()
            assert other.request(0).values.tolist() == one.request(0).values.tolist()
        for left, right in zip(launched._files.regions, host._files.regions, strict=True):
            if left is launched._files.log:
                continue  # one is in chunks
            words = left.bytes // 8
            assert np.array_equal(left.words(0, words), right.words(0, words)), left.path
        return not one.rejected

    for _ in range(30):
        gets = pick.choice([0, 0.3, 0.8])
        run(random_batch(pick, model, table_id, count=pick.randrange(2, 400), gets=gets))
    while True:  # until the table is full: keys are displaced, and the last one finds no way
        old = pick.sample(sorted(model.held), len(model.held) // 4)  # who changes does not move
        keys = np.array([*old, *pick.sample(range(1 << 40), 60)], np.uint64)
        if not run(Batch.of_numbers(Op.SET, keys.view(np.uint8), keys.view(np.uint8), table_id)):
            break
    assert len(model.held) > 3400  # of 4,096 ways
    for store in stores:
        store.close()


def test_an_error_of_the_driver_is_returned_once() -> None:
    calls: list[int] = []

    def launch(*_: object) -> int:
        calls.append(1)
        return 700 if len(calls) == 2 else 0

    driver = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 11)(launch)
    functions = (ctypes.c_void_p * len(launched_kernels()))()
    calls_of_driver = (ctypes.c_void_p * 9)(ctypes.cast(driver, ctypes.c_void_p))
    launcher = library.gpkvs_gpu_launcher_new(calls_of_driver, functions, None)
    column, tiles = np.zeros(5000, np.uint64), np.zeros(3, np.uint64)
    of_column = 0, column.ctypes.data, len(column), tiles.ctypes.data, tiles.ctypes.data
    try:
        assert launch_sum(launcher, 0, *of_column) == 700
        assert len(calls) == 2  # sums of tiles, then the sum of these
        assert launch_sum(launcher, 0, *of_column) == 0
        widened = column.ctypes.data, *of_column[1:]
        assert launch_sum(launcher, 0, *widened) == 0
        assert len(calls) == 2 + 2 + 3
    finally:
        library.gpkvs_launcher_delete(launcher)


NOT_THERE = np.uint64(1 << 63)  # kernels/cu/batch_plan.cu
NUMBERS: dict[str, Any] = {
    "keys": 0,
    "hash_key0": 0,
    "hash_key1": 0,
}  # what identifies numbers, where records are meant


def packed_of(fingerprint0: np.ndarray[Any, Any], numbers: int) -> np.ndarray[Any, Any]:
    """Return what is sorted of keys that are not there, with each operation's number below it."""
    places = (NOT_THERE | (fingerprint0 >> np.uint64(1))) & ~np.uint64(numbers)
    packed: np.ndarray[Any, Any] = places | np.arange(len(fingerprint0), dtype=np.uint64)
    return packed


@pytest.mark.parametrize("n", [1, 2, 300, 5000])
def test_what_a_sort_cannot_tell_apart_is_put_in_order(pick: Random, n: int) -> None:
    # What is packed has the high bits of fingerprints only, in which many are alike.
    tied = [pick.randrange(n) << 41 | pick.randrange(6) for _ in range(n)]
    fingerprint0 = np.array([pick.choice(tied) for _ in range(n)], np.uint64)
    fingerprint1 = np.array([pick.randrange(3) for _ in range(n)], np.uint64)
    ops = np.array([pick.choice([Op.GET, Op.SET, Op.DELETE]) for _ in range(n)], np.uint8)
    marks, descents = np.empty(n, np.uint64), np.empty(n, np.uint8)
    order, left = np.empty(n, np.uint32), np.zeros(1, np.uint64)
    numbers = (1 << (n - 1).bit_length()) - 1
    packed = np.sort(packed_of(fingerprint0, numbers))
    of_sorted: dict[str, Any] = {
        "packed": packed,
        "numbers": numbers,
        "op_numbers": 0,
        "fingerprint0": fingerprint0,
        "fingerprint1": fingerprint1,
        **NUMBERS,
    }
    backend = CpuBackend(1)
    try:
        backend.launch("tell_descents", n, **of_sorted, descents=descents)
        backend.launch("sort_tied", n, **of_sorted, descents=descents, count=n, left=left)
        backend.launch("mark_chains", n, **of_sorted, ops=ops, order=order, marks=marks)
    finally:
        backend.close()
    assert left[0] == 0
    assert np.array_equal(order, np.lexsort((np.arange(n), fingerprint1, fingerprint0)))
    starts = np.ones(n, bool)
    starts[1:] = (np.diff(fingerprint0[order]) != 0) | (np.diff(fingerprint1[order]) != 0)
    assert np.array_equal(marks >> np.uint64(32), starts)
    assert np.array_equal(marks & np.uint64(1), ops[order] != Op.GET)


@pytest.mark.parametrize("selects", [False, True])
@pytest.mark.parametrize("n", [1, 2, 300, 5000])
def test_new_numbers_that_a_sort_cannot_tell_apart_are_put_in_order(pick: Random, n: int, selects: bool) -> None:
    """Keys that are there lie in the order of their slots; of the others only some bits of fingerprints are packed."""
    keys = np.array([pick.randrange(1 << 64) for _ in range(max(n // 3, 1))], np.uint64)
    keys = keys[np.array([pick.randrange(len(keys)) for _ in range(n)])]
    op_numbers = np.arange(n, dtype=np.uint32)[::-1].copy() if selects else np.arange(n, dtype=np.uint32)
    # So few bits of a fingerprint are left that keys are tied, and not so many that a kernel leaves it.
    hash_keys, numbers = {"hash_key0": 3, "hash_key1": 5}, (1 << (54 if n == 5000 else 56)) - 1
    fingerprint0, fingerprint1, packed, marks = (np.empty(n, np.uint64) for _ in range(4))
    descents, order, left = np.empty(n, np.uint8), np.empty(n, np.uint32), np.zeros(1, np.uint64)
    given = {"op_numbers": op_numbers if selects else 0, "keys": keys.view(np.uint8)}
    backend = CpuBackend(1)
    try:
        backend.launch(
            "route_u64", n, keys=given["keys"], **hash_keys, fingerprint0=fingerprint0, fingerprint1=fingerprint1
        )
        is_there = keys % np.uint64(2) == 0
        slot = keys >> np.uint64(58)  # so few that several keys would share one: here each has its own by the rest
        place = np.where(is_there, slot << np.uint64(57), NOT_THERE | (fingerprint0 >> np.uint64(1)))
        packed[:] = (place[op_numbers] & ~np.uint64(numbers)) | np.arange(n, dtype=np.uint64)
        packed.sort()
        of_sorted: dict[str, Any] = {"packed": packed, "numbers": numbers, **given, **hash_keys}
        of_sorted |= {"fingerprint0": 0, "fingerprint1": 0}  # numbers are known by themselves
        backend.launch("tell_descents", n, **of_sorted, descents=descents)
        backend.launch("sort_tied", n, **of_sorted, descents=descents, count=n, left=left)
        ops = np.full(n, Op.SET.value, np.uint8)
        backend.launch("mark_chains", n, **of_sorted, ops=ops, order=order, marks=marks)
    finally:
        backend.close()
    assert not left[0]
    at = np.argsort(op_numbers, kind="stable").astype(np.uint64)  # of each operation, its number in the sort
    expected = np.lexsort(
        (
            at,
            np.where(is_there, 0, fingerprint1),
            np.where(is_there, 0, fingerprint0),
            place & ~np.uint64(numbers),
        )
    )
    assert np.array_equal(order, expected)
    new = ~is_there[order]
    starts = np.ones(n, bool)
    starts[1:] = (np.diff(keys[order]) != 0) & (new[1:] | new[:-1]) | (np.diff(place[order] & ~np.uint64(numbers)) != 0)
    assert np.array_equal(marks >> np.uint64(32), starts)
    assert (marks & np.uint64(1)).all()


@pytest.mark.parametrize("descent", [1, 63, 64, 500])  # seen by the first position, or by its own
def test_too_many_ties_are_left_and_told(descent: int) -> None:
    n = 1000
    fingerprint0, fingerprint1 = np.zeros(n, np.uint64), np.arange(n, dtype=np.uint64) + np.uint64(1)
    fingerprint1[descent] = 0
    packed, descents, left = packed_of(fingerprint0, 1023), np.empty(n, np.uint8), np.zeros(1, np.uint64)
    before = packed.copy()
    of_sorted: dict[str, Any] = {
        "packed": packed,
        "numbers": 1023,
        "op_numbers": 0,
        "fingerprint0": fingerprint0,
        "fingerprint1": fingerprint1,
        "descents": descents,
        **NUMBERS,
    }
    backend = CpuBackend(1)
    try:
        backend.launch("tell_descents", n, **of_sorted)
        backend.launch("sort_tied", n, **of_sorted, count=n, left=left)
    finally:
        backend.close()
    assert left[0] > 0
    assert np.array_equal(packed, before)


@pytest.mark.usefixtures("_launches")
def test_a_plan_that_is_not_sorted_is_made_by_the_host(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = BatchPlan.look

    def look_at_ties(self: BatchPlan) -> Counts:
        # As if ties were left: then nothing that was told is worth anything.
        self.counts = look(self)._replace(unsorted=1, changes=7, new_keys=7)
        return self.counts

    monkeypatch.setattr(BatchPlan, "look", look_at_ties)
    keys = np.arange(1000, dtype=np.uint64)
    with gpkvs.open(store_path, **SIZES) as store:
        store.create_table("t", layout="u64", index_bytes=1 << 20)
        store.set_many(keys, keys + np.uint64(3), table="t")
        values, there = store.get_many(keys, table="t")
        assert there.all()
        assert (values == keys + np.uint64(3)).all()
        assert store.meter.helped_batches[Left.DEVICE] == 1


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_numbers_are_read_without_a_plan(store_path: Path, monkeypatch: pytest.MonkeyPatch, commit: Any) -> None:
    """Those that are not there are 0, and what one request may not return is refused as ever."""
    monkeypatch.setenv(VARIABLE, PAIR)
    monkeypatch.setenv(HOST_OPS_MAX, "0")
    limits = Limits(result_bytes_max=8 * 1500)
    with gpkvs.open(store_path, **SIZES, commit=commit, journal_bytes=8 << 20, limits=limits) as store:
        table = store.create_table("t", layout="u64", index_bytes=1 << 20)
        keys = np.arange(2000, dtype=np.uint64)
        store.set_many(keys[::2], keys[::2] + np.uint64(3), table="t")
        plan = PhasePlanner.plan
        monkeypatch.setattr(PhasePlanner, "plan", lambda *_, **__: pytest.fail("it was planned"))
        before = store.meter.transactions
        values, found = store.get_many(keys[:1500], table="t")
        assert (found == (keys[:1500] % 2 == 0)).all()
        assert (values == np.where(found, keys[:1500] + np.uint64(3), 0)).all()
        assert store.meter.transactions == before + 1
        monkeypatch.setattr(PhasePlanner, "plan", plan)
        with pytest.raises(InvalidArgumentError, match="bytes"):
            store.get_many(np.zeros(1501, np.uint64), table="t")
        values, found = store.get_many(np.full(1501, 1, np.uint64), table="t")  # none is there
        assert not found.any()
        assert not values.any()
        store.drop_table("t")
        with pytest.raises(UnknownTableError):
            store.get_many(keys[:5], table="t")
        assert table.name == "t"
    with pytest.raises(StoreClosedError):
        store.get_many(keys[:5], table="t")
