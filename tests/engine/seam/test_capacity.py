"""Who is refused when a store is nearly full: against running the requests one at a time, and in few passes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import gpkvs
from gpkvs.batch import Batch, Op
from tests.engine.test_full_store import TINY, reason, run, sets

PASSES_MAX = 4


def passes(store: gpkvs.Store) -> int:
    """Return how often a batch was left so far, to be planned again."""
    return sum(store.meter.left_batches.values())


def fill_index(store: gpkvs.Store) -> None:
    """Fill the index until hardly a key finds room."""
    for round_number in range(8):
        run(store, *[[operation] for operation in sets(b"fill%d-" % round_number, 500)])


def test_one_new_key_in_many_requests_on_a_full_index(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        fill_index(store)
        key = next(b"no room %d" % i for i in range(1000) if run(store, sets(b"no room %d" % i, 1)).rejected) + b"0"
        before = passes(store)
        result = run(store, *[[(Op.SET, key, b"%d" % i)] for i in range(500)], [(Op.GET, b"fill0-0")])
        assert set(result.rejected) == set(range(500))
        assert 0 < passes(store) - before <= PASSES_MAX


def test_many_large_requests_on_a_full_index(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        fill_index(store)
        store.execute(Batch.of([(Op.DELETE, b"fill0-%d" % i) for i in range(150)]))
        before = passes(store)
        result = run(store, *[sets(b"r%d-" % r, 100) for r in range(30)], [(Op.DELETE, b"fill1-7")])
        assert 30 not in result.rejected
        assert len(result.rejected) >= 27
        assert 0 < passes(store) - before <= PASSES_MAX
        for request in range(30):
            held = sum(store.get(b"r%d-%d" % (request, i)) is not None for i in range(100))
            assert held == (0 if request in result.rejected else 100)


def test_one_hot_key_in_many_requests_on_a_full_heap(store_path: Path) -> None:
    with gpkvs.open(store_path, **TINY) as store:
        value = b"x" * 4000
        stored = 0
        while not run(store, [(Op.SET, b"key%d" % stored, value)]).rejected:
            stored += 1
        before = passes(store)
        result = run(store, *[[(Op.SET, b"hot", value)] for _ in range(500)], [(Op.GET, b"key0")])
        assert {reason(result, number) for number in range(500)} == {"heap"}
        assert 0 < passes(store) - before <= PASSES_MAX


def test_like_running_the_requests_one_at_a_time(tmp_path: Path) -> None:
    """On a nearly full index: what is accepted holds whole, what is refused left nothing, whatever the order inside."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    with gpkvs.open(tmp_path / "store", **TINY) as store:
        for first in range(0, 1600, 100):
            store.execute(Batch.of(sets(b"k", 1600)[first : first + 100]))
        model = {b"k%d" % i: b"v" for i in range(1600)}
        for _ in range(25):
            requests = []
            for _ in range(12):
                keys = rng.integers(0, 4000, rng.integers(1, 60)).tolist()
                kinds = rng.integers(1, 4, len(keys)).tolist()
                requests.append(
                    [
                        (Op.SET, b"k%d" % key, b"%d" % rng.integers(100))
                        if kind == Op.SET
                        else (Op(kind), b"k%d" % key)
                        for kind, key in zip(kinds, keys, strict=True)
                    ]
                )
            result = run(store, *requests)
            assert result.requests == len(requests)
            for number, request in enumerate(requests):
                has_set = any(operation[0] == Op.SET for operation in request)
                assert number not in result.rejected or has_set
                if number in result.rejected:
                    continue
                expected = []
                for kind, key, *value in request:
                    if kind is Op.GET:
                        expected.append(model.get(key, b""))
                    elif kind is Op.SET:
                        model[key] = value[0]
                    else:
                        model.pop(key, None)
                assert result.request(number).value_list() == expected
        assert {key: store.get(key) for key in model} == model
        assert store.info().tables[0].records == len(model)


def test_tail_segment_is_used_again_when_nothing_in_it_is_live(store_path: Path) -> None:
    value = b"x" * 30_000
    with gpkvs.open(store_path, index_bytes=64 << 10, heap_bytes=128 << 10) as store:
        first = 0
        while not run(store, [(Op.SET, b"first%d" % first, value)]).rejected:
            first += 1
        assert first == 4
        # Both segments are full; the second one, where the tail is, becomes free.
        store.execute(Batch.of([(Op.DELETE, b"first2"), (Op.DELETE, b"first3")]))
        store.set(b"again", value)
        assert store.get(b"again") == value
        assert store.get(b"first0") == value


def test_request_is_not_judged_by_one_that_is_refused(store_path: Path) -> None:
    """A GET sees the value of an earlier SET only if that is accepted; its reply may then be small enough."""
    limits = gpkvs.Limits(result_bytes_max=10_000)
    with gpkvs.open(store_path, **TINY, limits=limits) as store:
        filler = b"x" * 4000
        stored = 0
        while not run(store, [(Op.SET, b"key%d" % stored, filler)]).rejected:
            stored += 1
        result = run(store, [(Op.SET, b"big", b"y" * 9000)], [(Op.GET, b"big"), (Op.GET, b"big")])
        assert set(result.rejected) == {0}
        assert result.request(1).value_list() == [b"", b""]
