"""Replies are cut, and refused, by the lengths in the references: the heap is not read for what is put off."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpkvs
from gpkvs.backends.cpu.backend import CpuBackend
from gpkvs.batch import Batch, Op, Status
from gpkvs.config import Limits, StoreConfig
from gpkvs.engine.seam.left import Left
from gpkvs.errors import InvalidArgumentError
from gpkvs.store import Store
from tests.conftest import SMALL
from tests.engine.twins import plan_by_phases

VALUE = 100_000
LIMITS = Limits(result_bytes_max=1 << 20)


@pytest.fixture
def large(store_path: Path) -> gpkvs.Store:  # type: ignore[misc]
    """Return a store with 10 values of 100,000 bytes; a request, and a transaction, may read 1 MiB."""
    config = StoreConfig(**SMALL, limits=LIMITS, batch_result_bytes_max=LIMITS.result_bytes_max)
    with Store(store_path, config) as store:
        for i in range(10):
            store.set(b"key%d" % i, bytes([i]) * VALUE)
        yield store


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many GETs each `measure` of the phases looked at."""
    items: list[int] = []
    launch = CpuBackend.launch

    def counted(self: CpuBackend, kernel: str, count: int, /, **arguments: object) -> None:
        if kernel == "measure":
            items.append(count)
        launch(self, kernel, count, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CpuBackend, "launch", counted)
    return items


def reads(*requests: list[int]) -> Batch:
    """Return a batch of GETs, a request a list of keys."""
    return Batch.concatenate([Batch.of([(Op.GET, b"key%d" % key) for key in keys]) for keys in requests])


def test_what_is_put_off_is_not_read(store_path: Path, measured: list[int]) -> None:
    """A plan for a GPU leaves it to the host by what slots say."""
    value, each, requests = 20_000, 20, [[number % 10] * 20 for number in range(50)]  # records: a blob is the host's
    config = StoreConfig(**SMALL, limits=LIMITS, batch_result_bytes_max=LIMITS.result_bytes_max)
    with Store(store_path, config) as store:
        for number in range(10):
            store.set(b"key%d" % number, bytes([number]) * value)
        plan_by_phases(store)
        done, left = 0, store.meter.left_batches[Left.DEVICE]
        while done < len(requests):
            result = store.execute_requests(reads(*requests[done:]))
            assert result.requests == 2  # 800,000 bytes; a third one is over the limit
            for number in range(2):
                assert result.request(number).value_list() == [bytes([requests[done + number][0]]) * value] * each
            done += result.requests
        assert store.meter.left_batches[Left.DEVICE] == left + len(requests) // 2
    assert measured == [2 * each], "records were checked that are put off"  # the last two requests fit as they are


def test_a_request_that_reads_too_much_is_refused_before_its_records_are_read(
    large: gpkvs.Store, measured: list[int]
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the limit is 1,048,576 .result_bytes_max"):
        large.execute(reads([1] * 5000))
    assert measured == []
    assert large.execute(reads([1] * 10)).value_list() == [bytes([1]) * VALUE] * 10


def test_a_get_of_a_value_of_the_same_batch_is_judged_when_it_is_known_that_its_set_fits(large: gpkvs.Store) -> None:
    batch = Batch.of([(Op.SET, b"new", bytes(VALUE)), *[(Op.GET, b"new")] * 11])
    with pytest.raises(InvalidArgumentError, match="the limit is 1,048,576"):
        large.execute(batch)
    assert large.get(b"new") is None


def test_what_fits_by_a_few_bytes_is_read(large: gpkvs.Store) -> None:
    """The bound is up to 15 bytes too large for each value; it must not refuse what fits."""
    value = b"v" * (LIMITS.result_bytes_max // 64)  # with its key, not a whole number of units
    large.set(b"exact", value)
    result = large.execute(Batch.of([(Op.GET, b"exact")] * 64))
    assert len(result.values) == LIMITS.result_bytes_max
    with pytest.raises(InvalidArgumentError):
        large.execute(Batch.of([(Op.GET, b"exact")] * 64 + [(Op.GET, b"key1")]))


@pytest.mark.undo  # it damages the mapped index
def test_a_damaged_reference_is_told_as_damage_and_not_as_too_much(large: gpkvs.Store) -> None:
    """A length that leaves the segment says nothing about a value."""
    path = large.path
    large.close()
    with gpkvs.open(path, backend="cpu") as store:  # a GPU would look at its mirror
        index = store._files.indexes[0].region
        words = index.words(0, index.bytes // 8).reshape(-1, 4)
        slots = {slot: int(words[slot, 2]) for slot in range(len(words)) if words[slot, 3]}
        assert len(slots) == 10
        for slot, reference in slots.items():
            index.store(32 * slot + 16, (reference | 0xFFFFFF).to_bytes(8, "little"))
        try:
            result = store.execute(reads(list(range(10))))
            assert set(result.status.tolist()) == {Status.CORRUPT.value}
        finally:
            for slot, reference in slots.items():
                index.store(32 * slot + 16, reference.to_bytes(8, "little"))
