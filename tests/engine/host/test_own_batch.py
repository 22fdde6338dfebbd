"""Batches of columns of this process: native code runs them, with the results that a door has of it."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import HAS_VALUE, Batch, BatchResult, Condition, Op, Status, constant, is_constant
from gpkvs.config import CommitName, Limits, StoreConfig
from gpkvs.engine.seam.left import Left
from gpkvs.errors import ConflictError, StoreClosedError
from gpkvs.store import Store
from tests.conftest import SMALL, assert_clean
from tests.engine.host.test_own_turn import interrupted, lives
from tests.engine.native_driver import NativeDriver, result_of

pytestmark = pytest.mark.usefixtures("natively", "long_turns")
_FAR = 1 << 42  # milliseconds since 1970
_READ_BYTES_MAX = 6_000


def opened(path: Path, commit: CommitName, *, is_narrow: bool = False) -> Store:
    config = StoreConfig(backend="cpu", commit=commit, **SMALL)
    if is_narrow:
        config = replace(
            config, limits=Limits(result_bytes_max=_READ_BYTES_MAX), batch_result_bytes_max=_READ_BYTES_MAX
        )
    store = Store(path, config)
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    return store


@pytest.fixture
def twins(tmp_path: Path, commit: CommitName, is_narrow: bool) -> Iterator[tuple[Store, Store]]:
    """Return two stores, of which the second one is to be driven as by a door."""
    stores = [opened(tmp_path / name, commit, is_narrow=is_narrow) for name in ("own", "door")]
    for store in stores:
        store._engine.expiry._look_at = float("inf")  # nobody sweeps: that is a matter of time
    yield stores[0], stores[1]
    for store in stores:
        store.close()
        assert_clean(store.path)


@pytest.fixture
def store(store_path: Path, commit: CommitName) -> Iterator[Store]:
    with opened(store_path, commit) as store:
        yield store


def random_batch(random: Random, store: Store, table: str, expiries_given: Sequence[int], expected_max: int) -> Batch:
    """Return requests of all operations, of some, or of one kind whose lengths are one number."""
    of_numbers = table == "numbers"
    looks = random.random() < 0.6
    plain = [Op.GET, Op.SET, Op.DELETE, Op.EXISTS]
    kinds = [*plain, Op.INCREMENT, Op.CHECK, *([] if of_numbers else [Op.APPEND, Op.EXPIRE, Op.EXPIRY])]
    kinds = kinds if looks else random.choice((plain, [Op.GET], [Op.SET], [Op.GET, Op.EXISTS]))
    is_even = of_numbers or random.random() < 0.3
    request_ops = [random.choice((1, 2, 9)) for _ in range(random.choice((1, 1, 3, 20)))]
    ops: list[Op] = []
    for number in request_ops:
        with_checks = random.random() < 0.3
        ops += [random.choice([kind for kind in kinds if with_checks or kind is not Op.CHECK]) for _ in range(number)]
    n = len(ops)
    keys = [random.randrange(30).to_bytes(8, "little") + (b"" if is_even else b"k" * random.randrange(3)) for _ in ops]
    values = []
    for op in ops:
        if op is Op.INCREMENT:
            values.append(random.choice((1, -1, (1 << 63) - 1)).to_bytes(8, "little", signed=True))
        elif HAS_VALUE[op]:
            text = random.choice((b"12", b"x" * 300, b"y" * 900, b"007"))
            values.append(random.randbytes(8) if is_even else text)
    conditions = None
    if looks:
        may = lambda op: op is Op.CHECK or (op not in (Op.GET, Op.EXISTS, Op.EXPIRY) and random.random() < 0.4)  # noqa: E731
        chosen = [random.choice(list(Condition)[1:]) if may(op) else Condition.NONE for op in ops]
        conditions = np.array(chosen, np.uint8)
    gives_expiries = not of_numbers and random.random() < 0.3
    expiries = [random.choice(expiries_given) for _ in ops] if gives_expiries else None
    column: Any = constant if is_even else lambda number, count: np.full(count, number)
    lengths = [len(key) for key in keys]
    batch = Batch(
        column(np.uint8(ops[0]), n) if len(set(ops)) == 1 else np.array(ops, np.uint8),
        np.frombuffer(b"".join(keys), np.uint8),
        constant(np.uint32(8), n) if is_even else np.array(lengths, np.uint32),
        np.frombuffer(b"".join(values), np.uint8),
        constant(np.uint32(8), len(values)) if is_even else np.array([len(value) for value in values], np.uint32),
        np.array(request_ops, np.uint32),
        store.table(table).id,
        conditions=conditions,
        expected=None if conditions is None else np.array([random.randint(0, expected_max) for _ in ops], np.uint64),
        expiries=None if expiries is None else np.array(expiries, np.uint64),
    )
    batch.validate(store.open_table(table).limits)
    return batch


def described(result: BatchResult) -> list[Any]:
    """Return all that a result says, as far as it goes; but for where it is cut, which each engine says for itself."""
    said: list[Any] = [None] * result.requests
    for number, refusal in result.rejected.items():
        is_conflict = isinstance(refusal, ConflictError)
        said[number] = (refusal.index, refusal.found) if is_conflict else repr(refusal)
    if part := result.part:
        whole = part.result
        assert (whole.status.dtype, whole.versions.dtype) == (np.uint8, np.uint64)
        assert (whole.value_lengths.dtype, whole.values.dtype) == (np.uint32, np.uint8)
        assert len(part.batch) == len(whole.status) == part.batch.request_ops.sum() == len(whole.versions)
        assert whole.value_lengths.sum() == len(whole.values)
        for number, one, request_ops in zip(part.numbers, part.requests(), part.batch.request_ops, strict=True):
            assert len(one.status) == request_ops
            said[number] = (one.status.tolist(), one.versions.tolist(), one.value_list())
    assert None not in said
    return said


def as_a_door(store: Store) -> Callable[[Batch], BatchResult]:
    """Return what runs a batch as a door does."""
    driver = NativeDriver(store)
    driver.value_bytes_max = driver.native.made_bytes_max

    def run(batch: Batch) -> BatchResult:
        with store._turn_over():
            answer = driver.run_with_help(batch)
        assert answer
        return result_of(batch, answer, driver.refusals)

    return run


def run_all(run: Callable[[Batch], BatchResult], batch: Batch) -> tuple[list[Any], list[BatchResult]]:
    """Run a batch, and again what was cut off; return what is said to each request, and the results."""
    said: list[Any] = []
    results = []
    while True:
        results.append(run(batch))
        said += described(results[-1])
        done = results[-1].requests
        if done == len(batch.request_ops):
            return said, results
        batch = batch.take(np.arange(len(batch.request_ops)) >= done)


def without_versions(said: list[Any]) -> list[Any]:
    """Return what is said to requests, but of versions only whether there is one."""
    bare: list[Any] = []
    for one in said:
        match one:
            case (status, versions, values):
                bare.append((status, [version > 0 for version in versions], values))
            case (index, found):
                bare.append((index, found is not None))
            case refusal:
                bare.append(refusal)
    return bare


@pytest.mark.parametrize(
    ("table", "is_narrow"),
    [("default", False), ("default", True), ("numbers", False)],
    ids=["bytes", "bytes-cut", "u64"],
)
def test_the_same_results_as_a_door_s(twins: tuple[Store, Store], table: str, is_narrow: bool) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    random = Random(seed)
    # What is cut off meets keys that have expired in the part before it, and a part that changes nothing gives no
    # versions.
    expiries, expected_max = ((0, 0, _FAR), 0) if is_narrow else ((0, 0, 1, _FAR), 40)
    natively = conflicts = cuts = 0
    runs = (twins[0].execute_requests, as_a_door(twins[1]))
    for _ in range(400):
        batch = random_batch(random, twins[0], table, expiries, expected_max)
        (said, results), (by_door, of_door) = (run_all(run, batch) for run in runs)
        if is_narrow:
            said, by_door = without_versions(said), without_versions(by_door)
        assert said == by_door
        if len(results) == len(of_door) == 1:
            part, other = results[0].part, of_door[0].part
            assert (part is None) == (other is None)
            if part and other:
                assert part.result.status.flags.writeable
                has_failed = bool((part.result.status == Status.CONDITION_FAILED).any())
                assert part.result.has_numbers == (table == "numbers" and has_failed)
                assert is_constant(part.result.versions) == (table == "numbers" and not has_failed)
                assert part.numbers.tolist() == other.numbers.tolist()
                assert part.batch.ops.tolist() == other.batch.ops.tolist()
        natively += lives(twins[0])
        conflicts += any(result.rejected for result in results)
        cuts += len(results) > 1
    assert natively > 200
    assert conflicts > 20
    assert (cuts > 5) == is_narrow
    assert dict(twins[0].table(table).scan()) == dict(twins[1].table(table).scan())
    assert is_narrow or twins[0].info().next_version == twins[1].info().next_version


def test_a_batch_that_reads_too_much_is_cut(store_path: Path, commit: CommitName) -> None:
    with opened(store_path, commit, is_narrow=True) as store:
        store.set(b"key", b"v" * 1000)
        batch = Batch.concatenate([Batch.of([(Op.GET, b"key")] * 2)] * 7)
        for left, done in ((7, 2), (5, 2), (3, 2), (1, 1)):
            result = store.execute_requests(batch.take(np.arange(7) < left))
            assert result.requests == done
            assert [result.request(number).value_list() for number in range(done)] == [[b"v" * 1000] * 2] * done
        assert not any(store.meter.left_batches.values())


def test_numbers_of_all_sizes(store: Store) -> None:
    table = store.table("numbers")
    for size in (1, 511, 512, 513, 5000, 40_000):
        keys = np.arange(size, dtype=np.uint64)
        table.set_many(keys, keys + np.uint64(size))
        found, there = table.get_many(keys)
        assert there.all()
        assert (found == keys + np.uint64(size)).all()
    assert all(count == store.meter.helped_batches[reason] for reason, count in store.meter.left_batches.items())


def test_a_short_batch_that_returns_long_values(store_path: Path, commit: CommitName) -> None:
    """It keeps Python's lock only as long as that takes little time."""
    with gpkvs.open(store_path, backend="cpu", commit=commit, index_bytes=1 << 20, heap_bytes=64 << 20) as store:
        value = os.urandom(1 << 20)
        store.set(b"key", value)
        result = store.execute(Batch.of([(Op.GET, b"key")] * 6))
        assert result.value_list() == [value] * 6
        assert lives(store)
        assert store.meter.left_batches[Left.MEMORY] == store.meter.helped_batches[Left.MEMORY] == 1


