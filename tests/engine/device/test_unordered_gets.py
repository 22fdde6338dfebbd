"""Large batches sort only what must be sorted: GETs of keys that the batch does not write are looked up."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.cpu.backend import HOST_OPS_MAX
from gpkvs.batch import Batch, Op, Status
from gpkvs.engine.device.batch_plan import BatchPlan, Step
from gpkvs.errors import NoSpaceError

KEYS = 300


@pytest.mark.parametrize("gets", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("layout", ["u64", "bytes"])
def test_batches_are_answered_as_by_a_dictionary(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, gets: float
) -> None:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    pick = Random(seed)
    sorted_of: list[tuple[int, int]] = []
    run = BatchPlan.run

    def noted(self: BatchPlan, steps: int) -> None:
        if steps & Step.ORDER and self.get("looks"):
            sorted_of.append((self.get("ordered"), self.get("count")))
        run(self, steps)

    monkeypatch.setattr(BatchPlan, "run", noted)
    monkeypatch.setenv(HOST_OPS_MAX, "0")  # as for a GPU
    model: dict[bytes, bytes] = {}
    have_few = 0  # batches of which not all operations were sorted, however many processors told so
    with gpkvs.open(store_path, index_bytes=1 << 20, heap_bytes=1 << 22, log_bytes=1 << 20) as store:
        store.create_table("t", layout=layout, index_bytes=1 << 20)
        for _ in range(12):
            operations: list[tuple[Op, bytes] | tuple[Op, bytes, bytes]] = []
            expected: list[bytes | None] = []
            for _ in range(pick.randrange(1, 500)):
                key = pick.randrange(KEYS).to_bytes(8, "little")
                if pick.random() < gets:
                    operations.append((Op.GET, key))
                    expected.append(model.get(key))
                elif pick.random() < 0.7:
                    operations.append((Op.SET, key, value := pick.randbytes(8)))
                    model[key] = value
                else:
                    operations.append((Op.DELETE, key))
                    model.pop(key, None)
            before = len(sorted_of)
            result = store.execute(Batch.of(operations), table="t")
            have_few += len(sorted_of) > before
            is_get = np.array([operation[0] is Op.GET for operation in operations])
            assert (result.status[is_get] == Status.OK.value).tolist() == [value is not None for value in expected]
            assert [value for value in result.value_list() if value] == [value for value in expected if value], seed
    if gets > 0.9:
        assert sum(number for number, _ in sorted_of) < 0.5 * sum(count for _, count in sorted_of)
    elif gets < 0.5:
        assert have_few < 6  # few batches have more GETs than that by chance


@pytest.mark.parametrize("resource", ["heap", "index"])
def test_where_a_store_is_full_its_gets_go_on(store_path: Path, monkeypatch: pytest.MonkeyPatch, resource: str) -> None:
    monkeypatch.setenv(HOST_OPS_MAX, "0")
    value = b"v" * (20_000 if resource == "heap" else 1)
    sizes: dict[str, Any] = {
        "index_bytes": 64 << 10,
        "index_bytes_max": 64 << 10,
        "heap_bytes": 1 << 20,
        "log_bytes": 256 << 10,
    }
    gets: list[tuple[Op, bytes]] = [(Op.GET, b"%d" % number) for number in range(5)]
    with gpkvs.open(store_path, **sizes) as store:
        for number in range(10_000):
            sets = [(Op.SET, b"%d" % (number * 3 + more), value) for more in range(3)]
            requests = [Batch.of(gets), Batch.of(sets)]
            result = store.execute_requests(Batch.concatenate(requests))
            if number > 2:
                assert result.request(0).value_list() == [value] * 5
            if result.rejected:
                break
        (error,) = result.rejected.values()
        assert isinstance(error, NoSpaceError)
        assert error.resource == resource
