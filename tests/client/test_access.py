"""Clients of a server with TLS, clients' certificates and users: who gets in, and what the others are told."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest

from gpkvs.batch import Batch, Op, RequestResult
from gpkvs.client import (
    AccessDeniedError,
    AsyncClient,
    Client,
    LoginError,
    NotExecutedError,
    Objects,
    OutcomeUnknownError,
    TlsCredentials,
    TlsError,
    UnavailableError,
)
from gpkvs.credentials import Access
from gpkvs.server.signs.metrics_reader import Scrape, ScrapeError
from tests.accounts import Account, Accounts
from tests.certificates import Authority, Pair, server_options
from tests.server.access.guarded import Guarded

PASSWORD = "pass:wörd"


@dataclass
class Place:
    """A server, and what its clients need."""

    guarded: Guarded
    tls: TlsCredentials
    other_ca: Path
    elsewhere: Pair  # the certificate of another server

    @property
    def target(self) -> str:
        """The server's address: the name localhost may have another, where nobody is."""
        return self.guarded.server.target

    def token(self, user: str) -> str:
        return self.guarded.headers[user][0][1].removeprefix("Bearer ")

    def client(self, user: str) -> Client:
        return Client(self.target, credentials=self.tls, token=self.token(user))

    def async_client(self, user: str) -> AsyncClient:
        return AsyncClient(self.target, credentials=self.tls, token=self.token(user))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("access")
    authority, other = Authority(folder), Authority(folder, "other")
    server, client = authority.issue("server", "IP:127.0.0.1"), authority.issue("client", "DNS:client.example")
    accounts = Accounts(
        folder / "users.toml",
        root=Account(admin=("*",), read=("*",), write=("*",)),
        reader=Account(read=("*",), password=PASSWORD),
        writer=Account(write=("*",)),
        nobody=Account(),
    )
    guarded = Guarded(accounts, folder, *server_options(server, authority.path), authority=authority, client=client)
    tls = TlsCredentials(authority.path, client.cert, client.key)
    yield Place(guarded, tls, other.path, authority.issue("elsewhere", "DNS:elsewhere.example"))
    guarded.close()


def test_a_token_and_a_password_let_in(place: Place) -> None:
    with place.client("root") as root:
        root.wait_ready()
        assert root.set(b"k", b"v") > 0
        root.create_table("made")
        assert {table.name for table in root.list_tables()} >= {"made"}
        root.drop_table("made")
        Objects(root).set(b"object", [1])
    with Client(place.target, credentials=place.tls, user="reader", password=PASSWORD) as reader:
        assert reader.get(b"k") == b"v"
        assert [key for key, _ in reader.scan(b"k")] == [b"k"]
        assert reader.count(b"k") == 1
        assert Objects(reader).get(b"object") == [1]
        with pytest.raises(AccessDeniedError, match="may not write") as denied:
            reader.set(b"k", b"w")
        assert not isinstance(denied.value, LoginError)
        with pytest.raises(AccessDeniedError):
            reader.info()
    with place.client("root") as root:
        assert root.info().version


def test_who_does_not_log_in_only_learns_that_the_server_is_there(place: Place) -> None:
    with Client(place.target, credentials=place.tls) as client:
        client.wait_ready()
        with pytest.raises(LoginError, match="log in"):
            client.get(b"k")
    with Client(place.target, credentials=place.tls, user="reader", password="wrong") as client:
        client.wait_ready()
        with pytest.raises(LoginError, match="wrong user, password or token"):
            client.get(b"k")


@pytest.mark.parametrize("fault", ["ca", "plain"])
def test_what_tls_does_not_allow_fails_at_once_and_says_what_to_do(place: Place, fault: str) -> None:
    target, credentials, words = {
        "ca": (place.target, replace(place.tls, ca=place.other_ca), "not trusted .*: name the CA"),
        "plain": (place.guarded.server.metrics_address, None, "wants TLS"),
    }[fault]
    kind = UnavailableError if credentials is None else TlsError
    began = time.monotonic()
    with Client(target, credentials=credentials, token=place.token("root")) as client:
        with pytest.raises(kind, match=words):
            client.set(b"k", b"v", timeout=1)  # NotExecutedError: nothing was sent
        if kind is TlsError:
            with pytest.raises(TlsError, match=words):
                client.wait_ready(30)
            assert time.monotonic() - began < 25