def test_values_live_as_long_as_somebody_has_them(store: Store) -> None:
    store.execute(Batch.of([(Op.SET, b"key", b"value")]))
    values = store.execute(Batch.of([(Op.GET, b"key")] * 3)).values
    for _ in range(50):
        store.execute(Batch.of([(Op.SET, b"key", b"other"), (Op.GET, b"key")]))
    gc.collect()
    assert values[5:10].tobytes() == b"value"
    values[:] = 0  # nobody else's
    assert store.get(b"key") == b"other"


def test_a_batch_leaves_no_memory(store_path: Path) -> None:
    with gpkvs.open(store_path, backend="cpu", commit="undo", index_bytes=1 << 20, heap_bytes=64 << 20) as store:
        store.set(b"key", bytes(4_000_000))
        gets = Batch.of([(Op.GET, b"key")] * 2)
        store.execute(gets)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(40):
            store.execute(gets)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB; 40 results have 320 MiB


@pytest.mark.usefixtures("natively")
def test_numbers_beside_a_request_that_reads_too_much(store_path: Path) -> None:
    """Where GETs leave what they find is the result only if all requests are done."""
    limits = Limits(result_bytes_max=160_000)
    with gpkvs.open(store_path, backend="cpu", index_bytes=4 << 20, heap_bytes=4 << 20, limits=limits) as store:
        store.create_table("numbers", layout="u64")
        numbers = np.arange(50_000, dtype=np.uint64)
        for first in range(0, 50_000, 10_000):
            part = numbers[first : first + 10_000]
            store.set_many(part, part + np.uint64(1), table="numbers")
        gets = Batch(
            ops=np.full(50_000, Op.GET.value, np.uint8),
            keys=numbers.view(np.uint8),
            key_lengths=constant(np.uint32(8), 50_000),
            values=np.empty(0, np.uint8),
            value_lengths=np.empty(0, np.uint32),
            request_ops=np.array([25_000, 15_000, 10_000], np.uint32),
            table=store.table("numbers").id,
        )
        result = store.execute_requests(gets)
        assert list(result.rejected) == [0]
        assert np.array_equal(result.request(1).values.view(np.uint64), numbers[25_000:40_000] + 1)
        assert np.array_equal(result.request(2).values.view(np.uint64), numbers[40_000:] + 1)
        assert result.request(1).value_lengths.tolist() == [8] * 15_000


