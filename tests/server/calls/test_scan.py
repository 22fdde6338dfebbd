"""Scan and Count of a real server: whole, in bounded memory, beside other calls, through stops and kills."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.bench.peers.ports import free_port
from gpkvs.client import AsyncClient, Client, RetryPolicy, ServerBusyError, UnavailableError
from gpkvs.client.scan import decode_piece
from gpkvs.errors import InvalidArgumentError, UnknownTableError
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.scan import ScanPiece
from tests.conftest import assert_clean
from tests.server.wire import SET, Refused, batch
from tests.serving import Server, StartServer

LARGE = ("--heap-bytes", "96MiB", "--journal-bytes", "24MiB")
PATIENT = RetryPolicy(attempts_max=100, delay_ms_first=10, delay_ms_max=50)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for tests that leave it as it is, but for tables of their own."""
    folder = tmp_path_factory.mktemp("scan")
    server = Server(folder / "store", folder, *LARGE)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def table(shared: Server, request: pytest.FixtureRequest) -> str:
    """Return an empty table of the shared server."""
    name = request.node.name[:64]
    shared.admin.CreateTable(admin_pb2.CreateTableRequest(name=name, index_bytes=1 << 18))
    return str(name)


def fill(server: Server, count: int, value_bytes: int, table: str = "") -> dict[bytes, bytes]:
    """Store many records; return them."""
    rng = random.Random(count)
    held = {b"key:%06d" % n: rng.randbytes(value_bytes) for n in range(count)}
    pairs = list(held.items())
    for first in range(0, count, 1000):
        server.kv.Batch(batch([(SET, key, value) for key, value in pairs[first : first + 1000]], table=table))
    return held


def pieces_of(responses: Iterator[kv_pb2.ScanResponse], *, keys_only: bool = False) -> list[ScanPiece]:
    return [decode_piece(response, keys_only=keys_only) for response in responses]


def pairs_of(pieces: list[ScanPiece]) -> dict[bytes, bytes]:
    pairs = [pair for piece in pieces for pair in piece.pairs()]
    assert len(dict(pairs)) == len(pairs), "a key came twice"
    return dict(pairs)


def test_all_keys_come_once(shared: Server, table: str) -> None:
    names = ("gpkvs_scan_keys_total", "gpkvs_scan_pieces_total", "gpkvs_scan_seconds_total", "gpkvs_scan_damaged_total")
    before = [shared.metric(name) for name in names]
    held = fill(shared, 5000, 1000, table)
    pieces = pieces_of(shared.kv.Scan(kv_pb2.ScanRequest(table=table)))
    assert pairs_of(pieces) == held
    assert len(pieces) > 2
    assert [bool(piece.cursor) for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert not any(piece.damaged for piece in pieces)
    assert len({version for piece in pieces for version in piece.versions.tolist()}) == 5000
    keys = pieces_of(shared.kv.Scan(kv_pb2.ScanRequest(table=table, keys_only=True)), keys_only=True)
    assert {key for piece in keys for key in piece.key_list()} == held.keys()
    prefix = pieces_of(shared.kv.Scan(kv_pb2.ScanRequest(table=table, prefix=b"key:0012")))
    assert pairs_of(prefix) == {key: value for key, value in held.items() if key.startswith(b"key:0012")}
    keys_, pieces_, seconds, damaged = (shared.metric(name) - old for name, old in zip(names, before, strict=True))
    assert (keys_, damaged) == (10_100, 0)
    assert pieces_ >= len(pieces) + len(keys) + len(prefix)
    assert seconds > 0
    assert shared.metric("grpc_server_handled_total", grpc_code="OK", grpc_method="Scan", grpc_type="server_stream")
    assert shared.metric("gpkvs_memory_bytes", kind="answers") == 0


def test_a_limit_and_cursors(shared: Server, table: str) -> None:
    held = fill(shared, 3000, 10, table)
    found: dict[bytes, bytes] = {}
    cursor = b""
    for limit in (1, 10, 700, 10_000):
        pieces = pieces_of(shared.kv.Scan(kv_pb2.ScanRequest(table=table, cursor=cursor, limit=limit)))
        part = pairs_of(pieces)
        assert len(part) == min(limit, len(held) - len(found))
        assert not part.keys() & found.keys()
        found.update(part)
        cursor = pieces[-1].cursor
    assert (found, cursor) == (held, b"")


def test_a_table_of_numbers_and_counts(shared: Server, table: str) -> None:
    shared.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20))
    with Client(shared.target, table="n") as client:
        numbers = np.arange(20_000, dtype=np.uint64)
        client.set_many(numbers, numbers * 2)
        pieces = list(client.scan_pieces())
    keys = np.concatenate([piece.keys.view(np.uint64) for piece in pieces])
    values = np.concatenate([piece.values.view(np.uint64) for piece in pieces])
    assert (np.sort(keys) == numbers).all()
    assert (values == 2 * keys).all()
    fill(shared, 3000, 1, table)
    for name, prefix, count in ((table, b"", 3000), ("n", b"", 20_000), (table, b"key:0010", 100), (table, b"x", 0)):
        assert shared.kv.Count(kv_pb2.CountRequest(table=name, prefix=prefix)).count == count
    for call in (
        lambda: shared.kv.Count(kv_pb2.CountRequest(table="n", prefix=b"1")),
        lambda: list(shared.kv.Scan(kv_pb2.ScanRequest(table="n", prefix=b"1"))),
    ):
        with Refused(grpc.StatusCode.INVALID_ARGUMENT, "prefix: a table of the layout u64 has no prefixes"):
            call()


