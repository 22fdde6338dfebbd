"""Values in blobs, which the native door sends from where they are: whole, or not at all."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

import gpkvs
from gpkvs.batch import Status
from gpkvs.config import MIB
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.door.library import Protocol
from gpkvs.server.door.stats import closed_connections
from tests.door import probes
from tests.door.blob_door import COMMITS, ask, blob_store, bulk, counts_of, door, wait_for
from tests.door.http2_client import Http2Client, framed
from tests.door.resp_door import answers, command, connect, without_ids
from tests.server.wire import EXISTS, GET, SET, Operation, batch, u32s, values_of
from tests.serving import Server, StartServer

KIB = 1 << 10
PSEUDO = [(":method", "POST"), (":scheme", "http"), (":path", "/gpkvs.v1.KV/Get"), (":authority", "a")]
HEADERS = [*PSEUDO, ("content-type", "application/grpc"), ("te", "trailers")]
SIZES = (0, 100, 64 * KIB, 65 * KIB, 128 * KIB, 200_001, MIB, 3 * MIB + 7)


@pytest.fixture(params=COMMITS)
def store(store_path: Path, request: pytest.FixtureRequest) -> Iterator[gpkvs.Store]:
    with blob_store(store_path, request.param) as opened:
        yield opened


def is_read(store: gpkvs.Store, pages: int) -> bool:
    """Whether so many pages wait for readers alone, and none for a durable frame."""
    store.set(b"last", b"x")
    counts = counts_of(store)
    assert counts.file == sum(counts[1:-1])
    return counts.read == pages and not counts.waiting


def test_commands_see_what_a_dictionary_holds(store: gpkvs.Store) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    with door(store) as (_, connection):
        keys = [b"k%d" % number for number in range(6)]
        for _ in range(150):
            key, other = rng.choice(keys), rng.choice(keys)
            kind = rng.randrange(11)
            if kind < 3:
                value = rng.randbytes(rng.choice(SIZES))
                assert ask(connection, b"SET", key, value) == b"+OK\r\n"
                model[key] = value
            elif kind == 3:
                assert ask(connection, b"DEL", key) == b":%d\r\n" % (model.pop(key, None) is not None)
            elif kind == 4:
                asked = [rng.choice(keys) for _ in range(rng.randrange(1, 9))]
                found = b"".join(bulk(model.get(one)) for one in asked)
                assert ask(connection, b"MGET", *asked) == b"*%d\r\n" % len(asked) + found
            elif kind == 5:
                first, last = rng.randrange(-100_000, 300_000), rng.randrange(-100_000, 300_000)
                value = model.get(key, b"")
                begin = first if first >= 0 else max(first + len(value), 0)
                end = last if last >= 0 else last + len(value)
                if first < 0 and last < 0 and first > last:
                    begin, end = 1, 0
                part = value[begin : max(end, 0) + 1] if begin <= max(end, 0) else b""
                asked = [b"GETRANGE", key, b"%d" % first, b"%d" % last]
                assert ask(connection, *asked) == bulk(part)
            elif kind == 6:
                assert ask(connection, b"STRLEN", key) == b":%d\r\n" % len(model.get(key, b""))
            elif kind == 7:
                # In one message, so in one batch: the first GET has the old value, the last one has none.
                sent = [(b"GET", key), (b"GET", other), (b"DEL", key), (b"GET", key)]
                connection.sendall(b"".join(command(*words) for words in sent))
                old = bulk(model.get(key)) + bulk(model.get(other))
                gone = b":%d\r\n" % (model.pop(key, None) is not None)
                assert answers(connection, 4) == old + gone + bulk(None)
            elif kind == 8:
                # The one behind an EXPIRE has the value that stays.
                sent = [(b"EXPIRE", key, b"1000"), (b"GET", key), (b"GETEX", key, b"PERSIST")]
                sent += [(b"GETEX", key, b"EX", b"9"), (b"PERSIST", key), (b"GET", key)]
                connection.sendall(b"".join(command(*words) for words in sent))
                is_there, found = b":%d\r\n" % (key in model), bulk(model.get(key))
                assert answers(connection, 6) == is_there + found * 3 + is_there + found
            elif kind == 9:
                sent = [(b"MULTI",), (b"EXPIRE", key, b"1000"), (b"APPEND", key, b"x"), (b"GET", key), (b"EXEC",)]
                connection.sendall(b"".join(command(*words) for words in sent))
                is_there = key in model
                model[key] = model.get(key, b"") + b"x"
                found = b"*3\r\n:%d\r\n:%d\r\n%s" % (is_there, len(model[key]), bulk(model[key]))
                assert answers(connection, 5) == b"+OK\r\n" + b"+QUEUED\r\n" * 3 + found
                assert ask(connection, b"PERSIST", key) == b":%d\r\n" % is_there
            else:
                sent = [(b"MULTI",), (b"GET", key), (b"SETNX", other, b"x"), (b"GET", other), (b"EXEC",)]
                connection.sendall(b"".join(command(*words) for words in sent))
                before, is_new = model.get(key), other not in model
                model.setdefault(other, b"x")
                found = b"*3\r\n%s:%d\r\n%s" % (bulk(before), is_new, bulk(model[other]))
                assert answers(connection, 5) == b"+OK\r\n" + b"+QUEUED\r\n" * 3 + found
        for key in keys:
            assert ask(connection, b"GET", key) == bulk(model.get(key))
        wait_for(lambda: is_read(store, 0))


def begin_to_read(connection: socket.socket, key: bytes, size: int) -> None:
    """Read the head of an answer, and nothing of the value."""
    connection.sendall(command(b"GET", key))
    head = b"$%d\r\n" % size
    with connection.makefile("rb", buffering=0) as stream:
        assert b"".join(iter(lambda: stream.read(1), b"\n")) + b"\n" == head


@pytest.mark.parametrize("how", ["SET", "DEL", "EXPIRE and SET", "EXPIRE and DEL"])
def test_a_value_stays_as_long_as_it_is_read(store: gpkvs.Store, how: str) -> None:
    size = 24 * MIB
    old, new = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
    with door(store) as (_, connection):
        store.set(b"k", old)
        begin_to_read(connection, b"k", size)
        pages = counts_of(store).live
        if how.startswith("EXPIRE"):
            store.expire(b"k", 10**6)
            wait_for(lambda: is_read(store, 0))
            assert counts_of(store).live == pages
        if how.endswith("SET"):
            store.set(b"k", new)
        else:
            store.delete(b"k")
        for number in range(8):  # whoever takes pages takes none of those that are read
            store.set(b"other%d" % number, new[: MIB + number])
        wait_for(lambda: is_read(store, pages))
        with connection.makefile("rb") as stream:
            assert stream.read(size + 2) == old + b"\r\n"
        wait_for(lambda: counts_of(store).read == 0)
        assert store.get(b"k") == (new if how.endswith("SET") else None)


def test_a_value_whose_expiry_changes_is_sent_from_where_it_lies(store: gpkvs.Store) -> None:
    size = 24 * MIB
    value = random.Random(1).randbytes(size)
    with door(store) as (library, connection):
        store.set(b"k", value)
        for words in ([b"GETEX", b"k", b"EX", b"1000"], [b"GETEX", b"k", b"PERSIST"]):
            connection.sendall(command(*words))
            wait_for(lambda: library.held_bytes("answers") > 0)
            assert library.held_bytes("answers") < 2 * MIB
            assert answers(connection, 1) == bulk(value)
            wait_for(lambda: library.held_bytes("answers") == 0)
        # The same of a GET that comes in one batch with what it is behind.
        connection.sendall(command(b"EXPIRE", b"k", b"1000") + command(b"GET", b"k"))
        wait_for(lambda: library.held_bytes("answers") > 0)
        assert library.held_bytes("answers") < 2 * MIB
        assert answers(connection, 2) == b":1\r\n" + bulk(value)
        assert counts_of(store).live == counts_of(store).file - counts_of(store).present - counts_of(store).absent


def test_a_client_that_does_not_read_on_loses_its_connection(store: gpkvs.Store) -> None:
    size = 24 * MIB
    with door(store) as (library, connection):
        probes.hurry(library._door, 100)
        store.set(b"k", bytes(size))
        begin_to_read(connection, b"k", size)
        store.delete(b"k")
        wait_for(lambda: closed_connections(library.stats())["unread"] == 1)
        wait_for(lambda: is_read(store, 0))
        with connection.makefile("rb") as stream, suppress(ConnectionError):
            assert len(stream.read()) < size


def test_clients_that_do_not_read_leave_others_room(store: gpkvs.Store) -> None:
    with door(store) as (library, _), ExitStack() as stack:
        store.set(b"k", bytes(MIB))
        port = library.listen("127.0.0.1", 0, Protocol.RESP)
        for _ in range(4):
            connection = stack.enter_context(connect(port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(command(b"GET", b"k") * 1000)
        with connect(port) as other:
            for _ in range(20):
                assert ask(other, b"GET", b"k") == bulk(bytes(MIB))
                assert library.clients_bytes() < 128 * MIB  # of 256
        refused = ask(stack.enter_context(connect(port)), b"MGET", *[b"k"] * 200)
        assert refused.startswith(b"-OOM memory full: this connection holds ")


def test_answers_before_a_value_that_is_lent_are_waited_for_no_longer(store: gpkvs.Store) -> None:
    with door(store) as (library, connection):
        probes.hurry(library._door, 100)
        store.set(b"small", bytes(60_000))
        store.set(b"k", bytes(2 * MIB))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(command(b"GET", b"small") * 200 + command(b"GET", b"k"))
        wait_for(lambda: closed_connections(library.stats())["unread"] == 1)
        store.delete(b"k")
        wait_for(lambda: is_read(store, 0))


def test_a_client_that_goes_leaves_nothing(store: gpkvs.Store) -> None:
    size = 24 * MIB
    with door(store) as (library, connection):
        store.set(b"k", bytes(size))
        begin_to_read(connection, b"k", size)
        connection.close()
        store.delete(b"k")
        wait_for(lambda: is_read(store, 0))
        wait_for(lambda: library.held_bytes("answers") == 0)


def test_a_call_whose_client_does_not_read_on_is_given_up(store: gpkvs.Store) -> None:
    with door(store) as (library, _):
        target = f"127.0.0.1:{library.listen('127.0.0.1', 0, Protocol.GRPC)}"
        store.set(b"k", bytes(24 * MIB))
        with Http2Client(target) as client:
            request = framed(kv_pb2.GetRequest(key=b"k").SerializeToString())
            stream = client.begin(HEADERS)
            client.send(stream, request, ends=True)
            wait_for(lambda: library.held_bytes("answers") >= MIB)
            store.delete(b"k")
            wait_for(lambda: is_read(store, 24 * MIB // 4096 + 1))
            probes.hurry(library._door, 100)
            wait_for(lambda: is_read(store, 0))  # a window was never opened: it had 64 KiB
            assert client.answer(stream).reset is not None


def damage(path: Path, value: bytes, at: int) -> None:
    """Change a byte of a value where it lies."""
    blobs = path / "blobs"
    begin = blobs.read_bytes().find(value[:4096])
    assert begin >= 0
    with blobs.open("r+b") as file:
        file.seek(begin + at)
        file.write(bytes([value[at] ^ 1]))


@pytest.mark.parametrize("at", [0, MIB, 3 * MIB - 1])
def test_a_damaged_value_is_no_value(store: gpkvs.Store, store_path: Path, at: int) -> None:
    value, sound = random.Random(1).randbytes(3 * MIB), random.Random(2).randbytes(2 * MIB)
    refused = b"-ERR the record fails its checksum, so no value is returned: run gpkvs check\r\n"
    with door(store) as (library, connection):
        store.set(b"k", value)
        store.set(b"sound", sound)
        damage(store_path, value, at)
        connection.sendall(command(b"GET", b"k") + command(b"GET", b"sound") + command(b"MGET", b"sound", b"k", b"no"))
        assert without_ids(answers(connection, 3)) == refused + bulk(sound) + refused
        assert without_ids(ask(connection, b"GETRANGE", b"k", b"0", b"9")) == refused
        assert library.stats().operations[GET][Status.CORRUPT] == 3
        damage(store_path, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :], at)
        assert ask(connection, b"GET", b"k") == bulk(value)
        assert ask(connection, b"DEL", b"k") == b":1\r\n"


@pytest.fixture(params=COMMITS)
def server(start_server: StartServer, request: pytest.FixtureRequest) -> Server:
    return start_server("--format", "4", "--commit", request.param, "--durability", "process", "--heap-bytes", "64MiB")


def test_grpc_has_values_whole(server: Server) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model = {b"k%d" % size: rng.randbytes(size) for size in SIZES}
    keys = list(model)
    versions = {}
    for key, value in model.items():
        versions[key] = server.kv.Set(kv_pb2.SetRequest(key=key, value=value)).version
        expected = kv_pb2.GetResponse(found=True, value=value, version=versions[key])
        assert server.kv.Get(kv_pb2.GetRequest(key=key)) == expected
    for count in (1, 2, 7, 20):
        asked = [rng.choice([*keys, b"missing"]) for _ in range(count)]
        several = server.kv.MultiGet(kv_pb2.MultiGetRequest(keys=asked)).results
        assert [(one.found, one.value, one.version) for one in several] == [
            (key in model, model.get(key, b""), versions.get(key, 0)) for key in asked
        ]
        operations: list[Operation] = [(rng.choice((GET, EXISTS)), key) for key in asked]
        operations += [(SET, b"new", b"x" * 70_000), (GET, b"new"), (GET, keys[-1])]
        requests = [batch(operations, id=number) for number in range(1, 4)]
        for answered in (server.kv.Batch(requests[0]), *server.kv.Pipeline(iter(requests))):
            found = [model.get(key, b"") for op, key, *_ in operations[:-3] if op == GET]
            assert values_of(answered) == [*found, b"x" * 70_000, model[keys[-1]]]
            assert u32s(answered.value_lengths)[-2:] == [70_000, SIZES[-1]]
    assert server.metric("gpkvs_memory_bytes", kind="responses") == 0


def test_a_damaged_value_ends_grpcs_call(server: Server) -> None:
    value = random.Random(1).randbytes(3 * MIB)
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=value))
    damage(server.data, value, MIB)
    with pytest.raises(grpc.RpcError) as caught:
        server.kv.Get(kv_pb2.GetRequest(key=b"k"))
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS
    answered = server.kv.Batch(batch([(GET, b"k"), (EXISTS, b"k")]))
    assert answered.status == bytes([Status.CORRUPT, Status.OK])
    assert answered.values == b""
    damage(server.data, value[:MIB] + bytes([value[MIB] ^ 1]) + value[MIB + 1 :], MIB)
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == value
