"""Connections that a real server with the native door refuses: what their clients are told, the metrics and the log."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import ssl
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from gpkvs.bench.door.frames import GOAWAY, PREFACE, SETTINGS, frame, frames_of
from gpkvs.client import Client, RetryPolicy, TlsCredentials, UnavailableError
from tests.certificates import HERE, Authority, server_options
from tests.server.test_faults import wait_until
from tests.serving import Server

HTTP1 = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
TLS_HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"
OPTIONS = ("--log-format", "json", "--log-level", "debug", "--resp", "127.0.0.1:0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return one that has room for few connections."""
    folder = tmp_path_factory.mktemp("refused")
    started = Server(folder / "store", folder, *OPTIONS, "--memory-max", "64MiB")
    try:
        yield started
        started.stop()
    finally:
        started.kill()


def connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def said_to(server: Server, begin: bytes, address: str | None = None) -> bytes:
    """Return all that the server says, at its port of gRPC or another one, to whoever begins so."""
    with connected(address or server.target) as client, client.makefile("rb") as answer:
        client.sendall(begin)
        return answer.read()


def assert_grpc_is_told_at_once(address: str) -> None:
    """gRPC's own client neither waits for its deadline nor tries again and again, and ours says what to do."""
    with (
        Client(address, retry=RetryPolicy(attempts_max=1), timeout=600) as client,
        pytest.raises(UnavailableError) as refusal,
    ):
        client.get(b"k")
    assert "the server refuses each new connection: it wants TLS" in str(refusal.value)


def refused(server: Server, reason: str) -> float:
    return server.metric("gpkvs_connections_refused_total", reason=reason)


def logged(server: Server) -> dict[str, list[str]]:
    """Return what the log of a server that has stopped says, by reason."""
    found = defaultdict(list)
    for line in map(json.loads, server.log.read_text().splitlines()):
        if line.get("event") == "connections_refused":
            found[line["reason"]].append(line["message"])
    return found


def redis_client(server: Server, stack: contextlib.ExitStack) -> socket.socket:
    """Return a connection that has done something: it keeps its place."""
    client = stack.enter_context(connected(*server.resp_addresses))
    client.sendall(b"PING\r\n")
    assert client.recv(100) == b"+PONG\r\n"
    return client


def test_more_than_there_may_be(server: Server) -> None:
    """Five of six places are those of a port, and one is kept for the other port."""
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            redis_client(server, stack)
        for _ in range(100):
            assert said_to(server, b"", *server.resp_addresses).startswith(b"-ERR max number of clients reached: ")
        http2 = said_to(server, HTTP1)
        assert b"gRPC (HTTP/2)" in http2
    assert refused(server, "connections_full") == 100


@contextlib.contextmanager
def no_free_files(server: Server) -> Iterator[int]:
    """Let a server open nothing more; return the number of the first file that it may not open."""
    files = {int(path.name) for path in Path(f"/proc/{server.process.pid}/fd").iterdir()}
    free = next(number for number in count() if number not in files)
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield free
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)


def test_more_than_the_process_may_have_files(server: Server) -> None:
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    with no_free_files(server) as free:
        said = said_to(server, b"", *server.resp_addresses)
        assert said.startswith(b"-ERR the server has as many open files as")
        assert [one.kind for one in frames_of(said_to(server, b""))] == [GOAWAY]
        assert_grpc_is_told_at_once(server.target)
        kept = next(kept for kept in count() if kept == (free + 1 + kept) // 8)  # for the server itself
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (free + 1 + kept, before[1]))
        with contextlib.ExitStack() as stack:
            silent = stack.enter_context(connected(*server.resp_addresses))
            redis_client(server, stack)  # as soon as the silent one has given way
            assert silent.recv(1000).startswith(b"-ERR closed for a newer connection: nothing was asked for")
    assert refused(server, "files_full") == 4  # with the silent one


def test_http_1(server: Server) -> None:
    """Whoever opens the port in a browser is told what it is."""
    head, _, body = said_to(server, HTTP1).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 400 Bad Request"
    assert b"Content-Length: %d" % len(body) in lines
    assert b"gRPC (HTTP/2)" in body
    assert b"--metrics" in body
    before = refused(server, "http1")
    head, _, body = said_to(server, HTTP1, *server.resp_addresses).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"Content-Length: %d" % len(body) in head.split(b"\r\n")
    assert body.startswith(b"this port speaks the Redis protocol; ")
    assert refused(server, "http1") == before + 1