def test_what_it_leaves_is_counted_once(store: Store) -> None:
    batch = Batch.of([(Op.GET, b"key")])
    left = lambda: {reason: count for reason, count in store.meter.left_batches.items() if count}  # noqa: E731
    store.execute(batch)
    assert left() == {}
    gone = batch.on_table(77)
    assert store.execute_requests(gone).rejected
    assert left() == {Left.TABLE: 1}


def test_a_closed_store_says_so(store: Store) -> None:
    batch = Batch.of([(Op.GET, b"key")])
    store.execute(batch)
    store.close()
    with pytest.raises(StoreClosedError):
        store.begin_requests(batch)


def test_threads_may_all_use_it(store: Store) -> None:
    failures: list[BaseException] = []
    one = np.ones(700, np.int64)
    keys = np.arange(700, dtype=np.uint64)

    def count_up(number: int) -> None:
        try:
            for at in range(60):
                store.table("numbers").incr_many(keys, one)
                value = b"%d %d" % (number, at)
                found = store.execute(Batch.of([(Op.SET, b"own %d" % number, value), (Op.GET, b"own %d" % number)]))
                assert found.value_list() == [value]
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=count_up, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (store.table("numbers").get_many(keys)[0] == 240).all()


@pytest.mark.parametrize("size", [1, 600])
def test_an_interrupt_leaves_the_store_as_before_or_after(store: Store, size: int) -> None:
    table = store.table("numbers")
    keys, one = np.arange(size, dtype=np.uint64), np.ones(size, np.int64)
    table.incr_many(keys, one)
    value = 1
    for place in count(1):
        was_interrupted = interrupted(lambda: table.incr_many(keys, one), place)
        found, there = table.get_many(keys)
        assert there.all()
        assert set(found.tolist()) <= {value, value + 1} if was_interrupted else {value + 1}
        assert len(set(found.tolist())) == 1
        value = int(found[0])
        if not was_interrupted:
            break
    assert place > 20
    assert value > 1
