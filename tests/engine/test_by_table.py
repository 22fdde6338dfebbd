"""Batches on several tables run by table; each request is done whole, in its table's order."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, BatchResult, Condition, Op, Status
from gpkvs.engine.by_table import run_by_table
from gpkvs.engine.own_turn import OwnTurn
from gpkvs.errors import ConflictError, NoMemoryError, UnknownTableError
from tests.conftest import assert_clean
from tests.engine.test_resolve import batch_of

pytestmark = pytest.mark.usefixtures("natively")

_TABLES = ("words", "more", "numbers")


def opened(path: Path) -> gpkvs.Store:
    store = gpkvs.open(path, backend="cpu", index_bytes=1 << 20, heap_bytes=4 << 20)
    for name in _TABLES:
        store.create_table(name, layout="u64" if name == "numbers" else "bytes")
    return store


def joined(store: gpkvs.Store, requests: list[tuple[str, Batch]]) -> Batch:
    """Return one batch of requests, of each its table."""
    ids = [store.table(name).id for name, _ in requests]
    batch = Batch.concatenate([request for _, request in requests])
    return replace(batch, request_tables=np.array(ids, np.uint32))


def test_random_requests(store_path: Path) -> None:
    seed = int(os.environ.get("GPKVS_SEED", int.from_bytes(os.urandom(4))))
    print(f"GPKVS_SEED={seed}")
    random = Random(seed)
    model: dict[str, dict[bytes, bytes]] = {name: {} for name in _TABLES}
    with opened(store_path) as store:
        for _ in range(200):
            requests, expected = [], []
            for _ in range(random.randrange(1, 12)):
                name, values = random.choice(_TABLES), []
                operations: list[tuple[object, ...]] = []
                for _ in range(random.randrange(1, 5)):
                    key = b"%08d" % random.randrange(12)
                    match random.randrange(3):
                        case 0:
                            value = random.randbytes(8)
                            operations.append((Op.SET, key, value))
                            model[name][key] = value
                        case 1:
                            operations.append((Op.DELETE, key))
                            model[name].pop(key, None)
                        case _:
                            operations.append((Op.GET, key))
                            values.append(model[name].get(key, b""))
                requests.append((name, Batch.of(operations)))
                expected.append(values)
            result = store.execute_requests(joined(store, requests))
            assert (result.requests, result.rejected) == (len(requests), {})
            assert [result.request(number).value_list() for number in range(len(requests))] == expected
    assert_clean(store_path)


def test_one_that_is_refused_is_named_by_its_number(store_path: Path) -> None:
    with opened(store_path) as store:
        store.set(b"key", b"v", table="more")
        get = Batch.of([(Op.GET, b"key")])
        check = batch_of([[(Op.CHECK, b"key", b"", Condition.ABSENT, 0)]], 0)
        batch = joined(store, [("words", get), ("more", check), ("words", get), ("more", get)])
        tables = batch.request_tables.copy()
        tables[2] = 77
        result = store.execute_requests(replace(batch, request_tables=tables))
        assert {number: type(error) for number, error in result.rejected.items()} == {
            1: ConflictError,
            2: UnknownTableError,
        }
        assert result.request(0).status.tolist() == [Status.NOT_FOUND]
        assert result.request(3).value_list() == [b"v"]


def test_no_memory_for_the_second_table(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has run is told, and nothing of it is lost; the others hear that they were not done."""
    with opened(store_path) as store:
        sets = Batch.of([(Op.SET, b"key", b"value")])
        batch = joined(store, [("words", sets), ("more", sets), ("words", sets), ("more", sets)])
        real = OwnTurn.run_batch

        def refuse(self: OwnTurn, batch: Batch) -> tuple[BatchResult, int] | None:
            if batch.request_tables[0] == store.table("more").id:
                raise NoMemoryError
            return real(self, batch)

        with monkeypatch.context() as patched:
            patched.setattr(OwnTurn, "run_batch", refuse)
            result = store.execute_requests(batch)
            assert result.requests == 4
            refusals = {number: type(error) for number, error in result.rejected.items()}
            assert refusals == dict.fromkeys((1, 3), NoMemoryError)
            with pytest.raises(NoMemoryError):
                store.execute_requests(batch.take(np.array([False, True, True, True])))
        assert store.get(b"key", table="words") == b"value"
        assert store.get(b"key", table="more") is None


def test_what_is_cut_goes_on() -> None:
    """A batch on one table may be cut anywhere; the requests behind run next."""
    batch = Batch.concatenate([Batch.of([(Op.GET, b"%d" % number)]) for number in range(5)])
    batch = replace(batch, request_tables=np.array([1, 2, 1, 1, 2], np.uint32))
    ran: list[list[bytes]] = []

    def run(given: Batch) -> tuple[BatchResult, int]:
        ran.append([bytes(given.keys[at : at + 1]) for at in range(len(given))])
        return BatchResult((), {0: NoMemoryError()}, 1), 7 - len(ran)

    result, gate = run_by_table(batch, run)
    assert ran == [[b"0", b"2", b"3"], [b"2", b"3"], [b"3"], [b"1", b"4"], [b"4"]]
    assert sorted(result.rejected) == [0, 1, 2, 3, 4]
    assert (result.requests, gate) == (5, 6)
