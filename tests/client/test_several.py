"""Small requests, many at the same time: they share messages, and each has its own outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import grpc

from gpkvs.batch import Op
from gpkvs.client import (
    AsyncClient,
    ClientClosedError,
    ConflictError,
    CorruptRecordError,
    DeadlineError,
    InvalidArgumentError,
    OutcomeUnknownError,
    UnavailableError,
)
from gpkvs.operations import OperationList
from tests.client.dict_server import hang, lose_response, refuse, serving
from tests.client.test_gather import connect
from tests.serving import Server

Check = dict[str, Any]
PRESENT: Check = {"present": True}
ABSENT: Check = {"absent": True}


def request(check: Check, key: bytes, writes: list[tuple[bytes, bytes]], **options: Any) -> OperationList:
    """Return a request of one check and some SETs."""
    operations = OperationList()
    operations.check(key, **check)
    for written, value in writes:
        operations.set(written, value, **options)
    return operations


def send(client: AsyncClient, operations: OperationList, timeout: float = 20) -> Coroutine[Any, Any, list[Any]]:
    return client._commit(operations, None, timeout)


async def found(client: AsyncClient, key: bytes) -> tuple[bytes, int]:
    """Return the value of a key that is there, and its version."""
    pair = await client.get_with_version(key)
    assert pair
    return pair


def test_requests_of_different_shapes_share_messages(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            version = await client.set(b"a", b"1")
            messages = server.metric("grpc_server_handled_total", grpc_method="Batch")
            counted = request(PRESENT, b"a", [])
            counted.incr(b"n", 3)
            outcomes = await asyncio.gather(
                send(client, request(PRESENT, b"a", [(b"b", b"one"), (b"c", b"")])),
                send(client, request(ABSENT, b"a", [(b"d", b"no")])),
                send(client, request({"version": version}, b"a", [(b"long" * 9, b"three")], ttl=10**6)),
                send(client, request(PRESENT, b"none", [(b"d", b"no")])),
                send(client, request(ABSENT, b"none", [])),
                send(client, counted),
                return_exceptions=True,
            )
            assert server.metric("grpc_server_handled_total", grpc_method="Batch") == messages + 1
            done = [outcome if isinstance(outcome, list) else type(outcome) for outcome in outcomes]
            assert done == [[True, *done[0][1:]], ConflictError, [True, done[2][1]], ConflictError, [True], [True, 3]]
            assert (outcomes[1].index, outcomes[1].found) == (0, version)
            assert (outcomes[3].index, outcomes[3].found) == (0, None)
            assert [version for _, version in [await found(client, key) for key in (b"b", b"c", b"long" * 9)]] == [
                *outcomes[0][1:],
                outcomes[2][1],
            ]
            assert [await client.get(key) for key in (b"b", b"c", b"d", b"long" * 9)] == [b"one", b"", None, b"three"]

    asyncio.run(main())


def test_batches_that_write_share_messages(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            messages = server.metric("grpc_server_handled_total", grpc_method="Batch")
            keys = [b"%d" % i for i in range(40)]
            outcomes = await asyncio.gather(
                *(client.batch([(Op.SET, key, key), (Op.DELETE, b"none"), (Op.SET, b"last", key)]) for key in keys),
                client.batch([(Op.GET, b"0"), (Op.SET, b"other", b"")]),  # such a message has no GET
            )
            assert server.metric("grpc_server_handled_total", grpc_method="Batch") == messages + 2
            assert server.metric("gpkvs_batch_requests_sum") == len(keys) + 1
            versions = [version for _, version in [await found(client, key) for key in keys]]
            assert [outcome[:2] for outcome in outcomes[:-1]] == [[version, False] for version in versions]
            assert await client.get(b"last") == keys[-1]

    asyncio.run(main())


def test_transfers_by_many_callers_keep_the_sum(server: Server) -> None:
    """Optimistic transactions of two reads and two writes, repeated after conflicts."""
    accounts, seed = 12, random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            await client.batch([(Op.SET, b"%d" % i, b"100") for i in range(accounts)])

            async def move() -> None:
                for _ in range(4):
                    first, second = choose.sample([b"%d" % i for i in range(accounts)], 2)
                    while True:
                        (a, seen_a), (b, seen_b) = await asyncio.gather(found(client, first), found(client, second))
                        operations = request({"version": seen_a}, first, [(first, b"%d" % (int(a) - 1))])
                        operations.check(second, version=seen_b)
                        operations.set(second, b"%d" % (int(b) + 1))
                        with suppress(ConflictError):
                            await send(client, operations)
                            break

            await asyncio.gather(*(move() for _ in range(16)))
            values = await asyncio.gather(*(client.get(b"%d" % i) for i in range(accounts)))
            assert sum(int(value or b"") for value in values) == 100 * accounts

    asyncio.run(main())


def test_requests_that_only_read_are_one_request_and_each_fails_by_itself() -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            await client.batch([(Op.SET, b"%d" % i, b"v" * i) for i in range(6)])
            server.corrupt.add(b"5")
            server.messages.clear()
            gather = asyncio.gather
            several, pair, none, broken, checked, transacted = await gather(
                client.get_all([b"3", b"x", b"1"]),
                client.get_with_version(b"2"),
                client.get_all([]),
                client.get_all([b"4", b"5"]),
                send(client, request(ABSENT, b"y", [])),
                client.transact(lambda t: t.get_all([b"1", b"4"])),
                return_exceptions=True,
            )
            assert (several, pair, none) == ({b"3": b"vvv", b"1": b"v"}, (b"vv", 4), {})
            assert isinstance(broken, CorruptRecordError)
            assert (checked, transacted) == ([True], {b"1": b"v", b"4": b"vvvv"})
            assert sorted(map(len, server.messages)) == [1, 2, 8]  # a check, those of the transaction, all reads
            server.messages.clear()
            server.corrupt.clear()
            large = [b"%d" % i for i in range(300)]
            await gather(client.get_all(large), client.get_all(large[:256]), client.get_all(large[:9]))
            assert sorted(len(message) for message in server.messages) == [265, 300]

    asyncio.run(main())


def test_reads_that_bring_much_go_in_several_messages() -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            await client.set(b"large", bytes(1 << 20))
            await client.get_all([b"large"])
            server.messages.clear()
            await asyncio.gather(*(client.get_all([b"large", b"%d" % i]) for i in range(9)))
            assert max(map(len, server.messages)) <= 4

    asyncio.run(main())


def test_a_wrong_request_does_not_take_the_others_with_it(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            outcomes = await asyncio.gather(
                send(client, request(ABSENT, b"a", [(b"b", b"1")])),
                send(client, request(ABSENT, b"", [(b"c", b"1")])),
                send(client, request(ABSENT, b"a", [(b"d", b"1")])),
                return_exceptions=True,
            )
            assert isinstance(outcomes[1], InvalidArgumentError)
            assert outcomes[1].index == 0
            assert [await client.get(key) for key in (b"b", b"c", b"d")] == [b"1", None, b"1"]

    asyncio.run(main())


def test_who_changes_a_request_that_is_on_its_way_harms_nobody_else(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            operations = request(ABSENT, b"none", [(b"early", b"1")])
            sending = [asyncio.create_task(send(client, one)) for one in (operations, request(ABSENT, b"none", []))]
            for pause in range(5):  # one of these is between the call and the message
                operations.set(b"late%d" % pause, b"1", if_absent=True)
                await asyncio.sleep(0)
            _, other = await asyncio.gather(*sending, return_exceptions=True)
            assert other == [True]
            assert await client.get_all([b"early", b"late4"]) == {b"early": b"1"}

    asyncio.run(main())


def test_a_lost_response_leaves_all_of_them_unknown_and_a_refusal_none() -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            both = [request(ABSENT, b"a", [(b"b", b"1")]), request(ABSENT, b"a", [])]
            server.faults = [lose_response]
            first, second = await asyncio.gather(send(client, both[0]), send(client, both[1]), return_exceptions=True)
            assert isinstance(first, OutcomeUnknownError)
            assert second == [True]  # a read is repeated
            server.faults = [refuse(grpc.StatusCode.UNAVAILABLE, "stopping")] * 9
            outcomes = await asyncio.gather(*(send(client, message) for message in both), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [UnavailableError] * 2

    asyncio.run(main())


def test_deadlines_and_the_end_of_the_client() -> None:
    async def main() -> None:
        async with serving() as server:
            client = connect(server)
            server.faults = [hang] * 3
            late, other = await asyncio.gather(
                send(client, request(ABSENT, b"a", [(b"b", b"1")]), timeout=0.1),
                send(client, request(ABSENT, b"a", []), timeout=0.2),
                return_exceptions=True,
            )
            assert isinstance(late, OutcomeUnknownError)
            assert isinstance(other, DeadlineError)  # it writes nothing
            calls = [asyncio.ensure_future(send(client, request(ABSENT, b"a", [(b"b", b"1")]))) for _ in range(200)]
            await asyncio.sleep(0.1)
            await client.close(grace_s=0.05)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {OutcomeUnknownError, ClientClosedError}
            assert ClientClosedError in {type(outcome) for outcome in outcomes}

    asyncio.run(main())