def test_refusals(shared: Server, table: str) -> None:
    fill(shared, 100, 1, table)
    cursor = next(iter(shared.kv.Scan(kv_pb2.ScanRequest(table=table, limit=1)))).cursor
    for request, text in (
        (kv_pb2.ScanRequest(cursor=b"x"), "cursor: these bytes are no cursor"),
        (kv_pb2.ScanRequest(cursor=cursor), "cursor: it is of another table"),
    ):
        with Refused(grpc.StatusCode.INVALID_ARGUMENT, text):
            list(shared.kv.Scan(request))
    with Refused(grpc.StatusCode.NOT_FOUND, "no table 'x'"):
        list(shared.kv.Scan(kv_pb2.ScanRequest(table="x")))
    with Refused(grpc.StatusCode.NOT_FOUND, "no table 'x'"):
        shared.kv.Count(kv_pb2.CountRequest(table="x"))
    raw = shared.channel.unary_stream("/gpkvs.v1.KV/Scan")
    with Refused(grpc.StatusCode.INVALID_ARGUMENT, "gpkvs.v1.ScanRequest"):
        list(raw(b"\xff\xff"))
    with Client(shared.target) as client:
        for prefix, name, error in ((b"", "x", UnknownTableError), (b"", "", InvalidArgumentError)):
            with pytest.raises(error):
                list(client.scan_pieces(prefix, table=name, cursor=b"x"))
        with pytest.raises(InvalidArgumentError, match="limit"):
            client.scan_pieces(limit=0)


def test_a_reader_that_does_not_read_holds_little_and_nobody_up(start_server: StartServer) -> None:
    server = start_server(*LARGE)
    held = fill(server, 3000, 10_000)
    responses = server.kv.Scan(kv_pb2.ScanRequest())
    found = [decode_piece(next(responses), keys_only=False)]
    time.sleep(0.5)
    pieces = server.metric("gpkvs_scan_pieces_total")
    assert pieces < 25, "the server reads on although nobody reads its responses"
    assert 0 < server.metric("gpkvs_memory_bytes", kind="answers") < 4 << 20
    for _ in range(50):
        server.kv.Set(kv_pb2.SetRequest(key=b"another", value=b"1"), timeout=10)
    assert server.metric("gpkvs_scan_pieces_total") == pieces
    found += pieces_of(responses)
    pairs = pairs_of(found)
    pairs.pop(b"another", None)
    assert pairs == held
    # A call that is cancelled, and one whose deadline passes, hold nothing any more.
    for timeout in (None, 0.5):
        responses = server.kv.Scan(kv_pb2.ScanRequest(), timeout=timeout)
        next(responses)
        if timeout is None:
            responses.cancel()
        give_up = time.monotonic() + 20
        while server.metric("gpkvs_memory_bytes", kind="answers"):
            assert time.monotonic() < give_up
            time.sleep(0.02)
    give_up = time.monotonic() + 20
    while server.metric("grpc_server_handled_total", grpc_method="Scan") < 3:
        assert time.monotonic() < give_up, "a call that nobody waits for goes on"
        time.sleep(0.02)
    assert server.metric("grpc_server_handled_total", grpc_method="Scan", grpc_code="OK") == 1


def test_a_scan_brings_values_that_are_longer_than_a_message(start_server: StartServer) -> None:
    server = start_server("--format", "4", "--heap-bytes", "512MiB")  # it takes longer ones
    value = bytes(range(256)) * (70 << 12)  # 70 MiB, and a message has 64
    with Client(server.target) as client:
        client.set(b"large", value)
        client.set(b"small", b"1")
        assert dict(client.scan()) == {b"large": value, b"small": b"1"}
    give_up = time.monotonic() + 20
    while server.metric("gpkvs_memory_bytes", kind="answers"):
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_a_scan_refuses_values_that_its_connection_may_not_hold(start_server: StartServer) -> None:
    server = start_server("--format", "4", "--heap-bytes", "512MiB", "--memory-max", "640MiB")
    with Client(server.target) as client:
        client.set(b"large", bytes(100 << 20))
        with pytest.raises(ServerBusyError, match=r"record has 104,857,600 bytes.*--memory-max.*scan keys only"):
            list(client.scan())
        assert [key for piece in client.scan_pieces(keys_only=True) for key in piece.key_list()] == [b"large"]


