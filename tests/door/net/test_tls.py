"""TLS of the native door: who gets through a handshake, and what becomes of all who do not."""

from __future__ import annotations

import itertools
import random
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpkvs.config import Limits, ServerConfig
from gpkvs.server.account.bounds import bounds_of
from gpkvs.server.door.library import Library, Protocol
from gpkvs.server.door.stats import closed_connections, refused_connections
from gpkvs.server.ports.tls import TlsFilesError
from tests.certificates import HERE, Authority, Pair
from tests.programs import require

NOW = datetime.now(UTC)
SECONDS_MAX = 20
HANDSHAKE_SECONDS = 0.5
PING, PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"
REFUSED = (ssl.SSLError, ConnectionError)


class Site:
    """A door with TLS on two ports, and everybody's certificates."""

    def __init__(self, folder: Path, door: Library) -> None:
        self.door = door
        self.authority = Authority(folder)
        self.other = Authority(folder, "other")
        self.pair = self.authority.issue("server", *HERE)
        self.client = self.authority.issue("client", "DNS:client.example")
        self.stranger = self.other.issue("stranger", "DNS:client.example")
        self.ended = self.authority.issue(
            "ended", "DNS:client.example", starts=NOW - timedelta(days=2), ends=NOW - timedelta(days=1)
        )
        self.take(self.pair)
        self.ports = {protocol: door.listen("127.0.0.1", 0, protocol) for protocol in Protocol}

    def take(self, pair: Pair, client_ca: Path | None = None) -> None:
        roots = client_ca.read_bytes() if client_ca else None
        self.door.set_tls(pair.cert.read_bytes(), pair.key.read_bytes(), roots, HANDSHAKE_SECONDS)

    def plain(self, protocol: Protocol = Protocol.RESP) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[protocol]), timeout=SECONDS_MAX)

    def connect(
        self,
        protocol: Protocol = Protocol.RESP,
        client: Pair | None = None,
        alpn: list[str] | None = None,
        session: Any = None,
    ) -> ssl.SSLSocket:
        context = self.authority.context(client)
        context.set_alpn_protocols(alpn or [])
        return context.wrap_socket(self.plain(protocol), server_hostname="localhost", session=session)

    def is_let_in(self, client: Pair | None) -> bool:
        try:
            with self.connect(client=client) as connection:
                return answers(connection)
        except REFUSED:
            return False

    def serial(self) -> str:
        with self.connect() as connection:
            return serial_of(connection)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    door = Library(ServerConfig(), bounds_of(ServerConfig(), Limits(), 64 << 20, 1 << 30))
    try:
        yield Site(tmp_path_factory.mktemp("tls"), door)
    finally:
        door.delete()


