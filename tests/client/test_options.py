"""Operations that look before they act, through the clients: gathered, as columns, and in a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpkvs.batch import Batch, Condition, Op
from gpkvs.client import AsyncClient, Client, OutcomeUnknownError
from gpkvs.client.codec import Options
from gpkvs.errors import (
    ConditionFailedError,
    ConflictError,
    InvalidArgumentError,
    NotANumberError,
    NumberOverflowError,
)
from tests.client.dict_server import lose_response, serving
from tests.client.test_gather import FAST, connect
from tests.serving import Server

ABSENT, PRESENT = Options(Condition.ABSENT), Options(Condition.PRESENT)


def number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def submit(client: AsyncClient) -> Callable[..., asyncio.Future[Any]]:
    """Return what queues one operation, as the methods of the client do."""

    def queue(op: Op, key: bytes, value: bytes = b"", options: Options | None = None) -> asyncio.Future[Any]:
        return client._gatherer.submit(op, key, value, client._loop.time() + 20, options)

    return queue


def test_operations_of_all_kinds_are_gathered(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            do = submit(client)
            first = await do(Op.SET, b"k", b"one", ABSENT)
            outcomes = await asyncio.gather(
                do(Op.SET, b"k", b"two", ABSENT),
                do(Op.SET, b"k", b"two", Options(Condition.EQUALS, first)),
                do(Op.GET, b"k"),
                do(Op.SET, b"none", b"", PRESENT),
                do(Op.DELETE, b"none", b"", PRESENT),
                do(Op.DELETE, b"none"),
                do(Op.EXISTS, b"k"),
                do(Op.INCREMENT, b"n", number(-3)),
                do(Op.INCREMENT, b"n", number(2**63 - 1)),
                do(Op.INCREMENT, b"n", number(2**63 - 1)),
                do(Op.INCREMENT, b"k", number(1)),
                do(Op.APPEND, b"k", b"!"),
                do(Op.GET, b"k"),
                return_exceptions=True,
            )
            assert server.metric("gpkvs_batch_requests_sum") <= 3  # the first of them, and few messages
            failed, second, *rest = outcomes
            assert isinstance(failed, ConditionFailedError)
            assert failed.version == first < second
            assert rest[0] == b"two"
            for missing in rest[1:3]:
                assert isinstance(missing, ConditionFailedError)
                assert missing.version is None
            assert rest[3:7] == [False, True, -3, 2**63 - 4]
            assert isinstance(rest[7], NumberOverflowError)
            assert isinstance(rest[8], NotANumberError)
            assert rest[10] == b"two!"

    asyncio.run(main())


def test_two_hundred_callers_and_one_key(server: Server) -> None:
    """All read the same version; one of them is first."""

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            do = submit(client)
            outcomes = await asyncio.gather(
                *(do(Op.SET, b"k", b"%d" % i, ABSENT) for i in range(200)), return_exceptions=True
            )
            done = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, int)]
            assert len(done) == 1
            assert all(isinstance(outcome, ConditionFailedError | int) for outcome in outcomes)
            assert await client.get(b"k") == b"%d" % done[0]

    asyncio.run(main())


def test_a_request_too_many_does_not_take_the_others_with_it(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            do = submit(client)
            bad, good = await asyncio.gather(
                do(Op.INCREMENT, b"n", b"short"), do(Op.INCREMENT, b"n", number(4)), return_exceptions=True
            )
            assert isinstance(bad, InvalidArgumentError)
            assert good == 4

    asyncio.run(main())


def checked(expected: int) -> Batch:
    batch = Batch.of([(Op.SET, b"b", b"x"), (Op.CHECK, b"a"), (Op.DELETE, b"a")])
    return replace(batch, conditions=np.array([0, 3, 0], np.uint8), expected=np.array([0, expected, 0], np.uint64))


def test_a_conflict_names_the_check_and_is_not_repeated(server: Server) -> None:
    async def main(version: int) -> None:
        async with AsyncClient(server.target) as client:
            with pytest.raises(ConflictError) as caught:
                await client.execute(checked(version + 1))
            assert (caught.value.index, caught.value.found) == (1, version)
            async with client.pipeline() as pipeline:
                results = [await pipeline.send(checked(expected)) for expected in (version + 1, version, version)]
                first, second, third = await asyncio.gather(*results, return_exceptions=True)
            assert isinstance(first, ConflictError)
            assert (first.index, first.found) == (1, version)
            assert second.status.tolist() == [0, 0, 0]
            assert isinstance(third, ConflictError)
            assert (third.index, third.found) == (1, None)

    with Client(server.target) as client:
        version = client.set(b"a", b"1")
        with pytest.raises(ConflictError, match="operation 1") as caught:
            client.execute(checked(version - 1))
        assert (caught.value.index, caught.value.found) == (1, version)
        asyncio.run(main(version))
        assert client.get(b"b") == b"x"
        assert client.get(b"a") is None
    assert server.metric("gpkvs_requests_refused_total", reason="conflict") == 4


def test_only_operations_that_change_nothing_are_repeated() -> None:
    async def main() -> None:
        async with serving() as server, connect(server, retry=FAST) as client:
            do = submit(client)
            server.faults = [lose_response]
            assert await do(Op.EXISTS, b"k") is False
            assert len(server.messages) == 2
            for op in (Op.INCREMENT, Op.APPEND, Op.EXPIRE):
                server.faults = [lose_response]
                with pytest.raises(OutcomeUnknownError):
                    await do(op, b"k", number(1) if op is not Op.EXPIRE else b"")
            assert len(server.messages) == 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ops", "changes"),
    [
        ([Op.GET, Op.EXISTS, Op.CHECK, Op.EXPIRY], False),
        ([Op.GET, Op.SET], True),
        ([Op.EXISTS, Op.DELETE], True),
        ([Op.CHECK, Op.EXPIRE], True),
        ([Op.GET, Op.INCREMENT], True),
        ([Op.APPEND], True),
    ],
)
def test_what_changes_something(ops: list[Op], changes: bool) -> None:
    assert Batch.of([(op, b"k") for op in ops]).changes is changes
