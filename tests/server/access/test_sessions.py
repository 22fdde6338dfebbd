"""What a change of the users' file does to calls and connections that are open."""

from __future__ import annotations

import asyncio
import queue
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.access.caller import Caller
from gpkvs.server.access.connections import End, end_of, open_ends
from gpkvs.server.access.sessions import Sessions
from gpkvs.server.access.users import Rights, Users
from gpkvs.server.access.users import User as FileUser
from tests.accounts import Account, Accounts, Header
from tests.server.access.guarded import Guarded
from tests.server.wire import GET, SET, Refused, batch

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
CODE = {code: code.value[0] for code in grpc.StatusCode}
SECONDS_MAX = 20  # until a test has failed
NO_LONGER = "no longer counts: log in again"
VALUE = bytes(8000)
KEYS = 1500  # more than a Scan sends ahead of a client that does not read


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("sessions")
    accounts = Accounts(folder / "users.toml", root=Account(admin=("*",), read=("*",), write=("*",)))
    guarded = Guarded(accounts, folder)
    keys = [(SET, b"%05d" % number, VALUE) for number in range(KEYS)]
    guarded.server.kv.Batch(batch(keys), metadata=guarded.headers["root"])
    yield guarded
    guarded.close()


class User:
    """A user who may read and write, and a connection that nobody else uses."""

    def __init__(self, guarded: Guarded, name: str) -> None:
        self._guarded, self.name = guarded, name
        self.account = guarded.accounts.users[name] = Account(read=("*",), write=("*",))
        self.header = self.new_token()
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(guarded.server.target, options)
        self.kv = kv_pb2_grpc.KVStub(self.channel)
        self.await_access()

    def new_token(self, **how: Any) -> Header:
        header = self._guarded.accounts.token(self.name, **how)
        self.save()
        return header

    def save(self) -> None:
        self._guarded.accounts.save()

    def remove(self) -> None:
        del self._guarded.accounts.users[self.name]
        self.save()

    def await_access(self, header: Header | None = None) -> None:
        await_true(lambda: self.code(header) is not UNAUTHENTICATED)

    def code(self, header: Header | None = None) -> grpc.StatusCode:
        try:
            self.kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=header or self.header, timeout=30)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK


@pytest.fixture
def user(guarded: Guarded) -> Iterator[User]:
    """Return a user of the test's own, over a connection of its own."""
    user = User(guarded, f"user-{len(guarded.secrets)}")
    guarded.secrets.append(user.header[0][1].removeprefix("Bearer "))
    yield user
    user.channel.close()


def await_true(condition: Callable[[], bool], seconds: float = SECONDS_MAX) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it does not happen"
        time.sleep(0.02)


class Stream:
    """A Pipeline that sends what it is given."""

    def __init__(self, kv: kv_pb2_grpc.KVStub, header: Header) -> None:
        self._requests: queue.Queue[kv_pb2.BatchRequest | None] = queue.Queue()
        self.responses = kv.Pipeline(iter(self._requests.get, None), metadata=header, timeout=SECONDS_MAX)
        self.send(batch([(GET, b"k")]))

    def send(self, request: kv_pb2.BatchRequest) -> kv_pb2.BatchResponse:
        self._requests.put(request)
        return next(self.responses)

    def end(self) -> None:
        self._requests.put(None)


