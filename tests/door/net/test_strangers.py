"""Connections over which nobody has logged in: they are few, they have little time, and they give way to newcomers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gpkvs.bench.door.frames import GOAWAY, PREFACE, SETTINGS, frame, frames_of
from gpkvs.config import Limits, ServerConfig
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.account.bounds import bounds_of
from gpkvs.server.door.library import EventKind, Library, Protocol
from gpkvs.server.door.stats import refused_connections
from tests.accounts import Account, Accounts, Header
from tests.certificates import HERE, Authority, server_options
from tests.door import probes
from tests.door.echo import Echo
from tests.door.resp_door import PythonSide, answers, command
from tests.serving import Server

MIB = 1 << 20
NEVER_NS = (1 << 64) - 1
SECONDS_MAX = 20
BEGIN = {Protocol.GRPC: PREFACE + frame(SETTINGS, 0, 0), Protocol.RESP: b""}
OK, PONG = b"+OK\r\n", b"+PONG\r\n"
GAVE_WAY = b"-ERR closed for a newer connection: nobody had logged in over this one\r\n"
ELSEWHERE = "127.0.0.2"  # another address of this machine


class Door:
    """A door of two ports with users, for 16 connections: a port's strangers have 4, and its clients at most 14."""

    MEMORY_BYTES = 150 * MIB

    def __init__(self, *, asks_for_logins: bool = True, memory_bytes: int = MEMORY_BYTES, threads: int = 0) -> None:
        config = ServerConfig()
        self.library = Library(config, bounds_of(config, Limits(), 4 * MIB, memory_bytes), threads)
        if asks_for_logins:
            self.library.ask_for_logins()
        self.library.set_rights(7, [0], bytes([3]))
        self.ports = {protocol: self.library.listen("127.0.0.1", 0, protocol) for protocol in Protocol}
        self.python = PythonSide(self.library)
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        self._stack.close()
        self.library.stop()
        self.library.delete()

    def connect(self, protocol: Protocol = Protocol.RESP, source: str = "127.0.0.1") -> socket.socket:
        """Return a connection that has begun, and no more."""
        address = "127.0.0.1", self.ports[protocol]
        connection = self._stack.enter_context(socket.create_connection(address, 20, (source, 0)))
        connection.sendall(BEGIN[protocol])
        return connection

    def strangers(
        self, count: int, protocol: Protocol = Protocol.RESP, source: str = "127.0.0.1"
    ) -> list[socket.socket]:
        return [self.connect(protocol, source) for _ in range(count)]

    def log_in(self, connection: socket.socket) -> None:
        """Have Python say who it is."""
        connection.sendall(command(b"AUTH", b"token"))
        call = self.python.open()
        assert self.python.words(call) == [b"AUTH", b"token"]
        self.library.logged_in(call, 7, NEVER_NS, NEVER_NS)
        self.python.answer(call, OK)
        assert answers(connection, 1) == OK

    def client(self, source: str = "127.0.0.1") -> socket.socket:
        connection = self.connect(source=source)
        self.log_in(connection)
        return connection

    def count(self, reason: str) -> int:
        return refused_connections(self.library.stats())[reason]

    def wait(self, reason: str, count: int) -> None:
        """Wait until so many were counted."""
        end = time.monotonic() + SECONDS_MAX
        while self.count(reason) < count:
            assert time.monotonic() < end, f"{reason}: {self.count(reason)}"
            time.sleep(0.01)
        assert self.count(reason) == count


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def rest(connection: socket.socket) -> bytes:
    """Return what comes until the end."""
    with connection.makefile("rb") as stream:
        return stream.read()


def ended(connections: list[socket.socket]) -> list[int]:
    """Return which of them have something to read: the end, or a word before it."""
    found = []
    for number, connection in enumerate(connections):
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.recv(1 << 16, socket.MSG_PEEK)
            found.append(number)
        connection.settimeout(20)
    return found


def grow_old(door: Door) -> None:
    """Let all that are there be older than a second, which is ten milliseconds now."""
    probes.hurry(door.library._door, 100)
    time.sleep(0.1)


def test_strangers_beyond_the_share_of_their_port_give_way_the_oldest_first(door: Door) -> None:
    strangers = door.strangers(4)
    door.client()
    assert door.count("gave_way") == 0  # they have come a moment ago, and there is room
    grow_old(door)
    newcomers = door.strangers(2)
    door.wait("gave_way", 2)
    assert [rest(connection) for connection in strangers[:2]] == [GAVE_WAY, GAVE_WAY]
    assert ended(strangers[2:] + newcomers) == []


