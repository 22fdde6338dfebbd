"""Connections that the native door closes by its own decision: each is counted, and told where that helps."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpkvs.bench.door.frames import DATA, END_HEADERS, GOAWAY, HEADERS, PING, SETTINGS, call_headers, frame, message
from gpkvs.config import Limits, ServerConfig
from gpkvs.proto.v1 import kv_pb2
from gpkvs.server.account.bounds import bounds_of
from gpkvs.server.door.library import Library, Protocol
from gpkvs.server.door.stats import closed_connections, refused_connections
from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, Pair
from tests.door import probes
from tests.door.by_hand import Client
from tests.door.echo import MIB, Echo
from tests.door.resp_door import answers, command
from tests.server.test_faults import wait_until
from tests.serving import StartServer

INTERNAL_ERROR = b"\x15\x03\x03\x00\x02\x02\x50"
SECONDS_MAX = 20


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as made:
        yield made


def closed(door: Library) -> dict[str, int]:
    """Return what was counted, without the zeros."""
    stats = door.stats()
    counts = [*refused_connections(stats).items(), *closed_connections(stats).items()]
    return {reason: count for reason, count in counts if count}


def end_of(client: Client) -> tuple[int, bytes]:
    """Return the code and the text of a GOAWAY."""
    found = [one.payload for one in client.wait_end() if one.kind == GOAWAY]
    return int.from_bytes(found[-1][4:8], "big"), found[-1][8:]


def test_nothing_but_a_connection(echo: Echo) -> None:
    """Nobody knows what it would understand."""
    probes.hurry(echo.library._door, 100)
    with Client(echo, b"") as client:
        assert client.wait_end() == []
    assert closed(echo.library) == {"silent": 1}


def test_headers_that_do_not_end(echo: Echo) -> None:
    with Client(echo) as client:
        client.call("/echo/Unary", message(b"x"))
        client.wait(HEADERS, 1)
        probes.hurry(echo.library._door, 100)
        client.send(frame(HEADERS, 0, 3, call_headers("/echo/Unary")))
        assert end_of(client) == (0, b"closed: the headers of a call did not come in time")
    assert closed(echo.library) == {"slow": 1}


def test_a_client_that_is_not_there(echo: Echo) -> None:
    with Client(echo) as client:
        client.call("/echo/Unary", message(b"x"))
        client.wait(HEADERS, 1)
        probes.hurry(echo.library._door, 600)
        client.wait_end()
    assert closed(echo.library) == {"unreachable": 1}


def test_too_many_pings(echo: Echo) -> None:
    with Client(echo) as client:
        client.send(frame(PING, 0, 0, bytes(8)) * 10)
        assert end_of(client) == (11, b"too_many_pings")
    assert closed(echo.library) == {"flood": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        frame(DATA, 0, 0, b"x"),
        frame(SETTINGS, 0, 1),
        frame(HEADERS, END_HEADERS, 2, b""),
        frame(PING, 0, 0, b"short"),
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_what_is_no_http_2(echo: Echo, wrong: bytes) -> None:
    with Client(echo) as client:
        client.send(wrong)
        assert end_of(client)[0] != 0
    assert closed(echo.library) == {"invalid": 1}


class Resp:
    """A port of the Redis protocol, inside TLS if it is given a certificate."""

    def __init__(self, memory_bytes: int = 1 << 30, pair: Pair | None = None, handshake_seconds: float = 10.0) -> None:
        config = ServerConfig()
        self.library = Library(config, bounds_of(config, Limits(), 4 * MIB, memory_bytes))
        if pair:
            self.library.set_tls(pair.cert.read_bytes(), pair.key.read_bytes(), None, handshake_seconds)
        self.port = self.library.listen("127.0.0.1", 0, Protocol.RESP)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), SECONDS_MAX)


@pytest.fixture
def resp_of() -> Iterator[Callable[..., Resp]]:
    """Return a function that makes one."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: object) -> Resp:
            made = Resp(*arguments)  # type: ignore[arg-type]
            stack.callback(made.library.delete)
            return made

        yield make


