"""Epochs that run out, and structures that are whole but cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.config import Limits, StoreConfig
from gpkvs.errors import CorruptStoreError
from gpkvs.media.files import StoreFiles, open_files
from gpkvs.media.layout import (
    COUNTER_BITS,
    DESCRIPTOR_OFFSETS,
    INCARNATION_MAX,
    Descriptor,
    State,
    make_epoch,
)
from gpkvs.media.transaction import find_descriptor, read_descriptors, read_flag
from gpkvs.pm.domain import find_domain
from gpkvs.process.failpoint import RENEWAL
from gpkvs.recovery.proof.powerfail.base_store import use_up_incarnations
from gpkvs.recovery.startup.check import check
from gpkvs.store import Store
from tests.conftest import SMALL, assert_clean
from tests.recovery.startup.child import SIZES
from tests.recovery.startup.harness import apply, contents, run_child

pytestmark = pytest.mark.undo

BATCH = [["set", f"key{i}", "value"] for i in range(100)]


def test_a_counter_that_is_used_up_raises_the_incarnation(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL) as store:
        transaction = store._engine.committer.transaction
        incarnation = store._files.root.incarnation
        transaction._counter = (1 << COUNTER_BITS) - 3
        epochs = []
        for i in range(5):
            store.set(b"key", b"%d" % i)
            epochs.append(transaction.current.epoch)
        assert epochs == sorted(set(epochs))
        assert [epoch >> COUNTER_BITS for epoch in epochs] == [incarnation] * 2 + [incarnation + 1] * 3
    with gpkvs.open(store_path) as store:
        assert store.get(b"key") == b"4"
        assert store._files.root.incarnation == incarnation + 2


def test_incarnations_that_are_used_up_begin_again(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL) as store:
        store.set(b"key", b"from before")
    use_up_incarnations(store_path)
    for incarnation in (1, 2, 3):
        with gpkvs.open(store_path) as store:
            transaction = store._engine.committer.transaction
            assert store._files.root.incarnation == incarnation
            assert store.get(b"key") == b"from before"
            assert store.set(b"other", b"%d" % incarnation) == incarnation + 1
            assert transaction.current.epoch == incarnation << COUNTER_BITS | 1
        assert_clean(store_path)


def test_a_renewal_leaves_epoch_0_and_the_first_batch_removes_the_last_old_one(store_path: Path) -> None:
    with gpkvs.open(store_path, **SMALL) as store:
        for i in range(3):
            store.execute(Batch.of([(Op.SET, b"key%d" % key, b"%d" % i) for key in range(100)]))
    use_up_incarnations(store_path)
    with gpkvs.open(store_path) as store:
        assert read_flag(store._files) == (State.IDLE, 0)
        store.set(b"key0", b"value")
        epochs = [found.epoch for found in read_descriptors(store._files) if isinstance(found, Descriptor)]
        assert sorted(epochs) == [0, make_epoch(1, 1)]


def test_an_incarnation_without_its_flag_is_renewed_again(tmp_path: Path) -> None:
    """A crash kept the roots of a renewal and lost its flag: an epoch given now would be older than the current one."""
    path = tmp_path / "store"
    assert run_child(path, [BATCH] * 3).acknowledged == 3
    files = open_files(path, find_domain(path, "auto"))
    files.roots.write(replace(files.root, incarnation=0))
    files.close()
    assert run_child(path, [[["set", "key0", "lost"]]], "mid_apply").killed
    assert contents(path, {operation[1].encode() for operation in BATCH}) == apply({}, BATCH)
    assert_clean(path)


def test_incarnations_that_are_used_up_in_a_long_life_begin_again(store_path: Path) -> None:
    gpkvs.open(store_path, **SMALL).close()
    use_up_incarnations(store_path)
    with gpkvs.open(store_path) as store:
        transaction = store._engine.committer.transaction
        store._files.roots.current = replace(store._files.root, incarnation=INCARNATION_MAX)
        transaction._counter = (1 << COUNTER_BITS) - 2
        epochs = []
        for i in range(3):
            assert store.set(b"key%d" % i, b"value") == 1 + i
            epochs.append(transaction.current.epoch)
        assert epochs == [make_epoch(INCARNATION_MAX, (1 << COUNTER_BITS) - 1), make_epoch(1, 1), make_epoch(1, 2)]
    with gpkvs.open(store_path) as store:
        assert [store.get(b"key%d" % i) for i in range(3)] == [b"value"] * 3


@pytest.mark.parametrize("after", ["before_active_flag", "mid_apply", "before_idle_persist"])
@pytest.mark.parametrize("name", ["before_incarnation", *RENEWAL, "between_roots"])
def test_a_kill_while_epochs_are_renewed(tmp_path: Path, name: str, after: str) -> None:
    """A batch is or is not in progress; the renewal is killed, twice; then the first batch after it is killed, too."""
    path = tmp_path / "store"
    assert run_child(path, [BATCH, BATCH[:50]], f"{after}:2").killed
    use_up_incarnations(path)
    assert run_child(path, [], name).killed
    assert run_child(path, [], name).killed
    assert run_child(path, [[["set", "key0", "lost"]]], "mid_apply").killed
    assert contents(path, {operation[1].encode() for operation in BATCH}) == apply({}, BATCH)
    assert_clean(path)


def rewrite(path: Path, change: Callable[[StoreFiles, Descriptor], Descriptor], *, previous: bool = False) -> None:
    """Store another descriptor in place of the flag's, or of the other one, with a right checksum."""
    files = open_files(path, find_domain(path, "auto"))
    current = find_descriptor(files, read_flag(files)[1])
    copy = read_descriptors(files).index(current)
    target = 1 - copy if previous else copy
    found = read_descriptors(files)[target]
    assert isinstance(found, Descriptor)
    files.log.store(DESCRIPTOR_OFFSETS[target], change(files, found).pack())
    files.close()


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        pytest.param(lambda f, d: d._replace(tail_segment=1 << 40), "descriptor", id="tail-segment"),
        pytest.param(lambda f, d: d._replace(tail_bytes=f.root.segment_bytes + 16), "descriptor", id="tail-bytes"),
    ],
)
def test_a_tail_outside_the_heap_is_refused(
    tmp_path: Path, change: Callable[[StoreFiles, Descriptor], Descriptor], invariant: str
) -> None:
    path = tmp_path / "store"
    run_child(path, [BATCH])
    rewrite(path, change)
    with pytest.raises(CorruptStoreError, match="outside the heap") as refused:
        gpkvs.open(path, **SIZES)
    assert refused.value.invariant == invariant
    assert {violation.invariant for violation in check(path).violations} == {invariant}