def test_a_stranger_of_grpc_is_told_so(door: Door) -> None:
    oldest, *others = door.strangers(4, Protocol.GRPC)
    time.sleep(0.1)
    grow_old(door)
    door.connect(Protocol.GRPC)
    last = list(frames_of(rest(oldest)))[-1]
    assert last.kind == GOAWAY
    assert last.payload[8:] == b"closed for a newer connection: nobody had logged in over this one"
    assert ended(others) == [0, 1, 2]  # the settings of the server alone
    assert all(not any(one.kind == GOAWAY for one in frames_of(other.recv(1000))) for other in others)


def test_a_crowd_may_fill_what_is_free_for_a_moment(door: Door) -> None:
    """Clients that all come at once, as after a restart, do not drive each other out."""
    crowd = door.strangers(14)
    for connection in crowd:
        door.log_in(connection)
    assert door.count("gave_way") == 0


def test_clients_keep_their_places(door: Door) -> None:
    clients = [door.client() for _ in range(8)]
    silent = door.strangers(60)
    door.wait("gave_way", 54)  # six more fill the port
    assert ended(clients) == []
    for client in clients:
        client.sendall(command(b"PING"))
        assert answers(client, 1) == PONG
    assert len(ended(silent)) == 54
    newcomer = door.client()
    newcomer.sendall(command(b"PING"))
    assert answers(newcomer, 1) == PONG


def test_clients_of_one_port_leave_places_to_the_other(door: Door) -> None:
    clients = [door.client() for _ in range(14)]
    refused = door.connect()
    assert rest(refused).startswith(
        b"-ERR max number of clients reached: as many are open as --memory-max has room for"
    )
    assert door.count("connections_full") == 1
    other = door.strangers(2, Protocol.GRPC)
    grow_old(door)
    door.connect(Protocol.GRPC)  # all places are taken, and a stranger has one
    door.wait("gave_way", 1)
    assert ended(clients) == []
    assert any(one.kind == GOAWAY for one in frames_of(rest(other[0])))


def test_who_floods_drives_out_itself(door: Door) -> None:
    """A flood out of one address; a user of another one has all the time of a stranger."""
    door.strangers(14)
    user = door.connect(source=ELSEWHERE)
    door.strangers(100)
    door.wait("gave_way", 101)
    assert ended([user]) == []
    door.log_in(user)
    user.sendall(command(b"PING"))
    assert answers(user, 1) == PONG


def test_a_login_that_is_late_does_not_count(door: Door) -> None:
    """Its place is another one's by then."""
    late = door.connect()
    late.sendall(command(b"AUTH", b"token"))
    call = door.python.open()
    assert door.python.words(call) == [b"AUTH", b"token"]
    door.strangers(14)
    assert rest(late) == GAVE_WAY
    door.library.logged_in(call, 7, NEVER_NS, NEVER_NS)
    event = door.python.next()
    assert event is not None
    assert event.kind is EventKind.OVER
    door.python.answer(call, OK)
    assert ended([door.client()]) == []


def test_whoever_does_not_log_in_is_closed_in_time(door: Door) -> None:
    """A channel of gRPC finds another connection by itself; a client of Redis is told."""
    silent = door.strangers(1) + door.strangers(1, Protocol.GRPC)
    client = door.client()
    probes.hurry(door.library._door, 600)
    assert rest(silent[0]) == b"-ERR closed: nobody logged in within 0 s\r\n"
    found = list(frames_of(rest(silent[1])))
    assert any(one.kind == GOAWAY for one in found)
    door.wait("silent", 2)
    client.sendall(command(b"PING"))
    assert answers(client, 1) == PONG


@pytest.mark.parametrize("has_asked", [True, False])
def test_without_users_a_command_makes_a_client(has_asked: bool) -> None:
    door = Door(asks_for_logins=False)
    try:
        early = door.connect()
        if has_asked:
            early.sendall(command(b"PING"))
            assert answers(early, 1) == PONG
        door.strangers(20)
        door.wait("gave_way", 7)
        if has_asked:
            early.sendall(command(b"PING"))
            assert answers(early, 1) == PONG
        else:
            assert rest(early) == b"-ERR closed for a newer connection: nothing was asked for over this one\r\n"
    finally:
        door.close()


def test_without_users_a_call_makes_a_client() -> None:
    with Echo(memory_bytes_max=64 * MIB) as echo, contextlib.ExitStack() as stack:
        channels = []
        for _ in range(3):
            channel = stack.enter_context(grpc.insecure_channel(echo.target, [("grpc.use_local_subchannel_pool", 1)]))
            assert channel.unary_unary("/echo/Unary")(b"x") == b"x"
            channels.append(channel)
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", echo.port))).sendall(BEGIN[Protocol.GRPC])
        end = time.monotonic() + SECONDS_MAX
        while refused_connections(echo.library.stats())["gave_way"] < 17:
            assert time.monotonic() < end
            time.sleep(0.01)
        call = channels[0].unary_unary("/echo/Unary")
        assert call(b"y") == b"y"
        assert echo.library.connections() <= 6


