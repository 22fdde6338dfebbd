"""Floods on a real server: its memory is bounded, connections that break a limit end, and others are served."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from gpkvs.bench.door.crowd import LARGE_KEY
from gpkvs.bench.door.floods import FLOODS, attack
from gpkvs.bench.door.key_changes import Done
from gpkvs.proto.v1 import kv_pb2
from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, server_options
from tests.server.access.guarded import Guarded
from tests.server.test_faults import resident_bytes, wait_until
from tests.serving import Server

MIB = 1 << 20
MEMORY_BYTES = 128 * MIB
PASSWORD_BYTES = 2 * 64 * MIB  # two at a time are verified, beside what clients may take
FLOOD_SECONDS, CALLS = 0.25, 2
OPTIONS = ("--memory-max", str(MEMORY_BYTES))

# A connection that breaks no limit may stay: it waits, or it sends what anybody may, and others come first.
STAYS = {
    "Info",
    "unknown frames",
    "little data",
    "large headers",
    "slow headers",
    "slow messages",
    "declared messages",
    "held messages",
    "held streams",
    "held scans",
    "nothing read",
    "no window",
    "idle",
    "connections",
    "wrong tokens",
    "wrong passwords",
    "slow handshakes",
    "handshakes",
    "changes of keys",
}


# These take all memory that clients may have for moments; others are refused then, and try again.
STARVES = {"nothing read"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("plain")
    server = Server(folder / "store", folder, *OPTIONS)
    server.kv.Set(kv_pb2.SetRequest(key=LARGE_KEY, value=bytes(400_000)))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    accounts = Accounts(folder / "users.toml", root=Account(read=("*",), write=("*",), metrics=True))
    made = Guarded(accounts, folder, *OPTIONS)
    yield made
    made.server.kill()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    server = Server(
        folder / "store", folder, *OPTIONS, *server_options(authority.issue("server", *HERE)), authority=authority
    )
    yield server
    server.kill()


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood(name: str, plain: Server, guarded: Guarded, secured: Server) -> None:
    flood = FLOODS[name]
    server = guarded.server if flood.has_users else secured if flood.is_tls else plain
    metadata = guarded.headers["root"] if flood.has_users else None
    held = lambda: server.metric("gpkvs_memory_bytes")  # noqa: E731
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"v"), metadata=metadata)
    idle_bytes, counted_bytes, held_max = resident_bytes(server), held(), 0
    done, stop = Done(), threading.Event()
    attacker = threading.Thread(target=attack, args=(name, server.target, done, stop))
    attacker.start()
    began, calls = time.monotonic(), 0
    try:
        while time.monotonic() < began + FLOOD_SECONDS or calls < CALLS or not (done.closed or name in STAYS):
            assert time.monotonic() < began + 20, f"no connection was closed, or none of {CALLS} calls was answered"
            try:
                assert server.kv.Get(kv_pb2.GetRequest(key=b"k"), timeout=20, metadata=metadata).value == b"v"
                calls += 1
            except grpc.RpcError as error:
                if name not in STARVES or error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            held_max = max(held_max, resident_bytes(server))
    finally:
        stop.set()
        attacker.join()
    assert done.connections
    assert held_max - idle_bytes < MEMORY_BYTES + (PASSWORD_BYTES if name == "wrong passwords" else 0)
    wait_until(lambda: held() < counted_bytes + MIB // 4, "not all is given back")


def test_what_the_floods_leave(plain: Server, guarded: Guarded, secured: Server) -> None:
    for server in (plain, guarded.server, secured):
        server.stop()
        assert "Traceback" not in server.log.read_text()
