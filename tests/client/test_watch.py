"""Watches of a store and of both clients: the same face; and what a client does when its server or itself is gone."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpkvs.batch import Batch, Op
from gpkvs.changes import ChangeKind, Position
from gpkvs.client import (
    AsyncClient,
    Client,
    ClientClosedError,
    DeadlineError,
    RetryPolicy,
    ServerBusyError,
    UnavailableError,
)
from gpkvs.errors import ChangesLostError, InvalidArgumentError, StoreClosedError, UnknownTableError
from gpkvs.proto.v1 import kv_pb2
from tests.client.dict_server import serving
from tests.ports import held_port
from tests.serving import Server

SECONDS_MAX = 30


def test_changes_come_one_by_one(db: Any) -> None:
    with db.watch() as changes:
        version = db.set(b"a", b"1")
        db.set(b"b", b"2", ttl=1000)
        db.delete(b"a")
        first, second, third = (next(changes) for _ in range(3))
        assert changes.position == third.position
    assert (first.kind, first.key, first.value, first.version) == (ChangeKind.SET, b"a", b"1", version)
    assert (first.expiry_ms, second.expiry_ms > first.time_ms) == (0, True)
    assert (third.kind, third.key, third.value, third.version) == (ChangeKind.DELETED, b"a", None, None)
    assert first.time_ms <= second.time_ms <= third.time_ms
    assert first.table == second.table == third.table


def test_a_watch_of_a_prefix_goes_on_at_a_position(db: Any) -> None:
    # A server holds changes for a while, a store as long as somebody watches.
    with db.watch() as kept:
        begin = kept.position
        db.batch([(Op.SET, b"user:1", b"1"), (Op.SET, b"item", b"2"), (Op.SET, b"user:2", b"3")])
        time.sleep(0.002)  # what one millisecond brings may be told together, and has one position
        db.set(b"item:2", b"4")
        time.sleep(0.002)
        db.set(b"user:3", b"5")
        with db.watch(b"user:", since=begin) as changes:
            found = [next(changes) for _ in range(3)]
        assert sorted(change.key for change in found[:2]) == [b"user:1", b"user:2"]
        assert (found[2].key, found[2].value) == (b"user:3", b"5")
        for since, expected in ((str(begin), found), (found[0].position, found), (found[1].position, found[2:])):
            with db.watch(b"user:", since=since) as changes:
                assert [next(changes).key for _ in expected] == [change.key for change in expected]


def test_a_watch_of_another_table(db: Any) -> None:
    name = f"beside.{os.urandom(4).hex()}"
    db.create_table(name, layout="u64", index_bytes=1 << 16)
    with db.table(name).watch() as changes, db.watch(table=name) as others:
        db.set(b"k", b"v")
        db.set(1, 2, table=name)
        for found in (next(changes), next(others)):
            assert (found.key, found.value, found.version) == (bytes([1] + 7 * [0]), bytes([2] + 7 * [0]), None)
            assert found.table == name
        db.drop_table(name)
        for watch in (changes, others):
            with pytest.raises(UnknownTableError, match="was dropped"):
                next(watch)


def test_what_cannot_be_watched(db: Any) -> None:
    name = f"numbers.{os.urandom(4).hex()}"
    db.create_table(name, layout="u64", index_bytes=1 << 16)
    for asked, error, text in (
        ({"table": "none"}, UnknownTableError, "no table 'none'"),
        ({"table": name, "prefix": b"1"}, InvalidArgumentError, "no prefixes"),
        ({"since": "1"}, InvalidArgumentError, "since: '1' is no position"),
        ({"prefix": 7}, TypeError, "is bytes, not int"),
        ({"since": "00000000000000ff-1"}, ChangesLostError, "not of this opening"),
    ):
        with pytest.raises(error, match=text), db.watch(**asked) as changes:
            next(changes)


def test_a_watch_of_a_closed_store_says_so(tmp_path: Path) -> None:
    import gpkvs  # noqa: PLC0415

    store = gpkvs.open(tmp_path / "store")
    changes = store.watch()
    store.set(b"k", b"v")
    threading.Timer(0.2, store.close).start()
    assert next(changes).key == b"k"
    with pytest.raises(StoreClosedError):
        next(changes)
    with pytest.raises(StoreClosedError):
        store.watch()


INTERRUPTED = """
import signal, sys
import gpkvs
signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored, where the tests run in the background
with gpkvs.open(sys.argv[1]) as store, store.watch() as changes:
    print("watching", flush=True)
    next(changes)