def rest(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        return stream.read()


def test_what_is_no_command(resp_of: Callable[..., Resp]) -> None:
    resp = resp_of()
    with resp.connect() as client:
        client.sendall(b"*1\r\n$x\r\n")
        assert rest(client).startswith(b"-ERR Protocol error: ")
    assert closed(resp.library) == {"invalid": 1}


def test_nothing_is_asked_for(resp_of: Callable[..., Resp]) -> None:
    resp = resp_of()
    with resp.connect() as client:
        probes.hurry(resp.library._door, 6000)
        assert rest(client).startswith(b"-ERR closed: nothing was asked for within ")
    assert closed(resp.library) == {"silent": 1}


@pytest.mark.parametrize("command", [b"PING " * 1000, b"*1\r\n$5000\r\n" + b"x" * 5000])
def test_a_byte_now_and_then_is_no_command(resp_of: Callable[..., Resp], command: bytes) -> None:
    """It does not prolong the patience."""
    resp = resp_of()
    with resp.connect() as client:
        probes.hurry(resp.library._door, 1200)
        client.settimeout(0.02)
        said = b""
        for byte in command:
            with contextlib.suppress(TimeoutError, BrokenPipeError):
                client.sendall(bytes([byte]))
                said += client.recv(1000)
            if said:
                break
    assert said.startswith(b"-ERR closed: nothing was asked for within ")
    assert closed(resp.library) == {"silent": 1}


@pytest.mark.parametrize("begin", [b"", b"\x16\x03\x01\x02\x00"])
def test_a_handshake_that_comes_too_late(resp_of: Callable[..., Resp], tmp_path: Path, begin: bytes) -> None:
    """The client is told that the server gave up, before it thinks of its certificates."""
    resp = resp_of(1 << 30, Authority(tmp_path).issue("server", *HERE), 0.2)
    with resp.connect() as client:
        client.sendall(begin)
        assert rest(client) == INTERNAL_ERROR
    assert closed(resp.library) == {"silent": 1}


def test_a_handshake_whose_place_another_one_needs(resp_of: Callable[..., Resp], tmp_path: Path) -> None:
    resp = resp_of(64 * MIB, Authority(tmp_path).issue("server", *HERE))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(resp.connect()) for _ in range(20)]
        assert rest(clients[0]) == INTERNAL_ERROR
        wait_until(lambda: closed(resp.library).get("gave_way", 0) >= 14, "not all are there")
        assert set(closed(resp.library)) == {"gave_way"}


def test_a_user_who_is_removed(start_server: StartServer, tmp_path: Path) -> None:
    """Its connections are closed within a second; over gRPC with a word, over the Redis protocol as Redis does."""
    accounts = Accounts(tmp_path / "users.toml", alice=Account(write=("*",)), root=Account(metrics=True))
    token, metrics = accounts.token("alice"), accounts.token("root")
    accounts.save()
    server = start_server("--users", str(accounts.path), "--resp", "127.0.0.1:0", "--log-format", "json")
    server.metrics_headers = dict(metrics)
    server.kv.Set(kv_pb2.SetRequest(key=b"k"), metadata=token)
    host, port = server.resp_addresses[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), SECONDS_MAX) as redis:
        redis.sendall(command(b"AUTH", token[0][1].removeprefix("Bearer ").encode()))
        assert answers(redis, 1) == b"+OK\r\n"
        del accounts.users["alice"]
        accounts.save()
        assert rest(redis) == b""
    wait_until(
        lambda: server.metric("gpkvs_connections_closed_total", reason="user_gone") == 2, "its connections stay open"
    )
    wait_until(
        lambda: "whoever has logged in over them may not any more" in server.log.read_text(), "the log says nothing"
    )


def test_the_stop_says_how_many_connections_end(start_server: StartServer) -> None:
    server = start_server("--resp", "127.0.0.1:0")
    host, port = server.resp_addresses[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), SECONDS_MAX) as redis:
        redis.sendall(command(b"PING"))
        assert answers(redis, 1) == b"+PONG\r\n"
        server.stop()
        assert rest(redis) == b""
    assert "stopping: 1 open connection; each ends when its client has its answers" in server.log.read_text()
