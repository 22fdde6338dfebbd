"""TLS of both ports: who gets in, who does not, and files that change while the server runs.

One server, with mTLS, for all tests that need a real one; `test_files_that_are_wrong` needs none.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from gpkvs.config import ServerConfig, StoreConfig
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server import app as server_app
from gpkvs.server.http_port import CONNECTION_SECONDS_MAX, CONNECTIONS_MAX
from gpkvs.server.ports.tls import (
    Tls,
    TlsFiles,
    TlsFilesError,
    TlsFilesUnsettledError,
    names_of_certificate,
    tls_files,
)
from gpkvs.server.serve_options import ServeOptions
from tests.certificates import HERE, Authority, Pair, server_options
from tests.programs import require
from tests.server.wire import GET, SET, batch
from tests.serving import Server, error_line, run_gpkvs

NOW = datetime.now(UTC)
CHANGE_SECONDS_MAX = 30


class Site:
    """A server with mTLS, and everybody's certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.other = Authority(folder, "other")
        self.pair = self.authority.issue("server", *HERE)
        self.client = self.authority.issue("client", "DNS:client.example")
        self.stranger = self.other.issue("stranger", "DNS:client.example")
        self.ended = self.authority.issue(
            "ended", "DNS:client.example", starts=NOW - timedelta(days=2), ends=NOW - timedelta(days=1)
        )
        self.client_ca = folder / "clients.pem"
        shutil.copy(self.authority.path, self.client_ca)
        options = server_options(self.pair, self.client_ca)
        self.server = Server(folder / "store", folder, *options, authority=self.authority, client=self.client)

    def context(self, client: Pair | None) -> ssl.SSLContext:
        context = self.authority.context(client)
        context.set_alpn_protocols(["h2"])
        return context

    def connect(self, context: ssl.SSLContext, address: str = "", session: Any = None) -> ssl.SSLSocket:
        host, port = (address or self.server.target).rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), timeout=30)
        return context.wrap_socket(plain, server_hostname="localhost", session=session)

    def is_let_in(self, client: Pair | None) -> bool:
        """Whether gRPC says the first word to a client; who is refused gets an alert or the end."""
        try:
            with self.connect(self.context(client)) as connection:
                return connection.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False

    def serial(self) -> str:
        """Return the serial number of the certificate that a new connection sees."""
        with self.connect(self.context(self.client)) as connection:
            certificate = connection.getpeercert()
            assert certificate
            return str(certificate["serialNumber"])

    def get(self, path: str, client: Pair | None) -> tuple[int, bytes]:
        """Ask the metrics port."""
        try:
            with urllib.request.urlopen(
                f"{self.server.metrics_url}{path}", timeout=30, context=self.authority.context(client)
            ) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def log_lines(self, text: str) -> int:
        return self.server.log.read_text().count(text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("tls"))
    try:
        yield made
        made.server.stop()
    finally:
        made.server.kill()
    log = made.server.log.read_text()
    assert "gRPC with TLS on 127.0.0.1:" in log
    assert "metrics with TLS on 127.0.0.1:" in log
    # Nobody fills the log, and no key stands in it.
    for word in ("Traceback", "Handshake failed", "PRIVATE KEY"):
        assert word not in log


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + CHANGE_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def s_client(site: Site, *options: str) -> str:
    require("openssl")
    command = ["openssl", "s_client", "-connect", site.server.target, "-CAfile", str(site.authority.path)]
    client = ["-cert", str(site.client.cert), "-key", str(site.client.key)]
    done = subprocess.run([*command, *client, *options], input=b"", capture_output=True, timeout=60, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


def test_tls_1_3_with_http_2_and_nothing_older(site: Site) -> None:
    said = s_client(site, "-tls1_3", "-alpn", "h2")
    assert "New, TLSv1.3" in said
    assert "ALPN protocol: h2" in said
    assert "Verify return code: 0" in said
    for older in ("-tls1_2", "-tls1_1"):
        assert "Cipher is (NONE)" in s_client(site, older)
    assert site.get("/metrics", site.client)[0] == 200
    context = site.authority.context(site.client)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        site.connect(context, site.server.metrics_address)


def test_only_a_certificate_of_the_ca_gets_in(site: Site) -> None:
    assert site.is_let_in(site.client)
    assert not site.is_let_in(None)
    assert not site.is_let_in(site.stranger)
    assert not site.is_let_in(site.ended)
    with grpc.secure_channel(site.server.target, site.authority.credentials()) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            kv_pb2_grpc.KVStub(channel).Get(kv_pb2.GetRequest(key=b"k"), timeout=30)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_metrics_need_a_certificate_and_health_does_not(site: Site) -> None:
    status, text = site.get("/metrics", site.client)
    assert status == 200
    assert b"gpkvs_tls_files_good 1.0" in text
    assert site.get("/metrics", None) == (403, b"show a client certificate\n")
    assert site.get("/healthz", None) == (200, b"alive\n")
    assert site.get("/readyz", None) == (200, b"serving\n")
    for client in (site.stranger, site.ended):
        with pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)):
            site.get("/healthz", client)


