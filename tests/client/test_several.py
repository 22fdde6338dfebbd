"""Requests with checks, many at the same time: they share messages, and each has its own outcome."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import grpc

from gpkvs.batch import Batch, Condition, Op, RequestResult
from gpkvs.client import AsyncClient, ClientClosedError, InvalidArgumentError, OutcomeUnknownError, UnavailableError
from gpkvs.client.codec import Options, encode_lists
from gpkvs.client.retry import Failure
from gpkvs.errors import ConflictError
from gpkvs.proto.v1 import kv_pb2
from tests.client.dict_server import hang, lose_response, refuse, serving
from tests.client.test_gather import connect
from tests.serving import Server

PRESENT, ABSENT = Options(Condition.PRESENT), Options(Condition.ABSENT)
EQUALS = Condition.EQUALS


def request(check: Options, key: bytes, writes: list[tuple[bytes, bytes]], **options: Any) -> kv_pb2.BatchRequest:
    """Return a request of one check and some SETs."""
    ops = bytes([Op.CHECK]) + bytes([Op.SET]) * len(writes)
    keys, values = [key, *(key for key, _ in writes)], [value for _, value in writes]
    return encode_lists(ops, keys, values, "", [check, *(Options(**options) for _ in writes)])


def send(client: AsyncClient, message: kv_pb2.BatchRequest, timeout: float = 20) -> Any:
    return client._execute(message, changes=True, timeout=timeout)


def test_requests_of_different_shapes_share_messages(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            version = await client.set(b"a", b"1")
            messages = server.metric("grpc_server_handled_total", grpc_method="Batch")
            outcomes = await asyncio.gather(
                send(client, request(PRESENT, b"a", [(b"b", b"one"), (b"c", b"")])),
                send(client, request(ABSENT, b"a", [(b"d", b"no")])),
                send(
                    client, request(Options(Condition.EQUALS, version), b"a", [(b"long" * 9, b"three")], ttl_ms=10**9)
                ),
                send(client, request(PRESENT, b"none", [(b"d", b"no")])),
                send(client, request(ABSENT, b"none", [])),
                send(client, encode_lists(b"\5\7", [b"n", b"a"], [(3).to_bytes(8, "little")], "", [None, PRESENT])),
                return_exceptions=True,
            )
            assert server.metric("grpc_server_handled_total", grpc_method="Batch") == messages + 1
            shapes = [outcome.status.tolist() for outcome in outcomes if isinstance(outcome, RequestResult)]
            assert shapes == [[0, 0, 0], [0, 0], [1], [0, 0]]
            assert (outcomes[1].index, outcomes[1].found) == (0, version)
            assert (outcomes[3].index, outcomes[3].found) == (0, None)
            assert outcomes[5].value_list() == [(3).to_bytes(8, "little")]
            assert outcomes[5].versions.tolist()[1] == version
            assert [await client.get(key) for key in (b"b", b"c", b"d", b"long" * 9)] == [b"one", b"", None, b"three"]

    asyncio.run(main())


def test_transfers_by_many_callers_keep_the_sum(server: Server) -> None:
    """Optimistic transactions of two reads and two writes, repeated after conflicts."""
    accounts, seed = 12, random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            await client.batch([(Op.SET, b"%d" % i, b"100") for i in range(accounts)])

            async def read(key: bytes) -> tuple[int, int]:
                result = await client.execute(Batch.of([(Op.GET, key)]))
                return int(result.value_list()[0]), int(result.versions[0])

            async def move() -> None:
                for _ in range(4):
                    first, second = choose.sample([b"%d" % i for i in range(accounts)], 2)
                    while True:
                        (a, seen_a), (b, seen_b) = await asyncio.gather(read(first), read(second))
                        checks = [Options(Condition.EQUALS, seen_a), Options(Condition.EQUALS, seen_b), None, None]
                        message = encode_lists(
                            b"\7\7\2\2", [first, second] * 2, [b"%d" % (a - 1), b"%d" % (b + 1)], "", checks
                        )
                        with suppress(ConflictError):
                            await send(client, message)
                            break

            await asyncio.gather(*(move() for _ in range(16)))
            values = await asyncio.gather(*(client.get(b"%d" % i) for i in range(accounts)))
            assert sum(int(value or b"") for value in values) == 100 * accounts

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


def test_a_lost_response_leaves_all_of_them_unknown_and_a_refusal_none() -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            both = [request(ABSENT, b"a", [(b"b", b"1")]), request(ABSENT, b"a", [])]
            server.faults = [lose_response]
            first, second = await asyncio.gather(
                send(client, both[0]), client._execute(both[1], changes=False, timeout=5), return_exceptions=True
            )
            assert isinstance(first, OutcomeUnknownError)
            assert isinstance(second, RequestResult)  # a read is repeated
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
                client._send(request(ABSENT, b"a", [(b"c", b"1")]), client._loop.time() + 0.2),
                return_exceptions=True,
            )
            assert isinstance(late, OutcomeUnknownError)
            assert isinstance(other, Failure)
            assert other.executed
            calls = [asyncio.ensure_future(send(client, request(ABSENT, b"a", [(b"b", b"1")]))) for _ in range(200)]
            await asyncio.sleep(0.1)
            await client.close(grace_s=0.05)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {OutcomeUnknownError, ClientClosedError}
            assert ClientClosedError in {type(outcome) for outcome in outcomes}

    asyncio.run(main())
