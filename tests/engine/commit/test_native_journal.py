"""The native committer of a store with a journal: the bytes that Python's steps make, and lives that end by a kill."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.engine.commit.journal_committer import JournalCommitter
from gpkvs.engine.host.native_engine import Ran
from gpkvs.media.image import Image
from gpkvs.process import failpoint
from gpkvs.recovery.proof.damage.bitflip import memory_parent
from tests.conftest import assert_clean
from tests.engine.native_driver import NativeDriver

_SIZES = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "heap_bytes_max": 64 << 20, "journal_bytes": 1 << 20}
_TABLES = ("default", "numbers", "second")
_Request = list[tuple[Op, bytes, bytes]]
_PROGRESS = struct.Struct("<II")  # how many batches have begun, and how many are durable


@pytest.fixture
def random() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpkvs-test-", dir=memory_parent()) as directory:
        yield Path(directory)


def make(path: Path) -> gpkvs.Store:
    store = gpkvs.open(path, backend="cpu", commit="journal", **_SIZES)
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    store.create_table("second", index_bytes=64 << 10)
    return store


def request_of(random: Random, table: str, operations: int, keys: int) -> _Request:
    request = []
    for _ in range(operations):
        key = random.randrange(keys).to_bytes(8, "little")
        op = random.choice((Op.GET, Op.EXISTS, Op.SET, Op.SET, Op.SET, Op.DELETE))
        request.append((op, key, random.randbytes(8 if table == "numbers" else random.randrange(200))))
    return request


def batch_of(store: gpkvs.Store, table: str, requests: list[_Request]) -> Batch:
    operations = [[given if given[0] == Op.SET else given[:2] for given in request] for request in requests]
    return Batch.concatenate([Batch.of(request) for request in operations]).on_table(store.table(table).id)


def committer_of(store: gpkvs.Store) -> JournalCommitter:
    committer = store._engine.committer
    assert isinstance(committer, JournalCommitter)
    return committer


@pytest.mark.parametrize("host_ops_max", [1 << 20, 0], ids=["planned-natively", "planned-in-phases"])
def test_frames_images_and_counts_are_those_of_steps(
    memory_path: Path, random: Random, host_ops_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPKVS_HOST_OPS_MAX", str(host_ops_max))
    make(memory_path / "native").close()
    shutil.copytree(memory_path / "native", memory_path / "steps")
    stores = [gpkvs.open(memory_path / name, backend="cpu") for name in ("native", "steps")]
    committers = [committer_of(store) for store in stores]
    committers[1].is_native = False
    for committer in committers:
        committer.checkpointer.stop()  # and no empty frame comes by itself
    for number in range(60):
        table = random.choice(_TABLES)
        requests = [request_of(random, table, random.randrange(1, 80), 1500) for _ in range(3)]
        for store, committer in zip(stores, committers, strict=True):
            result, gate = store._engine.execute(batch_of(store, table, requests))
            assert not result.rejected
            committer.wait(gate)  # so that the next frame names the same one as durable
            if number % 20 == 19:
                committer.checkpointer.write(paced=False)
        assert committers[0].ended == committers[1].ended
    native, steps = stores
    for one, other in zip(native._files.indexes.values(), steps._files.indexes.values(), strict=True):
        assert isinstance(one.region, Image)
        assert isinstance(other.region, Image)
        assert one.region.read(0, one.region.bytes) == other.region.read(0, other.region.bytes)
        assert (one.region.marks == other.region.marks).all()
    heaps = [store._engine.heap for store in stores]
    for column in ("live_units", "charged_units", "ends", "stamps", "state"):
        assert (getattr(heaps[0], column) == getattr(heaps[1], column)).all()
    assert heaps[0].live_bytes == heaps[1].live_bytes
    assert native.info().tables == steps.info().tables
    assert native.meter.written_bytes == steps.meter.written_bytes
    assert native.meter.commits == steps.meter.commits
    for store in stores:
        store.close()
    data = [np.fromfile(memory_path / name / "data", np.uint8) for name in ("native", "steps")]
    assert (data[0] == data[1]).all()
    assert_clean(memory_path / "native")


class Plan:
    """Batches, the same ones for the same seed, and what the store holds after each."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.held: dict[str, dict[bytes, bytes]] = {table: {} for table in _TABLES}

    def next(self) -> tuple[str, list[_Request]]:
        """Return the next batch, and take it into account."""
        table = self._random.choice(_TABLES)
        requests = [
            request_of(self._random, table, self._random.randrange(1, 60), 6000)
            for _ in range(self._random.randrange(1, 5))
        ]
        held = self.held[table]
        for op, key, value in (each for request in requests for each in request):
            if op == Op.SET:
                held[key] = value
            elif op == Op.DELETE:
                held.pop(key, None)
        return table, requests


def live(path: Path, seed: int, progress: int) -> None:
    """Run the batches of a plan in turns, until the process is killed."""
    plan, random = Plan(seed), Random(seed + 1)
    with gpkvs.open(path, backend="cpu") as store:
        driver, gates, durable = NativeDriver(store), [0], 0
        while True:
            driver.native.begin_turn()
            for _ in range(random.randrange(1, 40)):
                table, requests = plan.next()
                os.write(progress, _PROGRESS.pack(len(gates), durable))
                batch = batch_of(store, table, requests)
                answer = driver.run(batch)
                if answer.ran is Ran.LEFT:
                    driver.native.end_turn()
                    result, gate = store._engine.execute(batch)
                    assert not result.rejected
                    assert result.requests == len(requests)
                    driver.native.begin_turn()
                else:
                    gate = answer.gate
                gates.append(max(gate, gates[-1]))
                if random.random() < 0.1:
                    store._engine.committer.wait(gate)
                while durable + 1 < len(gates) and store._engine.is_durable(gates[durable + 1]):
                    durable += 1
                if answer.ran is Ran.DUE:
                    break
            driver.native.end_turn()
            while random.random() < 0.3 and store._engine.maintain(1 << 16):
                pass


@pytest.mark.parametrize("point", ["", "before_record", "mid_record", "mid_log", "before_frame", "mid_apply"])
def test_a_kill_loses_nothing_that_was_durable(memory_path: Path, random: Random, point: str) -> None:
    path, seed, batches = memory_path / "store", random.randrange(1 << 32), random.randrange(600, 900)
    # Half as many batches are enough for a table to grow: that takes 100 to 200.
    with make(path) as store:
        blocks = store._files.indexes[0].blocks
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if point:
                failpoint.arm(f"{point}:{batches // 2}")
            live(path, seed, writing)
        finally:
            os._exit(1)
    os.close(writing)
    begun = durable = 0
    with os.fdopen(reading, "rb") as file:
        while data := file.read(_PROGRESS.size):
            begun, durable = _PROGRESS.unpack(data)
            if begun == batches:
                os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "a batch went wrong"
    assert durable > begun // 2
    plan = Plan(seed)
    for _ in range(durable):
        plan.next()
    with gpkvs.open(path, backend="cpu") as store:
        assert store._files.indexes[0].blocks > blocks, "no table has grown"
        found = {table: dict(store.scan(table=table)) for table in _TABLES}
    for _ in range(durable, begun + 1):
        if found == plan.held:
            break
        plan.next()
    assert found == plan.held
    assert_clean(path)