def test_who_speaks_plain_gets_a_clear_end(site: Site) -> None:
    with grpc.insecure_channel(site.server.target) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            kv_pb2_grpc.KVStub(channel).Get(kv_pb2.GetRequest(key=b"k"), timeout=30)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    for address in (site.server.target, site.server.metrics_address):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert b"HTTP/1.1 200" not in client.recv(1000)


def test_who_speaks_tls_to_a_plain_port_gets_a_clear_end(site: Site) -> None:
    async def ask() -> grpc.StatusCode:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", site.authority.credentials()) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await kv_pb2_grpc.KVStub(channel).Get(kv_pb2.GetRequest(key=b"k"), timeout=30)
                return raised.value.code()
        finally:
            await server.stop(0)

    assert asyncio.run(ask()) is grpc.StatusCode.UNAVAILABLE


def test_handshakes_that_never_end_keep_nobody_out_of_the_metrics(site: Site) -> None:
    host, port = site.server.metrics_address.rsplit(":", 1)
    idle = [socket.create_connection((host, int(port)), timeout=30) for _ in range(CONNECTIONS_MAX + 2)]
    try:
        for client in idle[::2]:
            client.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        assert site.get("/metrics", site.client)[0] == 200
        idle[0].settimeout(CONNECTION_SECONDS_MAX / 2)
        with suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""  # the oldest made room
    finally:
        for client in idle:
            client.close()


class Stream:
    """A Pipeline that stays open."""

    def __init__(self, server: Server) -> None:
        self._requests: SimpleQueue[kv_pb2.BatchRequest | None] = SimpleQueue()
        self._responses = server.kv.Pipeline(iter(self._requests.get, None))
        self._sent = 0

    def goes_on(self) -> bool:
        self._sent += 1
        self._requests.put(batch([(SET, b"k", b"%d" % self._sent), (GET, b"k")], id=self._sent))
        response = next(self._responses)
        return bool(response.id == self._sent and response.code == 0)

    def end(self) -> None:
        self._requests.put(None)
        assert list(self._responses) == []


@pytest.fixture
def stream(site: Site) -> Iterator[Stream]:
    """Return a stream that began before the test, and must go on after it."""
    began = Stream(site.server)
    assert began.goes_on()
    yield began
    assert began.goes_on()
    began.end()


def test_a_new_certificate_is_seen_by_new_connections(site: Site, stream: Stream) -> None:
    old = site.serial()
    ends = NOW + timedelta(days=90)
    site.authority.issue("server", *HERE, ends=ends)
    wait_until(lambda: site.serial() != old)
    end = site.server.metric("gpkvs_tls_certificate_end_timestamp_seconds", certificate="server")
    assert end == int(ends.timestamp())
    with site.connect(site.authority.context(site.client), site.server.metrics_address) as connection:
        certificate = connection.getpeercert()
        assert certificate
        assert certificate["serialNumber"] == site.serial() != old


def test_no_session_of_before_a_change_is_taken_up(site: Site, stream: Stream) -> None:
    """Else a client would come in whose CA has gone."""
    context = site.context(site.client)

    def connect(session: Any) -> tuple[bool, Any]:
        with site.connect(context, session=session) as connection:
            assert connection.recv(1)
            assert connection.session
            return connection.session_reused, connection.session

    _, session = connect(None)
    was_reused, session = connect(session)
    assert not was_reused  # not even of the same files
    old = site.serial()
    site.authority.issue("server", *HERE)
    wait_until(lambda: site.serial() != old)
    assert not connect(session)[0]


def test_a_certificate_may_come_before_its_key(site: Site, stream: Stream, tmp_path: Path) -> None:
    old, errors = site.serial(), site.log_lines("is not the key of the first certificate")
    new = site.authority.issue("server", *HERE, folder=tmp_path)
    new.cert.replace(site.pair.cert)
    wait_until(lambda: site.log_lines("is not the key of the first certificate") > errors)
    assert site.serial() == old
    new.key.replace(site.pair.key)
    wait_until(lambda: site.serial() != old)
    assert site.server.metric("gpkvs_tls_files_good") == 1