class Clock:
    """Measures how long something takes."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def test_streams_and_connections_of_a_removed_user_end(guarded: Guarded, user: User) -> None:
    stream = Stream(user.kv, user.header)
    reflection = reflection_pb2_grpc.ServerReflectionStub(user.channel)
    asks: queue.Queue[reflection_pb2.ServerReflectionRequest] = queue.Queue()
    described = reflection.ServerReflectionInfo(iter(asks.get, None), metadata=user.header, timeout=SECONDS_MAX)
    asks.put(reflection_pb2.ServerReflectionRequest(list_services=""))
    next(described)
    states: list[grpc.ChannelConnectivity] = []
    user.channel.subscribe(states.append)
    await_true(lambda: states[-1:] == [grpc.ChannelConnectivity.READY])
    clock = Clock()
    user.remove()
    with Refused(UNAUTHENTICATED, f"this token of user {user.name} {NO_LONGER}"):
        next(stream.responses)
    with Refused(UNAUTHENTICATED, NO_LONGER):
        next(described)
    await_true(lambda: grpc.ChannelConnectivity.IDLE in states)  # the server has closed it
    assert clock.seconds < 2  # of which a slow machine may take a half
    assert user.code() is UNAUTHENTICATED
    guarded.get(*guarded.headers["root"])
    stream.end()
    asks.put(None)  # type: ignore[arg-type]


def test_a_call_that_waits_for_its_message_ends(user: User) -> None:
    messages: queue.Queue[bytes] = queue.Queue()
    call = user.channel.stream_stream("/gpkvs.v1.KV/Set")(
        iter(messages.get, None), metadata=user.header, timeout=SECONDS_MAX
    )
    call.initial_metadata  # noqa: B018
    user.remove()
    with Refused(UNAUTHENTICATED, NO_LONGER):
        next(call)
    messages.put(b"")


def test_a_connection_that_others_use_stays(guarded: Guarded, user: User) -> None:
    user.kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=guarded.headers["root"])
    theirs, own = Stream(user.kv, guarded.headers["root"]), Stream(user.kv, user.header)
    user.remove()
    with Refused(UNAUTHENTICATED, NO_LONGER):
        next(own.responses)
    clock = Clock()
    while clock.seconds < 0.4:  # a connection of its own would be closed by then
        assert theirs.send(batch([(GET, b"k")])).code == 0
    theirs.end()
    own.end()


def test_rights_that_are_taken_away_are_gone_at_the_next_message(user: User) -> None:
    stream = Stream(user.kv, user.header)
    scan = user.kv.Scan(kv_pb2.ScanRequest(), metadata=user.header, timeout=SECONDS_MAX)
    next(scan)
    write = batch([(SET, b"written", b"")])
    assert stream.send(write).code == 0
    user.account.write = ()
    user.save()
    await_true(lambda: stream.send(write).code == CODE[DENIED])
    refused = stream.send(write)
    assert f"user {user.name} may not write table 'default'" in refused.message
    assert stream.send(batch([(GET, b"written")])).code == 0
    user.account.read = ()
    user.save()
    await_true(lambda: stream.send(batch([(GET, b"written")])).code == CODE[DENIED])
    with Refused(DENIED, f"user {user.name} may not read table 'default'"):
        for _ in scan:
            pass
    user.account.read = ("*",)
    user.save()
    await_true(lambda: stream.send(batch([(GET, b"written")])).code == 0)
    stream.end()


def test_a_scan_of_a_removed_user_ends(user: User) -> None:
    scan = user.kv.Scan(kv_pb2.ScanRequest(), metadata=user.header, timeout=SECONDS_MAX)
    next(scan)
    user.remove()
    await_true(lambda: user.code() is UNAUTHENTICATED)
    with pytest.raises(grpc.RpcError) as error:
        for _ in scan:
            pass
    # It reads nothing until the connection is closed, or a little sooner.
    assert error.value.code() in (UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE)


def test_a_token_that_ends_ends_its_stream(user: User) -> None:
    header = user.new_token(seconds=1.5)
    user.await_access(header)
    stream = Stream(user.kv, header)
    clock = Clock()
    with Refused(UNAUTHENTICATED, "this token ended on "):
        next(stream.responses)
    assert clock.seconds < 2.5
    assert user.code() is grpc.StatusCode.OK
    stream.end()


@pytest.mark.parametrize("what", ["token", "user under the same name"])
def test_a_login_that_no_longer_counts_ends(user: User, what: str) -> None:
    """The token is removed, or another one stands under the user's name, who was removed and came again."""
    stream = Stream(user.kv, user.header)
    user.account.tokens.clear()
    if what != "token":
        user.account.read = ("other",)
    header = user.new_token()
    with Refused(UNAUTHENTICATED, NO_LONGER):
        next(stream.responses)
    assert user.code() is UNAUTHENTICATED
    assert user.code(header) is (grpc.StatusCode.OK if what == "token" else DENIED)
    stream.end()


