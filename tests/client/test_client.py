"""The clients against a real server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from gpkvs.batch import Batch, Op, Status
from gpkvs.bench.peers.ports import free_port
from gpkvs.client import (
    AsyncClient,
    Client,
    DeadlineError,
    InvalidArgumentError,
    NoSpaceError,
    OutcomeUnknownError,
    RetryPolicy,
    UnavailableError,
    UnknownTableError,
)
from gpkvs.config import Limits
from tests.conftest import assert_clean
from tests.serving import Server, StartServer

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return what runs a coroutine: both event loops."""
    runner: Run = request.param
    return runner


def test_many_callers_see_what_a_dictionary_would_show(run: Run, server: Server) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    model: dict[bytes, bytes] = {}

    async def use(client: AsyncClient, key: bytes) -> None:
        for _ in range(20):
            choice = rng.random()
            if choice < 0.4:
                value = rng.randbytes(rng.choice([0, 1, 8, 100, 5000]))
                assert await client.set(key, value) > 0
                model[key] = value
            elif choice < 0.8:
                assert await client.get(key) == model.get(key)
            else:
                assert await client.delete(key) == (key in model)
                model.pop(key, None)

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            await client.wait_ready()
            await asyncio.gather(*(use(client, b"key%d" % i) for i in range(200)))
            values = await asyncio.gather(*(client.get(b"key%d" % i) for i in range(200)))
            assert values == [model.get(b"key%d" % i) for i in range(200)]

    run(main())


def test_a_batch_sees_its_own_writes_and_its_versions_rise(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target) as client:
            first = await client.set(b"a", b"0")
            async with client.batch() as batch:
                batch.get(b"a")
                batch.set(b"a", b"1")
                batch.get(b"a")
                batch.delete(b"a")
                batch.delete(b"a")
                batch.get(b"a")
                batch.set(b"b", b"")
            before, version, after, deleted, again, gone, last = batch.results
            assert (before, after, deleted, again, gone) == (b"0", b"1", True, False, None)
            assert isinstance(version, int)
            assert isinstance(last, int)
            assert first < version < last
            assert await client.batch([(Op.GET, b"b"), (Op.GET, b"a")]) == [b"", None]

    uvloop.run(main())


def test_columns_go_in_and_out(server: Server) -> None:
    count = 20_000
    keys = np.arange(count, dtype="<u8").view(np.uint8)
    values = np.arange(count, dtype="<u4").view(np.uint8)
    lengths = np.full(count, 8, np.uint32)
    writes = Batch(np.full(count, Op.SET, np.uint8), keys, lengths, values, np.full(count, 4, np.uint32))
    nothing = np.zeros(0, np.uint8)
    reads = Batch(np.full(count, Op.GET, np.uint8), keys, lengths, nothing, np.zeros(0, np.uint32))

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            written = await client.execute(writes)
            assert (written.status == Status.OK).all()
            assert (np.diff(written.versions.astype(np.int64)) > 0).all()
            read = await client.execute(reads)
            assert (read.values == values).all()
            assert (read.value_lengths == 4).all()
            assert (read.versions == written.versions).all()
            with pytest.raises(InvalidArgumentError, match="2 requests"):
                await client.execute(Batch.concatenate([reads, reads]))

    uvloop.run(main())


def test_a_full_store_refuses_writes_one_by_one(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "16MiB")

    async def main() -> None:
        async with AsyncClient(server.target) as client:
            await client.set(b"small", b"1")
            keys = [b"large%d" % i for i in range(100)]
            *written, small = await asyncio.gather(
                *(client.set(key, bytes(250_000)) for key in keys), client.get(b"small"), return_exceptions=True
            )
            assert small == b"1"
            fits = [key for key, result in zip(keys, written, strict=True) if isinstance(result, int)]
            refused = [result for result in written if not isinstance(result, int)]
            assert 20 < len(fits) < 68  # 16 MiB
            for error in refused:
                assert isinstance(error, NoSpaceError)
                assert error.resource == "heap"
            values = await asyncio.gather(*(client.get(key) for key in keys))
            assert [key for key, value in zip(keys, values, strict=True) if value is not None] == fits
            assert all(await asyncio.gather(*(client.delete(key) for key in fits)))
            assert await client.set(b"again", bytes(250_000)) > 0  # clears by itself when space returns

    uvloop.run(main())


def test_what_the_server_refuses_is_named(server: Server) -> None:
    async def main() -> None:
        lax = Limits(key_bytes_max=1 << 20, value_bytes_max=1 << 30)
        async with AsyncClient(server.target, limits=lax, message_bytes_max=1 << 30) as client:
            # As many callers, gathered: each one's error is its own.
            good, long_key, *others = await asyncio.gather(
                client.set(b"good", b"1"),
                client.set(bytes(5000), b""),
                *(client.set(b"%d" % i, b"") for i in range(10)),
                return_exceptions=True,
            )
            assert isinstance(good, int)
            assert all(isinstance(other, int) for other in others)
            assert isinstance(long_key, InvalidArgumentError)
            assert "key_bytes_max" in str(long_key)
            with pytest.raises(InvalidArgumentError, match="value_bytes_max"):
                await client.set(b"k", bytes((16 << 20) + 1))
            with pytest.raises(InvalidArgumentError, match="message_bytes_max"):
                await client.batch([(Op.SET, b"%d" % i, bytes(15 << 20)) for i in range(5)])
        async with AsyncClient(server.target, table="none") as client:
            with pytest.raises(UnknownTableError, match="none"):
                await client.get(b"k")

    uvloop.run(main())


