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

from tests.certificates import HERE, Authority, server_options
from tests.serving import Server

HTTP1 = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
TLS_HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"
OPTIONS = ("--door", "native", "--log-format", "json", "--log-level", "debug", "--resp", "127.0.0.1:0")


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


def refused(server: Server, reason: str) -> float:
    return server.metric("gpkvs_connections_refused_total", reason=reason)


def logged(server: Server) -> dict[str, list[str]]:
    """Return what the log of a server that has stopped says, by reason."""
    found = defaultdict(list)
    for line in map(json.loads, server.log.read_text().splitlines()):
        if line.get("event") == "connections_refused":
            found[line["reason"]].append(line["message"])
    return found


def refused_one(server: Server, stack: contextlib.ExitStack) -> None:
    """Open connections until one is refused."""
    for _ in range(1000):
        client = stack.enter_context(connected(server.target))
        client.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            assert client.recv(1) == b""
            return
    pytest.fail("none was refused")


def test_more_than_there_may_be(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(connected(server.target))
        for _ in range(100):
            refused_one(server, stack)
    assert refused(server, "connections_full") >= 100


def test_more_than_the_process_may_have_files(server: Server) -> None:
    files = {int(path.name) for path in Path(f"/proc/{server.process.pid}/fd").iterdir()}
    free = next(number for number in count() if number not in files)
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        with contextlib.ExitStack() as stack:
            refused_one(server, stack)
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
    assert refused(server, "files_full") >= 1


def test_http_1(server: Server) -> None:
    """Whoever opens the port in a browser is told what it is."""
    head, _, body = said_to(server, HTTP1).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 400 Bad Request"
    assert b"Content-Length: %d" % len(body) in lines
    assert b"gRPC (HTTP/2)" in body
    assert b"--metrics" in body
    assert refused(server, "http1") == 1


def test_tls_where_none_is_spoken(server: Server) -> None:
    for port, address in enumerate((server.target, *server.resp_addresses), 1):
        assert said_to(server, TLS_HELLO, address) == b""
        assert refused(server, "tls") == port


@pytest.mark.parametrize(
    "begin", [b"hello\r\n", b"GET /metrics\r\n\r\n", b"GET HTTP/1.1\r\n", b"get / HTTP/1.1\r\n", b"G"]
)
def test_what_is_no_protocol_gets_the_end(server: Server, begin: bytes) -> None:
    before = refused(server, "http1")
    assert said_to(server, begin) == b""
    assert refused(server, "http1") == before


def test_the_log(server: Server) -> None:
    server.stop()
    found = logged(server)
    assert " refused: 6 are open, as many as --memory-max " in found["connections_full"][-1]
    assert "(ulimit -n, LimitNOFILE)" in found["files_full"][-1]
    assert "metrics are at the port of --metrics" in found["http1"][-1]
    assert "--tls-cert" in found["tls"][-1]
    assert all(len(lines) < 10 for lines in found.values())  # a hundred were refused in a second


def test_handshakes_that_fail(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = server_options(authority.issue("server", *HERE))
    server = Server(tmp_path / "store", tmp_path, *OPTIONS, *options, authority=authority)
    try:
        for address in (server.target, *server.resp_addresses):
            for begin in (HTTP1, b"PING\r\n", b"P"):
                assert said_to(server, begin, address) == b""
        assert refused(server, "plain") == 6
        context = authority.context()
        context.set_alpn_protocols(["http/1.1"])
        with pytest.raises(ssl.SSLError), connected(server.target) as client:
            context.wrap_socket(client, server_hostname="localhost")
        assert refused(server, "handshake") == 1
        server.stop()
    finally:
        server.kill()
    assert "the handshake of TLS failed" in logged(server)["handshake"][-1]
    assert "redis-cli --tls" in logged(server)["plain"][-1]