@pytest.mark.parametrize("name", ["server.pem", "server.key", "clients.pem"])
def test_a_bad_new_file_changes_nothing(site: Site, stream: Stream, name: str) -> None:
    file, old = site.folder / name, site.serial()
    good = file.rename(site.folder / "good")
    file.touch(0o600)
    file.write_text("-----BEGIN NONSENSE-----\n")
    wait_until(lambda: site.log_lines(f"{file} holds no ") > 0)  # before, it may have seen that there was no file
    wait_until(lambda: site.server.metric("gpkvs_tls_files_good") == 0)
    assert site.serial() == old
    file.unlink()
    wait_until(lambda: site.log_lines(f"cannot read {file}: No such file or directory; TLS stays as it was") > 0)
    assert site.is_let_in(site.client)
    good.rename(file)
    wait_until(lambda: site.server.metric("gpkvs_tls_files_good") == 1)


def test_other_cas(site: Site, stream: Stream) -> None:
    both = site.authority.path.read_text() + site.other.path.read_text()
    site.client_ca.write_text(both)
    wait_until(lambda: site.is_let_in(site.stranger))
    assert site.is_let_in(site.client)
    assert site.get("/metrics", site.stranger)[0] == 200
    site.client_ca.write_bytes(site.authority.path.read_bytes())
    wait_until(lambda: not site.is_let_in(site.stranger))
    assert site.is_let_in(site.client)


