"""What a client needs to be let in: which parameters fit each other, and where a secret may go in plain."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from gpkvs.batch import Batch, Op
from gpkvs.cli.main import app
from gpkvs.client import AsyncClient, Client, GpkvsError, InvalidArgumentError, TlsCredentials
from gpkvs.credentials import Access, is_loopback
from gpkvs.proto.v1 import kv_pb2

SECRET = "gpkvs_0123abcd_SECRET"
FAR = "db.example:7171"
NEAR = "127.0.0.1:1"
SUCH = "such as 127.0.0.1:7171"


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"token": SECRET, "user": "alice", "password": "p"}, "token"),
        ({"token": SECRET, "password": SECRET}, "token"),
        ({"user": "alice"}, "password"),
        ({"password": SECRET}, "user"),
        ({"token": ""}, "token"),
        ({"token": f"{SECRET}\n"}, "token"),
        ({"token": f"{SECRET} "}, "token"),
        ({"token": f"{SECRET}é"}, "token"),
        ({"user": "alice:x", "password": SECRET}, "user"),
        ({"user": "ali\nce", "password": SECRET}, "user"),
        ({"user": "", "password": SECRET}, "user"),
        ({"user": "alice", "password": ""}, "password"),
        ({"user": "alice", "password": f"{SECRET}\udc80"}, "password"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, str], named: str) -> None:
    assert refused(lambda: Client(NEAR, **given)).startswith(f"{named}: ")  # type: ignore[arg-type]


def test_a_certificate_and_its_key_belong_together() -> None:
    assert refused(lambda: TlsCredentials(cert=Path("a.pem"))).startswith("key: ")
    assert refused(lambda: TlsCredentials(key=Path("a.key"))).startswith("cert: ")


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for credentials in (TlsCredentials(ca=empty), TlsCredentials(ca=tmp_path / "missing.pem"), TlsCredentials(ca=b"x")):
        assert refused(lambda tls=credentials: Client(FAR, credentials=tls)).startswith("ca: ")  # type: ignore[misc]
        assert refused(credentials.context).startswith("ca: ")


def test_wrong_types() -> None:
    for given in ({"token": b"bytes"}, {"user": 1, "password": "p"}, {"credentials": "ca.pem"}):
        with pytest.raises(TypeError):
            Client(NEAR, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target",
    [
        "127.0.0.1:7171",
        "127.8.9.1:7171",
        "localhost:7171",
        "localhost",
        "[::1]:7171",
        "::1",
        "dns:localhost:7171",
        "dns:///localhost:7171",
        "dns:///[::1]:7171",
        "ipv4:127.0.0.1:7171",
        "ipv4:127.0.0.1:7171,127.0.0.2:7171",
        "ipv6:[::1]:7171",
        "unix:/run/gpkvs.sock",
        "unix:///run/gpkvs.sock",
        "unix-abstract:gpkvs",
    ],
)
def test_loopback(target: str) -> None:
    assert is_loopback(target)


@pytest.mark.parametrize(
    "target",
    [
        "",
        ":7171",
        "db.example:7171",
        "10.0.0.1:7171",
        "0.0.0.0:7171",
        "[::]:7171",
        "::1:7171",
        "localhost.example:7171",
        "127.0.0.1.example:7171",
        "localhost:7171/evil",
        "localhost:7171,db.example:7171",
        "ipv4:127.0.0.1:7171,10.0.0.1:7171",
        "dns://10.0.0.1/localhost:7171",
        "dns:////localhost:7171",
        "xds:///localhost:7171",
        "vsock:1:7171",
        "UNIX:/run/gpkvs.sock",
        "localhost%2eexample:7171",
    ],
)
def test_what_is_not_surely_loopback(target: str) -> None:
    assert not is_loopback(target)


@pytest.mark.parametrize("target", ["192.0.2.2", "localhost", "::1", "https://db.example:7171", "db:x", ":7171", ""])
def test_what_is_no_target(target: str) -> None:
    assert refused(lambda: Client(target)) == f"target: {target!r} is not HOST:PORT, {SUCH}"


@pytest.mark.parametrize("words", [("get", "k", "--target"), ("top", "--once", "--metrics")])
def test_a_command_names_the_address_that_is_none(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "192.0.2.2"])
    field = words[-1].removeprefix("--")
    assert (result.exit_code, result.stderr) == (2, f"gpkvs: {field}: '192.0.2.2' is not HOST:PORT, {SUCH}\n")


@pytest.mark.parametrize("target", ["localhost:7171", "127.0.0.1:0", "[::1]:7171", "dns:///db.example", "unix:/run/s"])
def test_what_is_a_target(target: str) -> None:
    Client(target).close()


def test_a_secret_goes_in_plain_only_to_this_machine() -> None:
    login = {"user": "alice", "password": SECRET}
    for given in ({"token": SECRET}, login):
        assert "--tls" in refused(lambda given=given: Client(FAR, **given))  # type: ignore[misc, arg-type]
        Client(NEAR, **given).close()  # type: ignore[arg-type]
        Client(FAR, **given, insecure_secrets=True).close()  # type: ignore[arg-type]
        Client(FAR, **given, credentials=TlsCredentials()).close()  # type: ignore[arg-type]
        Client(FAR, **given, credentials=grpc.ssl_channel_credentials()).close()  # type: ignore[arg-type]


def test_the_same_of_the_asynchronous_client() -> None:
    async def main() -> None:
        assert "--tls" in refused(lambda: AsyncClient(FAR, token=SECRET))
        assert refused(lambda: AsyncClient(NEAR, user="alice")).startswith("password: ")

    asyncio.run(main())


def test_no_secret_is_shown() -> None:
    key = f"-----BEGIN PRIVATE KEY-----{SECRET}".encode()
    tls = TlsCredentials(cert=b"-----BEGIN CERTIFICATE-----", key=key)
    for access in (Access(tls, token=SECRET), Access(tls, user="alice", password=SECRET)):
        assert SECRET not in repr(access)
    with Client(NEAR, token=SECRET) as client:
        assert SECRET not in repr(client)
        with pytest.raises(GpkvsError) as caught:
            client.get(b"k", timeout=0.05)
        assert SECRET not in str(caught.value)


class Recorder(grpc.GenericRpcHandler):
    """Notes the header of each call, and answers none."""

    def __init__(self) -> None:
        self.headers: dict[str, Any] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        metadata = dict(handler_call_details.invocation_metadata)  # type: ignore[attr-defined]
        self.headers[handler_call_details.method.rpartition("/")[2]] = metadata.get("authorization")  # type: ignore[attr-defined]


@pytest.fixture
def recorder() -> Iterator[tuple[Recorder, str]]:
    """Return what notes headers, and its address."""
    recorder = Recorder()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=(recorder,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield recorder, f"127.0.0.1:{port}"
        server.stop(None).wait()


EXPECTED = {"Batch", "Scan", "Count", "Watch", "CreateTable", "DropTable", "ListTables", "Info"}


@pytest.mark.parametrize(
    ("login", "header"),
    [
        ({}, None),
        ({"token": SECRET}, f"Bearer {SECRET}"),
        ({"user": "älice", "password": "p:ä"}, "Basic " + base64.b64encode("älice:p:ä".encode()).decode()),
    ],
)
def test_the_header_goes_along_with_every_call(
    recorder: tuple[Recorder, str], login: dict[str, str], header: str | None
) -> None:
    notes, target = recorder

    def attempt(call: Callable[[], object]) -> None:
        with pytest.raises(GpkvsError):
            call()

    with Client(target, **login) as client:  # type: ignore[arg-type]
        for call in (client.count, client.list_tables, client.info, lambda: client.create_table("t")):
            attempt(call)
        for call in (lambda: client.get(b"k"), lambda: client.drop_table("t"), lambda: list(client.scan_pieces())):
            attempt(call)
        attempt(client.watch)
    assert notes.headers == dict.fromkeys(EXPECTED, header)
    notes.headers.clear()

    async def main() -> None:
        async with AsyncClient(target, **login) as client:  # type: ignore[arg-type]
            for call in (client.get(b"k"), client.count(), client.list_tables(), client.info()):
                with pytest.raises(GpkvsError):
                    await call
            for call in (client.create_table("t"), client.drop_table("t"), anext(aiter(client.scan_pieces()))):  # type: ignore[assignment]
                with pytest.raises(GpkvsError):
                    await call
            with pytest.raises(GpkvsError):
                await client.follow()
            async with client.pipeline() as pipeline:
                sent = await pipeline.send(Batch.of([(Op.GET, b"k")]))
                with pytest.raises(GpkvsError):
                    await sent

    asyncio.run(main())
    assert notes.headers == dict.fromkeys(EXPECTED | {"Pipeline"}, header)


def test_every_method_of_the_protocol_that_a_client_calls_was_looked_at() -> None:
    methods = {method.name for method in kv_pb2.DESCRIPTOR.services_by_name["KV"].methods}
    assert methods - EXPECTED == {"Get", "Set", "Delete", "MultiGet", "Increment", "Pipeline"}
