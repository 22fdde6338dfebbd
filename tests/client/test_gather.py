"""Gathering of concurrent calls, and what becomes of each call when its message fails."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest
import uvloop

from gpkvs.batch import Op
from gpkvs.client import (
    AsyncClient,
    ClientClosedError,
    CorruptRecordError,
    DeadlineError,
    GatherConfig,
    InvalidArgumentError,
    NoSpaceError,
    OutcomeUnknownError,
    RetryPolicy,
    ServerBusyError,
    ServerError,
    UnavailableError,
    UnknownTableError,
)
from gpkvs.client.aio import Timeout
from tests.client.dict_server import DictServer, Operation, hang, lose_response, refuse, serving, wait_for

Run = Callable[[Coroutine[Any, Any, None]], None]
ONE_AT_A_TIME = GatherConfig(messages_in_flight_max=1)
FAST = RetryPolicy(attempts_max=3, delay_ms_first=1)


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return what runs a coroutine: both event loops."""
    runner: Run = request.param
    return runner


def connect(server: DictServer, timeout: float | None = 10, **settings: Any) -> AsyncClient:
    return AsyncClient(server.target, timeout=timeout, **{"retry": FAST, **settings})


async def outcomes(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


def test_concurrent_calls_share_messages_and_each_gets_its_own_response(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            await outcomes(*(client.set(b"%d" % i, b"v" * i) for i in range(500)))
            assert len(server.messages) <= 2
            values = await outcomes(*(client.get(b"%d" % i) for i in range(600)))
            assert values == [b"v" * i for i in range(500)] + [None] * 100
            assert len(server.messages) <= 4
            assert await outcomes(client.delete(b"7"), client.delete(b"none")) == [True, False]

    run(main())


def test_calls_one_after_the_other_are_not_held_back(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            for i in range(20):
                assert await client.get(b"%d" % i) is None
            assert [len(message) for message in server.messages] == [1] * 20

    run(main())


def test_what_is_called_while_a_message_is_in_flight_makes_the_next_one(run: Run) -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with serving() as server, connect(server, gather=ONE_AT_A_TIME) as client:
            server.faults = [wait_for(release)]
            first = asyncio.create_task(client.get(b"first"))
            await server.arrived.wait()
            others = []
            for i in range(50):
                others.append(asyncio.create_task(client.set(b"%d" % i, b"")))
                await asyncio.sleep(0)
            release.set()
            await asyncio.gather(first, *others)
            assert [len(message) for message in server.messages] == [1, 50]
            assert [key for _, key, _ in server.messages[1]] == [b"%d" % i for i in range(50)]

    run(main())


def test_a_message_is_bounded_by_operations_and_bytes(run: Run) -> None:
    async def main() -> None:
        bounds = GatherConfig(ops_max=10, bytes_max=1000)
        async with serving() as server, connect(server, gather=bounds) as client:
            await outcomes(*(client.set(b"%04d" % i, b"") for i in range(95)))
            assert max(map(len, server.messages)) == 10
            server.messages.clear()
            await outcomes(*(client.set(b"%04d" % i, bytes(396)) for i in range(10)))
            assert [len(message) for message in server.messages] == [2] * 5
            server.messages.clear()
            await client.set(b"large", bytes(5000))  # larger than a message shall be: it goes alone
            # What was read counts too: responses stay bounded when values are large.
            await client.get(b"large")
            server.messages.clear()
            await outcomes(*(client.get(b"large") for _ in range(4)))
            assert [len(message) for message in server.messages] == [1] * 4

    run(main())


def test_an_explicit_batch_is_never_merged(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            operations = [(Op.SET, b"a", b"1"), (Op.GET, b"a"), (Op.DELETE, b"a"), (Op.GET, b"a")]
            *_, results = await outcomes(
                *(client.set(b"%d" % i, b"") for i in range(9)), asyncio.ensure_future(_await(client.batch(operations)))
            )
            assert results == [1, b"1", True, None]
            assert sorted(len(message) for message in server.messages) == [4, 9]

    run(main())


async def _await(batch: Any) -> Any:
    return await batch


async def set_then_fail(client: AsyncClient) -> None:
    async with client.batch() as batch:
        batch.set(b"k", b"other")
        raise ZeroDivisionError


def test_a_batch_is_sent_at_the_end_of_its_block_unless_the_block_fails(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            async with client.batch() as batch:
                batch.set(b"k", b"v")
                batch.get(b"k")
                assert server.messages == []
            assert batch.results == [1, b"v"]
            with pytest.raises(ZeroDivisionError):
                await set_then_fail(client)
            async with client.batch():
                pass  # nothing to send
            assert len(server.messages) == 1

    run(main())


def test_a_write_whose_response_is_lost_is_not_repeated_a_read_is(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            server.faults = [lose_response]
            set_error, value, delete_error = await outcomes(
                client.set(b"k", b"v"), client.get(b"k"), client.delete(b"k2")
            )
            assert isinstance(set_error, OutcomeUnknownError)
            assert isinstance(set_error.__cause__, UnavailableError)
            assert isinstance(delete_error, OutcomeUnknownError)
            assert value == b"v"
            assert [[op for op, _, _ in message] for message in server.messages] == [[2, 1, 3], [1]]

    run(main())


def test_a_batch_whose_response_is_lost_is_not_repeated_unless_it_only_reads(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            server.faults = [lose_response, lose_response]
            with pytest.raises(OutcomeUnknownError):
                await client.batch([(Op.GET, b"k"), (Op.SET, b"k", b"v")])
            assert len(server.messages) == 1
            assert await client.batch([(Op.GET, b"k")]) == [b"v"]
            assert len(server.messages) == 3

    run(main())


def test_what_surely_was_not_executed_is_repeated(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            for code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                server.faults = [refuse(code, "queue full: try again later", "queue")] * 2
                assert await client.set(b"k", b"v") == 1
                server.faults = [refuse(code, "queue full: try again later", "queue")] * 2
                assert await client.batch([(Op.SET, b"k", b"v")]) == [1]
            assert len(server.executed) == 4
            server.faults = [refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full: later", "queue")] * 3
            with pytest.raises(ServerBusyError, match="queue full"):
                await client.set(b"k", b"v")

    run(main())


def refuse_values_over(limit: int, *, with_index: bool) -> Callable[..., Coroutine[Any, Any, None]]:
    """Refuse a message as a server with a lower limit than the client knows of."""

    async def rule(server: DictServer, operations: list[Operation], context: grpc.aio.ServicerContext) -> None:
        for i, (_, _, value) in enumerate(operations):
            if len(value) > limit:
                where = f"operation {i}, " if with_index else ""
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{where}values: too long")

    return rule


@pytest.mark.parametrize("with_index", [True, False])
def test_callers_do_not_suffer_for_each_others_bad_input(run: Run, with_index: bool) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            server.rule = refuse_values_over(10, with_index=with_index)
            results = await outcomes(*(client.set(b"%d" % i, bytes(20 if i in (3, 77) else 5)) for i in range(100)))
            for i, result in enumerate(results):
                if i in (3, 77):
                    assert isinstance(result, InvalidArgumentError)
                    assert result.field == "values"
                else:
                    assert isinstance(result, int)
            assert set(server.data) == {b"%d" % i for i in range(100) if i not in (3, 77)}
            assert sum(map(len, server.executed)) == 98  # nothing was executed twice

    run(main())


@pytest.mark.parametrize("with_index", [True, False])
def test_thousands_of_bad_calls_cost_the_good_ones_nothing(with_index: bool) -> None:
    count = 1500

    async def main() -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        a_row = range(count // 2)
        bad = {*random.Random(seed).sample(range(count), count - 10), *a_row}
        async with serving() as server, connect(server, timeout=None) as client:
            server.rule = refuse_values_over(10, with_index=with_index)
            results = await outcomes(*(client.set(b"%d" % i, bytes(20 if i in bad else 5)) for i in range(count)))
            assert {i for i, result in enumerate(results) if isinstance(result, InvalidArgumentError)} == bad
            assert sum(isinstance(result, int) for result in results) == count - len(bad)
            assert sum(map(len, server.executed)) == count - len(bad)
            assert sum(map(len, server.messages)) < count * 20  # n log n: sent whole each time it would be n^2 / 2

    asyncio.run(main())


def test_a_table_that_is_not_there_is_asked_for_once() -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            server.rule = refuse(grpc.StatusCode.NOT_FOUND, "table: there is no table 't'")
            errors = await outcomes(*(client.get(b"%d" % i) for i in range(100)))
            assert [type(error) for error in errors] == [UnknownTableError] * 100
            assert len(set(map(id, errors))) == 100
            assert len(server.messages) == 1

    asyncio.run(main())


def test_a_full_store_refuses_only_the_writes_that_do_not_fit(run: Run) -> None:
    async def rule(server: DictServer, operations: list[Operation], context: grpc.aio.ServicerContext) -> None:
        if any(op == Op.SET and key.startswith(b"new") for op, key, _ in operations):
            await refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "index full: delete keys", "index")(
                server, operations, context
            )

    async def main() -> None:
        async with serving() as server, connect(server) as client:
            server.data = {b"old": b"1", b"gone": b"1"}
            server.rule = rule
            fits, value, *refused, was_there = await outcomes(
                client.set(b"old", b"2"),
                client.get(b"other"),
                client.set(b"new1", b""),
                client.set(b"new2", b""),
                client.delete(b"gone"),
            )
            assert (fits, value, was_there) == (1, None, True)
            for error in refused:
                assert isinstance(error, NoSpaceError)
                assert error.resource == "index"
            assert server.data == {b"old": b"2"}
            # Reads and deletes come through at the second try, whatever the writes do.
            assert [op for op, _, _ in server.messages[1]] == [Op.GET, Op.DELETE]
            with pytest.raises(NoSpaceError, match="index full"):
                await client.batch([(Op.SET, b"new", b""), (Op.GET, b"old")])  # atomic: refused whole, sent once
            assert [op for op, _, _ in server.messages[-1]] == [Op.SET, Op.GET]

    run(main())


def test_each_call_keeps_its_own_deadline(run: Run) -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with serving() as server, connect(server, gather=ONE_AT_A_TIME) as client:
            server.faults = [wait_for(release)]
            start = time.monotonic()
            sent = [
                asyncio.create_task(coroutine)
                for coroutine in (
                    client.get(b"k", timeout=0.2),
                    client.set(b"k", b"v", timeout=0.2),
                    client.set(b"patient", b"v", timeout=None),
                )
            ]
            await server.arrived.wait()
            queued = asyncio.create_task(client.set(b"queued", b"v", timeout=0.1))
            read, write, unsent = await outcomes(*(_await(task) for task in (*sent[:2], queued)))
            assert 0.19 < time.monotonic() - start < 5  # gRPC counts from the beginning of its millisecond
            assert isinstance(read, DeadlineError)
            assert isinstance(read, TimeoutError)
            assert isinstance(write, OutcomeUnknownError)
            assert isinstance(unsent, DeadlineError)
            assert not sent[2].done()
            release.set()
            assert await sent[2] == 3
            assert [len(message) for message in server.messages] == [3]
            assert await client.get(b"queued") is None

    run(main())


def test_a_patient_call_outlives_a_hasty_one_in_its_message(run: Run) -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with serving() as server, connect(server) as client:
            server.faults = [wait_for(release)]
            patient = asyncio.create_task(client.set(b"patient", b"v", timeout=300))
            with pytest.raises(DeadlineError):
                await client.get(b"hasty", timeout=0.1)
            await asyncio.sleep(0.5)  # whatever else might end at that deadline has ended now
            assert not patient.done()
            release.set()
            assert await patient == 2
            assert [len(message) for message in server.messages] == [2]

    run(main())


def test_a_later_call_may_have_the_earlier_deadline(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server, gather=ONE_AT_A_TIME) as client:
            server.faults = [hang]
            patient = asyncio.create_task(client.get(b"patient", timeout=300))
            await server.arrived.wait()
            with pytest.raises(DeadlineError):
                await asyncio.wait_for(client.get(b"hasty", timeout=0.1), 30)
            patient.cancel()

    run(main())


@pytest.mark.parametrize(("operation", "error"), [(Op.GET, DeadlineError), (Op.SET, OutcomeUnknownError)])
def test_a_batch_has_a_deadline(run: Run, operation: Op, error: type[Exception]) -> None:
    async def main() -> None:
        async with serving() as server, connect(server, timeout=0.1) as client:
            server.faults = [hang]
            with pytest.raises(error):
                await client.batch([(operation, b"k", b"v") if operation == Op.SET else (operation, b"k")])

    run(main())


def test_a_deadline_ends_repeating_and_says_why_it_was_repeated(run: Run) -> None:
    async def main() -> None:
        slow = RetryPolicy(delay_ms_first=60_000, delay_ms_max=60_000)  # the deadline comes in the first pause
        async with serving() as server, connect(server, retry=slow) as client:
            server.rule = refuse(grpc.StatusCode.UNAVAILABLE, "the server is recovering")
            with pytest.raises(DeadlineError, match="recovering"):
                await client.set(b"k", b"v", timeout=1)
            with pytest.raises(UnavailableError, match="recovering"):
                await client.batch([(Op.SET, b"k", b"v")], timeout=1)

    run(main())


def test_where_nobody_listens_nothing_was_executed(run: Run) -> None:
    async def main() -> None:
        async with serving() as server:
            pass
        async with connect(server) as client:
            for call in (client.get(b"k"), client.set(b"k", b"v"), _await(client.batch([(Op.SET, b"k", b"v")]))):
                with pytest.raises(UnavailableError, match="is the server running there"):
                    await call
            with pytest.raises(UnavailableError, match="is not ready after"):
                await client.wait_ready(0.2)

    run(main())


def test_a_cancelled_call_does_not_disturb_the_others(run: Run) -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with serving() as server, connect(server, gather=ONE_AT_A_TIME) as client:
            server.faults = [wait_for(release)]
            tasks = [asyncio.create_task(client.set(b"%d" % i, b"")) for i in range(3)]
            await server.arrived.wait()
            queued = [asyncio.create_task(client.set(b"q%d" % i, b"")) for i in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            queued[1].cancel()
            release.set()
            results = await outcomes(*(_await(task) for task in (*tasks, *queued)))
            assert [isinstance(result, asyncio.CancelledError) for result in results] == [False, True, False] * 2
            assert [key for _, key, _ in server.messages[1]] == [b"q0", b"q2"]

    run(main())


def test_closing_leaves_nobody_waiting(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server, gather=ONE_AT_A_TIME) as client:
            server.faults = [hang]
            sent = [asyncio.create_task(client.get(b"k")), asyncio.create_task(client.set(b"k", b"v"))]
            await server.arrived.wait()
            queued = asyncio.create_task(client.set(b"queued", b"v"))
            await asyncio.sleep(0)
            await client.close(grace_s=0.05)
            read, write, unsent = await outcomes(*(_await(task) for task in (*sent, queued)))
            assert isinstance(read, ClientClosedError)
            assert isinstance(write, OutcomeUnknownError)
            assert isinstance(unsent, ClientClosedError)
            for call in (client.get(b"k"), _await(client.batch([(Op.GET, b"k")]))):
                with pytest.raises(ClientClosedError):
                    await call

    run(main())


def test_a_corrupt_record_is_the_error_of_its_reader_alone(run: Run) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            server.data = {b"good": b"1", b"bad": b"2"}
            server.corrupt = {b"bad"}
            good, bad = await outcomes(client.get(b"good"), client.get(b"bad"))
            assert good == b"1"
            assert isinstance(bad, CorruptRecordError)
            with pytest.raises(CorruptRecordError, match=r"operation 1.*writes of the request"):
                await client.batch([(Op.SET, b"k", b"v"), (Op.GET, b"bad")])
            assert server.data[b"k"] == b"v"

    run(main())


@pytest.mark.parametrize("column", ["status", "versions", "value_lengths", "values"])
def test_a_response_that_does_not_fit_is_an_error_not_a_value(run: Run, column: str) -> None:
    async def main() -> None:
        async with serving() as server, connect(server) as client:
            server.data = {b"k": b"v"}
            server.mangle = lambda response: setattr(response, column, getattr(response, column) + b"x")
            read, write = await outcomes(client.get(b"k"), client.set(b"w", b""))
            assert isinstance(read, ServerError)
            assert isinstance(write, OutcomeUnknownError)

    run(main())


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_bad_input_is_refused_before_anything_is_sent(run: Run, timeout: Timeout) -> None:
    async def main() -> None:
        async with serving() as server, connect(server, message_bytes_max=1 << 20) as client:
            with pytest.raises(InvalidArgumentError, match="1 to 4,096"):
                await client.get(b"", timeout=timeout)
            with pytest.raises(InvalidArgumentError, match="key_bytes_max"):
                await client.delete(bytes(4097), timeout=timeout)
            with pytest.raises(InvalidArgumentError, match="value_bytes_max"):
                await client.set(b"k", bytes((128 << 20) + 1), timeout=timeout)
            with pytest.raises(TypeError, match=r"\.encode\(\)"):
                await client.get("text")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="a value is bytes"):
                await client.set(b"k", 7)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match=r"Op\.SET, key, value"):
                await client.batch([(Op.SET, b"k")])
            with pytest.raises(InvalidArgumentError, match="message_bytes_max"):
                await client.batch([(Op.SET, b"k%d" % i, bytes(1 << 18)) for i in range(5)])
            assert server.messages == []

    run(main())