@pytest.mark.parametrize(
    "run",
    [{"kind": 7}, {"table_id": 5}, {"generation": 1}, {"entry_bytes": 32}, {"first_word": 1 << 30}, {"count": 1 << 30}],
    ids=lambda run: next(iter(run)),
)
def test_a_run_that_cannot_be_is_refused_before_anything_is_undone(tmp_path: Path, run: dict[str, int]) -> None:
    path = tmp_path / "store"
    assert run_child(path, [BATCH, BATCH], "before_apply_persist:2").killed
    rewrite(path, lambda _, descriptor: descriptor._replace(runs=(replace(descriptor.runs[0], **run),)))
    before = {name: (path / name).read_bytes() for name in ("root", "log", "index-0-0")}
    with pytest.raises(CorruptStoreError, match="a run that cannot be") as refused:
        gpkvs.open(path, **SIZES)
    assert refused.value.invariant == "undo-log"
    assert before == {name: (path / name).read_bytes() for name in before}


def test_a_batch_without_the_descriptor_before_it_is_not_undone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert run_child(path, [BATCH, BATCH], "before_apply_persist:2").killed
    rewrite(path, lambda _, descriptor: descriptor._replace(epoch=descriptor.epoch + (1 << 30)), previous=True)
    with pytest.raises(CorruptStoreError, match="the descriptor before epoch"):
        gpkvs.open(path, **SIZES)


def test_such_a_store_is_sound_without_the_change(tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert run_child(path, [BATCH, BATCH], "before_apply_persist:2").killed
    rewrite(path, lambda _, descriptor: descriptor)
    gpkvs.open(path, **SIZES).close()
    assert_clean(path)


@pytest.fixture
def little(store_path: Path) -> Iterator[Store]:
    """Return a store of which a transaction may read 1,300 bytes."""
    limits = Limits(key_bytes_max=16, value_bytes_max=600, result_bytes_max=1300)
    with Store(store_path, StoreConfig(**SMALL, limits=limits, batch_result_bytes_max=1300)) as opened:
        yield opened


def test_a_batch_that_reads_more_than_memory_allows_is_cut_between_requests(little: Store) -> None:
    store = little
    for i in range(3):
        store.set(b"key%d" % i, b"x" * 600)
    requests = [Batch.of([(Op.GET, b"key%d" % i), (Op.SET, b"seen%d" % i, b"")]) for i in range(3)]
    batch = Batch.concatenate(requests)
    result = store.execute_requests(batch)
    assert result.requests == 2
    assert [result.request(i).value_list() for i in range(2)] == [[b"x" * 600]] * 2
    assert [store.get(b"seen%d" % i) for i in range(3)] == [b"", b"", None]


def test_a_cut_batch_may_have_requests_that_only_write(little: Store) -> None:
    store = little
    for i in range(3):
        store.set(b"key%d" % i, b"x" * 600)
    requests = [Batch.of([(Op.GET, b"key%d" % i)]) for i in range(3)]
    requests.insert(0, Batch.of([(Op.SET, b"seen", b"")]))
    result = store.execute_requests(Batch.concatenate(requests))
    assert result.requests == 3
    assert result.request(2).value_list() == [b"x" * 600]
    assert store.get(b"seen") == b""
