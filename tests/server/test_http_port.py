"""The port for operators, asked over real sockets: well, badly, slowly, and by many at once."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop
from prometheus_client import CollectorRegistry, Counter

from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.access.audit import AuditLog
from gpkvs.server.access.login import Logins
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import Users
from gpkvs.server.gate import Gate
from gpkvs.server.http_port import CONNECTION_SECONDS_MAX, CONNECTIONS_MAX, HttpPort
from gpkvs.server.ports.address import Address, ListenError
from gpkvs.server.ports.tls import Tls, TlsFiles
from gpkvs.server.signs.exporter import Metrics
from tests.certificates import HERE, Authority, server_options
from tests.programs import require
from tests.server.access.everybody import open_to_everybody
from tests.server.test_faults import wait_until
from tests.serving import Server, StartServer

IDLE = 200
CROWD = 50
FULL = b"too many connections: closed for a newer one\n"
assert IDLE > CONNECTIONS_MAX


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return one server for the whole module: nothing here changes it."""
    folder = tmp_path_factory.mktemp("http")
    server = Server(folder / "store", folder, "--log-format", "json")
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert "Traceback" not in server.log.read_text()


def connect(server: Server) -> socket.socket:
    host, port = server.metrics_address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def ask(
    server: Server, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(server.metrics_address, timeout=30)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def raw(server: Server, data: bytes) -> bytes:
    """Return all that comes back for some bytes."""
    with connect(server) as client, client.makefile("rb") as response:
        client.sendall(data)
        return response.read()


def rest(client: socket.socket) -> bytes:
    with client.makefile("rb") as response:
        return response.read()


def threads(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/metrics", 200, b"gpkvs_serving 1"),
        ("/metrics?name[]=gpkvs_serving", 200, b"gpkvs_serving 1"),
        ("/healthz", 200, b"alive\n"),
        ("/readyz", 200, b"serving\n"),
        ("/", 404, b"/metrics, /healthz, /readyz"),
        ("/healthz/", 404, b"/healthz"),
        ("/metrics2", 404, b"/metrics"),
    ],
)
def test_get_and_head(shared: Server, path: str, status: int, word: bytes) -> None:
    got = ask(shared, "GET", path)
    assert got[0] == status
    assert word in got[1]
    head = ask(shared, "HEAD", path)
    assert head[:2] == (status, b"")
    assert int(head[2]["Content-Length"]) > 0
    assert head[2]["Content-Type"] == got[2]["Content-Type"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_other_methods(shared: Server, method: str, path: str) -> None:
    status, _, headers = ask(shared, method, path)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


def test_metrics_in_the_form_that_is_asked_for(shared: Server) -> None:
    accepted = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
    status, body, headers = ask(shared, "GET", "/metrics", accepted)
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert gzip.decompress(body).endswith(b"# EOF\n")


def test_tls_is_refused_at_once(shared: Server) -> None:
    began = time.monotonic()
    with connect(shared) as client, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
    assert time.monotonic() - began < CONNECTION_SECONDS_MAX / 2


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000,
    ],
)
def test_what_is_no_request(shared: Server, data: bytes) -> None:
    try:
        before = shared.metric("gpkvs_metrics_connections_refused_total", reason="invalid")
        assert raw(shared, data).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert shared.metric("gpkvs_metrics_connections_refused_total", reason="invalid") == before + 1
    except ConnectionResetError:
        assert len(data) > 10_000  # nobody reads the rest of what is too long
    assert ask(shared, "GET", "/healthz")[0] == 200


def test_idle_connections_take_no_thread_and_keep_nobody_out(shared: Server) -> None:
    ask(shared, "GET", "/metrics")  # makes the scraper's thread
    before = threads(shared)
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(shared)) for _ in range(IDLE)]
        for client in idle[::2]:  # half of them have begun to send
            client.sendall(b"GET /metrics HT")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert ask(shared, "GET", path)[0] == 200
        assert threads(shared) <= before
        # The oldest made room; those still open are no more than the limit.
        assert rest(idle[1]).endswith(FULL)  # it has sent nothing that would be lost
        stays = 0
        for client in idle:
            client.setblocking(False)
            try:
                assert client.recv(1) in (b"H", b"")
            except BlockingIOError:
                stays += 1
            except ConnectionResetError:
                pass
        assert stays <= CONNECTIONS_MAX
    assert shared.metric("gpkvs_metrics_connections_refused_total", reason="gave_way") >= IDLE - CONNECTIONS_MAX
    wait_until(lambda: '"reason": "gave_way"' in shared.log.read_text(), "the log says nothing of them")