def test_tls_where_none_is_spoken(server: Server) -> None:
    for port, address in enumerate((server.target, *server.resp_addresses), 1):
        answer = said_to(server, TLS_HELLO, address)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")  # Go's library says then what is wrong
        assert b"this port speaks no TLS: " in answer
        assert refused(server, "tls") == port


@pytest.mark.parametrize(
    "begin", [b"hello\r\n", b"GET /metrics\r\n\r\n", b"GET HTTP/1.1\r\n", b"get / HTTP/1.1\r\n", b"G"]
)
def test_what_is_no_protocol_is_told_which_one_is(server: Server, begin: bytes) -> None:
    before = refused(server, "foreign")
    assert said_to(server, begin).startswith(
        b"-ERR this port speaks gRPC (HTTP/2); the Redis protocol and metrics are "
    )
    assert refused(server, "foreign") == before + 1


def test_grpc_at_the_port_of_redis(server: Server) -> None:
    before = refused(server, "foreign")
    frames = list(frames_of(said_to(server, PREFACE + frame(SETTINGS, 0, 0), *server.resp_addresses)))
    assert [one.kind for one in frames] == [GOAWAY]
    assert frames[0].payload[8:].startswith(b"this port speaks the Redis protocol; gRPC and metrics are on other ports")
    assert_grpc_is_told_at_once(server.resp_addresses[0])
    assert refused(server, "foreign") == before + 2


def test_the_log(server: Server) -> None:
    server.stop()
    found = logged(server)
    assert (
        " refused: clients have all places that --memory-max has room for (6 in all)" in found["connections_full"][-1]
    )
    assert "--listen speaks gRPC" in found["foreign"][-1]
    assert "(ulimit -n, LimitNOFILE)" in found["files_full"][-1]
    assert "metrics are at the port of --metrics" in found["http1"][-1]
    assert "--tls-cert" in found["tls"][-1]
    assert all(len(lines) < 10 for lines in found.values())  # a hundred were refused in a second


def hears_of_no_room(server: Server, authority: Authority) -> bool:
    with Client(
        server.target, credentials=TlsCredentials(ca=authority.path), retry=RetryPolicy(attempts_max=1)
    ) as client:
        try:
            client.get(b"k")
        except UnavailableError as refusal:
            return "has no room for one more connection" in str(refusal)
    return False


def test_handshakes_that_fail(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = server_options(authority.issue("server", *HERE))
    options += ["--memory-max", "64MiB"]
    server, stack = (
        Server(tmp_path / "store", tmp_path, *OPTIONS, *options, authority=authority),
        contextlib.ExitStack(),
    )
    try:
        for address in (server.target, *server.resp_addresses):
            for begin, answer in (
                (HTTP1, b"HTTP/1.1 400 Bad Request\r\n"),
                (b"PING\r\n", b"-ERR this port speaks TLS"),
                (b"P", b"-ERR this port speaks TLS"),
                (PREFACE, b""),
            ):
                found = said_to(server, begin, address)
                assert found.startswith(answer)
                assert answer or [one.kind for one in frames_of(found)] == [GOAWAY]
                assert b"this port speaks TLS" in found
        assert refused(server, "plain") == 8
        assert_grpc_is_told_at_once(server.target)
        assert refused(server, "plain") == 9
        context = authority.context()
        context.set_alpn_protocols(["http/1.1"])
        with pytest.raises(ssl.SSLError), connected(server.target) as client:
            context.wrap_socket(client, server_hostname="localhost")
        assert refused(server, "handshake") == 1
        for _ in range(5):
            redis = authority.context().wrap_socket(connected(*server.resp_addresses), server_hostname="localhost")
            stack.enter_context(redis).sendall(b"PING\r\n")
            assert redis.recv(100) == b"+PONG\r\n"
        with pytest.raises(ssl.SSLError, match="TLSV1_ALERT_INTERNAL_ERROR"):
            authority.context().wrap_socket(connected(*server.resp_addresses), server_hostname="localhost")
        assert refused(server, "connections_full") == 1
        with no_free_files(server):  # but for those of connections that are about to end
            wait_until(lambda: hears_of_no_room(server, authority), "a client came in, or was told something else")
        stack.close()
        server.stop()
    finally:
        server.kill()
    assert "the handshake of TLS failed" in logged(server)["handshake"][-1]
    assert "redis-cli --tls" in logged(server)["plain"][-1]