"""


def test_ctrl_c_ends_a_wait_in_a_store(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "watching\n"
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=SECONDS_MAX)[1]
    finally:
        process.kill()
        process.wait()


def test_whoever_closes_a_client_ends_its_watches(serve: Callable[[], Server]) -> None:
    target = serve().target
    for close in ("client", "watch"):
        client = Client(target)
        changes = client.watch()
        threading.Timer(0.2, client.close if close == "client" else changes.close).start()
        with pytest.raises(ClientClosedError):
            next(changes)
        with pytest.raises(ClientClosedError):
            next(changes)
        client.close()
        with pytest.raises(ClientClosedError):
            client.watch()

    async def run() -> None:
        async with AsyncClient(target) as client:
            changes = client.watch()
            waiting = asyncio.create_task(anext(changes))
            await asyncio.sleep(0.2)
            await client.close()
            with pytest.raises(ClientClosedError):
                await waiting
        for is_following in (True, False):
            async with AsyncClient(target) as client, await client.follow() as following, client.watch() as changes:
                waits = following.read(timeout=None) if is_following else anext(changes)
                reading = asyncio.create_task(waits)
                await asyncio.sleep(0.2)
                await (following if is_following else changes).close()
                with pytest.raises(ClientClosedError):
                    await reading
                assert not reading.cancelled()
        async with AsyncClient(target) as client, client.watch() as changes:
            waiting = asyncio.create_task(anext(changes))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await client.set(b"k", b"after")
            assert (await anext(changes)).value == b"after"

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


def test_reads_of_a_follower_wait_as_long_as_they_may(serve: Callable[[], Server]) -> None:
    target = serve().target
    with Client(target) as client, client.follow() as following:
        assert following.read() == []
        began = time.monotonic()
        assert following.read(timeout=0.3) == []
        assert time.monotonic() - began >= 0.3
        client.execute(Batch.of([(Op.SET, b"k", b"1")]))
        (entry,) = following.read(timeout=None)
        assert (entry.key_list(), entry.value_list()) == ([b"k"], [b"1"])
        assert following.position == following.newest()
        assert following.position.number == entry.number

    async def run() -> None:
        async with AsyncClient(target) as client, await client.follow() as following:
            assert await following.read() == []
            began = time.monotonic()
            assert await following.read(timeout=0.3) == []
            assert time.monotonic() - began >= 0.3
            await client.set(b"k", b"2")
            (entry,) = await following.read(timeout=None)
            assert entry.value_list() == [b"2"]
            assert following.position == await following.newest()

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


def test_no_server(unused: str) -> None:
    few = RetryPolicy(attempts_max=2, delay_ms_first=1)
    with Client(unused, retry=few) as client, pytest.raises(UnavailableError, match="is the server running"):
        client.watch()

    async def run() -> None:
        async with AsyncClient(unused, retry=few) as client:
            with pytest.raises(UnavailableError, match="is the server running"):
                await client.follow()

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


@pytest.fixture
def unused() -> Iterator[str]:
    with held_port() as port:
        yield f"127.0.0.1:{port}"


def test_a_server_that_says_nothing(serve: Callable[[], Server]) -> None:
    server = serve()
    server.freeze()
    try:
        with Client(server.target, timeout=0.5) as client, pytest.raises(DeadlineError):
            client.watch()

        async def run() -> None:
            async with AsyncClient(server.target, timeout=0.5) as client:
                with pytest.raises(DeadlineError):
                    await client.follow()

        asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
    finally:
        server.thaw()


def test_a_server_that_refuses_behind_the_first_response_is_not_asked_for_ever() -> None:
    few = RetryPolicy(attempts_max=3, delay_ms_first=1)

    def read(target: str) -> None:
        with Client(target, retry=few) as client, client.follow() as following:
            following.read(timeout=SECONDS_MAX)

    async def run() -> None:
        async with serving() as server:
            with pytest.raises(ServerBusyError, match="memory full"):
                await asyncio.to_thread(read, server.target)
            assert len(server.watches) == 3
            async with AsyncClient(server.target, retry=few) as client, await client.follow() as following:
                with pytest.raises(ServerBusyError, match="memory full"):
                    await following.read(timeout=SECONDS_MAX)
            assert len(server.watches) == 6

    asyncio.run(asyncio.wait_for(run(), 2 * SECONDS_MAX))


@pytest.mark.parametrize(("refused", "is_told"), [(2, True), (3, False)])
def test_the_newest_position_is_asked_for_again(refused: int, is_told: bool) -> None:
    few = RetryPolicy(attempts_max=3, delay_ms_first=1)

    def newest(target: str) -> Position:
        with Client(target, retry=few) as client, client.follow(prefix=b"k") as following:
            return following.newest()

    async def newest_too(target: str) -> Position:
        async with AsyncClient(target, retry=few) as client, await client.follow(prefix=b"k") as following:
            return await following.newest()

    async def run() -> None:
        async with serving() as server:
            for ask in (partial(asyncio.to_thread, newest), newest_too):
                server.positions_refused = refused
                server.watches.clear()
                if is_told:
                    assert await ask(server.target) == Position(1, 1)
                else:
                    with pytest.raises(UnavailableError, match="Socket closed"):
                        await ask(server.target)
                asked = [message for message in server.watches if message.only_position]
                assert asked == [kv_pb2.WatchRequest(prefix=b"k", only_position=True)] * 3

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


def test_whoever_reads_hears_of_any_error(serve: Callable[[], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(response: kv_pb2.WatchResponse) -> None:
        raise MemoryError("no memory for a response")

    with Client(serve().target) as client, client.follow() as following:
        monkeypatch.setattr("gpkvs.client.watch.decode_response", fail)
        client.set(b"k", b"v")
        for _ in range(2):
            with pytest.raises(MemoryError, match="for a response"):
                following.read(timeout=SECONDS_MAX)
        with pytest.raises(MemoryError, match="for a response"):
            client.follow()


def test_who_drops_a_watch_leaves_no_thread(serve: Callable[[], Server]) -> None:
    def watching() -> int:
        return sum(thread.name == "gpkvs-watch" for thread in threading.enumerate())

    with Client(serve().target) as client:
        changes = client.watch()
        client.set(b"k", b"v")
        assert next(changes).key == b"k"
        assert watching() == 1
        del changes
        gc.collect()
        give_up = time.monotonic() + SECONDS_MAX
        while watching():
            assert time.monotonic() < give_up
            time.sleep(0.01)
