"""A served store with a GPU: native code runs what its host does better, and leaves the rest for the GPU."""

from __future__ import annotations

import os
import pathlib
import random
import select
import socket
from collections.abc import Callable, Iterator
from typing import NoReturn

import grpc
import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import PAIR, VARIABLE
from gpkvs.backends.cpu.backend import HOST_OPS_MAX
from gpkvs.backends.path_costs import Kind, Mix, Path, PathCosts, mix_of
from gpkvs.client import Client
from gpkvs.engine.host.native_engine import DEVICE_LAYOUTS
from gpkvs.engine.seam.left import Left
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door import turns
from tests.conftest import SMALL, assert_clean
from tests.door.blob_door import ask, bulk, door, wait_for
from tests.door.resp_door import answers, command, connect, resp_door
from tests.held import Held
from tests.server.wire import (
    CHECK,
    DELETE,
    EXISTS,
    GET,
    INCREMENT,
    PRESENT,
    SET,
    Refused,
    batch,
    i64,
    u32,
    values_of,
)
from tests.serving import Server, StartServer

MANY = 64  # batches: the mean of so many is believed at once
WORDS = [word for number in range(200) for word in (b"key %d" % number, b"value")]
ON_HOST = 8  # operations: a batch with more is left


@pytest.fixture
def server(start_server: StartServer) -> Server:
    # Larger batches run phase by phase, as on a GPU.
    return start_server("--backend", "cpu", env={HOST_OPS_MAX: str(ON_HOST)})


def counter(server: Server) -> Callable[[], tuple[int, int]]:
    """Return what says how many batches were left for a GPU since the last call, and how many of them the host ran."""
    seen = [0, 0]

    def more() -> tuple[int, int]:
        names = "gpkvs_engine_left_batches_total", "gpkvs_engine_helped_batches_total"
        now = [int(server.metric(name, reason="device")) for name in names]
        left, helped = (new - old for new, old in zip(now, seen, strict=True))
        seen[:] = now
        return left, helped

    return more


def sets(count: int, value: bytes = b"value") -> list[tuple[int, bytes, bytes]]:
    return [(SET, b"key %d" % number, value) for number in range(count)]


def test_large_batches_are_left_and_small_ones_are_not(server: Server) -> None:
    more = counter(server)
    server.kv.Batch(batch(sets(ON_HOST)))
    assert more() == (0, 0)
    response = server.kv.Batch(batch(sets(ON_HOST + 1, b"other")))
    assert more() == (1, 0)
    assert len(response.versions) == 8 * (ON_HOST + 1)
    read = server.kv.Batch(batch([(GET, b"key %d" % number) for number in range(ON_HOST + 2)]))
    assert more() == (1, 0)
    assert values_of(read) == [b"other"] * (ON_HOST + 1) + [b""]
    assert server.kv.Get(kv_pb2.GetRequest(key=b"key 0")).value == b"other"
    assert more() == (0, 0)


def test_what_a_gpu_does_not_run_is_the_hosts(server: Server) -> None:
    more = counter(server)
    server.kv.Set(kv_pb2.SetRequest(key=b"there", value=b""))
    operations = [*sets(ON_HOST), (INCREMENT, b"n", i64(2)), (CHECK, b"there")]
    conditions = bytes([0] * (ON_HOST + 1) + [PRESENT])
    response = server.kv.Batch(batch(operations, conditions=conditions))
    assert values_of(response) == [i64(2)]
    assert more() == (0, 0)


def test_several_requests_of_a_message_run_together(server: Server) -> None:
    more = counter(server)
    message = batch(sets(3 * ON_HOST), request_ops=u32(ON_HOST, ON_HOST, ON_HOST), id=7)
    response = server.kv.Batch(message)
    assert (response.id, response.code, len(response.failures)) == (7, 0, 0)
    assert response.status == bytes(3 * ON_HOST)
    assert more() == (1, 0)
    keys = [b"key %d" % number for number in range(3 * ON_HOST)]
    read = server.kv.MultiGet(kv_pb2.MultiGetRequest(keys=keys))
    assert [found.value for found in read.results] == [b"value"] * len(keys)


def test_the_host_runs_what_does_not_fit(server: Server) -> None:
    """It says why, refuses no more than it must, and both go on."""
    more = counter(server)
    value = bytes(60_000)
    full = [*((SET, b"large %d" % number, value) for number in range(400)), *sets(ON_HOST)]
    with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "heap", full="heap"):
        server.kv.Batch(batch(full))
    assert more() == (1, 1)
    server.kv.Batch(batch([(SET, b"large", value), *sets(ON_HOST)]))
    assert more() == (1, 0)
    assert server.kv.Get(kv_pb2.GetRequest(key=b"key 1")).value == b"value"
    assert server.kv.Get(kv_pb2.GetRequest(key=b"large 0")).found is False