def test_sighup_reads_the_files_again(site: Site) -> None:
    before = site.log_lines("TLS files read again")
    site.server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: site.log_lines("TLS files read again") > before)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    """Return good files, to be spoilt."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", *HERE)
    return TlsFiles(pair.cert, pair.key, authority.path)


def with_password(files: TlsFiles) -> None:
    key: Any = load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))


def another_key(files: TlsFiles) -> None:
    shutil.copy(Authority(files.cert.parent, "again").issue("other").key, files.key)


def of_another_kind(files: TlsFiles) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def issued(**when: datetime) -> Callable[[TlsFiles], object]:
    return lambda files: Authority(files.cert.parent, "again").issue("server", *HERE, **when)


def with_old_ca(files: TlsFiles) -> None:
    old = Authority(files.cert.parent, "old").issue("ca", starts=NOW - timedelta(days=9), ends=NOW - timedelta(days=1))
    assert old.cert == files.client_ca


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda files: files.cert.unlink(), r"^tls_cert: cannot read .*server.pem: No such file or directory$"),
        (lambda files: files.key.unlink(), r"^tls_key: cannot read .*server.key: No such file or directory$"),
        (lambda files: files.client_ca.unlink(), r"^tls_client_ca: cannot read .*ca.pem: No such file or directory$"),
        (lambda files: files.cert.write_text("x"), "^tls_cert: .*server.pem holds no certificate"),
        (lambda files: files.key.write_text("x"), "^tls_key: .*server.key holds no private key"),
        (lambda files: files.client_ca.write_text(""), "^tls_client_ca: .*ca.pem holds no certificate"),
        (
            lambda files: files.key.chmod(0o604),
            r"^tls_key: anybody may read or write .*server.key \(its mode is 0604\)",
        ),
        (
            lambda files: files.key.chmod(0o602),
            r"^tls_key: anybody may read or write .*server.key \(its mode is 0602\)",
        ),
        (with_password, "^tls_key: .*server.key has a password"),
        (of_another_kind, "^tls_key: .*server.key is of a kind that clients do not take"),
        (another_key, "^tls_key: .*server.key is not the key of the first certificate in .*server.pem"),
        (
            issued(starts=NOW - timedelta(days=2), ends=NOW - timedelta(days=1)),
            f"^tls_cert: a certificate in .*server.pem ended on {NOW - timedelta(days=1):%Y-%m-%d}",
        ),
        (
            issued(starts=NOW + timedelta(days=1)),
            f"^tls_cert: a certificate in .*server.pem begins on {NOW + timedelta(days=1):%Y-%m-%d}",
        ),
        (with_old_ca, "^tls_client_ca: none of the certificates in .*ca.pem is valid now"),
    ],
)
def test_files_that_are_wrong(
    files: TlsFiles, spoil: Callable[[TlsFiles], object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpkvs.server.ports.tls._SETTLE_SECONDS_MAX", 0.0)
    assert Tls(files).is_good
    spoil(files)
    with pytest.raises(TlsFilesError, match=error) as raised:
        Tls(files)
    assert "secret" not in str(raised.value)


def half(name: str) -> Callable[[TlsFiles], None]:
    """Return what leaves a file as one finds it in the middle of a copy."""

    def cut(files: TlsFiles) -> None:
        file: Path = getattr(files, name)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return cut


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (another_key, "is not the key of"),
        (half("key"), "holds no private key, or a broken one"),
        (half("cert"), "holds no certificate, or a broken one"),
        (half("client_ca"), "holds no certificate, or a broken one"),
    ],
)
def test_a_start_waits_for_files_that_are_being_replaced(
    files: TlsFiles, spoil: Callable[[TlsFiles], None], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpkvs.server.ports.tls._SETTLE_LOOK_SECONDS", 0.01)
    right = {path: path.read_bytes() for path in files.paths}
    spoil(files)
    monkeypatch.setattr("gpkvs.server.ports.tls._SETTLE_SECONDS_MAX", 0.0)
    with pytest.raises(TlsFilesUnsettledError, match=error):
        Tls(files)
    monkeypatch.setattr("gpkvs.server.ports.tls._SETTLE_SECONDS_MAX", 60.0)

    def put_back() -> None:
        for path, data in right.items():
            path.write_bytes(data)

    timer = threading.Timer(0.1, put_back)
    timer.start()
    assert Tls(files).is_good
    timer.join()


def test_a_change_before_the_server_is_ready_counts(files: TlsFiles) -> None:
    made = Tls(files)
    files.cert.unlink()
    watched = made.watch()
    try:
        wait_until(lambda: not made.is_good)
    finally:
        watched.close()


def test_a_key_that_the_group_may_read_is_taken_with_a_warning(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.key.chmod(0o640)
    with caplog.at_level(logging.WARNING):
        Tls(files)
    assert f"the group may read or write {files.key} (its mode is 0640)" in caplog.text


def test_a_wrong_file_ends_the_start_with_a_line(files: TlsFiles, tmp_path: Path) -> None:
    files.key.chmod(0o644)
    options = server_options(Pair(files.cert, files.key))
    line = error_line(run_gpkvs("serve", "--data", str(tmp_path / "store"), *options), 2)
    assert f"tls_key: anybody may read or write {files.key}" in line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"tls_cert": Path("cert")}, "tls_key"),
        ({"tls_key": Path("key")}, "tls_cert"),
        ({"tls_client_ca": Path("ca")}, "tls_cert"),
        ({"tls_cert": Path("cert"), "tls_client_ca": Path("ca")}, "tls_key"),
    ],
)
def test_settings_that_lack_a_file(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{field}: TLS takes a certificate"):
        tls_files(ServerConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "is_private"), [({}, False), ({"tls_key": Path("key")}, True), ({"users": Path("users")}, True)]
)
def test_a_server_with_secrets_keeps_its_memory_private(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], is_private: bool
) -> None:
    done: list[str] = []
    for name in ("keep_memory_private", "_Server", "raise_open_files"):
        monkeypatch.setattr(server_app, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    with pytest.raises(AttributeError, match="run"):  # what stands in for the server has no such method
        server_app.run(ServeOptions(Path("store"), StoreConfig(), ServerConfig(**settings)))
    assert ("keep_memory_private" in done) == is_private
    assert done[-1] == "_Server"  # which reads the key


NAMES = (
    "DNS:a.example",
    "DNS:b.example",
    "URI:spiffe://example/a",
    "EMAIL:a@b.example",
    "IP:192.0.2.7",
    "IP:2001:db8::1",
)


def test_names_of_a_client_are_those_of_its_san(tmp_path: Path) -> None:
    """On the port of metrics; the door's are in `tests.door.request.test_access`."""
    authority = Authority(tmp_path)
    server = authority.issue("server", *HERE)
    tls = Tls(TlsFiles(server.cert, server.key, authority.path))
    assert names_seen_by_a_socket(tls, authority, authority.issue("named", *NAMES)) == NAMES
    only_cn = authority.issue("only-cn", common_name="admin.example")
    assert names_seen_by_a_socket(tls, authority, only_cn) == ()


def names_seen_by_a_socket(tls: Tls, authority: Authority, client: Pair) -> tuple[str, ...]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    asking = authority.context(client).wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (asking, server) * 3:  # the server may ask for another group of keys first
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = server.getpeercert()
    assert certificate
    return names_of_certificate(certificate)