def test_answers_whose_clients_stay_keep_nobody_out(start_server: StartServer, tmp_path: Path) -> None:
    """Inside TLS a server waits for its client to say the end, too. No user is asked for at /healthz."""
    authority = Authority(tmp_path)
    server = start_server(*server_options(authority.issue("server", *HERE)), authority=authority)

    def ask_for_health() -> ssl.SSLSocket:
        connection = authority.context().wrap_socket(connect(server), server_hostname="localhost")
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        return connection

    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 20):
            stack.enter_context(ask_for_health())
        slow = stack.enter_context(connect(server))
        for _ in range(3):
            with ask_for_health() as client:
                assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        authority.context().wrap_socket(slow, server_hostname="localhost").close()  # others had waited longer
        assert server.metric("gpkvs_metrics_connections_refused_total", reason="gave_way") > 0
        with connect(server) as client:
            client.sendall(b"in plain")
            assert client.recv(1000) == b""
        assert server.metric("gpkvs_metrics_connections_refused_total", reason="handshake") == 1


def test_not_ready_while_it_stops(start_server: StartServer) -> None:
    server = start_server("--batch-ops-max", "1")
    calls = [server.kv.Set.future(kv_pb2.SetRequest(key=b"%d" % i)) for i in range(200)]
    calls[0].result()
    assert ask(server, "GET", "/readyz")[0] == 200
    server.process.send_signal(signal.SIGTERM)
    stopping = 503, b"the server is stopping: try again elsewhere or later\n"
    seen, alive = set(), []
    with suppress(OSError, http.client.HTTPException):
        while True:
            seen.add(ask(server, "GET", "/readyz")[:2])
            alive.append(ask(server, "GET", "/healthz")[:2])
    assert stopping in seen
    if alive[-1] == stopping:  # the port closed before it had read which path that was
        alive.pop()
    assert set(alive) == {(200, b"alive\n")}
    assert server.process.wait(60) == 0


async def responds_while_it_recovers() -> None:
    port = HttpPort(CollectorRegistry(), Gate(), open_to_everybody())
    address = await port.listen(Address("127.0.0.1", 0))
    try:
        for path, begin, end in (
            ("healthz", b"HTTP/1.1 200 ", b"alive\n"),
            ("readyz", b"HTTP/1.1 503 ", b"the store is recovering: try again soon\n"),
            ("metrics", b"HTTP/1.1 200 ", b"\r\n\r\n"),
        ):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET /%s HTTP/1.1\r\n\r\n" % path.encode())
            response = await reader.read()
            assert response.startswith(begin)
            assert response.endswith(end)
            writer.close()
    finally:
        port.close()


def test_alive_and_not_ready_while_it_recovers() -> None:
    asyncio.run(asyncio.wait_for(responds_while_it_recovers(), 60))


