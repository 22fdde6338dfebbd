"""What a client refuses before it sends anything, in short words, and what its errors name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.client import AsyncClient, Client, CorruptRecordError, GatherConfig, InvalidArgumentError, RetryPolicy
from gpkvs.info import StoreInfo
from gpkvs.proto.v1 import admin_pb2
from tests.client.dict_server import hang, serving

LONG = "x" * (60 << 20)
READ = Batch.of([(Op.GET, b"k")])
NUMBERS = np.zeros(1, np.uint64)
NOBODY = "127.0.0.1:1"


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    assert len(str(caught.value)) < 200
    return str(caught.value)


def test_numbers_that_would_never_end() -> None:
    assert "attempts_max" in refused(lambda: RetryPolicy(attempts_max=0))
    assert "messages_in_flight_max" in refused(lambda: GatherConfig(messages_in_flight_max=0))
    assert "ops_max" in refused(lambda: GatherConfig(ops_max=0))


def test_a_name_that_no_table_can_have() -> None:
    with Client(NOBODY) as client:
        for call in (
            lambda: Client(NOBODY, table=LONG),
            lambda: client.execute(READ, table=LONG),
            lambda: client.get_many(NUMBERS, table=LONG),
            lambda: client.create_table(LONG),
            lambda: client.drop_table(LONG),
        ):
            assert "62,914,560 characters" in refused(call)
        with pytest.raises(TypeError, match="name is str, not bytes"):
            client.execute(READ, table=b"t")  # type: ignore[arg-type]


def test_the_same_of_the_asynchronous_client() -> None:
    async def main() -> None:
        async with AsyncClient(NOBODY) as client:
            assert "in_flight_max" in refused(lambda: client.pipeline(in_flight_max=0))
            for call in (lambda: AsyncClient(NOBODY, table=LONG), lambda: client.pipeline(table=LONG)):
                assert "characters" in refused(call)
            for coroutine in (client.execute(READ, table=LONG), client.create_table(LONG), client.drop_table(LONG)):
                with pytest.raises(InvalidArgumentError, match="characters"):
                    await coroutine

    asyncio.run(main())


def test_what_a_store_and_a_server_say_of_themselves_has_the_same_names() -> None:
    of_store = {field.name for field in fields(StoreInfo)}
    of_server = set(admin_pb2.InfoResponse.DESCRIPTOR.fields_by_name)
    assert of_store - of_server == {"heap_free_bytes", "heap_given_bytes", "limits", "process_io", "recovery"}


def test_errors_name_the_server_and_the_table() -> None:
    async def main() -> None:
        async with serving() as server, AsyncClient(server.target, table="users", timeout=0.1) as client:
            server.faults = [hang, hang]
            with pytest.raises(TimeoutError, match=f"{server.target}, table 'users'"):
                await client.get(b"k")
            with pytest.raises(TimeoutError, match=server.target):
                await client.execute(READ)
            server.data, server.corrupt = {b"bad": b""}, {b"bad"}
            with pytest.raises(CorruptRecordError, match=f"{server.target}, table 'users'"):
                await client.get(b"bad", timeout=10)

    asyncio.run(main())
