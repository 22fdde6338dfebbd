"""Who is let in: every way to log in, every way to be refused, over gRPC and over HTTP."""

from __future__ import annotations

import base64
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpkvs.bench.door.frames import HEADERS, frames_of
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.server.access.users import make_token
from tests.accounts import Account, Accounts, Header, basic, bearer
from tests.certificates import Authority, server_options
from tests.server.access.forwarder import Forwarder
from tests.server.access.guarded import Guarded
from tests.server.hostile import connection_with_call, is_answered
from tests.server.wire import Refused
from tests.serving import Server, error_line, run_gpkvs

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
MISSING = "log in: send a token, a user and password, or a client certificate of a known user"
WRONG = "wrong user, password or token"
SLOWED = (
    "too many failed logins, as this user or from this address, with a wrong user, password or token: try again in 1 s"
)
PASSWORD = "pass:wörd: with colons"
OTHER_PASSWORD = "another one"
ADDRESSES = (f"127.0.1.{number}" for number in range(1, 255))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Return one server for the whole module; what fails to log in comes from another address (`elsewhere`)."""
    folder = tmp_path_factory.mktemp("login")
    accounts = Accounts(
        folder / "users.toml",
        root=Account(admin=("*",)),
        alice=Account(password=PASSWORD, read=("*",)),
        bob=Account(password=OTHER_PASSWORD, read=("*",)),
        carol=Account(read=("*",)),
        neighbour=Account(password=PASSWORD, read=("*",)),
        scraper=Account(metrics=True),
    )
    ended = accounts.token("alice", seconds=-1)
    guarded = Guarded(accounts, folder)
    guarded.headers["ended"] = ended
    yield guarded
    guarded.close()


@pytest.fixture
def elsewhere(guarded: Guarded) -> Iterator[kv_pb2_grpc.KVStub]:
    """Return a stub whose calls come from an address of its own: failures there slow nobody else down."""
    with (
        Forwarder(guarded.server.target, next(ADDRESSES)) as forwarder,
        grpc.insecure_channel(forwarder.target) as channel,
    ):
        yield kv_pb2_grpc.KVStub(channel)


def get(kv: kv_pb2_grpc.KVStub, header: Header) -> None:
    kv.Get(kv_pb2.GetRequest(key=b"k"), metadata=header)


def test_a_token_or_a_password_lets_in(guarded: Guarded) -> None:
    token = guarded.headers["alice"][0][1].removeprefix("Bearer ")
    for header in (
        bearer(token),
        (("authorization", f"bEARER   {token}"),),
        basic("alice", PASSWORD),
        (("authorization", basic("alice", PASSWORD)[0][1].replace("Basic", "basic")),),
    ):
        guarded.get(*header)


def wrong_headers() -> list[object]:
    text = "Basic " + base64.b64encode(b"alice").decode()
    unknown, _, _ = make_token()
    return [
        pytest.param((), MISSING, "none", id="nothing"),
        pytest.param((("authorization", ""),), WRONG, "none", id="empty"),
        pytest.param((("authorization", "Digest alice"),), WRONG, "none", id="unknown scheme"),
        pytest.param((("authorization", text),), WRONG, "none", id="no colon"),
        pytest.param((("authorization", "Basic alice:secret"),), WRONG, "none", id="not base64"),
        pytest.param((("authorization", "Basic /zr/"),), WRONG, "none", id="not UTF-8"),
        pytest.param(bearer(""), WRONG, "token", id="no token"),
        pytest.param(bearer(unknown), WRONG, "token", id="unknown token"),
        pytest.param(bearer("gpkvs_"), WRONG, "token", id="half a token"),
        pytest.param(basic("alice", OTHER_PASSWORD), WRONG, "password", id="wrong password"),
        pytest.param(basic("mallory", PASSWORD), WRONG, "password", id="unknown user"),
        pytest.param(basic("carol", PASSWORD), WRONG, "password", id="user without a password"),
        pytest.param(basic("alice", ""), WRONG, "password", id="no password"),
        pytest.param(basic("al\0ice\n", PASSWORD), WRONG, "password", id="odd name"),
    ]


@pytest.mark.parametrize(("header", "text", "method"), wrong_headers())
def test_all_others_are_refused(
    guarded: Guarded, elsewhere: kv_pb2_grpc.KVStub, header: Header, text: str, method: str
) -> None:
    before = guarded.server.metric("gpkvs_logins_total", method=method, result="refused")
    with Refused(UNAUTHENTICATED, text):
        get(elsewhere, header)
    assert guarded.server.metric("gpkvs_logins_total", method=method, result="refused") == before + 1


def test_a_token_takes_all_of_its_text(guarded: Guarded, elsewhere: kv_pb2_grpc.KVStub) -> None:
    token = guarded.headers["alice"][0][1].removeprefix("Bearer ")
    other = guarded.headers["bob"][0][1].removeprefix("Bearer ")
    with Refused(UNAUTHENTICATED, WRONG):
        get(elsewhere, bearer(token[:15] + other[15:]))
    with Refused(UNAUTHENTICATED, WRONG):
        get(elsewhere, bearer(token + "A"))


def test_a_token_that_has_ended_says_so(guarded: Guarded, elsewhere: kv_pb2_grpc.KVStub) -> None:
    day = min(ends for _, ends in guarded.accounts.users["alice"].tokens.values()).date()
    for _ in range(5):  # it slows nobody down
        with Refused(UNAUTHENTICATED, f"this token ended on {day}: make a new one"):
            get(elsewhere, guarded.headers["ended"])


def test_wrong_tokens_slow_nobody_down(guarded: Guarded, elsewhere: kv_pb2_grpc.KVStub) -> None:
    """A service with an old token must neither be told something else, nor keep its neighbours out."""
    removed = bearer(make_token()[0])
    for _ in range(5):
        with Refused(UNAUTHENTICATED, WRONG):
            get(elsewhere, removed)
    get(elsewhere, basic("neighbour", PASSWORD))


def test_two_headers_are_refused(guarded: Guarded, elsewhere: kv_pb2_grpc.KVStub) -> None:
    with Refused(UNAUTHENTICATED, WRONG):
        get(elsewhere, guarded.headers["alice"] * 2)
    with Refused(UNAUTHENTICATED, WRONG):
        get(elsewhere, guarded.headers["alice"] + (("authorization", ""),))


@pytest.mark.parametrize("value", [b"Bearer \xff\xfe", b"\xed\xa0\x80", b"Basic " + PASSWORD.encode("latin-1")])
def test_bytes_that_are_no_text_are_refused(guarded: Guarded, value: bytes) -> None:
    """No library sends them. gRPC would log them, with a traceback (`Guarded.close` looks)."""
    host, port = guarded.server.target.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 30, (next(ADDRESSES), 0)) as client:
        client.sendall(connection_with_call("/gpkvs.v1.KV/Get", {"authorization": value}))
        received = bytearray()
        while not is_answered(bytes(received)):
            data = client.recv(1 << 16)
            assert data, bytes(received)
            received += data
    assert WRONG in trailers(bytes(received))


def trailers(received: bytes) -> str:
    """Return the headers with which the only call of a connection has ended; the native door packs them."""
    if b"gpkvs-executed" in received:
        return received.decode(errors="replace")
    from tests.door import probes  # noqa: PLC0415 - it skips all tests here if that door is not built

    blocks = [found.payload for found in frames_of(received) if found.kind == HEADERS]
    return str(probes.headers(blocks)[-1])


def test_nobody_has_to_send_a_message_to_be_refused(guarded: Guarded) -> None:
    """The server takes none from whom it does not know."""
    done = threading.Event()

    def never() -> Iterator[bytes]:
        done.wait(60)
        yield b""

    try:
        for method in ("KV/Get", "KV/Scan", "KV/Pipeline", "Admin/Info"):
            call = guarded.server.channel.stream_stream(f"/gpkvs.v1.{method}")(never(), timeout=30)
            with Refused(UNAUTHENTICATED, MISSING):
                next(call)
    finally:
        done.set()


def test_health_is_open_and_reflection_is_not(guarded: Guarded) -> None:
    channel = guarded.server.channel
    health = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    assert health.Check(health_pb2.HealthCheckRequest()).status == serving
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == serving
    watch.cancel()
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    with Refused(UNAUTHENTICATED, MISSING):
        next(reflection.ServerReflectionInfo(iter([ask])))
    services = next(reflection.ServerReflectionInfo(iter([ask]), metadata=guarded.headers["scraper"]))
    assert "gpkvs.v1.KV" in [service.name for service in services.list_services_response.service]


@pytest.mark.skipif(not hasattr(health_pb2, "HealthListRequest"), reason="grpcio-health-checking is too old for List")
def test_health_of_all_services_is_open_too(guarded: Guarded) -> None:
    listed = health_pb2_grpc.HealthStub(guarded.server.channel).List(health_pb2.HealthListRequest()).statuses
    services = ("", "gpkvs.v1.KV", "gpkvs.v1.Admin")
    assert {name: entry.status for name, entry in listed.items()} == dict.fromkeys(
        services, health_pb2.HealthCheckResponse.SERVING
    )


def test_failures_slow_the_next_attempt_down_and_nobody_else(guarded: Guarded, elsewhere: kv_pb2_grpc.KVStub) -> None:
    for number in range(4):
        with Refused(UNAUTHENTICATED, WRONG if number < 3 else SLOWED):
            get(elsewhere, basic("bob", f"guess {number}"))
    with Refused(UNAUTHENTICATED, "too many failed logins"):
        get(elsewhere, basic("bob", OTHER_PASSWORD))
    assert guarded.server.metric("gpkvs_logins_total", method="password", result="slowed") == 2
    get(elsewhere, guarded.headers["bob"])  # a token is not to be guessed


def test_many_calls_at_once_share_a_login(guarded: Guarded) -> None:
    before = guarded.server.metric("gpkvs_logins_total", method="password", result="ok")
    with grpc.insecure_channel(guarded.server.target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        kv = kv_pb2_grpc.KVStub(channel)
        header = basic("alice", PASSWORD)
        calls = [kv.Get.future(kv_pb2.GetRequest(key=b"k"), metadata=header) for _ in range(80)]
        for call in calls:
            call.result(timeout=30)
    assert guarded.server.metric("gpkvs_logins_total", method="password", result="ok") == before + 1


def ask(server: Server, path: str, header: Header = ()) -> tuple[int, str, list[str]]:
    """Return the status, the text and the challenges of a response."""
    headers = {name.title(): text for name, text in header}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.metrics_url + path, headers=headers)) as response:
            return response.status, response.read().decode(), []
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers.get_all("WWW-Authenticate", [])


def test_metrics_need_a_right_and_probes_do_not(guarded: Guarded) -> None:
    server = guarded.server
    for path in ("/healthz", "/readyz"):
        assert ask(server, path)[0] == HTTPStatus.OK
    status, text, challenges = ask(server, "/metrics")
    assert (status, text) == (HTTPStatus.UNAUTHORIZED, f"{MISSING}\n")
    assert [challenge.split()[0] for challenge in challenges] == ["Basic", "Bearer"]
    assert ask(server, "/metrics", bearer(make_token()[0]))[:2] == (HTTPStatus.UNAUTHORIZED, f"{WRONG}\n")
    status, text, _ = ask(server, "/metrics", basic("alice", PASSWORD))
    assert status == HTTPStatus.FORBIDDEN
    assert "user alice may not read the metrics of the server" in text
    for name in ("scraper", "root"):
        assert ask(server, "/metrics", guarded.headers[name])[0] == HTTPStatus.OK


def test_a_users_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path / "users.toml", alice=Account())
    accounts.save()
    accounts.path.chmod(0o644)
    result = run_gpkvs("serve", "--data", str(tmp_path / "store"), "--users", str(accounts.path))
    assert "chmod 600" in error_line(result, 2)
    assert not (tmp_path / "store").exists()


def test_client_certificates_are_users(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("server", "IP:127.0.0.1")
    root = authority.issue("root", "URI:spiffe://test/other", "URI:spiffe://test/root")
    accounts = Accounts(
        tmp_path / "users.toml",
        root=Account(admin=("*",), certificates=("URI:spiffe://test/root",)),
        alice=Account(read=("*",), certificates=("DNS:alice.example",)),
    )
    options = server_options(certificate, authority.path)
    guarded = Guarded(accounts, tmp_path, *options, authority=authority, client=root)
    guarded.server.metrics_headers = {}  # the certificate is enough
    try:
        with Refused(grpc.StatusCode.PERMISSION_DENIED, "user root may not read table 'default'"):
            guarded.get()
        guarded.get(*guarded.headers["alice"])  # a header wins
        with Refused(UNAUTHENTICATED, WRONG):
            guarded.get(*bearer("gpkvs_"))
        for pair, is_known in (
            (authority.issue("a", "DNS:Alice.Example"), True),
            (authority.issue("b", "DNS:bob.example"), False),
            (authority.issue("c", common_name="alice.example"), False),
            (authority.issue("d", "URI:DNS:alice.example", "EMAIL:alice@alice.example"), False),
        ):
            with grpc.secure_channel(guarded.server.target, authority.credentials(pair)) as channel:
                if is_known:
                    get(kv_pb2_grpc.KVStub(channel), ())
                else:
                    with Refused(UNAUTHENTICATED, MISSING):
                        get(kv_pb2_grpc.KVStub(channel), ())
        assert guarded.server.metric("gpkvs_logins_total", method="certificate", result="refused") == 2  # c has no name
        assert guarded.server.metric("gpkvs_logins_total", method="certificate", result="ok") == 3
    finally:
        guarded.close()
