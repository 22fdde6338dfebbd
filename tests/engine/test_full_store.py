"""When the index, the heap or the log is full: whole requests are refused, everything else goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, BatchResult, Op, Status
from gpkvs.errors import InvalidArgumentError, NoSpaceError
from tests.conftest import assert_clean

TINY = {"index_bytes": 64 << 10, "index_bytes_max": 64 << 10, "heap_bytes": 1 << 20, "log_bytes": 256 << 10}


def sets(prefix: bytes, count: int, value: bytes = b"v") -> list[tuple[Op, bytes, bytes]]:
    return [(Op.SET, prefix + b"%d" % i, value) for i in range(count)]


def run(store: gpkvs.Store, *requests: list) -> BatchResult:  # type: ignore[type-arg]
    return store.execute_requests(Batch.concatenate([Batch.of(request) for request in requests]))


def reason(result: BatchResult, request: int) -> str:
    error = result.rejected[request]
    assert isinstance(error, NoSpaceError)
    return error.resource


def test_random_keys_fill_at_least_80_percent(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, index_bytes=4 << 20, index_bytes_max=4 << 20, heap_bytes=64 << 20) as store:
        slots = store.info().tables[0].slots
        rng = np.random.default_rng(20)
        filled = 0
        for _ in range(100):
            keys = rng.integers(0, 256, (slots // 100, 12), np.uint8)
            count = len(keys)
            batch = Batch(
                np.full(count, Op.SET, np.uint8),
                keys.reshape(-1),
                np.full(count, 12, np.uint32),
                np.zeros(0, np.uint8),
                np.zeros(count, np.uint32),
            )
            try:
                store.execute(batch)
            except NoSpaceError:
                break
            filled += count
        assert store.info().tables[0].records == filled
        assert filled / slots >= 0.80
    assert_clean(path)


def test_full_index_refuses_single_keys_and_serves_the_rest(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        accepted: set[bytes] = set()
        for round_number in range(6):
            requests = [[operation] for operation in sets(b"r%d-" % round_number, 500)]
            result = run(store, *requests)
            for number, request in enumerate(requests):
                if number in result.rejected:
                    assert reason(result, number) == "index"
                else:
                    result.request(number)
                    accepted.add(request[0][1])
        assert 0.8 * 2048 <= len(accepted) <= 2048  # of 3,000 keys offered
        assert store.info().tables[0].records == len(accepted)
        assert {key for key in accepted if store.get(key) == b"v"} == accepted
        # A batch of many requests: those that fit go through, a DELETE and a GET always do.
        first, second = sorted(accepted)[:2]
        mixed = run(store, sets(b"more", 600), [(Op.GET, first)], [(Op.DELETE, second)], [(Op.SET, first, b"new")])
        assert set(mixed.rejected) == {0}
        assert mixed.request(1).value_list() == [b"v"]
        assert mixed.request(2).status.tolist() == [Status.OK]
        assert store.get(first) == b"new"
        assert store.get(second) is None
        assert store.get(b"more0") is None, "a refused request left something behind"


def test_first_request_in_arrival_order_is_the_one_refused(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        store.execute(Batch.of(sets(b"fill", 1500)))
        result = run(store, sets(b"a", 100), sets(b"b", 600), sets(b"c", 50))
        assert set(result.rejected) == {1}
        assert store.get(b"a99") == b"v"
        assert store.get(b"b0") is None
        assert store.get(b"c49") == b"v"


def test_a_refused_request_leaves_its_ways_to_those_behind_it(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        store.execute(Batch.of(sets(b"fill", 1300)))
        # More keys than the index has free slots; when the first one finds none, hardly a way is left.
        result = run(store, sets(b"too many", 800), sets(b"few", 300))
        assert {number: reason(result, number) for number in result.rejected} == {0: "index"}
        assert store.get(b"few299") == b"v"


def test_a_refused_request_leaves_its_room_in_the_heap_to_those_behind_it(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        too_much = sets(b"too much", TINY["heap_bytes"] // 4000 + 1, b"x" * 4000)
        result = run(store, too_much, sets(b"little", 3), [(Op.SET, b"too much0", b"small")])
        assert {number: reason(result, number) for number in result.rejected} == {0: "heap"}
        assert store.get(b"little2") == b"v"
        assert store.get(b"too much0") == b"small"


def test_full_heap(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        value = b"x" * 4000
        stored = 0
        while not run(store, [(Op.SET, b"key%d" % stored, value)]).rejected:
            stored += 1
            assert stored < 1000
        with pytest.raises(NoSpaceError, match=r"heap full: .* --heap-bytes"):
            store.set(b"more", value)
        info = store.info()
        assert stored == info.heap_charged_bytes_max // 4048  # of a record
        assert info.heap_charged_bytes_max == int(0.85 * (16 - 2 - 2) * 4096) * 16  # less the reserve and two tails
        result = run(
            store,
            [(Op.SET, b"big", value)],
            [(Op.DELETE, b"key0")],
            [(Op.GET, b"key1")],
            sets(b"x", 3, value),
        )
        assert {number: reason(result, number) for number in result.rejected} == {0: "heap", 3: "heap"}
        assert result.request(2).value_list() == [value]
        # Space comes back by itself: a segment in which nothing is live is free again.
        store.execute(Batch.of([(Op.DELETE, b"key%d" % i) for i in range(stored)]))
        for i in range(stored):
            store.set(b"again%d" % i, value)
        assert store.get(b"again0") == value


def test_a_full_heap_refuses_no_request_that_only_reads(store_path: Path) -> None:
    """GETs and an EXISTS are ordered by no key that changes."""
    value = b"x" * 4000
    with gpkvs.open(store_path, **TINY) as store:
        store.set(b"there", b"here")
        stored = 0
        while not run(store, [(Op.SET, b"key%d" % stored, value)]).rejected:
            stored += 1
            assert stored < 1000
        reads = Batch.of([(Op.GET, b"there"), (Op.GET, b"gone"), (Op.EXISTS, b"there")])
        writes = Batch.of(sets(b"more", 3, value))
        result = store.execute_requests(Batch.concatenate([reads, writes]))
        assert {number: reason(result, number) for number in result.rejected} == {1: "heap"}
        found = result.request(0)
        assert found.status.tolist() == [Status.OK, Status.NOT_FOUND, Status.OK]
        assert found.value_list() == [b"here", b""]


def test_overwriting_forever_does_not_fill_the_heap(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        for i in range(2000):
            store.set(b"one key", b"%d" % i * 1000)
        assert store.get(b"one key") == b"1999" * 1000


@pytest.mark.undo
def test_log_that_a_batch_does_not_fit_cuts_it_between_requests(store_path: Path) -> None:
    with gpkvs.open(store_path, index_bytes=4 << 20, heap_bytes=16 << 20, log_bytes=128 << 10) as store:
        entries_max = store.limits.request_ops_max
        assert entries_max < 2500
        batch = Batch.concatenate([Batch.of(sets(b"r%d-" % r, 500)) for r in range(5)])
        result = store.execute_requests(batch)
        assert result.requests == entries_max // 500
        with pytest.raises(InvalidArgumentError, match="request_ops_max"):
            store.execute(Batch.of(sets(b"k", entries_max + 1)))


def test_frame_that_a_batch_does_not_fit_is_cut_between_requests(store_path: Path) -> None:
    """A frame takes a quarter of the journal at most."""
    with gpkvs.open(
        store_path, index_bytes=4 << 20, heap_bytes=16 << 20, journal_bytes=1 << 20, commit="journal"
    ) as store:
        entries_max = store.limits.request_ops_max
        assert 4000 < entries_max < (1 << 20) / 4 / 48
        batch = Batch.concatenate([Batch.of(sets(b"r%d-" % r, 500)) for r in range(12)])
        result = store.execute_requests(batch)
        assert result.requests == entries_max // 500
        with pytest.raises(InvalidArgumentError, match="request_ops_max"):
            store.execute(Batch.of(sets(b"k", entries_max + 1)))


def test_reply_larger_than_the_limit_is_refused_before_anything_is_written(store_path: Path) -> None:
    limits = gpkvs.Limits(result_bytes_max=10_000)
    with gpkvs.open(store_path, **TINY, limits=limits) as store:
        store.set(b"k", b"x" * 4000)
        with pytest.raises(InvalidArgumentError, match="result_bytes_max"):
            store.execute(Batch.of([(Op.SET, b"new", b"v"), *[(Op.GET, b"k")] * 3]))
        assert store.get(b"new") is None
        good = [(Op.GET, b"k")] * 2
        result = run(store, good, [(Op.GET, b"k")] * 3, good)
        assert set(result.rejected) == {1}
        covered = result.requests
        assert covered >= 1
        assert len(result.request(0).values) == 8000


@pytest.mark.format3
def test_value_of_the_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, index_bytes=64 << 10, heap_bytes=512 << 20) as store:
        assert store.limits.value_bytes_max == 16 << 20
        value = bytes(range(256)) * (65_536)
        store.set(b"k" * 4096, value)
        assert store.get(b"k" * 4096) == value
        with pytest.raises(InvalidArgumentError, match="operation 0, values: a value of 16,777,217 bytes"):
            store.set(b"k", value + b"x")
    assert_clean(path)


@pytest.mark.format3
def test_small_heap_lowers_the_value_limit_and_says_so(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        limit = store.limits.value_bytes_max
        store.set(b"k" * store.limits.key_bytes_max, b"x" * limit)
        with pytest.raises(InvalidArgumentError, match="value_bytes_max"):
            store.set(b"k", b"x" * (limit + 1))


@pytest.mark.parametrize(("layout", "slots"), [("bytes", 2048), ("u64", 4096)])
def test_a_full_index_says_why_it_does_not_grow(store_path: Path, layout: str, slots: int) -> None:
    sizes = {"index_bytes": 64 << 10, "heap_bytes": 4 << 20, "log_bytes": 4 << 20, "journal_bytes": 16 << 20}
    with gpkvs.open(store_path, **sizes, index_bytes_max=100_000) as store:
        store.create_table("other", layout=layout, index_bytes=64 << 10)

        def refusal(keys: range) -> str:
            batch = Batch.of([(Op.SET, b"%08d" % key, bytes(8)) for key in keys])
            with pytest.raises(NoSpaceError) as caught:
                store.execute(batch, table="other")
            return str(caught.value)

        text = refusal(range(10 * slots))
        assert f"table 'other' holds 0 records in {slots:,} slots, a load of 0%; of {10 * slots:,} new keys one" in text
        assert "twice its 65,536 bytes are over index_bytes_max (--index-bytes-max, 100,000)" in text
        store.execute(Batch.of([(Op.SET, b"%08d" % key, bytes(8)) for key in range(slots // 2)]), table="other")
        text = refusal(range(slots // 2, slots))
        assert f"holds {slots // 2:,} records in {slots:,} slots, a load of 50%" in text
        assert "delete keys, or raise the limit" in text
        assert store.info().tables[1].growth_waits in text