def test_a_stop_ends_a_scan_behind_a_whole_piece(start_server: StartServer) -> None:
    server = start_server(*LARGE)
    held = fill(server, 1500, 10_000)
    responses = server.kv.Scan(kv_pb2.ScanRequest())
    pieces = [decode_piece(next(responses), keys_only=False)]
    server.process.send_signal(signal.SIGTERM)
    with Refused(grpc.StatusCode.UNAVAILABLE, "the server is stopping"):
        for response in responses:
            pieces.append(decode_piece(response, keys_only=False))
    server.stop()
    assert pieces[-1].cursor
    again = start_server(*LARGE)
    pieces += pieces_of(again.kv.Scan(kv_pb2.ScanRequest(cursor=pieces[-1].cursor)))
    assert pairs_of(pieces) == held


@pytest.mark.parametrize("is_async", [False, True], ids=["Client", "AsyncClient"])
def test_a_client_goes_on_after_a_kill_while_others_write(tmp_path: Path, is_async: bool) -> None:
    """The index grows too; SIGKILL comes between the first pieces and the last."""
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    servers = [Server(tmp_path / "store", tmp_path, *LARGE, *listen)]
    pieces: list[ScanPiece] = []

    def kill_and_write() -> None:
        servers[-1].kill()
        servers.append(Server(tmp_path / "store", tmp_path, *LARGE, *listen))
        more = Batch.of([(Op.SET, b"more %d" % n, b"") for n in range(24_000)])
        with Client(servers[-1].target, retry=PATIENT) as client:
            client.execute(more)

    async def scan_on() -> None:
        async with AsyncClient(servers[0].target, retry=PATIENT) as client:
            async for piece in client.scan_pieces():
                pieces.append(piece)
                if len(pieces) == 2:
                    await asyncio.to_thread(kill_and_write)

    try:
        held = fill(servers[0], 1500, 10_000)
        if is_async:
            asyncio.run(scan_on())
        else:
            with Client(servers[0].target, retry=PATIENT) as client:
                for piece in client.scan_pieces():
                    pieces.append(piece)
                    if len(pieces) == 2:
                        kill_and_write()
        servers[-1].stop()
    finally:
        for server in servers:
            server.kill()
    found = pairs_of(pieces)
    assert {key: value for key, value in found.items() if not key.startswith(b"more")} == held
    assert_clean(tmp_path / "store")


def test_a_client_gives_up_when_no_server_comes_back(start_server: StartServer) -> None:
    server = start_server(*LARGE)
    fill(server, 1500, 10_000)
    with Client(server.target, retry=RetryPolicy(attempts_max=3, delay_ms_first=1)) as client:
        pieces = client.scan_pieces(keys_only=False)
        next(pieces)
        server.stop()
        with pytest.raises(UnavailableError):
            list(pieces)


def test_a_timeout_is_of_a_piece_and_not_of_the_scan(shared: Server, table: str) -> None:
    held = fill(shared, 1500, 10_000, table)
    before = shared.metric("grpc_server_started_total", grpc_method="Scan")
    with Client(shared.target, timeout=0.5, table=table) as client:
        pieces = []
        for piece in client.scan_pieces():
            pieces.append(piece)
            if len(pieces) in (1, 3):
                time.sleep(0.7)
    assert pairs_of(pieces) == held
    after = shared.metric("grpc_server_started_total", grpc_method="Scan")
    assert after > before + 1, "no deadline passed: the test sees nothing"


def test_batches_go_on_beside_many_scans(shared: Server, table: str) -> None:
    fill(shared, 8000, 500, table)
    stop = threading.Event()
    counts: list[int] = []

    def scan_on() -> None:
        while not stop.is_set():
            counts.append(sum(map(len, pieces_of(shared.kv.Scan(kv_pb2.ScanRequest(table=table))))))

    scanning = [threading.Thread(target=scan_on) for _ in range(3)]
    for thread in scanning:
        thread.start()
    longest = 0.0
    for _ in range(40):
        began = time.monotonic()
        shared.kv.Set(kv_pb2.SetRequest(table=table, key=b"key:000001", value=b"v"), timeout=30)
        longest = max(longest, time.monotonic() - began)
    stop.set()
    for thread in scanning:
        thread.join()
    assert set(counts) == {8000}
    assert longest < 5, "SETs wait for scans"
