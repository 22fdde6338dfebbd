"""The blocking client, when a response is lost or a server refuses: what is repeated, and what the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.client import AsyncClient, Client, OutcomeUnknownError, RetryPolicy, UnavailableError
from gpkvs.errors import InvalidArgumentError
from gpkvs.proto.v1 import admin_pb2_grpc
from tests.client.dict_server import DictServer, lose_response, refuse, serving

FAST = RetryPolicy(attempts_max=3, delay_ms_first=1)


def blocking(work: Callable[[DictServer, Client], None], **settings: Any) -> None:
    """Run blocking calls in a thread, against a server in this one."""

    async def main() -> None:
        async with serving() as server:
            with Client(server.target, **{"retry": FAST, **settings}) as client:
                await asyncio.to_thread(work, server, client)

    asyncio.run(main())


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.set(b"k", b"v"),
        lambda client: client.delete(b"k"),
        lambda client: client.batch([(Op.GET, b"k"), (Op.SET, b"k", b"v")]),
        lambda client: client.execute(Batch.of([(Op.SET, b"k", b"v"), (Op.GET, b"k")])),
        lambda client: client.set_many(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64)),
        lambda client: client.delete_many(np.arange(3, dtype=np.uint64)),
    ],
    ids=["set", "delete", "batch", "execute", "set_many", "delete_many"],
)
def test_a_write_whose_response_is_lost_is_not_repeated(write: Callable[[Client], object]) -> None:
    def work(server: DictServer, client: Client) -> None:
        server.faults = [lose_response]
        with pytest.raises(OutcomeUnknownError):
            write(client)
        assert len(server.messages) == 1

    blocking(work)


def test_a_read_whose_response_is_lost_is_repeated() -> None:
    def work(server: DictServer, client: Client) -> None:
        server.data = {b"k": b"v"}
        server.faults = [lose_response, lose_response]
        assert client.get(b"k") == b"v"
        server.faults = [lose_response, lose_response]
        assert client.execute(Batch.of([(Op.GET, b"k")])).value_list() == [b"v"]
        assert len(server.messages) == 6

    blocking(work)


def test_an_older_server_that_does_not_look_at_the_layout_returns_no_number_of_other_bytes() -> None:
    def work(server: DictServer, client: Client) -> None:
        server.data = {bytes(8): b"no number"}
        with pytest.raises(InvalidArgumentError, match="layout is not u64"):
            client.get_many([0])

    blocking(work)


def test_a_deadline_ends_repeating_and_the_reason_is_told() -> None:
    """It does not wait for a pause that ends behind the deadline."""

    def work(server: DictServer, client: Client) -> None:
        server.rule = refuse(grpc.StatusCode.UNAVAILABLE, "the server is recovering")
        with pytest.raises(UnavailableError, match="recovering"):
            client.set(b"k", b"v")
        assert len(server.messages) == 1

    blocking(work, timeout=5, retry=RetryPolicy(delay_ms_first=60_000, delay_ms_max=60_000))


class LosesResponses(admin_pb2_grpc.AdminServicer):
    """Fails every call as a broken connection does."""

    async def CreateTable(self, _request: object, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    DropTable = ListTables = Info = CreateTable


@asynccontextmanager
async def losing_responses() -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    admin_pb2_grpc.add_AdminServicer_to_server(LosesResponses(), server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield target
    finally:
        await server.stop(None)


def test_whether_a_table_was_made_or_dropped_is_unknown_when_the_response_is_lost() -> None:
    def work(target: str) -> None:
        with Client(target) as client:
            for change in (client.create_table, client.drop_table):
                with pytest.raises(OutcomeUnknownError):
                    change("t")
            for ask in (client.list_tables, client.info):
                with pytest.raises(UnavailableError):
                    ask()

    async def main() -> None:
        async with losing_responses() as target:
            await asyncio.to_thread(work, target)
            async with AsyncClient(target) as client:
                for change in (client.create_table, client.drop_table):
                    with pytest.raises(OutcomeUnknownError):
                        await change("t")
                with pytest.raises(UnavailableError):
                    await client.list_tables()

    asyncio.run(main())
