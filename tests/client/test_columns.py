"""The clients' columns: numbers of u64 tables, pipelines, and tables made and dropped; against a real server."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import uvloop

from gpkvs.batch import Batch, Op
from gpkvs.client import (
    AsyncClient,
    Client,
    ClientClosedError,
    InvalidArgumentError,
    NoSpaceError,
    NotExecutedError,
    OutcomeUnknownError,
    TableExistsError,
    UnavailableError,
    UnknownTableError,
)
from gpkvs.columns.numbers import gets_of, sets_of
from tests.conftest import assert_clean
from tests.serving import Server, StartServer

KEYS = np.array([0, 1, 2**63, 2**64 - 1, 7], np.uint64)


def sets(count: int, value: bytes = b"v") -> list[Batch]:
    return [Batch.of([(Op.SET, b"%d" % i, value), (Op.GET, b"%d" % i)]) for i in range(count)]


def test_numbers_in_and_out(server: Server) -> None:
    with Client(server.target, table="n") as client:
        made = client.create_table("n", layout="u64", index_bytes=1 << 20)
        assert (made.name, made.layout, made.records) == ("n", "u64", 0)
        client.set_many(KEYS[:4], KEYS[:4] // 2)
        values, found = client.get_many(KEYS)
        assert values.tolist() == [0, 0, 2**62, 2**63 - 1, 0]
        assert found.tolist() == [True, True, True, True, False]
        assert values.dtype == np.uint64
        assert client.get_many(KEYS[:2])[0].tolist() == [0, 0]
        assert client.delete_many(KEYS[1:]).tolist() == [True, True, True, False]
        assert [(table.name, table.records) for table in client.list_tables()] == [("default", 0), ("n", 1)]
        with pytest.raises(TableExistsError, match="'n' already"):
            client.create_table("n")
        with pytest.raises(InvalidArgumentError, match="4 keys"):
            client.set_many(KEYS[:4], KEYS)
        for wrong in (KEYS.astype(np.int64), KEYS.astype(np.float64), KEYS.reshape(5, 1), [1.5], [-1], [2**64]):
            with pytest.raises(InvalidArgumentError, match=r"out of range|whole number"):
                client.get_many(wrong)
        client.batch([])
        client.execute(Batch.of([(Op.SET, bytes(8), b"no number")]), table="default")
        with pytest.raises(InvalidArgumentError, match="has the layout bytes"):
            client.get_many(KEYS[:1], table="default")
        client.drop_table("n")
        with pytest.raises(UnknownTableError, match="'n'"):
            client.get_many(KEYS)
        with pytest.raises(UnknownTableError, match="'n'"):
            client.drop_table("n")


def test_a_pipeline_of_numbers(server: Server) -> None:
    count, size = 20, 4096
    keys = np.random.default_rng(3).permutation(count * size).astype(np.uint64).reshape(count, size)

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            await client.create_table("n", layout="u64", index_bytes=8 << 20)
            async with client.pipeline(table="n") as pipeline:
                written = [
                    result async for result in pipeline.results(sets_of(row, row + np.uint64(1)) for row in keys)
                ]
                assert len(written) == count
                assert not any(result.status.any() for result in written)
                at = 0
                async for result in pipeline.results(gets_of(row) for row in keys):
                    assert (result.values.view(np.uint64) == keys[at] + np.uint64(1)).all()
                    at += 1
            values, found = await client.get_many(keys.ravel(), table="n")
            assert found.all()
            assert (values == keys.ravel() + np.uint64(1)).all()
            assert (await client.delete_many(keys[0], table="n")).all()
            await client.set_many(keys[0], keys[0], table="n")
            assert [table.records for table in await client.list_tables()] == [0, count * size]
            await client.drop_table("n")
            with pytest.raises(UnknownTableError):
                await client.drop_table("n")

    uvloop.run(main())


def test_one_failed_request_leaves_the_others_alone(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "1MiB")

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            async with client.pipeline() as pipeline:
                good = await pipeline.send(sets(1)[0])
                full = await pipeline.send(Batch.of([(Op.SET, b"%d" % i, bytes(40_000)) for i in range(50)]))
                with pytest.raises(InvalidArgumentError, match="at least one operation"):
                    await pipeline.send(Batch.of([]))
                last = await pipeline.send(sets(1)[0])
                assert (await good).value_list() == (await last).value_list() == [b"v"]
                with pytest.raises(NoSpaceError, match="heap full"):
                    await full
            with pytest.raises(ClientClosedError):
                await pipeline.send(sets(1)[0])
            async with client.pipeline(table="none") as pipeline:
                results = pipeline.results(sets(3))
                with pytest.raises(UnknownTableError, match="'none'"):
                    await anext(results)

    uvloop.run(main())


def test_many_are_in_flight_but_no_more_than_allowed(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client, client.pipeline(in_flight_max=4) as pipeline:
            results = []
            for batch in sets(200):
                results.append(await pipeline.send(batch))
                assert sum(not result.done() for result in results) <= 4
            assert len(await asyncio.gather(*results)) == 200

    uvloop.run(main())
    assert server.metric("gpkvs_batch_requests_bucket", le="4.0") == server.metric("gpkvs_batch_requests_count")


def test_leaving_the_block_waits_for_responses_but_not_after_an_error(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            async with client.pipeline() as pipeline:
                results = [await pipeline.send(batch) for batch in sets(20)]
            assert all(result.done() for result in results)
            server.freeze()  # so that no response can come
            try:
                with suppress(KeyError):
                    async with client.pipeline() as pipeline:
                        result = await pipeline.send(sets(1)[0])
                        raise KeyError
            finally:
                server.thaw()
            assert isinstance(result.exception(), OutcomeUnknownError)

    uvloop.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_of_the_server_fails_what_is_without_a_response(tmp_path: Path, number: int) -> None:
    """What the client calls not executed is not there; what it calls unknown may be; after SIGKILL all of it is."""
    data = tmp_path / "store"
    server = Server(data, tmp_path)
    acknowledged: set[int] = set()
    failures: dict[int, Exception] = {}

    async def main() -> None:
        async with AsyncClient(server.target) as client, client.pipeline() as pipeline:
            results: list[asyncio.Future[object]] = []
            for i in range(1_000_000):
                try:
                    results.append(await pipeline.send(Batch.of([(Op.SET, b"%d" % i, b"v")])))  # type: ignore[arg-type]
                except UnavailableError:
                    break
                if i == 200:
                    server.process.send_signal(number)
            for i, result in enumerate(await asyncio.gather(*results, return_exceptions=True)):
                if isinstance(result, Exception):
                    failures[i] = result
                else:
                    acknowledged.add(i)

    try:
        uvloop.run(main())
        assert len(acknowledged) > 100
        allowed = NotExecutedError | OutcomeUnknownError if number == signal.SIGTERM else OutcomeUnknownError
        assert all(isinstance(error, allowed) for error in failures.values()), failures
        assert server.process.wait(60) == (0 if number == signal.SIGTERM else -number)
    finally:
        server.kill()
    again = Server(data, tmp_path)
    try:
        with Client(again.target) as client:
            records = client.info().tables[0].records
            assert all(client.get(b"%d" % i) == b"v" for i in sorted(acknowledged)[-50:])
            for i, error in failures.items():
                assert isinstance(error, OutcomeUnknownError) or client.get(b"%d" % i) is None
        again.stop()
    finally:
        again.kill()
    assert_clean(data)
    assert len(acknowledged) <= records <= len(acknowledged) + len(failures)
