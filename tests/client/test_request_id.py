"""The id that a client gives its calls: who hears of it, and which calls have it."""

from __future__ import annotations

import asyncio
import threading
import traceback

import pytest

from gpkvs.batch import Batch, Op
from gpkvs.client import (
    AsyncClient,
    Client,
    InvalidArgumentError,
    RetryPolicy,
    UnavailableError,
    UnknownTableError,
    request_id,
)
from gpkvs.proto.v1 import admin_pb2
from tests.serving import Server, StartServer

ALL = ("--slow-log-over-ms", "0")
ONCE = RetryPolicy(attempts_max=1)


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """Return a server that notes every call."""
    return start_server(*ALL)


def noted(server: Server) -> list[tuple[str, str, int]]:
    """Return command, id and operations of each call, the oldest first; ids that the server made are left out."""
    calls = reversed(server.admin.SlowLog(admin_pb2.SlowLogRequest(clear=True)).calls)
    known = ("mine", "other", "inner")
    return [
        (call.command, call.request_id if call.request_id in known else "", call.operations)
        for call in calls
        if call.command != "SlowLog"
    ]


@pytest.mark.parametrize("name", ["", "two words", "é", "a\n", "x" * 65])
def test_an_id_is_short_and_printable(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="request_id"), request_id(name):
        raise AssertionError("the block must not run")
    with request_id("x" * 64):
        pass


def test_calls_of_a_block_have_its_id(server: Server) -> None:
    with Client(server.target) as client:
        with request_id("mine"):
            client.set(b"k", b"v")
            with request_id("inner"):
                client.create_table("t")
            client.table("t").set(b"k", b"v")
            with client.batch() as batch:
                batch.set(b"a", b"1")
                batch.set(b"b", b"2")
            assert len(list(client.scan())) == 3
            client.execute(Batch.of([(Op.GET, b"a")]))
            thread = threading.Thread(target=client.get, args=(b"a",))  # another thread's calls are its own
            thread.start()
            thread.join()
        client.get(b"k")
    assert noted(server) == [
        ("Batch", "mine", 1),
        ("CreateTable", "inner", 0),
        ("Batch", "mine", 1),
        ("Batch", "mine", 2),
        ("Scan", "mine", 3),
        ("Batch", "mine", 1),
        ("Batch", "", 1),
        ("Batch", "", 1),
    ]


def test_concurrent_calls_share_messages_with_those_of_their_id(server: Server) -> None:
    async def work(client: AsyncClient, name: str) -> None:
        with request_id(name):
            await asyncio.gather(*(client.set(b"%s%d" % (name.encode(), number), b"v") for number in range(50)))
            async with client.batch() as batch:
                batch.set(b"batch", b"v")

    async def run() -> None:
        async with AsyncClient(server.target) as client:
            await asyncio.gather(work(client, "mine"), work(client, "other"), client.set(b"none", b"v"))
            with request_id("mine"):
                async with client.pipeline() as pipeline:
                    await (await pipeline.send(Batch.of([(Op.GET, b"none")])))
                assert [key async for key, _ in client.scan(b"mine")]
                assert (await client.create_table("t")).name == "t"
            assert (await client.get(b"none")) == b"v"
            assert [name for _, _, name in client._gatherers] == [""], "what gathered them is gone"
            assert not [name for _, _, name in client._request_gatherers if name]

    asyncio.run(run())
    calls = noted(server)
    for name, operations in (("mine", 51 + 1 + 50), ("other", 51), ("", 2)):
        assert sum(count for _, given, count in calls if given == name) == operations, name
    assert len(calls) < 20, "calls of one id were gathered"
    assert {command for command, given, _ in calls if given == "mine"} == {"Batch", "Pipeline", "Scan", "CreateTable"}


@pytest.mark.parametrize("is_async", [False, True])
def test_errors_have_the_id_and_show_it(server: Server, is_async: bool) -> None:
    async def fail_async() -> None:
        async with AsyncClient(server.target) as client:
            await client.table("none").set(b"k", b"v")

    def fail() -> None:
        with Client(server.target) as client:
            client.table("none").set(b"k", b"v")

    with pytest.raises(UnknownTableError) as raised, request_id("mine"):
        asyncio.run(fail_async()) if is_async else fail()
    assert raised.value.request_id == "mine"
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.endswith("\nrequest mine\n")
    assert noted(server) == [("Batch", "mine", 0)]


def test_an_error_without_an_answer_has_the_id_of_its_caller() -> None:
    with Client("127.0.0.1:1", retry=ONCE) as client:
        with pytest.raises(UnavailableError) as raised, request_id("mine"):
            client.get(b"k")
        assert raised.value.request_id == "mine"
        with pytest.raises(UnavailableError) as raised:
            client.get(b"k")
        assert raised.value.request_id == ""