@pytest.fixture(autouse=True)
def _good_after_all(site: Site) -> Iterator[None]:
    """After each test the door serves others, and holds nothing of those who went."""
    yield
    site.take(site.pair)
    wait_until(lambda: site.is_let_in(None))
    wait_until(lambda: site.door.connections() == 0)


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def answers(connection: socket.socket) -> bool:
    connection.sendall(PING)
    return receive(connection, len(PONG)) == PONG


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def has_ended(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
    except REFUSED:
        pass
    return True


def serial_of(connection: ssl.SSLSocket) -> str:
    certificate = connection.getpeercert()
    assert certificate
    return str(certificate["serialNumber"])


def s_client(site: Site, *options: str) -> str:
    require("openssl")
    command = [
        "openssl",
        "s_client",
        "-connect",
        f"127.0.0.1:{site.ports[Protocol.RESP]}",
        "-CAfile",
        str(site.authority.path),
    ]
    done = subprocess.run([*command, *options], input=b"", capture_output=True, timeout=SECONDS_MAX, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


def test_tls_1_3_and_nothing_older(site: Site) -> None:
    with site.connect() as connection:
        assert connection.version() == "TLSv1.3"
        assert answers(connection)
    assert "Cipher is (NONE)" in s_client(site, "-tls1_2")
    context = site.authority.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
        context.wrap_socket(site.plain(), server_hostname="localhost")


@pytest.mark.parametrize("group", ["X25519", "P-256", "P-384", "P-521", "X448"])
def test_keys_are_agreed_on_over_curves(site: Site, group: str) -> None:
    assert "Cipher is TLS_" in s_client(site, "-groups", group)


@pytest.mark.parametrize("group", ["ffdhe2048", "ffdhe8192"])
def test_no_keys_are_agreed_on_in_finite_fields(site: Site, group: str) -> None:
    """Whoever sends one hello over and over costs the server 125 ms each time."""
    assert "Cipher is (NONE)" in s_client(site, "-groups", group)


@pytest.mark.parametrize(
    ("alpn", "chosen"), [(["h2"], "h2"), (["http/1.1", "h2"], "h2"), (["http/1.1", "h", "h2c"], None), ([], None)]
)
def test_http_2_is_what_a_client_of_grpc_says(site: Site, alpn: list[str], chosen: str | None) -> None:
    if chosen:
        with site.connect(Protocol.GRPC, alpn=alpn) as connection:
            assert connection.selected_alpn_protocol() == chosen
    else:
        with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
            site.connect(Protocol.GRPC, alpn=alpn)


def test_only_a_certificate_of_the_ca_gets_in(site: Site) -> None:
    site.take(site.pair, site.authority.path)
    assert site.is_let_in(site.client)
    for client in (None, site.stranger, site.ended):
        assert not site.is_let_in(client)


def test_no_session_is_taken_up(site: Site) -> None:
    """Else a client would not show who it is."""
    with site.connect() as first:
        assert answers(first)
        assert first.session
        assert not first.session.has_ticket
        with first.context.wrap_socket(site.plain(), server_hostname="localhost", session=first.session) as second:
            assert answers(second)
            assert not second.session_reused


def test_files_change_under_load(site: Site) -> None:
    """Each new connection gets what is in force, and those that are open go on."""
    pairs = [site.pair, site.authority.issue("next", *HERE)]
    serials = []
    for pair in pairs:
        site.take(pair)
        serials.append(site.serial())
    assert len(set(serials)) == 2
    errors: list[Exception] = []
    ended = threading.Event()

    def connect() -> None:
        try:
            while not ended.is_set():
                with site.connect() as connection:
                    assert serial_of(connection) in serials
                    assert answers(connection)
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=connect) for _ in range(2)]
    with site.connect() as old:
        for thread in threads:
            thread.start()
        for pair, serial in itertools.islice(itertools.cycle(zip(pairs, serials, strict=True)), 60):
            site.take(pair)
            assert site.serial() == serial
            assert answers(old)
        ended.set()
        for thread in threads:
            thread.join()
    assert not errors


def test_what_cannot_be_used_changes_nothing(site: Site) -> None:
    serial = site.serial()
    cert, key, ca = site.pair.cert.read_bytes(), site.pair.key.read_bytes(), site.authority.path.read_bytes()
    other = site.client.key.read_bytes()
    for wrong, why in [
        ((b"x", key, b""), "the certificate is refused by OpenSSL: no start line"),
        ((cert, b"x", b""), "the key is refused by OpenSSL: "),
        ((cert, other, b""), "the key is refused by OpenSSL: key values mismatch"),
        ((cert, key, b"x"), "the CAs of clients are refused by OpenSSL: no start line"),
        ((cert, key, ca.replace(b"M", b"-", 1)), "the CAs of clients are refused by OpenSSL: "),
    ]:
        with pytest.raises(TlsFilesError, match=f"^{why}"):
            site.door.set_tls(*wrong, HANDSHAKE_SECONDS)
    assert site.serial() == serial


def test_a_slow_handshake_ends(site: Site) -> None:
    hello = first_flight(site)
    with site.plain() as silent, site.plain() as slow:
        slow.sendall(hello[:100])
        began = time.monotonic()
        assert site.is_let_in(None)
        assert has_ended(silent)
        assert has_ended(slow)
        assert time.monotonic() - began < SECONDS_MAX


def test_a_crowd_that_shakes_hands_does_not_stop_the_others(site: Site, tmp_path: Path) -> None:
    """What a handshake costs the server costs the client nothing: it may send the same bytes again and again."""
    hello = first_flight(site)
    command = "openssl req -x509 -newkey rsa:3072 -nodes -subj /CN=localhost -out cert -keyout key"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    with site.connect() as connection:
        assert answers(connection)
        site.door.set_tls((tmp_path / "cert").read_bytes(), (tmp_path / "key").read_bytes(), None, SECONDS_MAX)
        # About 100; on a busy machine this process may sleep meanwhile. Two or three if nothing bounds the handshakes.
        assert any(answers_beside_a_crowd(site, connection, hello) > 10 for _ in range(10))


def answers_beside_a_crowd(site: Site, connection: socket.socket, hello: bytes) -> int:
    """Return how many calls are answered while the server shakes hands with a crowd."""
    count = 0
    with ExitStack() as stack:
        waiting = [stack.enter_context(site.plain()) for _ in range(250)]
        for one in waiting:
            one.sendall(hello)
        while waiting:
            assert answers(connection)
            count += 1
            shaken = set(select.select(waiting, [], [], 0)[0])
            waiting = [one for one in waiting if one not in shaken]
    return count