def test_a_file_that_is_wrong_changes_nothing(guarded: Guarded, user: User) -> None:
    server, path = guarded.server, guarded.accounts.path
    assert server.metric("gpkvs_users_file_good") == 1
    path.write_text("[users.alice]\npasword = 'secret-in-the-wrong-place'\n")
    await_true(lambda: server.metric("gpkvs_users_file_good") == 0)
    assert user.code() is grpc.StatusCode.OK
    path.unlink()
    await_true(lambda: server.log.read_text().count("the users stay as they were") == 2)
    assert user.code() is grpc.StatusCode.OK
    user.save()
    await_true(lambda: server.metric("gpkvs_users_file_good") == 1)
    assert "secret-in-the-wrong-place" not in server.log.read_text()


def test_sighup_reads_the_file(guarded: Guarded) -> None:
    guarded.accounts.path.chmod(0o644)  # refused each time that it is read
    before = guarded.server.log.read_text().count("chmod 600")
    await_true(lambda: guarded.server.log.read_text().count("chmod 600") == before + 1)
    guarded.server.process.send_signal(signal.SIGHUP)
    await_true(lambda: guarded.server.log.read_text().count("chmod 600") == before + 2)
    guarded.accounts.save()
    await_true(lambda: guarded.server.metric("gpkvs_users_file_good") == 1)


def test_names_of_connections() -> None:
    assert end_of("ipv4:127.0.0.1:5000") == End("127.0.0.1", 5000)
    assert end_of("ipv6:%5B::1%5D:5000") == End("::1", 5000)
    assert end_of("ipv6:[fe80::1%25eth0]:5000") == End("fe80::1", 5000)
    assert end_of("ipv6:%5B::ffff:10.0.0.1%5D:5000") == End("10.0.0.1", 5000)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connections_are_found_by_their_other_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(3)]
        accepted = [listener.accept()[0] for _ in clients]
        try:
            ends = {End(*client.getsockname()) for client in clients}
            before = open_files()
            assert open_ends([port]) == ends
            assert open_files() <= before  # it leaves none open
        finally:
            for connection in (*clients, *accepted):
                connection.close()


def peer_name(client: socket.socket) -> str:
    host, port = client.getsockname()
    return f"ipv4:{host}:{port}"


async def close_when_answered() -> None:
    """A connection with a request that waits is closed when the request has its response."""
    gone, stays = (Caller(FileUser("u", None, (), {}, Rights()), "password") for _ in range(2))
    busy, closed = {"ipv4:127.0.0.1:1"}, asyncio.Queue[str]()

    def close(peers: Collection[str]) -> None:
        for peer in peers:
            closed.put_nowait(peer)

    sessions = Sessions(busy.__contains__, close)
    for number in (1, 2, 3):
        assert sessions.is_new(f"ipv4:127.0.0.1:{number}", gone)
        assert not sessions.is_new(f"ipv4:127.0.0.1:{number}", gone)
    sessions.is_new("ipv4:127.0.0.1:3", stays)
    gone.follow(Users([]), 0)
    assert gone.is_gone
    sessions.close_unused()
    assert await closed.get() == "ipv4:127.0.0.1:2"
    await asyncio.sleep(0.5)
    assert closed.empty()
    busy.clear()
    assert await closed.get() == "ipv4:127.0.0.1:1"
    assert len(sessions) == 1
    await sessions.stop()
    assert closed.empty()


def test_a_connection_is_closed_when_what_waits_is_answered() -> None:
    asyncio.run(asyncio.wait_for(close_when_answered(), 30))


async def forget_what_ended() -> None:
    """Callers of connections that have ended are forgotten, and so bounded; those to any port of the server stay."""
    sessions = Sessions(lambda _: False, lambda _: None)
    caller = Caller(FileUser("u", None, (), {}, Rights()), "password")
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        sessions.begin([listener.getsockname()[1] for listener in listeners])
        are_open = []
        for listener in listeners:
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            stack.enter_context(listener.accept()[0])
            are_open.append(peer_name(client))
            sessions.is_new(are_open[-1], caller)
        for number in range(3000):
            sessions.is_new(f"ipv4:127.0.0.2:{number}", caller)
            if number % 100 == 0:
                await asyncio.sleep(0.001)
        for _ in range(1000):
            if len(sessions) <= 2000:
                break
            await asyncio.sleep(0.01)
        assert len(sessions) <= 2000
        assert not any(sessions.is_new(is_open, caller) for is_open in are_open)
        await sessions.stop()


def test_connections_that_have_ended_are_forgotten() -> None:
    asyncio.run(asyncio.wait_for(forget_what_ended(), 30))
