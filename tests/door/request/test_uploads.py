"""Large values that come in pieces: the native door receives them straight to where they will lie."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import gpkvs
from gpkvs.config import MIB
from gpkvs.server.door.stats import closed_connections
from tests.conftest import SMALL, assert_clean
from tests.door import probes
from tests.door.blob_door import COMMITS, LARGER, ask, blob_store, bulk, counts_of, door, wait_for
from tests.door.resp_door import answers, command, connect
from tests.serving import Server, StartServer

SIZES = (10, 70_000, MIB - 1, MIB, MIB + 1, MIB + 65_536, 2 * MIB + 4093, 5 * MIB)


@pytest.fixture(params=COMMITS)
def store(store_path: Path, request: pytest.FixtureRequest) -> Iterator[gpkvs.Store]:
    with blob_store(store_path, request.param) as opened:
        yield opened


def test_commands_do_what_a_dictionary_does(store: gpkvs.Store) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}
    with door(store) as (library, connection):
        keys = [b"k%d" % number for number in range(4)]
        for _ in range(40):
            sent, expected = b"", b""
            for _ in range(rng.randrange(1, 5)):
                key, value = rng.choice(keys), rng.randbytes(rng.choice(SIZES))
                old = model.get(key)
                kind = rng.randrange(7)
                if kind == 0:
                    sent += command(b"SET", key, value)
                    expected += b"+OK\r\n"
                elif kind == 1:
                    sent += command(b"SETEX", key, b"1000", value)
                    expected += b"+OK\r\n"
                elif kind == 2:
                    sent += command(b"SETNX", key, value)
                    expected += b":%d\r\n" % (old is None)
                elif kind == 3:
                    sent += command(b"GETSET", key, value)
                    expected += bulk(old)
                elif kind == 4:
                    sent += command(b"SET", key, value, b"XX", b"PX", b"100000")
                    expected += b"+OK\r\n" if old is not None else b"$-1\r\n"
                elif kind == 5:
                    sent += command(b"SET", key, value, b"GET")
                    expected += bulk(old)
                else:
                    sent += command(b"GET", key)
                    expected += bulk(old)
                writes = {2: old is None, 4: old is not None, 6: False}.get(kind, True)
                if writes:
                    model[key] = value
            at = 0
            while at < len(sent):
                part = rng.choice((1, 7, 1000, 65_536, 65_537, 3 * MIB))
                connection.sendall(sent[at : at + part])
                at += part
            with connection.makefile("rb") as stream:
                assert stream.read(len(expected)) == expected
        for key in keys:
            assert ask(connection, b"GET", key) == bulk(model.get(key))
        assert library.held_bytes("requests") < MIB
    assert counts_of(store).taken == 0
    assert {key: store.get(key) for key in keys if key in model} == model


def begin_to_send(connection: socket.socket, size: int, sent: int) -> None:
    connection.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % size + b"x" * sent)


def test_a_value_takes_its_place_and_little_memory(store: gpkvs.Store) -> None:
    size = 24 * MIB
    with door(store) as (library, connection):
        store.set(b"k", b"old")
        begin_to_send(connection, size, size - 1)
        wait_for(lambda: counts_of(store).taken * 4096 >= size)
        assert library.held_bytes("requests") < 2 * MIB
        assert store.get(b"k") == b"old"
        with connect(connection.getpeername()[1]) as other:  # others go on meanwhile
            assert ask(other, b"SET", b"other", b"y" * 2 * MIB) == b"+OK\r\n"
        connection.sendall(b"x\r\n")
        assert answers(connection, 1) == b"+OK\r\n"
        assert store.get(b"k") == b"x" * size
        assert counts_of(store).taken == 0


@pytest.mark.parametrize("how", ["close", "half", "stall"])
def test_a_value_that_never_comes_whole_leaves_nothing(store: gpkvs.Store, how: str) -> None:
    size = 24 * MIB
    with door(store) as (library, connection):
        store.set(b"k", b"old")
        if how == "stall":
            probes.hurry(library._door, 100)
        begin_to_send(connection, size, 5 * MIB)
        wait_for(lambda: counts_of(store).taken > 0 or how == "stall")
        if how == "close":
            connection.close()
        elif how == "half":
            connection.shutdown(socket.SHUT_WR)
        else:
            wait_for(lambda: closed_connections(library.stats())["slow"] == 1)
            assert answers(connection, 1) == b"-ERR no byte of the value came for 10 s\r\n"
        wait_for(lambda: counts_of(store).taken == 0)
        wait_for(lambda: library.held_bytes("requests") == 0)
        assert store.get(b"k") == b"old"
        counts = counts_of(store)
        assert counts.file == sum(counts[1:-1])


def test_where_there_is_no_room_the_command_is_answered_so(store_path: Path) -> None:
    sizes = SMALL | {"heap_bytes": 8 * MIB, "heap_bytes_max": 16 * MIB}
    with gpkvs.open(store_path, store_format="4", **sizes) as store, door(store) as (_, connection):
        value = random.Random(1).randbytes(12 * MIB)
        sent = [(b"SET", b"a", value), (b"SET", b"b", value), (b"GET", b"a"), (b"SET", b"c", value[: 2 * MIB])]
        connection.sendall(b"".join(command(*words) for words in sent))
        with connection.makefile("rb") as stream:
            assert stream.readline() == b"+OK\r\n"
            assert stream.readline().startswith(b"-OOM heap full: a value asked for ")
            assert stream.read(len(bulk(value))) == bulk(value)
            assert stream.readline() == b"+OK\r\n"
        assert store.get(b"b") is None
        assert counts_of(store).taken == 0
    assert_clean(store_path)


def test_a_value_beyond_the_limit_ends_the_connection(store_path: Path) -> None:
    limits = gpkvs.Limits(value_bytes_max=2 * MIB)
    with gpkvs.open(store_path, store_format="4", limits=limits, **LARGER) as store, door(store) as (_, connection):
        connection.sendall(command(b"PING") + b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2097153\r\n")
        expected = b"+PONG\r\n-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
        assert answers(connection, 2) == expected
        assert connection.recv(1) == b""


def test_what_python_must_see_has_its_limit(store: gpkvs.Store) -> None:
    with door(store) as (_, connection):  # messages end at 4 MiB here
        small, large = b"x" * 2 * MIB, b"x" * 6 * MIB
        assert ask(connection, b"SET", b"k", small, b"EX", b"0") == b"-ERR handed on SET\r\n"
        refused = ask(connection, b"SET", b"k", large, b"EX", b"0")
        assert refused.startswith(b"-ERR so large a value comes only with a plain SET, SETEX, PSETEX, SETNX or GETSET")
        sent = [(b"MULTI",), (b"SET", b"k", small), (b"SET", b"j", small[:MIB]), (b"EXEC",)]
        connection.sendall(b"".join(command(*words) for words in sent))
        assert answers(connection, 4) == b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n"
        assert store.get(b"k") == small
        assert counts_of(store).taken == 0


def test_a_transaction_in_one_packet_has_all_of_its_commands(store: gpkvs.Store) -> None:
    with door(store) as (_, connection):
        value = b"x" * 2 * MIB
        sent = [(b"MULTI",), (b"SET", b"k", value), (b"SET", b"other", b"y"), (b"EXEC",)]
        connection.sendall(b"".join(command(*words) for words in sent))
        assert answers(connection, 4) == b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n"
        sent[1] = (b"SET", b"k", value * 4)  # longer than a message: nothing of it is done
        sent[2] = (b"SET", b"other", b"z")
        connection.sendall(b"".join(command(*words) for words in sent))
        assert answers(connection, 2).startswith(b"+OK\r\n-ERR Protocol error: a command of more than")
        assert (store.get(b"k"), store.get(b"other")) == (value, b"y")


def test_a_full_queue_refuses_a_value_that_is_there(store: gpkvs.Store) -> None:
    with door(store, queue_requests_max=1) as (library, connection), connect(connection.getpeername()[1]) as other:
        begin_to_send(connection, 2 * MIB, MIB)
        wait_for(lambda: counts_of(store).taken > 0)
        sent, has_turn = MIB, threading.Event()

        def keep_alive() -> None:  # the turn may be long in coming, and a value that stalls is given up
            nonlocal sent
            while not has_turn.wait(1):
                connection.sendall(b"x")
                sent += 1

        with ThreadPoolExecutor(1) as pool:
            alive = pool.submit(keep_alive)
            with store.turn():  # the door has none
                has_turn.set()
                alive.result()
                other.sendall(command(b"SET", b"first", b"1"))
                wait_for(lambda: library.waiting() == 1)
                connection.sendall(b"x" * (2 * MIB - sent) + b"\r\n" + command(b"ECHO", b"behind"))
                found = answers(connection, 2)
        assert found.startswith(b"-OOM queue full: 1 requests wait")
        assert found.endswith(b"\r\n$6\r\nbehind\r\n")
        assert answers(other, 1) == b"+OK\r\n"
        wait_for(lambda: counts_of(store).taken == 0)


def test_a_value_that_comes_slowly_has_an_end(store: gpkvs.Store) -> None:
    with door(store, receive_seconds_max=0.2) as (library, connection):
        probes.hurry(library._door, 10)  # 0.8 s for each MiB; 1 s of silence would be another end
        begin_to_send(connection, 2 * MIB, MIB)
        with suppress(OSError):
            for _ in range(1000):
                connection.sendall(b"x")
                time.sleep(0.02)
                if closed_connections(library.stats())["slow"]:
                    break
        assert answers(connection, 1) == b"-ERR the value came too slowly: at least 128 KiB a second\r\n"
        wait_for(lambda: counts_of(store).taken == 0)


@pytest.mark.parametrize("commit", COMMITS)
def test_a_kill_in_the_middle_leaves_the_old_value(store_path: Path, tmp_path: Path, commit: str) -> None:
    options = ("--format", "4", "--commit", commit, "--durability", "process", "--heap-bytes", "64MiB")
    server = Server(store_path, tmp_path, *options, "--resp", "127.0.0.1:0")
    old = random.Random(1).randbytes(3 * MIB)
    with connect(int(server.resp_addresses[0].rpartition(":")[2])) as connection:
        assert ask(connection, b"SET", b"k", old) == b"+OK\r\n"
        begin_to_send(connection, 24 * MIB, 10 * MIB)
        time.sleep(0.1)
        server.kill()
        with suppress(OSError):
            connection.recv(1)
    with gpkvs.open(store_path, durability="process") as store:
        assert store.get(b"k") == old
        assert counts_of(store).live < 2 * 3 * MIB // 4096
    assert_clean(store_path)


def test_the_largest_value_passes_with_a_gibibyte_of_memory(start_server: StartServer) -> None:
    size = 1 << 30
    options = ("--format", "4", "--heap-bytes-max", "3GiB", "--value-bytes-max", "1GiB", "--memory-max", "1GiB")
    server = start_server(*options, "--resp", "127.0.0.1:0")
    piece = random.Random(1).randbytes(MIB)
    with connect(int(server.resp_addresses[0].rpartition(":")[2])) as connection:
        begin_to_send(connection, size, 0)
        for _ in range(size // MIB):
            connection.sendall(piece)
        connection.sendall(b"\r\n" + command(b"GET", b"k"))
        assert answers(connection, 1) == b"+OK\r\n"
        with connection.makefile("rb") as stream:
            assert stream.readline() == b"$%d\r\n" % size
            for _ in range(size // MIB):
                assert stream.read(MIB) == piece
            assert stream.read(2) == b"\r\n"
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    [own] = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    assert int(own) < 200 << 10  # KiB: the value is the file's