@pytest.mark.parametrize("layout", ["bytes", "u64"])
def test_both_work_on_one_table(server: Server, layout: str) -> None:
    """Batches of all sizes, one after the other, beside a dictionary."""
    seed = int(os.environ.get("GPKVS_SEED", random.randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    chance = random.Random(seed)
    more = counter(server)
    with Client(server.target) as client:
        client.create_table("t", layout=layout)
    model: dict[bytes, bytes] = {}
    for _ in range(60):
        operations, expected, returned = [], [], []
        for _ in range(chance.choice([1, 3, ON_HOST, 20, 300])):
            key, kind = chance.randrange(200).to_bytes(8, "little"), chance.choice([GET, GET, SET, SET, DELETE, EXISTS])
            is_there = key in model
            if kind == SET:
                model[key] = chance.randbytes(8)
                operations.append((SET, key, model[key]))
                expected.append(0)
                continue
            operations.append((kind, key))
            expected.append(0 if is_there else 1)
            if kind == GET:
                returned.append(model.get(key, b""))
            if kind == DELETE:
                model.pop(key, None)
        response = server.kv.Batch(batch(operations, table="t"))
        assert list(response.status) == expected
        if layout == "bytes":
            assert values_of(response) == returned
        else:
            assert response.values == b"".join(returned)
    left, helped = more()
    assert left > 5
    assert not helped


@pytest.fixture
def left(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[gpkvs.Store, socket.socket]]:
    """Yield a store and a connection to a door on it; each batch that a GPU could run is left for one."""
    monkeypatch.setenv(HOST_OPS_MAX, "0")
    with gpkvs.open(tmp_path / "store", backend="cpu", commit="undo", **SMALL) as store, door(store) as (_, connection):
        yield store, connection
    assert_clean(tmp_path / "store")


def test_answers_wait_until_what_a_gpu_stores_is_durable(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few operations wait for it at the door; more begin, and wait before the host reads what is being stored."""
    monkeypatch.setenv(VARIABLE, PAIR)
    monkeypatch.setenv(HOST_OPS_MAX, "5000")
    many = [word for number in range(5500) for word in (b"key %d" % number, b"value")]
    keys = many[: 2 * 4500 : 2]
    path = tmp_path / "store"
    sizes = SMALL | {"durability": "process", "index_bytes": 4 << 20, "heap_bytes": 64 << 20}  # nothing grows
    with (
        gpkvs.open(path, commit="undo", **sizes) as store,
        resp_door(store, lambda words: b"-ERR handed on %s\r\n" % words[0]) as (_, port),
        connect(port) as one,
        connect(port) as few,
        connect(port) as other,
    ):
        assert ask(one, b"MSET", *many) == b"+OK\r\n"
        ask(other, b"MGET", *keys)  # native code has columns for so many from here on
        with Held() as held:
            one.sendall(command(b"MSET", *many))
            assert held.is_reached.wait(60)
            few.sendall(command(b"GET", b"key 7"))
            assert not select.select([one, few], [], [], 0.1)[0]
            other.sendall(command(b"MGET", *keys))
            assert not select.select([one, few, other], [], [], 0.2)[0]
            held.let_go()
            assert answers(one, 1) == b"+OK\r\n"
            assert answers(few, 1) == bulk(b"value")
            assert answers(other, 1) == b"*%d\r\n" % len(keys) + bulk(b"value") * len(keys)
        assert counts(store)[0] == 2
    assert_clean(path)


def counts(store: gpkvs.Store) -> tuple[int, int]:
    """Return how many batches were left for a GPU, and how many of them the host ran."""
    return store.meter.left_batches[Left.DEVICE], store.meter.helped_batches[Left.DEVICE]


class AllLeft(PathCosts):
    """Leaves records, too, which clients of the Redis protocol have."""

    left_layouts = DEVICE_LAYOUTS


def test_who_runs_a_batch_follows_from_what_batches_took(left: tuple[gpkvs.Store, socket.socket]) -> None:
    store, connection = left
    gpu_is_better, host_is_better = AllLeft(1e-6, 1e-3), AllLeft(1.0, 1e-9)
    for costs, more in ((gpu_is_better, MANY), (host_is_better, 0)):
        store._backend.path_costs = costs
        before = counts(store)
        store.get(b"key 7")  # it ends the door's turn, and the next one begins with these costs
        for _ in range(MANY):
            assert ask(connection, b"MSET", *WORDS) == b"+OK\r\n"
        assert counts(store) == (before[0] + more, before[1])
        assert ask(connection, b"GET", b"key 7") == bulk(b"value")
    store.get(b"key 7")
    kind = Kind("bytes", Mix.WRITES, is_on_gpu=False)
    wait_for(lambda: host_is_better.expected(kind, Path.HOST, 200) > 1e-6)  # the turn has said what its batches took
    assert gpu_is_better.expected(kind, Path.GPU, 200) > 1e-5


def test_records_are_not_left(left: tuple[gpkvs.Store, socket.socket]) -> None:
    """Where time decides, and however much better a GPU is believed to be."""
    store, connection = left
    store._backend.path_costs = PathCosts(1e-6, 1e-3)
    before = counts(store)
    store.get(b"key 7")  # it ends the door's turn, and the next one begins with these costs
    assert ask(connection, b"MSET", *WORDS) == b"+OK\r\n"
    assert ask(connection, b"GET", b"key 7") == bulk(b"value")
    assert counts(store) == before


def test_a_batch_that_is_left_may_be_the_hosts(left: tuple[gpkvs.Store, socket.socket]) -> None:
    """It runs natively after all, and the next turn hears what it took."""
    store, connection = left
    costs = store._backend.path_costs = AllLeft(100e-6, 1e-6)
    store.get(b"key")
    assert ask(connection, b"GET", b"key 7") == bulk(None)  # the door's turn has begun, with these costs
    kind = Kind("bytes", Mix.WRITES, is_on_gpu=False)
    costs.measured(kind, 200, Path.GPU, 2.0, batches=MANY)
    costs.measured(kind, 200, Path.HOST, 1.0, batches=MANY)
    assert ask(connection, b"MSET", *WORDS) == b"+OK\r\n"
    assert counts(store) == (1, 1)
    assert ask(connection, b"GET", b"key 7") == bulk(b"value")
    store.get(b"key")
    wait_for(lambda: costs.expected(kind, Path.HOST, 200) < 0.5)  # it was faster than was believed


class Noted(PathCosts):
    """Believes that the host is better, and notes what it hears."""

    def __init__(self) -> None:
        super().__init__(1.0, 1e-9)
        self.heard: list[tuple[str, Mix, int]] = []

    def measured(self, kind: Kind, operations: int, path: Path, seconds: float, batches: int = 1) -> None:
        assert path is Path.HOST
        assert 0 < seconds < 10
        if operations > 1:  # the others are the GETs that end turns
            self.heard += batches * [(kind.layout, kind.mix, operations)]
        super().measured(kind, operations, path, seconds, batches)


@pytest.fixture
def noted(left: tuple[gpkvs.Store, socket.socket]) -> Noted:
    store, connection = left
    costs = store._backend.path_costs = Noted()
    store.get(b"key")
    assert ask(connection, b"GET", b"key") == bulk(None)  # the door's turn has begun, with these costs
    return costs


def test_what_looks_first_does_not_count(left: tuple[gpkvs.Store, socket.socket], noted: Noted) -> None:
    """No GPU would run it: what it takes the host says nothing of batches that one could."""
    store, connection = left
    for _ in range(3):
        assert ask(connection, b"MSETNX", *WORDS) in (b":1\r\n", b":0\r\n")
    assert ask(connection, b"MSET", *WORDS) == b"+OK\r\n"
    store.get(b"key")
    wait_for(lambda: len(noted.heard) > 0)
    assert noted.heard == [("bytes", Mix.WRITES, 200)]


def test_native_code_and_python_name_mixes_alike(left: tuple[gpkvs.Store, socket.socket], noted: Noted) -> None:
    store, connection = left
    for gets in (200, 199, 152, 151, 150, 149, 100, 0):
        commands = [[b"GET", b"key"]] * gets + [[b"SET", b"key", b"v"]] * (200 - gets)
        connection.sendall(b"".join(command(*words) for words in [[b"MULTI"], *commands, [b"EXEC"]]))
        answers(connection, len(commands) + 2)
        store.get(b"key")
        wait_for(lambda: len(noted.heard) > 0)
        assert noted.heard == [("bytes", mix_of(200, gets), 200)]
        noted.heard.clear()


def test_what_fails_after_the_commit_runs_nothing_again(
    left: tuple[gpkvs.Store, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, connection = left
    assert ask(connection, b"MSET", *WORDS) == b"+OK\r\n"
    calls = []

    def after(_: object) -> NoReturn:
        calls.append(1)
        raise MemoryError

    monkeypatch.setattr(store._engine.growth, "after", after)
    assert ask(connection, b"DEL", *WORDS[::2]) == b":200\r\n", "a batch that ran twice finds no key"
    assert calls


@pytest.mark.parametrize("name", ["run_left", "results_of"])
def test_a_batch_that_is_left_and_fails_ends_nothing(
    left: tuple[gpkvs.Store, socket.socket], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store, connection = left

    def failed(*_: object) -> NoReturn:
        raise MemoryError

    with monkeypatch.context() as patch:
        if name == "run_left":
            patch.setattr(store._engine, name, failed)
        else:
            patch.setattr(turns, name, failed)
        answer = ask(connection, b"MSET", *WORDS)
    # A batch that was not executed is the host's; of one that was, nobody has the results.
    assert answer == b"+OK\r\n" if name == "run_left" else answer.startswith(b"-")
    assert ask(connection, b"GET", b"key 7") == bulk(b"value")


def test_a_table_grows_under_both(server: Server) -> None:
    more = counter(server)
    with Client(server.target) as client:
        client.create_table("numbers", layout="u64", index_bytes=64 << 10)
        table, keys = client.table("numbers"), np.arange(40_000, dtype=np.uint64)
        for first in range(0, len(keys), 2000):
            table.set_many(keys[first : first + 2000], ~keys[first : first + 2000])
            assert table.get(int(keys[first])) == int(~keys[first])
        values, found = table.get_many(keys)
        assert found.all()
        assert np.array_equal(values, ~keys)
    assert more()[0] >= 20