async def slow_clients() -> None:
    """A port with a short deadline, in this process; too slow are a sender, one that sends nothing, and a reader."""
    registry = CollectorRegistry()
    counter = Counter("filler", "Fills what nobody reads", ["number"], registry=registry)
    for number in range(30_000):
        counter.labels("x" * 100 + str(number))
    port = HttpPort(registry, Gate(), open_to_everybody(), connection_seconds_max=0.5)
    address = await port.listen(Address("127.0.0.1", 0))
    loop = asyncio.get_running_loop()
    clients = []
    try:
        for _ in range(3):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, (address.host, address.port))
            clients.append(client)
        silent, slow, unread = clients
        await loop.sock_sendall(unread, b"GET /metrics HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError, BrokenPipeError):
            while True:  # a byte now and then does not prolong the deadline
                await loop.sock_sendall(slow, b"x")
                await asyncio.sleep(0.05)
        assert (await loop.sock_recv(silent, 1000)).endswith(b"\r\n\r\nno request within 0.5 s\n")
        received = 0
        try:
            while data := await loop.sock_recv(unread, 1 << 16):
                received += len(data)
        except ConnectionResetError:
            pass
        assert received < 5_000_000  # of more
        assert port.refused == {"gave_way": 0, "slow": 3, "handshake": 0, "invalid": 0, "memory_full": 0}
    finally:
        for client in clients:
            client.close()
        port.close()


def test_slow_clients_are_given_up() -> None:
    asyncio.run(asyncio.wait_for(slow_clients(), 60))


async def turns_while_many_come() -> int:
    """Return how often other things of the loop had their turn while a crowd was accepted that came at once."""
    port = HttpPort(CollectorRegistry(), Gate(), open_to_everybody())
    address = await port.listen(Address("127.0.0.1", 0))
    with ExitStack() as stack:
        for _ in range(CROWD):  # they wait in the system: nothing of the loop runs meanwhile
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=30))
        turns = 0
        while len(port._waiting) < CROWD:
            await asyncio.sleep(0)
            turns += 1
        port.close()
    return turns


def test_a_crowd_lets_others_have_their_turn() -> None:
    assert asyncio.run(asyncio.wait_for(turns_while_many_come(), 60)) >= CROWD - 1


async def late_inside_tls(tls: Tls, context: ssl.SSLContext) -> None:
    port = HttpPort(CollectorRegistry(), Gate(), open_to_everybody(), tls, connection_seconds_max=0.5)
    address = await port.listen(Address("127.0.0.1", 0))
    try:
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname="localhost"
        )
        assert (await reader.read()).endswith(b"no request within 0.5 s\n")
        writer.close()
        assert port.refused["slow"] == 1
    finally:
        port.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_late_client_inside_tls_is_told(tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", *HERE)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        tls = Tls(TlsFiles(pair.cert, pair.key, None))
        runner.run(asyncio.wait_for(late_inside_tls(tls, authority.context()), 60))


@pytest.mark.parametrize(("group", "cipher"), [("X25519:P-256", "TLS_"), ("P-256", "TLS_"), ("ffdhe8192", "(NONE)")])
def test_keys_are_agreed_on_over_a_curve(start_server: StartServer, tmp_path: Path, group: str, cipher: str) -> None:
    """In a finite field, each hello of a client costs the server 125 ms, and whoever sends it nothing."""
    require("openssl")
    authority = Authority(tmp_path)
    server = start_server(*server_options(authority.issue("server", *HERE)), authority=authority)
    done = subprocess.run(
        ["openssl", "s_client", "-connect", server.metrics_address, "-groups", group],
        input=b"", capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert f"Cipher is {cipher}" in done.stdout.decode(errors="replace")


def test_a_silent_client_is_told_of_the_stop(start_server: StartServer) -> None:
    server = start_server()
    with connect(server) as client:
        assert ask(server, "GET", "/healthz")[0] == 200  # both are accepted
        server.stop()
        assert rest(client).endswith(b"the server is stopping: try again elsewhere or later\n")


class Noted(AuditLog):
    """Keeps the addresses of what is noted."""

    def __init__(self) -> None:
        self.addresses: list[object] = []

    def note(self, event: str, **fields: object) -> None:
        self.addresses.append(fields["address"])


async def refused_over_ipv6(noted: Noted) -> None:
    port = HttpPort(
        CollectorRegistry(), Gate(), Logins(Users([]), Sessions(lambda _: False, lambda _: None), Metrics(), noted)
    )
    try:
        address = await port.listen(Address("::", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b" 401 " in await reader.read()
        writer.close()
    finally:
        port.close()


@pytest.mark.machine
def test_an_address_is_noted_as_it_is_over_grpc() -> None:
    noted = Noted()
    try:
        asyncio.run(refused_over_ipv6(noted))
    except ListenError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    assert noted.addresses == ["127.0.0.1"]
