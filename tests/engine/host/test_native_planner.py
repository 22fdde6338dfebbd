"""Small batches, planned in one call: the same results and the same files as phase by phase."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, BatchResult, Op
from gpkvs.engine.host.native_planner import OPS_MAX
from gpkvs.engine.seam.left import Left
from gpkvs.engine.state.heap import Tail
from gpkvs.errors import NoMemoryError
from gpkvs.media.layout import UNIT_BYTES
from tests.conftest import assert_clean
from tests.engine.twins import plan_by_phases, regions_of
from tests.record_header import HEADER_BYTES

TINY = {"index_bytes_max": 64 << 10, "index_bytes": 64 << 10, "heap_bytes": 512 << 10, "log_bytes": 256 << 10}


@pytest.fixture
def twins(tmp_path: Path, natively: None) -> Iterator[tuple[gpkvs.Store, gpkvs.Store]]:
    """Return two stores that place keys alike: one takes small batches at once, the other phase by phase."""
    stores = []
    with ExitStack() as stack:
        stack.enter_context(patch("gpkvs.media.directory.secrets.token_bytes", lambda count: bytes(range(count))))
        stack.enter_context(patch("gpkvs.media.directory.time.time_ns", lambda: 0))
        for name in ("once", "phases"):
            store = stack.enter_context(gpkvs.open(tmp_path / name, backend="cpu", durability="process", **TINY))
            store.create_table("numbers", layout="u64", index_bytes=64 << 10)
            stores.append(store)
        plan_by_phases(stores[1])
        yield stores[0], stores[1]
    for name in ("once", "phases"):
        assert_clean(tmp_path / name)


def random_batch(rng: np.random.Generator, store: gpkvs.Store, table: str, keys: int) -> Batch:
    """Return some requests of random operations on so many different keys; a part of the batches only reads."""
    requests = []
    reads = [Op.GET, Op.EXISTS]
    kinds = reads if rng.random() < 0.2 else [*reads, Op.SET, Op.SET, Op.SET, Op.DELETE]
    for _ in range(int(rng.integers(1, 6))):
        operations: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
        for _ in range(int(rng.integers(1, 40))):
            number = int(rng.integers(0, keys))
            key = number.to_bytes(8, "little") + (b"k" * (number % 7) if table == "default" else b"")
            kind = rng.choice(kinds)
            if kind == Op.SET:
                size = 8 if table == "numbers" else int(rng.integers(0, 50))
                operations.append((Op.SET, key, rng.bytes(size)))
            else:
                operations.append((Op(kind), key))
        requests.append(Batch.of(operations).on_table(store.table(table).id))
    return Batch.concatenate(requests)


def outcome(result: BatchResult) -> list[object]:
    """Return what a caller sees of a result."""
    seen: list[object] = [result.requests]
    for number in range(result.requests):
        if number in result.rejected:
            seen.append(str(result.rejected[number]))
        else:
            one = result.request(number)
            seen.append((one.status.tolist(), one.versions.tolist(), one.value_lengths.tolist(), one.value_list()))
    return seen


@pytest.mark.undo
@pytest.mark.parametrize("keys", [30, 600])
@pytest.mark.parametrize("table", ["default", "numbers"])
def test_at_once_and_by_phases_make_the_same_files(
    twins: tuple[gpkvs.Store, gpkvs.Store], table: str, keys: int
) -> None:
    seed = int(np.random.default_rng().integers(1 << 32))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    once, phases = twins
    for _ in range(200):
        batch = random_batch(rng, once, table, keys)
        assert outcome(once.execute_requests(batch)) == outcome(phases.execute_requests(batch))
        for left, right in zip(*map(regions_of, twins), strict=True):
            words = left.bytes // 8
            assert np.array_equal(left.words(0, words), right.words(0, words)), left.path
        assert once.info().tables == phases.info().tables
        assert once._engine.heap.tail == phases._engine.heap.tail
        assert np.array_equal(once._engine.heap.live_units, phases._engine.heap.live_units)
        assert once.meter.user_bytes == phases.meter.user_bytes
        assert once.meter.written_bytes == phases.meter.written_bytes
    assert once.meter.left_batches[Left.DEVICE] == 0 < phases.meter.left_batches[Left.DEVICE]


def test_the_largest_batch_that_is_planned_natively(store_path: Path) -> None:
    sizes = {"index_bytes": 8 << 20, "heap_bytes": 32 << 20, "log_bytes": 32 << 20, "journal_bytes": 32 << 20}
    with gpkvs.open(store_path, **sizes) as store:
        for count in (512, 513, OPS_MAX, OPS_MAX + 1):
            keys = [b"%d" % number for number in range(count)]
            store.execute(Batch.of([(Op.SET, key, key) for key in keys]))
            assert store.execute(Batch.of([(Op.GET, key) for key in keys])).value_list() == keys
            assert store.execute(Batch.of([(Op.DELETE, key) for key in keys])).status.max() == 0
            assert store.info().tables[0].records == 0


def test_records_that_cross_segments_are_placed_at_once(twins: tuple[gpkvs.Store, gpkvs.Store]) -> None:
    segments = set()
    for round_number in range(12):
        batch = Batch.of([(Op.SET, b"key %d" % (number + 50 * (round_number % 3)), b"v" * 900) for number in range(50)])
        for store in twins:
            assert not store.execute_requests(batch).rejected
        once, phases = (store._engine.heap for store in twins)
        assert twins[0].meter.phase_seconds["stage"] == 0.0, "it was left to the phases"
        assert once.tail == phases.tail
        assert np.array_equal(once.live_units, phases.live_units)
        segments.add(once.tail.segment)
    assert len(segments) > 2


@pytest.mark.undo
def test_the_tail_is_the_same_whatever_table_a_batch_is_on(twins: tuple[gpkvs.Store, gpkvs.Store]) -> None:
    """A batch of numbers appends no record; a tail segment in which nothing is live begins again all the same."""
    for store in twins:
        store.set(b"key", b"value")
        store.delete(b"key")
        store.set_many(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64), table="numbers")
    once, phases = twins
    assert once._engine.heap.tail == phases._engine.heap.tail == Tail(0, 0)
    for left, right in zip(*map(regions_of, twins), strict=True):
        assert np.array_equal(left.words(0, left.bytes // 8), right.words(0, left.bytes // 8)), left.path


@pytest.mark.undo
def test_a_segment_with_nothing_live_begins_again(twins: tuple[gpkvs.Store, gpkvs.Store]) -> None:
    for store in twins:
        for _ in range(3):
            store.set(b"key", b"value")
            assert store._engine.heap.tail.units == -(-(HEADER_BYTES + 8) // UNIT_BYTES)  # 8 of key and value
            store.delete(b"key")
        assert store.info().heap_live_bytes == 0


def lazily_freed_bytes(address: int) -> int:
    """Return how much of the mapping at an address the system may take without asking."""
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    for mapping in mappings:
        first, last = (int(end, 16) for end in mapping.split()[0].split("-"))
        if first <= address < last:
            return int(re.search(r"LazyFree: +(\d+) kB", mapping)[1]) << 10  # type: ignore[index]
    raise AssertionError("it is not mapped")


@pytest.mark.usefixtures("natively")
def test_the_system_may_have_what_a_large_batch_used(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.engine.host.native_planner._KEPT_BYTES", 1 << 20)
    with gpkvs.open(store_path, backend="cpu", index_bytes=8 << 20, heap_bytes=64 << 20, log_bytes=32 << 20) as store:
        store.execute(Batch.of([(Op.SET, b"%d" % number, b"value") for number in range(50_000)]))
        planner = store._engine._native._of_layout["bytes"]
        at, size = (planner._words[planner._at[name]] for name in ("outside", "outside_bytes"))
        assert size > 10 << 20
        assert lazily_freed_bytes(at + size // 2) > 1 << 20
        store.execute(Batch.of([(Op.GET, b"1")] * 600))
        assert planner._words[planner._at["outside_bytes"]] == 0, "a small batch needs none of it"
        assert store.get(b"49999") == b"value"


@pytest.mark.usefixtures("natively")
def test_columns_that_shrank_in_a_turn_are_not_written_past(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpkvs.engine.host.native_planner._KEPT_BYTES", 1 << 20)
    monkeypatch.setattr("gpkvs.engine.engine._TURN_SECONDS", 600.0)
    sizes = {"index_bytes": 8 << 20, "heap_bytes": 64 << 20, "log_bytes": 32 << 20}
    with gpkvs.open(store_path, backend="cpu", **sizes) as store:  # type: ignore[arg-type]
        keys = [b"%d" % number for number in range(40_000)]
        store.execute(Batch.of([(Op.SET, key, key) for key in keys]))
        gets = Batch.of([(Op.GET, key) for key in keys])
        store.execute(gets)  # the turn lives on

        def refuse(*_: object, **_named: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr("gpkvs.engine.host.native_engine.NativeEngine.begin_turn", refuse)
            with pytest.raises(NoMemoryError):
                store.execute(Batch.of([(Op.GET, b"1")] * 600))
        assert not store._engine.native.is_in_turn  # it was told of other columns
        store._engine.native.is_in_turn = True  # as if it lived on
        assert store.execute(gets).value_list() == keys


@pytest.mark.usefixtures("natively")
@pytest.mark.parametrize("layout", ["bytes", "u64"])
def test_batches_whose_columns_are_not_kept(store_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """What does not fit the block that is kept is taken for a batch alone, as a whole or not at all."""
    kept_bytes = 1 << 20
    monkeypatch.setattr("gpkvs.engine.host.native_planner._KEPT_BYTES", kept_bytes)
    rng, model = np.random.default_rng(1), dict[int, None]()

    def no_memory(count: int) -> None:
        raise MemoryError(count)

    with gpkvs.open(store_path, backend="cpu", index_bytes=8 << 20, heap_bytes=32 << 20, log_bytes=32 << 20) as store:
        store.create_table("own", layout=layout)
        for count in (3000, 10, 20_000, 7000, 1, 12_000):
            numbers = rng.integers(0, 30_000, count)
            keys = [int(number).to_bytes(8, "little") for number in numbers]
            sets = Batch.of([(Op.SET, key, key[::-1]) for key in keys])
            if count in (20_000, 12_000):  # the batch before was small
                with monkeypatch.context() as patched:
                    patched.setattr("gpkvs.engine.host.native_planner.map_memory", no_memory)
                    with pytest.raises(NoMemoryError):
                        store.execute(sets, table="own")
            store.execute(sets, table="own")
            model |= dict.fromkeys(numbers.tolist())
            asked = rng.integers(0, 40_000, count).tolist()
            found = store.execute(Batch.of([(Op.GET, asking.to_bytes(8, "little")) for asking in asked]), table="own")
            assert found.value_list() == [
                asking.to_bytes(8, "little")[::-1] if asking in model else b"" for asking in asked
            ]
            assert found.value_lengths.tolist() == [8 * (asking in model) for asking in asked]
            mixed = [(Op.GET, key) if at % 3 else (Op.SET, key, key[::-1]) for at, key in enumerate(keys)]
            values = store.execute(Batch.of(mixed), table="own").value_list()
            assert values == [key[::-1] for at, key in enumerate(keys) if at % 3]
            assert store._engine._native.kept_bytes <= kept_bytes
        left, helped = store.meter.left_batches[Left.COLUMNS], store.meter.helped_batches[Left.COLUMNS]
        assert left - helped == 2, "all of them ran natively, as soon as there was memory"
