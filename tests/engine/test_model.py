"""Batches of random operations against a dictionary."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.config import DurabilityName
from tests.conftest import SMALL, assert_clean

KEYS = st.one_of(st.sampled_from([b"a", b"b", b"\0", b"\0\0", b"key", b"key\0"]), st.binary(min_size=1, max_size=40))
VALUES = st.one_of(st.just(b""), st.binary(max_size=80))
OPERATIONS = st.one_of(
    st.tuples(st.just(Op.GET), KEYS),
    st.tuples(st.just(Op.DELETE), KEYS),
    st.tuples(st.just(Op.SET), KEYS, VALUES),
)
Operation = tuple[Op, bytes] | tuple[Op, bytes, bytes]


class Model:
    """What a store should hold: value and version of each key, one operation at a time."""

    def __init__(self) -> None:
        self.held: dict[bytes, tuple[bytes, int]] = {}

    def run(self, batch: list[Operation], first_version: int) -> tuple[list[int], list[int], list[bytes]]:
        """Return status, versions and the GETs' values of a batch."""
        status, versions, values = [], [], []
        for i, (kind, key, *value) in enumerate(batch):
            found, version = self.held.get(key, (None, 0))
            if kind is Op.SET:
                self.held[key] = (value[0], first_version + i)
                status.append(Status.OK)
                versions.append(first_version + i)
                continue
            status.append(Status.NOT_FOUND if found is None else Status.OK)
            versions.append(version)
            if kind is Op.GET:
                values.append(found or b"")
            else:
                self.held.pop(key, None)
        return status, versions, values


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=60), min_size=1, max_size=8))
def test_batches_equal_one_operation_at_a_time(batches: list[list[Operation]]) -> None:
    run_against_model(batches)


@pytest.mark.parametrize("durability", ["fence", "flush", "msync", "process", "none"])
@pytest.mark.parametrize("where", [None, "/dev/shm"], ids=["disk", "tmpfs"])
def test_the_model_holds_in_every_forced_domain(durability: DurabilityName, where: str | None) -> None:
    if where and not Path(where).is_dir():
        pytest.skip(f"no tmpfs at {where}")

    @settings(max_examples=10, deadline=None)
    @given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=60), min_size=1, max_size=8))
    def run(batches: list[list[Operation]]) -> None:
        run_against_model(batches, durability, where)

    run()


def run_against_model(
    batches: list[list[Operation]], durability: DurabilityName = "auto", where: str | None = None
) -> None:
    with tempfile.TemporaryDirectory(dir=where) as directory:
        path = Path(directory) / "store"
        model = Model()
        with gpkvs.open(path, durability=durability, **SMALL) as store:
            for batch in batches:
                first_version = store.info().next_version
                result = store.execute(Batch.of(batch))
                status, versions, values = model.run(batch, first_version)
                assert result.status.tolist() == status
                assert result.versions.tolist() == versions
                assert result.value_list() == values
            assert store.info().tables[0].records == len(model.held)
        with gpkvs.open(path) as store:
            for key, (value, _) in model.held.items():
                assert store.get(key) == value
        assert_clean(path)


def test_large_batches_on_several_threads(store: gpkvs.Store) -> None:
    """Enough operations that every kernel is shared by threads, with hot keys that many operations touch."""
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    model = Model()
    for _ in range(5):
        kinds = rng.integers(1, 4, 20_000)
        keys = np.minimum(rng.zipf(1.3, 20_000), 5_000)
        batch: list[Operation] = [
            (Op.SET, b"key%d" % key, b"value%d" % i) if kind == Op.SET else (Op(kind), b"key%d" % key)
            for i, (kind, key) in enumerate(zip(kinds.tolist(), keys.tolist(), strict=True))
        ]
        first_version = store.info().next_version
        result = store.execute(Batch.of(batch))
        status, versions, values = model.run(batch, first_version)
        assert result.status.tolist() == status
        assert result.versions.tolist() == versions
        assert result.value_list() == values