def first_flight(site: Site) -> bytes:
    """Return the bytes with which a client begins."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = site.authority.context().wrap_bio(to_client, to_server, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return to_server.read()


def test_garbage_ends_the_connection(site: Site) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    hello = first_flight(site)
    for number in range(60):
        garbage = bytearray(hello)
        for _ in range(source.randrange(1, 8)):
            garbage[source.randrange(len(garbage))] = source.randrange(256)
        if number % 3 == 0:
            garbage = bytearray(source.randbytes(source.randrange(1, 3000)))
        with site.plain() as client:
            with suppress(OSError):
                client.sendall(garbage)
                client.shutdown(socket.SHUT_WR)
            assert has_ended(client)
    with site.plain() as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert has_ended(client)


def test_a_handshake_that_breaks_off_anywhere(site: Site) -> None:
    hello = first_flight(site)
    for size in range(0, len(hello), 7):
        with site.plain() as client:
            client.sendall(hello[:size])


def test_bytes_that_come_in_any_pieces(site: Site) -> None:
    """All that a client sends comes byte by byte, its data too."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = site.authority.context().wrap_bio(to_client, to_server, server_hostname="localhost")
    with site.plain() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send() -> None:
            for byte in to_server.read():
                connection.sendall(bytes([byte]))

        def until_done(step: Callable[[], Any]) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    send()
                    to_client.write(connection.recv(100))

        until_done(client.do_handshake)
        client.write(PING)
        send()
        assert until_done(lambda: client.read(100)) == PONG


@pytest.mark.parametrize("is_told", [True, False])
def test_a_client_that_has_said_all_gets_its_end(site: Site, is_told: bool) -> None:
    """With TLS's own word for it, or without."""
    with site.connect() as connection:
        assert answers(connection)
        if is_told:
            connection.settimeout(SECONDS_MAX)
            with suppress(ssl.SSLError, OSError):
                connection.unwrap()
        else:
            connection.shutdown(socket.SHUT_WR)
            assert has_ended(connection)


def test_a_client_that_ends_with_its_handshake_is_none_whose_handshake_failed(site: Site) -> None:
    """Load balancers look so whether a server lives."""
    before = refused_connections(site.door.stats())["handshake"]
    with site.plain() as connection:
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = site.authority.context().wrap_bio(to_client, to_server, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        connection.sendall(to_server.read())
        while True:
            to_client.write(connection.recv(1 << 16))
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        with suppress(ssl.SSLWantReadError):
            client.unwrap()
        connection.sendall(to_server.read())
        assert has_ended(connection)
    assert refused_connections(site.door.stats())["handshake"] == before


def test_a_client_that_reads_late_loses_nothing(site: Site) -> None:
    pings = 60_000
    with site.connect() as connection:
        sender = threading.Thread(target=connection.sendall, args=(PING * pings,))
        sender.start()
        time.sleep(0.2)
        assert receive(connection, pings * len(PONG)) == PONG * pings
        sender.join()


class KeyChanger:
    """A client that changes its keys, and asks the server to do so, when a test says so."""

    def __init__(self, site: Site) -> None:
        command = ["openssl", "s_client", "-crlf", "-connect", f"127.0.0.1:{site.ports[Protocol.RESP]}"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        )
        assert self.ping()

    def _says(self, said: bytes, answer: bytes) -> bool:
        """Return whether the answer comes before the end."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.write(said)
        return any(answer in line for line in self.process.stdout)

    def ping(self) -> bool:
        return self._says(PING.replace(b"\r", b""), b"+PONG")

    def change_keys(self) -> bool:
        return self._says(b"K\n", b"KEYUPDATE")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def key_changer(site: Site) -> Iterator[KeyChanger]:
    require("openssl")
    changer = KeyChanger(site)
    yield changer
    changer.close()


def test_new_keys_in_the_middle(key_changer: KeyChanger) -> None:
    """Both sides change their keys when a client asks; often, if it sends data meanwhile."""
    for _ in range(3):
        assert all(key_changer.change_keys() for _ in range(20))
        assert key_changer.ping()


def test_nothing_but_new_keys_ends_the_connection(site: Site, key_changer: KeyChanger) -> None:
    """Each costs the server much more than the client."""
    before = site.door.connections()
    assert before
    floods = closed_connections(site.door.stats())["flood"]
    for _ in range(50):
        key_changer.change_keys()
    wait_until(lambda: site.door.connections() < before)
    assert closed_connections(site.door.stats())["flood"] == floods + 1
