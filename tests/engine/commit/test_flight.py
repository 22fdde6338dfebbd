"""Batches of a GPU that are stored beside the plan of the next one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, SHARDS, VARIABLE
from gpkvs.backends.cpu.backend import HOST_OPS_MAX
from gpkvs.backends.path_costs import Kind, PathCosts
from gpkvs.backends.path_costs import Path as BatchPath
from gpkvs.batch import Batch, Op
from gpkvs.engine.commit.chunked_slots import ChunkedSlots
from gpkvs.engine.host.own_turn import _PARAMETERS
from gpkvs.errors import ForkedError, InvalidArgumentError, NoMemoryError, StoreClosedError
from gpkvs.native import library
from gpkvs.recovery.proof.damage.bitflip import memory_parent
from gpkvs.recovery.startup.check import check
from tests.engine.numbers_model import NumbersModel, answer_of, random_batch
from tests.held import Held

SIZES: dict[str, Any] = {"index_bytes": 1 << 20, "heap_bytes": 1 << 22, "log_bytes": 4 << 20, "durability": "process"}
KEYS = np.arange(1, 3001, dtype=np.uint64)


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture(params=[PAIR, SHARDS, pytest.param("cuda", marks=pytest.mark.gpu)])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a store is to be, and have it use a GPU."""
    monkeypatch.setenv(VARIABLE, request.param)
    if request.param == "cuda":  # it stores to files in memory, not to those of a disk
        tmp_path = Path(tempfile.mkdtemp(prefix="gpkvs-test-", dir=memory_parent()))
        monkeypatch.setenv(HOST_OPS_MAX, "0")
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[gpkvs.Store]:
    with gpkvs.open(path, **SIZES, commit="undo") as opened:
        opened.create_table("t", layout="u64", index_bytes=1 << 20)
        opened.set_many(KEYS, KEYS, table="t")
        yield opened
    report = check(path)
    assert report.is_clean, report


def test_the_next_batch_is_planned_while_one_is_stored(store: gpkvs.Store) -> None:
    """It sees what that one leaves; nobody hears of either before it is durable."""
    with Held() as held:
        first = store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")
        assert held.is_reached.wait(60)
        read = store.submit_get_many(KEYS, table="t")
        assert not first.done()
        assert not read.done()
        assert "not durable" in repr(read)
        held.let_go()
        values, there = read.result()
    assert there.all()
    assert (values == KEYS + np.uint64(1)).all()
    assert first.result() is None
    assert first.done()
    assert read.result()[0] is values


def test_a_third_batch_waits_for_the_first(store: gpkvs.Store) -> None:
    done: list[Any] = []

    def submit() -> None:
        done.extend(store.submit_set_many(KEYS, KEYS + np.uint64(add), table="t") for add in (2, 3))

    with Held() as held:
        first = store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")
        assert held.is_reached.wait(60)
        thread = threading.Thread(target=submit)
        thread.start()
        thread.join(0.2)
        assert not done
        held.let_go()
        thread.join(60)
    first.result()
    done[1].result()
    assert done[0].done()
    assert (store.get_many(KEYS, table="t")[0] == KEYS + np.uint64(3)).all()