def test_a_channel_that_was_idle_for_too_long_calls_all_the_same() -> None:
    with Echo() as echo, grpc.insecure_channel(echo.target) as channel:
        grpc.channel_ready_future(channel).result(SECONDS_MAX)
        probes.hurry(echo.library._door, 6000)
        end = time.monotonic() + SECONDS_MAX
        while not refused_connections(echo.library.stats())["silent"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert channel.unary_unary("/echo/Unary")(b"x") == b"x"


class Site:
    """A server with users for 27 connections, and one who is root."""

    def __init__(self, folder: Path, *, is_tls: bool) -> None:
        self.accounts = Accounts(folder / "users.toml", root=Account(read=("*",), write=("*",), metrics=True))
        self.header: Header = ()
        self.token = b""
        self.make_token()
        authority = Authority(folder) if is_tls else None
        options = [*server_options(authority.issue("server", *HERE))] if authority else []
        options += ["--users", str(self.accounts.path), "--memory-max", "256MiB", "--resp", "127.0.0.1:0"]
        self.server = Server(folder / "store", folder, *options, "--log-format", "json", authority=authority)
        self.server.metrics_headers = dict(self.header)
        self.authority = authority
        self.addresses = {Protocol.GRPC: self.server.target, Protocol.RESP: self.server.resp_addresses[0]}

    def make_token(self) -> None:
        """Give root one more token, and have all use it."""
        self.header = self.accounts.token("root")
        self.token = self.header[0][1].removeprefix("Bearer ").encode()
        self.accounts.save()

    def socket(self, protocol: Protocol, source: str = "127.0.0.1", *, is_whole: bool = True) -> socket.socket:
        """Return a new connection, inside TLS if there is one and it is to be whole."""
        host, port = self.addresses[protocol].rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), SECONDS_MAX, (source, 0))
        if self.authority and is_whole:
            context = self.authority.context()
            if protocol is Protocol.GRPC:
                context.set_alpn_protocols(["h2"])
            connection = context.wrap_socket(connection, server_hostname="localhost")
        return connection

    def redis(self, source: str = "127.0.0.1") -> socket.socket:
        connection = self.socket(Protocol.RESP, source)
        connection.sendall(command(b"AUTH", self.token))
        assert answers(connection, 1) == OK
        return connection

    def come_in(self) -> None:
        """Log in over both ports, and write."""
        with self.redis() as connection:
            connection.sendall(command(b"SET", b"k", b"v"))
            assert answers(connection, 1) == OK
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = (
            grpc.secure_channel(self.server.target, self.authority.credentials(), options)
            if self.authority
            else grpc.insecure_channel(self.server.target, options)
        )
        with channel:
            stub = kv_pb2_grpc.KVStub(channel)
            stub.Set(kv_pb2.SetRequest(key=b"k", value=b"v"), timeout=SECONDS_MAX, metadata=self.header)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "TLS"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("strangers"), is_tls=request.param)
    try:
        yield made
        made.server.stop()
        log = made.server.log.read_text()
        assert "connections refused: nobody had logged in over them" in log
        assert "newer ones needed their places" in log
    finally:
        made.server.kill()


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "begun"])
def test_users_come_in_though_strangers_fill_a_port(site: Site, protocol: Protocol, is_whole: bool) -> None:
    before = site.server.metric("gpkvs_connections_refused_total", reason="gave_way")
    with contextlib.ExitStack() as stack:
        users = [stack.enter_context(site.redis()) for _ in range(5)]
        silent = []
        for _ in range(60):
            connection = stack.enter_context(site.socket(protocol, is_whole=is_whole))
            with contextlib.suppress(OSError):  # it may have given way already
                if is_whole:
                    connection.sendall(BEGIN[protocol])
            silent.append(connection)
        for _ in range(3):
            site.come_in()
        for user in users:
            user.sendall(command(b"GET", b"k"))
            assert answers(user, 1) == b"$1\r\nv\r\n"
        assert site.server.metric("gpkvs_connections_refused_total", reason="gave_way") >= before + 38


def test_a_user_from_elsewhere_comes_in_through_a_flood(site: Site) -> None:
    """Who floods comes again as soon as it is closed."""
    stop = threading.Event()

    def flood() -> None:
        with contextlib.ExitStack() as stack:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    stack.enter_context(site.socket(Protocol.RESP, is_whole=False))

    flooding = [threading.Thread(target=flood) for _ in range(2)]
    for thread in flooding:
        thread.start()
    try:
        for _ in range(10):
            site.redis(ELSEWHERE).close()
    finally:
        stop.set()
        for thread in flooding:
            thread.join()