def test_a_server_that_wants_a_certificate_says_so_in_other_words(place: Place) -> None:
    with Client(place.target, credentials=TlsCredentials(place.tls.ca), token=place.token("root")) as client:
        with pytest.raises(NotExecutedError) as caught:
            client.set(b"k", b"v", timeout=1)
        assert "a client's certificate" in str(caught.value)


async def _heard_from(place: Place, context: ssl.SSLContext | None) -> str:
    """Return the error of a client with TLS at a port that is no server of gpkvs."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(9))  # an empty SETTINGS frame of HTTP/2
        await writer.drain()
        await reader.read()
        writer.close()  # since Python 3.12 the server waits for it

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server, AsyncClient(f"127.0.0.1:{port}", credentials=place.tls) as client:
        with pytest.raises(TlsError) as caught:
            await client.get(b"k")
    return str(caught.value)


def test_no_metrics_without_a_certificate(place: Place) -> None:
    access = Access(TlsCredentials(place.tls.ca), token=place.token("root"))
    with pytest.raises(ScrapeError, match=r"show a client certificate \(--tls-cert"):
        Scrape(place.guarded.server.metrics_address, access)


def test_no_tls_on_a_plain_port(place: Place) -> None:
    assert "no TLS there" in asyncio.run(_heard_from(place, None))


def test_a_certificate_of_other_names(place: Place) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(place.elsewhere.cert, place.elsewhere.key)
    context.set_alpn_protocols(["h2"])
    assert "certificate is not for 127.0.0.1" in asyncio.run(_heard_from(place, context))


def test_an_operation_without_a_right_fails_alone(place: Place) -> None:
    async def main() -> None:
        async with place.async_client("reader") as client:
            results = await asyncio.gather(
                *(client.get(b"absent") for _ in range(20)),
                *(client.incr(b"n") for _ in range(20)),
                *(client.set(b"n", b"1") for _ in range(20)),
                return_exceptions=True,
            )
            assert results[:20] == [None] * 20
            assert {type(result) for result in results[20:]} == {AccessDeniedError}
        async with place.async_client("writer") as client:
            results = await asyncio.gather(
                client.set(b"a", b"1"),
                client.get(b"a"),
                client.incr(b"n"),
                client.set(b"a", b"1", if_absent=True),
                client.delete(b"a"),
                return_exceptions=True,
            )
            assert [isinstance(result, AccessDeniedError) for result in results] == [False, True, True, True, False]
        async with place.async_client("nobody") as client:
            results = await asyncio.gather(*(client.get(b"k") for _ in range(9)), return_exceptions=True)
            assert {type(result) for result in results} == {AccessDeniedError}

    asyncio.run(main())


def test_a_pipeline_goes_on_behind_a_request_without_a_right(place: Place) -> None:
    async def main() -> None:
        read, write = Batch.of([(Op.GET, b"absent")]), Batch.of([(Op.SET, b"k", b"v")])
        async with place.async_client("reader") as client, client.pipeline() as pipeline:
            sent = [await pipeline.send(batch) for batch in (read, write, read)]
            results = await asyncio.gather(*sent, return_exceptions=True)
            assert [type(result) for result in results] == [RequestResult, AccessDeniedError, RequestResult]
        async with AsyncClient(place.target, credentials=place.tls) as client, client.pipeline() as pipeline:
            # gRPC loses the status of a stream that ends while a message is being written to it.
            with pytest.raises((NotExecutedError, OutcomeUnknownError)):
                await (await pipeline.send(write))

    asyncio.run(main())


def test_credentials_of_grpc_itself_are_taken(place: Place) -> None:
    assert isinstance(place.tls.ca, Path)
    credentials = grpc.ssl_channel_credentials(
        place.tls.ca.read_bytes(), Path(str(place.tls.key)).read_bytes(), Path(str(place.tls.cert)).read_bytes()
    )
    with Client(place.target, credentials=credentials, token=place.token("reader")) as client:
        assert client.get(b"absent") is None