USES: dict[str, Any] = {
    "get": lambda store: store.get(1, table="t"),
    "set": lambda store: store.set(7, 8, table="t"),
    "scan": lambda store: list(store.scan(table="t")),
    "bytes": lambda store: store.execute(Batch.of([(Op.SET, b"%d" % n, b"v") for n in range(2000)])),
    "create": lambda store: store.create_table("other"),
    "drop": lambda store: store.drop_table("spare"),
    "maintain": lambda store: store.maintain(),
    "info": lambda store: store.info(),
    "records": lambda store: store.records("t"),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("use", USES)
def test_who_uses_the_store_in_another_way_waits(store: gpkvs.Store, use: str) -> None:
    store.create_table("spare")
    over = threading.Event()

    def run() -> None:
        USES[use](store)
        over.set()

    with Held() as held:
        first = store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")
        assert held.is_reached.wait(60)
        thread = threading.Thread(target=run)
        thread.start()
        assert not over.wait(0.1)
        assert not first.done()
        held.let_go()
        assert over.wait(60)
        thread.join()
    assert first.done()
    assert first.result() is None


def test_a_turn_of_the_host_waits_with_its_first_batch(store: gpkvs.Store) -> None:
    """A door begins turns while a GPU's batch is stored: what they run may be for the GPU, too."""
    over = threading.Event()
    store._backend.host_ops_max, store._backend.path_costs = 8, None
    # As a door, which does not have Python's lock: who holds the batch back needs it.
    store._engine.own_turn._run = ctypes.CFUNCTYPE(ctypes.c_int, *_PARAMETERS)(("gpkvs_run_own", library))

    def run() -> None:
        assert store.get(1, table="t") == 2
        over.set()

    with Held() as held:
        first = store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")
        assert held.is_reached.wait(60)
        store._engine.native.begin_turn(is_of_door=True)
        assert not first.done()
        thread = threading.Thread(target=run)
        thread.start()
        assert not over.wait(0.1)
        held.let_go()
        assert over.wait(60)
        thread.join()


def test_submitted_batches_are_answered_as_by_a_dictionary(store: gpkvs.Store, pick: Random) -> None:
    """In the order of their submission, whatever is in flight; the table grows meanwhile."""
    model = NumbersModel()
    model.set_many(KEYS, KEYS)
    table = store.table("t")
    waiting: list[Any] = []
    for _ in range(60):
        batch = random_batch(pick, model, table.id, count=pick.randrange(1, 3000), gets=pick.choice([0.0, 0.5, 1.0]))
        keys = np.array([pick.randrange(1 << 40) for _ in range(pick.randrange(1, 2000))], np.uint64)
        waiting.append((store.submit(batch, table="t"), model.run(batch)))
        waiting.append((store.submit_set_many(keys, keys, table="t"), None))
        model.set_many(keys, keys)
        while waiting and pick.random() < 0.5:
            submitted, expected = waiting.pop(0)
            found = submitted.result()
            assert expected is None or answer_of(found) == expected
    for submitted, expected in waiting:
        found = submitted.result()
        assert expected is None or answer_of(found) == expected
    values, there = store.get_many(model.keys, table="t")
    assert there.all()
    assert values.tolist() == model.values.tolist()


def test_records_survive_compaction_beside_their_batches(path: Path, pick: Random) -> None:
    """It walks slots where they are stored, and stores them anew."""
    model: dict[bytes, bytes] = {}
    sizes = SIZES | {"heap_bytes": 8 << 20, "heap_bytes_max": 8 << 20}
    with gpkvs.open(path, **sizes, commit="undo") as store:
        waiting = []
        for number in range(40):
            keys = [b"key %d" % pick.randrange(12_000) for _ in range(1500)]
            sets = [
                (Op.SET, key, b"%d %d " % (number, at) + bytes(pick.randrange(100, 250))) for at, key in enumerate(keys)
            ]
            model.update((key, value) for _, key, value in sets)
            waiting.append(store.submit(Batch.of(sets)))
        for submitted in waiting:
            submitted.result()
        assert store.info().heap_moved_bytes > 0
        assert store.get_all(list(model)[:4000]) == {key: model[key] for key in list(model)[:4000]}
        assert dict(store.scan()) == model
    report = check(path)
    assert report.is_clean, report


def test_who_is_interrupted_asks_again(store: gpkvs.Store) -> None:
    read = store.submit_get_many(KEYS, table="t")
    read._finish()  # its caller is interrupted before it has the result
    values, there = read.result()
    assert there.all()
    assert (values == KEYS).all()


def test_an_error_belongs_to_its_batch(store: gpkvs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="values"):
        store.submit_set_many([1, 2], [3], table="t")
    with pytest.raises(InvalidArgumentError, match="other"):
        store.submit_set_many(KEYS, KEYS, table="other")
    before = store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")
    with monkeypatch.context() as broken:

        def none(*_: object) -> None:
            raise MemoryError

        broken.setattr(ChunkedSlots, "_room_on_host", none)
        refused = store.submit_set_many(KEYS, KEYS + np.uint64(2), table="t")
    after = store.submit_set_many(KEYS[:1000], KEYS[:1000] + np.uint64(3), table="t")
    for _ in range(2):
        with pytest.raises(NoMemoryError) as raised:
            refused.result()
        assert len(traceback.extract_tb(raised.value.__traceback__)) < 5
    assert refused.done()
    before.result()
    after.result()
    values, _ = store.get_many(KEYS, table="t")
    assert (values == KEYS + np.where(KEYS <= 1000, 3, 1).astype(np.uint64)).all()


def test_empty_arrays_are_no_request(store: gpkvs.Store) -> None:
    assert store.submit_set_many([], [], table="t").result() is None
    values, there = store.submit_get_many([], table="t").result()
    assert len(values) == len(there) == len(store.submit_delete_many([], table="t").result()) == 0
    with pytest.raises(InvalidArgumentError, match="other"):
        store.submit_get_many([], table="other")


def test_the_child_of_a_fork_is_refused(store: gpkvs.Store) -> None:
    """Also while another thread waits for the result."""
    with Held() as held:
        submitted = store.submit_set_many(KEYS, KEYS, table="t")
        assert held.is_reached.wait(60)
        thread = threading.Thread(target=submitted.result)
        thread.start()
        while not submitted._mutex.locked():
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                submitted.result()
            except ForkedError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        held.let_go()
        thread.join()


def test_asyncio_waits_for_it(store: gpkvs.Store) -> None:
    async def run() -> None:
        submitted = [store.submit_set_many(KEYS, KEYS + np.uint64(add), table="t") for add in range(5)]
        await asyncio.gather(*submitted)
        values, there = await store.submit_get_many(KEYS, table="t")
        assert there.all()
        assert (values == KEYS + np.uint64(4)).all()
        assert (await store.submit_delete_many(KEYS, table="t")).all()

    asyncio.run(run())
    assert store.records("t") == 0


def test_a_closed_store_has_what_was_submitted(path: Path) -> None:
    with gpkvs.open(path, **SIZES, commit="undo") as store:
        store.create_table("t", layout="u64", index_bytes=1 << 20)
        kept = store.submit_set_many(KEYS, KEYS, table="t")
        store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")  # nobody waits for it
    assert kept.result() is None
    with pytest.raises(StoreClosedError):
        store.submit_set_many(KEYS, KEYS, table="t")
    with gpkvs.open(path) as store:
        assert (store.get_many(KEYS, table="t")[0] == KEYS + np.uint64(1)).all()


def test_it_lands_before_its_process_ends(path: Path) -> None:
    """Also where nobody closes the store; the child of a fork has nothing to end."""
    script = """
import os, sys
import numpy as np, gpkvs
store = gpkvs.open(sys.argv[1], index_bytes=1 << 20, log_bytes=4 << 20, commit="undo", durability="process")
store.create_table("t", layout="u64")
keys = np.arange(1, 3001, dtype=np.uint64)
store.submit_set_many(keys, keys, table="t")
if sys.argv[2] == "fork":
    if os.fork() == 0:
        sys.exit(7)
    assert os.wait()[1] >> 8 == 7
"""
    for how in ("open", "fork"):
        path = path.with_name(how)
        subprocess.run([sys.executable, "-c", script, path, how], check=True, timeout=60)
        with gpkvs.open(path) as store:
            assert not store.recovery.undone
            assert (store.get_many(KEYS, table="t")[0] == KEYS).all()


def test_its_seconds_are_counted(store: gpkvs.Store) -> None:
    store.maintain()
    before = store.meter.phase_seconds["idle"]
    with Held() as held:
        store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")
        assert held.is_reached.wait(60)
        time.sleep(0.01)
        held.let_go()
        store.maintain()
    assert store.meter.phase_seconds["idle"] - before >= 0.01


def test_what_a_batch_takes_has_its_landing(store: gpkvs.Store) -> None:
    """Else a GPU would seem to take less than it does."""
    measured: list[float] = []

    class Costs(PathCosts):
        def measured(self, kind: Kind, operations: int, path: BatchPath, seconds: float, batches: int = 1) -> None:
            measured.append(seconds)

    committer: Any = store._engine.committer
    store._backend.path_costs = costs = Costs(1.0, 1.0)
    costs.forced = BatchPath.GPU
    with Held() as held:
        store.submit_set_many(KEYS, KEYS + np.uint64(1), table="t")
        assert held.is_reached.wait(60)
        store.submit_get_many(KEYS, table="t").done()
        assert len(measured) == 1, "that of the GETs"
        threading.Timer(0.2, held.let_go).start()
        began = time.perf_counter()
        store.submit_set_many(KEYS, KEYS + np.uint64(2), table="t").result()
        took = time.perf_counter() - began
    store.maintain()
    assert len(measured) == 3
    assert measured[1] >= 0.1
    assert measured[2] + committer.waited_seconds <= took, "the wait is of the one before"
    costs.forced = BatchPath.HOST
    store.set_many(KEYS, KEYS, table="t")
    assert len(measured) == 4, "the host's batches are over at once"
