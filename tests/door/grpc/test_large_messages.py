"""Messages of gRPC with a large value, which comes in pieces: the native door receives it straight to its place."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import gpkvs
from gpkvs.config import MIB
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.conftest import assert_clean
from tests.door.blob_door import COMMITS, wait_for
from tests.server.wire import ABSENT, APPEND, EXPIRE, GET, SET, Operation, Refused, batch, u64, values_of
from tests.serving import Server, StartServer

SIZES = (70_000, MIB - 30, MIB, MIB + 1, 2 * MIB + 4093, 9 * MIB)
OPTIONS = ("--format", "4", "--durability", "process", "--heap-bytes", "64MiB")


@pytest.fixture(params=COMMITS)
def server(start_server: StartServer, request: pytest.FixtureRequest) -> Iterator[Server]:
    # A message ends at 4 MiB with so little memory.
    started = start_server(*OPTIONS, "--commit", request.param, "--memory-max", "256MiB")
    yield started
    wait_for(lambda: requests_bytes(started) == 0)


def requests_bytes(server: Server) -> float:
    server.admin.Info(admin_pb2.InfoRequest())  # the last message that Python got is given back with the next one
    return server.metric("gpkvs_memory_bytes", kind="requests")


def live_bytes(server: Server) -> float:
    return server.metric("gpkvs_blobs_live_bytes")


def test_calls_do_what_a_dictionary_does(server: Server) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    keys = [b"k%d" % number for number in range(4)]
    for _ in range(25):
        key, value = rng.choice(keys), rng.randbytes(rng.choice(SIZES))
        kind = rng.randrange(5)
        old = model.get(key)
        if kind == 0:
            server.kv.Set(kv_pb2.SetRequest(key=key, value=value, ttl_ms=rng.choice((0, 10**8))))
        elif kind == 1:
            request = kv_pb2.SetRequest(key=key, value=value, condition=kv_pb2.CONDITION_ABSENT)
            stored = server.kv.Set(request).status == kv_pb2.STATUS_OK
            assert stored == (old is None)
        elif kind == 2:
            answered = server.kv.Batch(batch([(GET, key), (SET, key, value)], id=7))
            assert (answered.id, values_of(answered)) == (7, [old or b""])
        elif kind == 3:
            requests = [batch([(SET, key, value)], id=1), batch([(GET, key)], id=2), batch([(SET, key, value)], id=3)]
            assert [one.id for one in server.kv.Pipeline(iter(requests))] == [1, 2, 3]
        else:
            server.kv.Batch(batch([(SET, key, value)], conditions=bytes([ABSENT])))
        if kind not in (1, 4) or old is None:
            model[key] = value
    for key, value in model.items():
        assert server.kv.Get(kv_pb2.GetRequest(key=key)).value == value


def test_several_values_of_a_message_come_whole(server: Server) -> None:
    values = [b"x" * MIB, b"y" * 700_000]
    sets: list[Operation] = [(SET, b"k%d" % number, value) for number, value in enumerate(values)]
    server.kv.Batch(batch(sets))
    for number, value in enumerate(values):
        assert server.kv.Get(kv_pb2.GetRequest(key=b"k%d" % number)).value == value
    with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"):
        server.kv.Batch(batch([*sets, (SET, b"k2", b"z" * 4 * MIB)]))


def test_fields_in_another_order_come_whole(server: Server) -> None:
    value = random.Random(1).randbytes(2 * MIB)
    call = server.channel.unary_unary("/gpkvs.v1.KV/Set")
    call(field(3, value) + field(2, b"behind"))
    call(field(9, b"x" * MIB) + field(2, b"unknown") + field(3, value))  # a field that nobody knows
    for key in (b"behind", b"unknown"):
        assert server.kv.Get(kv_pb2.GetRequest(key=key)).value == value


def field(number: int, data: bytes, size: int | None = None) -> bytes:
    """Return a field of bytes; `size` may say another length."""
    return bytes([number << 3 | 2]) + varint(len(data) if size is None else size) + data


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def test_a_large_value_is_appended(server: Server) -> None:
    begin, end = b"begin" * 1000, random.Random(1).randbytes(MIB + MIB // 2)
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=begin))
    assert server.kv.Batch(batch([(APPEND, b"k", end)])).status == b"\0"
    assert [one.status for one in server.kv.Pipeline(iter([batch([(GET, b"k"), (APPEND, b"k", end)])]))] == [b"\0\0"]
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == begin + end + end


@pytest.mark.parametrize("size", [15, 100_000, 2 * MIB])
def test_another_record_of_the_request_is_its_own(server: Server, size: int) -> None:
    large, old = b"a" * 2 * MIB, random.Random(1).randbytes(size)
    for order in (0, 1):
        server.kv.Set(kv_pb2.SetRequest(key=b"old", value=old))
        operations: list[Operation] = [(SET, b"large", large), (EXPIRE, b"old")]
        server.kv.Batch(batch(operations[:: 1 - 2 * order], ttls=u64(10**8, 10**8)))
        assert server.kv.Get(kv_pb2.GetRequest(key=b"old")).value == old
        assert server.kv.Get(kv_pb2.GetRequest(key=b"large")).value == large


def test_a_length_beyond_the_message_is_refused(server: Server) -> None:
    call = server.channel.unary_unary("/gpkvs.v1.KV/Set")
    for missing in (1, 7, 5000, MIB // 2):
        value = b"x" * (2 * MIB - missing)
        for message in (field(2, b"k") + field(3, value, 2 * MIB), field(3, value, 2 * MIB)):
            with Refused(grpc.StatusCode.INVALID_ARGUMENT, "no gpkvs.v1.SetRequest"):
                call(message, timeout=20)
    assert not server.kv.Get(kv_pb2.GetRequest(key=b"k")).found


def test_the_last_of_several_fields_counts(server: Server) -> None:
    call, large = server.channel.unary_unary("/gpkvs.v1.KV/Set"), b"x" * 2 * MIB
    call(field(2, b"k") + field(3, large) + field(3, b"small"))
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == b"small"
    call(field(2, b"k") + field(3, b"small") + field(3, large))
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == large
    group = 9 << 3 | 3
    call(field(2, b"k") + bytes([group]) + field(3, large) + bytes([group + 1]))  # of a field that nobody knows
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == b""


def test_a_stream_refuses_a_large_value_by_its_id(start_server: StartServer) -> None:
    server = start_server(*OPTIONS[:-1], "8MiB", "--heap-bytes-max", "16MiB", "--memory-max", "1GiB")
    server.kv.Set(kv_pb2.SetRequest(key=b"a", value=b"x" * 12 * MIB))
    requests = [batch([(GET, b"a")], id=number + 1, table="no") for number in range(40)]
    requests.append(batch([(SET, b"b", b"y" * 5 * MIB)], id=99))
    for _ in range(5):  # Python may still have those before it
        answered = list(server.kv.Pipeline(iter(requests), timeout=30))
        assert [one.id for one in answered] == [*range(1, 41), 99]
        assert answered[-1].code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


def test_what_is_not_stored_takes_no_place(server: Server) -> None:
    value = b"x" * 6 * MIB
    before = live_bytes(server)
    with Refused(grpc.StatusCode.NOT_FOUND, "table"):
        server.kv.Set(kv_pb2.SetRequest(table="no", key=b"k", value=value[: 2 * MIB]))
    with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"):
        server.kv.Set(kv_pb2.SetRequest(table="no", key=b"k", value=value))
    # The engine has it already when Python is to find the words.
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "key"):
        server.kv.Set(kv_pb2.SetRequest(key=b"", value=value[: 2 * MIB]))
    with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"):
        server.kv.Set(kv_pb2.SetRequest(key=b"", value=value))
    assert live_bytes(server) == before


def test_a_call_that_ends_in_the_middle_leaves_nothing(server: Server) -> None:
    old = random.Random(1).randbytes(3 * MIB)
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=old))
    before = live_bytes(server)
    for number in range(20):
        call = server.kv.Set.future(kv_pb2.SetRequest(key=b"k", value=b"x" * 48 * MIB), timeout=60)
        time.sleep(0.002 * number)
        call.cancel()
    server.kv.Set(kv_pb2.SetRequest(key=b"other", value=b"x"))
    wait_for(lambda: requests_bytes(server) == 0)
    if server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == old:
        assert live_bytes(server) == before


def test_where_there_is_no_room_the_call_says_so(start_server: StartServer) -> None:
    server = start_server(*OPTIONS[:-1], "8MiB", "--heap-bytes-max", "16MiB", "--memory-max", "256MiB")
    value = random.Random(1).randbytes(12 * MIB)
    server.kv.Set(kv_pb2.SetRequest(key=b"a", value=value))
    with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "a value asked for", full="heap"):
        server.kv.Set(kv_pb2.SetRequest(key=b"b", value=value))
    answered = list(server.kv.Pipeline(iter([batch([(SET, b"b", value)], id=1), batch([(GET, b"a")], id=2)])))
    assert [(one.id, one.code, one.full) for one in answered] == [(1, 8, "heap"), (2, 0, "")]
    assert values_of(answered[1]) == [value]
    server.kv.Set(kv_pb2.SetRequest(key=b"c", value=value[: 2 * MIB]))


def test_the_largest_value_passes_with_a_gibibyte_of_memory(tmp_path: Path, store_path: Path) -> None:
    size = 1 << 30
    options = ("--format", "4", "--heap-bytes-max", "3GiB", "--value-bytes-max", "1GiB", "--memory-max", "1GiB")
    server = Server(store_path, tmp_path, *options)
    try:
        value = random.Random(1).randbytes(MIB) * (size // MIB)
        assert server.kv.Set(kv_pb2.SetRequest(key=b"k", value=value)).status == kv_pb2.STATUS_OK
        [answered] = server.kv.Pipeline(iter([batch([(GET, b"k")])]))
        assert answered.values == value
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        [own] = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
        assert int(own) < 200 << 10  # KiB: the value is the file's
        server.stop()
    finally:
        server.kill()
    with gpkvs.open(store_path) as store:
        assert store.count() == 1
    assert_clean(store_path)