def test_values_too_large_for_one_response_come_in_several(start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "128MiB")

    async def main() -> None:
        async with AsyncClient(server.target, timeout=60) as client:
            values = [bytes([i]) * 8_000_000 for i in range(8)]  # a response holds 48 MiB of them
            await asyncio.gather(*(client.set(b"%d" % i, value) for i, value in enumerate(values)))
        async with AsyncClient(server.target, timeout=60) as client:  # which does not know yet how large they are
            assert await asyncio.gather(*(client.get(b"%d" % i) for i in range(8))) == values

    uvloop.run(main())


def test_a_server_that_stands_still_meets_the_deadline(server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.target, timeout=0.3) as client:
            await client.set(b"k", b"1")
            server.freeze()
            try:
                read, write = await asyncio.gather(client.get(b"k"), client.set(b"k", b"2"), return_exceptions=True)
            finally:
                server.thaw()
            assert isinstance(read, DeadlineError)
            assert isinstance(write, OutcomeUnknownError)
            assert await client.get(b"k", timeout=30) in (b"1", b"2")

    uvloop.run(main())


def test_a_kill_loses_nothing_acknowledged_and_the_client_finds_the_next_server(run: Run, tmp_path: Path) -> None:
    address, data = f"127.0.0.1:{free_port()}", tmp_path / "store"
    acknowledged: dict[bytes, bytes] = {}
    doubtful: set[bytes] = set()

    async def write(client: AsyncClient, number: int, gone: asyncio.Event) -> None:
        for i in range(10_000):
            key = b"%d-%d" % (number, i)
            try:
                await client.set(key, key * 10)
                acknowledged[key] = key * 10
            except OutcomeUnknownError:
                doubtful.add(key)
            except UnavailableError:
                assert gone.is_set()
                return

    async def main() -> None:
        server, gone = Server(data, tmp_path, "--listen", address), asyncio.Event()
        async with AsyncClient(address, retry=RetryPolicy(attempts_max=2)) as client:
            writers = [asyncio.create_task(write(client, number, gone)) for number in range(50)]
            await asyncio.sleep(0.5)
            server.freeze()  # so that messages surely are in flight when it dies
            await asyncio.sleep(0.2)
            gone.set()
            server.kill()
            await asyncio.gather(*writers)
            assert len(acknowledged) > 100
            assert doubtful
            server = Server(data, tmp_path, "--listen", address)
            try:
                await client.wait_ready(30)
                keys = list(acknowledged)
                assert await asyncio.gather(*(client.get(key) for key in keys)) == list(acknowledged.values())
                for key, value in zip(doubtful, await asyncio.gather(*map(client.get, doubtful)), strict=True):
                    assert value in (None, key * 10)
                server.stop()
            finally:
                server.kill()

    run(main())
    assert_clean(data)


def test_calls_wait_out_a_restart_if_the_policy_lets_them(tmp_path: Path) -> None:
    address, data = f"127.0.0.1:{free_port()}", tmp_path / "store"

    async def main() -> None:
        server = Server(data, tmp_path, "--listen", address)
        policy = RetryPolicy(attempts_max=1000, delay_ms_max=100)
        async with AsyncClient(address, retry=policy, timeout=60) as client:
            await client.set(b"before", b"1")
            await asyncio.to_thread(server.stop)
            calls = [asyncio.create_task(client.get(b"before")), asyncio.create_task(client.set(b"after", b"2"))]
            await asyncio.sleep(0.3)
            assert not any(call.done() for call in calls)
            server = await asyncio.to_thread(Server, data, tmp_path, "--listen", address)
            try:
                value, version = await asyncio.gather(*calls)
                assert value == b"1"
                assert isinstance(version, int)
                server.stop()
            finally:
                server.kill()

    uvloop.run(main())
    assert_clean(data)


def test_the_blocking_client(server: Server) -> None:
    with Client(server.target) as client:
        assert client.get(b"k") is None
        first = client.set(b"k", b"v")
        assert client.set(b"k", b"w") > first
        assert client.get(b"k") == b"w"
        assert client.batch([(Op.DELETE, b"k"), (Op.GET, b"k")]) == [True, None]
        assert client.batch([]) == []
        assert client.delete(b"k") is False
        assert client.execute(Batch.of([(Op.SET, b"a", b"1"), (Op.GET, b"a")])).value_list() == [b"1"]
        assert client.info().key_bytes_max == 4096
        with pytest.raises(InvalidArgumentError):
            client.get(b"")
    with Client(f"127.0.0.1:{free_port()}", retry=RetryPolicy(attempts_max=2)) as client:
        with pytest.raises(UnavailableError, match="is the server running there"):
            client.set(b"k", b"v")
        with pytest.raises(UnavailableError):
            client.info()
