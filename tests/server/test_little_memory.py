"""A server that the system gives no more memory, or no more threads: it serves with what it has, and stops in order."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
import resource
import threading
import urllib.error
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from gpkvs.cli.serving.served import _faults_logged
from gpkvs.errors import GpkvsError, NoSpaceError
from gpkvs.media.directory import access_errors
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.gate import Gate
from gpkvs.server.http_port import HttpPort
from gpkvs.server.ports.address import Address
from gpkvs.server.signs.refused_connections import RefusedConnections
from gpkvs.server.threads import NoThreadError, begun_threads
from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, server_options
from tests.server.access.everybody import open_to_everybody
from tests.serving import Server, StartServer

pytestmark = pytest.mark.own_python

MIB = 1 << 20
REQUEST = b"GET /metrics HTTP/1.1\r\n\r\n"


@contextlib.contextmanager
def no_more_memory(server: Server, more_bytes: int) -> Iterator[None]:
    """Give a server so many bytes of address space beyond what it has."""
    found = re.search(r"^VmSize:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text(), re.MULTILINE)
    assert found
    before = resource.prlimit(server.process.pid, resource.RLIMIT_AS)
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (int(found[1]) * 1024 + more_bytes, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has stopped
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, before)


@pytest.mark.parametrize("more_bytes", [0, 4 * MIB])
def test_a_password_that_there_is_no_memory_for(start_server: StartServer, tmp_path: Path, more_bytes: int) -> None:
    """To verify it takes 64 MiB; to load what does it, as well, and that is there before."""
    accounts = Accounts(tmp_path / "users.toml", alice=Account(password="a password of hers", read=("*",)))
    accounts.save()
    server = start_server("--users", str(accounts.path))
    secret = base64.b64encode(b"alice:a password of hers").decode()
    with no_more_memory(server, more_bytes), pytest.raises(grpc.RpcError) as refusal:
        server.kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=(("authorization", f"Basic {secret}"),), timeout=60)
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "a password cannot be verified now" in refusal.value.details()


@pytest.mark.parametrize("more_bytes", [0, MIB])
def test_the_port_of_metrics_inside_tls(start_server: StartServer, tmp_path: Path, more_bytes: int) -> None:
    """A client for whom there is no memory does not wait, and the next one is served as before."""
    authority = Authority(tmp_path)
    server = start_server(*server_options(authority.issue("server", *HERE)), authority=authority)
    with no_more_memory(server, more_bytes):
        for _ in range(20):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):  # no TimeoutError
                server.metrics_text()
    assert "gpkvs_serving 1" in server.metrics_text()
    with no_more_memory(server, more_bytes):
        server.stop()
    # uvloop writes of each connection that lacked memory; nobody wants more of it.
    lines = [line for line in server.log.read_text().splitlines() if "never retrieved" in line]
    server.log.write_text("")
    assert not lines


class Fails:
    """Raises an error the first times that a function is called."""

    def __init__(self, function: Callable[..., Awaitable[Any]], times: int) -> None:
        self._function = function
        self._times = times

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._times:
            self._times -= 1
            raise MemoryError
        return await self._function(*arguments, **named)


async def asked(address: Address) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(REQUEST)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def port_that_lacks_memory(what: str) -> None:
    port = HttpPort(CollectorRegistry(), Gate(), open_to_everybody())
    loop: Any = asyncio.get_running_loop()
    setattr(loop, what, Fails(getattr(loop, what), 3))
    address = await port.listen(Address("127.0.0.1", 0))
    try:
        answered = [await asked(address) for _ in range(4)]
        assert answered[3].startswith(b"HTTP/1.1 200 OK\r\n")
        assert port.refused["memory_full"] == 3
    finally:
        port.close()


@pytest.mark.parametrize("what", ["sock_accept", "connect_accepted_socket"])
def test_a_connection_without_memory_does_not_end_the_port(what: str) -> None:
    asyncio.run(asyncio.wait_for(port_that_lacks_memory(what), 60))


class Greedy(Collector):
    """Metrics that no memory is enough for."""

    def collect(self) -> Iterator[Any]:
        """Fail."""
        raise MemoryError


async def metrics_without_memory() -> None:
    registry = CollectorRegistry(auto_describe=False)
    port = HttpPort(registry, Gate(), open_to_everybody())
    registry.register(Greedy())
    address = await port.listen(Address("127.0.0.1", 0))
    try:
        assert (await asked(address)).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert port.refused["memory_full"] == 1
    finally:
        port.close()


def test_metrics_without_memory() -> None:
    asyncio.run(asyncio.wait_for(metrics_without_memory(), 60))


def test_threads_begin_at_once() -> None:
    with begun_threads("three", 3) as threads:
        assert len([thread for thread in threading.enumerate() if thread.name.startswith("three_")]) == 3
        assert [threads.submit(int, text).result() for text in "123"] == [1, 2, 3]


def test_the_system_gives_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def may_start(thread: threading.Thread) -> None:
        if thread.name.endswith("_1"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", may_start)
    with pytest.raises(NoThreadError, match="ulimit -u"):
        begun_threads("a", 3)


def test_the_start_says_that_there_is_no_memory() -> None:
    with pytest.raises(GpkvsError, match="the process got no memory"), _faults_logged():
        raise MemoryError
    with (
        pytest.raises(NoSpaceError, match="memory full: store: Cannot allocate memory: raise the limit"),
        access_errors(Path("store")),
    ):
        raise OSError(12, "Cannot allocate memory")


async def looks_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("gpkvs.server.signs.refused_connections.LOOK_SECONDS", 0.001)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    looks, has_looked_again = 0, asyncio.Event()

    def counts() -> dict[str, int]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise MemoryError
        has_looked_again.set()
        return {"a": 0}

    refused = RefusedConnections(counts, {"a": (logging.INFO, "")}, "refused")
    await has_looked_again.wait()
    refused.close()
    return looks


def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(asyncio.wait_for(looks_after_a_failure(monkeypatch), 60)) > 1
