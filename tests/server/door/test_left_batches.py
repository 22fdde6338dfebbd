"""What becomes of batches that the native engine leaves, and of those that nobody can help."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import gpkvs
from gpkvs.batch import Batch
from gpkvs.engine.engine import Engine
from gpkvs.engine.host.native_engine import NativeEngine
from gpkvs.engine.seam.left import Left
from gpkvs.errors import NoMemoryError
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.turns import Turns
from gpkvs.server.signs.exporter import Metrics
from gpkvs.store import Store
from tests.door.held_door import HeldDoor
from tests.door.toy_engine import LEFT, ToyEngine
from tests.server.wire import DELETE, SET, Refused, batch, u32

SECONDS_MAX = 20
REFUSED = "gpkvs_requests_refused_total"


@contextmanager
def serving(path: Path) -> Iterator[tuple[HeldDoor, Turns, Store, Any]]:
    """Serve a store; the test runs the turns."""
    with gpkvs.open(path, heap_bytes=1 << 20) as store, HeldDoor(queue_requests_max=10) as door, door.client() as kv:
        door.library.set_tables(store.open_tables())
        turns = Turns(door.library, store, Metrics())
        turns.maintains = False
        yield door, turns, store, kv
        door.library.set_engine(0)


def fail_once(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, error: Exception) -> None:
    """Have the next call of a method fail."""
    method = getattr(kind, name)

    def failing(*_arguments: object, **_named: object) -> None:
        monkeypatch.setattr(kind, name, method)
        raise error

    monkeypatch.setattr(kind, name, failing)


def test_a_batch_runs_though_its_turn_did_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was due beside it may work a moment later."""
    with serving(tmp_path / "store") as (door, turns, store, kv), caplog.at_level(logging.WARNING):
        call = kv.Set.future(kv_pb2.SetRequest(key=b"k", value=b"v"), timeout=SECONDS_MAX)
        door.wait_for_requests(1)
        fail_once(monkeypatch, Engine, "begin_turn", OSError("nothing works"))
        turns.turn()
        assert call.result().version
        assert store.get(b"k") == b"v"
        assert store.meter.left_batches[Left.TURN] == store.meter.helped_batches[Left.TURN] == 1
        assert "nothing works" in caplog.text


def test_whoever_sends_it_hears_why_it_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it was done, and the next one is served. One message may hold several requests."""
    with serving(tmp_path / "store") as (door, turns, store, kv):
        several = batch([(SET, b"a", b"1"), (DELETE, b"b")], request_ops=u32(1, 1))
        one = kv_pb2.SetRequest(key=b"k", value=b"v")
        for ask, message in ((kv.Set, one), (kv.Batch, several)):
            call = ask.future(message, timeout=SECONDS_MAX)
            door.wait_for_requests(1)
            fail_once(monkeypatch, Engine, "begin_turn", OSError("nothing works"))
            fail_once(monkeypatch, NativeEngine, "begin_turn", NoMemoryError())
            turns.turn()
            with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "memory full"):
                call.result()
        assert (store.get(b"k"), store.get(b"a")) == (None, None)
        assert store.meter.last_left is None
        call = kv.Set.future(one, timeout=SECONDS_MAX)
        door.wait_for_requests(1)
        turns.turn()
        assert call.result().version


def test_one_that_nobody_can_help_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would be a mistake of ours; but nobody waits for ever, and the log names the request."""
    with serving(tmp_path / "store") as (door, turns, _store, kv):
        engine = ToyEngine(door.library)
        engine.ends = LEFT
        call = kv.Set.future(kv_pb2.SetRequest(key=b"k", value=b"v"), timeout=SECONDS_MAX)
        door.wait_for_requests(1)
        turns.turn()
        failed = call.exception()
        assert failed.code() is grpc.StatusCode.INTERNAL
        [request_id] = re.findall(r"\(request ([0-9a-f]+)\)", failed.details())
        assert "lacks what nobody can do" in caplog.text
        assert request_id in caplog.text


def test_a_batch_that_a_gpu_declines_runs_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when something that was due before it, such as keys that had expired, has lacked something, too."""
    monkeypatch.setenv("GPKVS_HOST_OPS_MAX", "4")
    with serving(tmp_path / "store") as (door, turns, store, kv):

        def declines(engine: Engine, _batch: Batch) -> None:
            engine.meter.take_left()

        monkeypatch.setattr(Engine, "run_left", declines)
        keys = [b"%d" % number for number in range(20)]
        call = kv.Batch.future(batch([(SET, key, b"v") for key in keys]), timeout=SECONDS_MAX)
        door.wait_for_requests(1)
        turns.turn()
        assert call.result().status == bytes(20)
        assert store.meter.left_batches[Left.DEVICE] == store.meter.helped_batches[Left.DEVICE] == 1


def test_all_that_are_refused_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "store") as (door, turns, _store, kv):
        several = batch([(SET, b"a", b"1"), (DELETE, b"b"), (DELETE, b"c")], request_ops=u32(1, 1, 1))
        calls = [kv.Delete.future(kv_pb2.DeleteRequest(key=b"k"), timeout=SECONDS_MAX)]
        door.wait_for_requests(1)
        calls.append(kv.Batch.future(several, timeout=SECONDS_MAX))
        door.wait_for_requests(2)
        monkeypatch.setattr(Engine, "begin_turn", fail)
        monkeypatch.setattr(NativeEngine, "begin_turn", fail)
        while door.library.waiting():
            turns.turn()
        for call in calls:
            with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "memory full"):
                call.result()
        assert turns._metrics.registry.get_sample_value(REFUSED, {"reason": "memory_full"}) == 4


def fail(*_arguments: object, **_named: object) -> None:
    raise NoMemoryError


def test_nothing_that_a_door_serves_passes_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that lack something run again where they are: one queue, one engine."""
    with serving(tmp_path / "store") as (door, turns, store, kv):
        monkeypatch.setattr(Store, "begin_requests", None)
        for number in range(40):  # the heap grows and is full at last
            call = kv.Set.future(kv_pb2.SetRequest(key=b"%d" % number, value=bytes(40_000)), timeout=SECONDS_MAX)
            door.wait_for_requests(1)
            turns.turn()
            if call.exception():
                break
        with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "heap full"):
            call.result()
        assert store.meter.left_batches[Left.GROW_HEAP]
