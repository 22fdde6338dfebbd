"""Watch of a real server: what it tells, to whom it stops telling, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from gpkvs.batch import Batch, Op
from gpkvs.changes import ChangeKind, Changes, Position
from gpkvs.client import AsyncClient, Client, ClientError, RetryPolicy
from gpkvs.client.watch import decode_response
from gpkvs.errors import ChangesLostError, InvalidArgumentError, NoSpaceError, UnknownTableError
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.watch import changes_of
from tests.accounts import Account, Accounts
from tests.client.test_network import Proxy
from tests.conftest import assert_clean
from tests.server.wire import SET, Refused, batch
from tests.serving import Server, StartServer

LARGE = ("--heap-bytes", "96MiB", "--journal-bytes", "24MiB")
SECONDS_MAX = 30
PATIENT = RetryPolicy(attempts_max=1000, delay_ms_first=10, delay_ms_max=50)
SETS, DELETED, EXPIRED = ChangeKind.SET, ChangeKind.DELETED, ChangeKind.EXPIRED


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for tests that leave it as it is, but for tables of their own."""
    folder = tmp_path_factory.mktemp("watch")
    server = Server(folder / "store", folder, *LARGE)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def table(shared: Server, request: pytest.FixtureRequest) -> str:
    """Return an empty table of the shared server."""
    name = request.node.name[:64].translate({ord("["): ".", ord("]"): "."}).lower()
    shared.admin.CreateTable(admin_pb2.CreateTableRequest(name=name, index_bytes=1 << 18))
    return str(name)


@pytest.fixture
def pick() -> random.Random:
    seed = int(os.environ.get("GPKVS_SEED", random.randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return random.Random(seed)


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def begun(server: Server, **asked: Any) -> Any:
    """Open a watch; return its stream, behind the first response, which has no entries."""
    stream = server.kv.Watch(kv_pb2.WatchRequest(**asked))
    first = next(stream)
    assert not first.entries
    assert not asked.get("since") or first.position == asked["since"]
    return stream


def entries_of(stream: Any, keys: int) -> list[Changes]:
    """Read until so many keys were told."""
    found: list[Changes] = []
    while sum(map(len, found)) < keys:
        found += decode_response(next(stream)).entries
    assert sum(map(len, found)) == keys
    return found


def told(entries: list[Changes]) -> list[tuple[ChangeKind, bytes, bytes | None]]:
    return [(change.kind, change.key, change.value) for change in changes_of(entries, Position(0, 0))]


def test_what_changes_is_told_in_order(shared: Server, table: str, pick: random.Random) -> None:
    """What is told makes the table of nothing, version by version; several clients write together."""
    names = [b"key %d" % number for number in range(40)]
    rngs = [random.Random(pick.random()) for _ in range(3)]

    def write(rng: random.Random) -> None:
        with Client(shared.target, table=table) as client:
            for _ in range(60):
                operations: list[Any] = []
                for key in rng.sample(names, rng.randrange(1, 12)):
                    kind = rng.choice((Op.SET, Op.SET, Op.DELETE, Op.APPEND))
                    operations.append((kind, key) if kind is Op.DELETE else (kind, key, rng.randbytes(8)))
                client.batch(operations)

    stream = begun(shared, table=table)
    writers = [threading.Thread(target=write, args=(rng,)) for rng in rngs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with Client(shared.target, table=table) as client:
        end = client.set(b"end", b"")
        held: dict[bytes, bytes | None] = {}
        versions: dict[bytes, int] = {}
        newest, numbers, times = 0, [0], [0]
        while b"end" not in held:
            for entry in decode_response(next(stream)).entries:
                assert entry.name == table
                numbers.append(entry.number)
                times.append(entry.time_ms)
                for change in changes_of([entry], Position(0, 0)):
                    if change.kind is DELETED:
                        assert held.pop(change.key) is not None
                        continue
                    held[change.key] = change.value
                    assert change.version
                    assert change.version > max(versions.get(change.key, 0), newest)
                    versions[change.key] = change.version
                newest = max([newest, *entry.versions.tolist()])
        assert held == dict(client.scan())
    assert newest == end
    assert numbers == sorted(set(numbers))
    assert times == sorted(times)


def test_only_what_was_asked_for(shared: Server, table: str) -> None:
    shared.admin.CreateTable(admin_pb2.CreateTableRequest(name="beside", index_bytes=1 << 18))
    stream = begun(shared, table=table, prefix=b"user:")
    with Client(shared.target, table=table) as client:
        client.set(b"user:9", b"beside", table="beside")
        client.set(b"user", b"short")
        client.batch([(Op.SET, key, key[::-1]) for key in (b"a", b"user:1", b"uses:1", b"user:", b"user:22", b"z")])
        client.delete(b"a")
        client.delete(b"user:22")
        found = told(entries_of(stream, 4))
    assert sorted(found[:3]) == [
        (SETS, b"user:", b":resu"),
        (SETS, b"user:1", b"1:resu"),
        (SETS, b"user:22", b"22:resu"),
    ]
    assert found[3:] == [(DELETED, b"user:22", None)]
    shared.admin.DropTable(admin_pb2.DropTableRequest(name="beside"))


def test_a_quiet_watch_is_told_how_far_it_is(shared: Server, table: str) -> None:
    """Its position moves on behind what others write: it does not fall behind."""
    stream = begun(shared, table=table)
    with Client(shared.target) as client:
        for _ in range(10):
            client.set(b"other", b"")
        newest = client.follow().newest()
        positions = [next(stream).position for _ in range(3)]
    assert Position.parse(positions[-1]) == newest
    again = begun(shared, table=table, since=positions[-1])
    began = time.monotonic()
    assert not next(again).entries
    assert 0.5 < time.monotonic() - began < SECONDS_MAX


def test_all_tables(shared: Server, table: str) -> None:
    with Client(shared.target) as client, client.follow(all_tables=True) as following:
        made = client.create_table("made", layout="u64", index_bytes=1 << 16)
        client.set(b"k", b"1", table=table)
        client.set(7, 8, table="made")
        client.drop_table("made")
        entries: list[Changes] = []
        while not entries or not entries[-1].is_dropped:
            entries += following.read(timeout=SECONDS_MAX)
        assert following.position == following.newest()
    assert [(entry.name, len(entry), bool(entry.made), entry.is_dropped) for entry in entries] == [
        ("made", 0, True, False),
        (table, 1, False, False),
        ("made", 1, False, False),
        ("made", 0, False, True),
    ]
    first = entries[0]
    assert first.made
    assert (first.made.layout, first.made.index_bytes) == ("u64", made.index_bytes)
    assert {entry.table for entry in entries if entry.name == "made"} == {first.table}
    assert not len(entries[2].versions)
    assert [entry.is_whole for entry in entries] == [True] * 4


def test_a_table_of_numbers(shared: Server, table: str) -> None:
    del table
    shared.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20))
    keys = np.arange(20_000, dtype=np.uint64)
    with Client(shared.target, table="n") as client, client.follow() as following:
        client.set_many(keys, keys * 3)
        client.delete_many(keys[:5])
        entries: list[Changes] = []
        while sum(map(len, entries)) < 20_005:
            entries += following.read(timeout=SECONDS_MAX)
    assert all(not len(entry.versions) for entry in entries)
    found = np.concatenate([entry.keys.view("<u8") for entry in entries])
    values = np.concatenate([entry.values.view("<u8") for entry in entries])
    assert (np.sort(found[:20_000]) == keys).all()
    assert (values == 3 * found[:20_000]).all()
    assert sorted(found[20_000:].tolist()) == [0, 1, 2, 3, 4]
    assert all(change.version is None for change in changes_of(entries[-1:], Position(0, 0)))


def test_keys_that_expire(shared: Server, table: str) -> None:
    with Client(shared.target, table=table) as client, client.watch() as changes:
        client.set(b"k", b"v", ttl=0.2)
        client.set(b"stays", b"v", ttl=1000)
        client.expire(b"stays", None)
        found = [next(changes) for _ in range(4)]
    (first,) = [change for change in found if (change.kind, change.key) == (SETS, b"k")]
    (gone,) = [change for change in found if change.kind is EXPIRED]
    second, third = [change for change in found if change.key == b"stays"]
    assert first.value == b"v"
    assert first.expiry_ms - first.time_ms <= 200
    assert (gone.key, gone.value, gone.version) == (b"k", None, None)
    assert gone.time_ms >= first.expiry_ms
    assert found.index(gone) > found.index(first)
    assert second.expiry_ms > first.expiry_ms
    assert third.expiry_ms == 0


def test_refusals(shared: Server, table: str) -> None:
    shared.admin.CreateTable(admin_pb2.CreateTableRequest(name="numbers", layout="u64", index_bytes=1 << 18))
    newest = Position.parse(next(shared.kv.Watch(kv_pb2.WatchRequest())).position)
    invalid, lost = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE
    for asked, code, text in (
        ({"table": "none"}, grpc.StatusCode.NOT_FOUND, "table: there is no table 'none'"),
        ({"since": "17"}, invalid, "since: '17' is no position of a watch"),
        ({"table": "numbers", "prefix": b"1"}, invalid, "prefix: a table of the layout u64 has no prefixes"),
        ({"all_tables": True, "table": table}, invalid, "table: a watch of all tables has neither"),
        ({"all_tables": True, "prefix": b"1"}, invalid, "prefix: a watch of all tables has neither"),
        ({"since": str(Position(newest.timeline ^ 1, newest.number))}, lost, "not of this opening of the store"),
        ({"since": str(Position(newest.timeline, newest.number + 10**6))}, lost, "no longer held"),
    ):
        with Refused(code, text):
            next(shared.kv.Watch(kv_pb2.WatchRequest(**asked)))
    raw = shared.channel.unary_stream("/gpkvs.v1.KV/Watch")
    with Refused(invalid, "gpkvs.v1.WatchRequest"):
        next(raw(b"\xff\xff"))
    with Client(shared.target) as client:
        with pytest.raises(ChangesLostError, match="read all, then follow"):
            client.watch(since=Position(newest.timeline ^ 1, newest.number))
        with pytest.raises(InvalidArgumentError, match="since: 'x' is no position"):
            client.watch(since="x")
        with pytest.raises(UnknownTableError):
            client.watch(table="none")


def test_a_long_entry_is_cut(shared: Server, table: str) -> None:
    stream = begun(shared, table=table)
    rng = random.Random(1)
    pairs = [(b"key %04d" % number, rng.randbytes(1000)) for number in range(3000)]
    shared.kv.Batch(batch([(SET, key, value) for key, value in pairs], table=table))
    responses: list[kv_pb2.WatchResponse] = []
    while sum(len(entry.kinds) for response in responses for entry in response.entries) < len(pairs):
        responses.append(next(stream))
    entries = [entry for response in responses for entry in response.entries]
    assert len(entries) > 10
    assert max(response.ByteSize() for response in responses) < 300_000
    assert [entry.more for entry in entries] == [True] * (len(entries) - 1) + [False]
    assert len({(entry.number, entry.time_ms, entry.table_id) for entry in entries}) == 1
    assert len({response.position for response in responses}) == 2, "a part of an entry is no whole one"
    assert Position.parse(responses[-1].position).number == entries[0].number
    found = told([changes for response in responses for changes in decode_response(response).entries])
    assert sorted(found) == sorted((SETS, key, value) for key, value in pairs)
    again = begun(shared, table=table, since=responses[0].position)  # whole, from its beginning
    assert sorted(told(entries_of(again, len(pairs)))) == sorted(found)


def test_a_table_that_is_dropped(shared: Server, table: str) -> None:
    with Client(shared.target, table=table) as client:
        for changes in (client.watch(), client.watch(b"k")):
            with changes:
                client.create_table(table, exist_ok=True)
                client.set(b"k", b"v")
                client.drop_table(table)
                assert next(changes).key == b"k"
                with pytest.raises(UnknownTableError, match="was dropped"):
                    next(changes)
                with pytest.raises(UnknownTableError, match="was dropped"):
                    next(changes)
            client.create_table(table)
    stream = begun(shared, table=table)
    shared.admin.DropTable(admin_pb2.DropTableRequest(name=table))
    assert [entry.dropped for entry in next(stream).entries] == [True]
    with Refused(grpc.StatusCode.NOT_FOUND, "was dropped"):
        next(stream)


def test_who_does_not_read_falls_behind_and_holds_up_nobody(start_server: StartServer) -> None:
    server = start_server(*LARGE, "--changes-bytes", "64KiB")
    stream = begun(server)
    since = next(stream).position
    value = bytes(2000)
    for number in range(4000):  # more than flow control takes
        server.kv.Set(kv_pb2.SetRequest(key=b"%d" % (number % 50), value=value), timeout=SECONDS_MAX)
    assert server.metric("gpkvs_memory_bytes", kind="answers") < 4 << 20
    with Refused(grpc.StatusCode.OUT_OF_RANGE, "no longer held", "the newest 65,536 bytes"):
        for _ in stream:
            pass
    with Refused(grpc.StatusCode.OUT_OF_RANGE, "no longer held"):
        begun(server, since=since)
    assert server.metric("gpkvs_watch_lost_total") >= 2
    assert 0 < server.metric("gpkvs_changes_held_bytes") <= 65_536
    assert server.metric("gpkvs_requests_refused_total", reason="changes_lost") >= 2
    stream = begun(server)
    server.kv.Set(kv_pb2.SetRequest(key=b"more", value=value))
    assert told(entries_of(stream, 1)) == [(SETS, b"more", value)]


def test_a_stop_ends_watches_at_once(start_server: StartServer) -> None:
    server = start_server(*LARGE)
    idle = [begun(server) for _ in range(5)]
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    for stream in idle:
        with Refused(grpc.StatusCode.UNAVAILABLE, "the server is stopping"):
            for _ in stream:
                pass
    server.stop()
    assert time.monotonic() - began < 20


def test_a_stop_waits_for_no_reader(start_server: StartServer) -> None:
    server = start_server(*LARGE, "--drain-seconds-max", "30")
    stream = begun(server)
    for number in range(2000):
        server.kv.Set(kv_pb2.SetRequest(key=b"%d" % (number % 50), value=bytes(4000)))
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 20
    with pytest.raises(grpc.RpcError):
        for _ in stream:
            pass


def test_a_position_counts_after_a_restart_if_nothing_came_behind_it(start_server: StartServer) -> None:
    server = start_server("--format", "4")
    with Client(server.target) as client:
        changes = client.watch()
        client.set(b"a", b"1")
        client.set(b"b", b"2")
        where = next(changes).position
        changes.close()
        with client.watch(since=str(where)) as changes:
            assert next(changes).key == b"b"
            end = changes.position
    server.stop()
    server = start_server("--listen", server.target)
    with Client(server.target, retry=PATIENT) as client:
        with pytest.raises(ChangesLostError, match="not of this opening"):
            client.watch(since=where)
        changes = client.watch(since=end)
        server.stop()
        server = start_server("--listen", server.target)
        client.set(b"c", b"3")
        assert next(changes).key == b"c"
        assert changes.position.timeline not in {where.timeline, end.timeline}


@pytest.mark.parametrize("is_async", [False, True], ids=["Client", "AsyncClient"])
def test_a_watch_that_ends_knows_how_far_it_is(start_server: StartServer, is_async: bool) -> None:
    """Also over a restart in between, and though it wants nothing of what came."""
    server = start_server()
    retry = RetryPolicy(attempts_max=1)

    async def watch_to_the_end() -> Position:
        async with AsyncClient(server.target, retry=retry) as client, client.watch(b"mine") as changes:
            await asyncio.to_thread(server.kv.Set, kv_pb2.SetRequest(key=b"of others"))
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(ClientError):
                await anext(changes)
            return changes.position

    if is_async:
        position = asyncio.run(watch_to_the_end())
    else:
        with Client(server.target, retry=retry) as client, client.watch(b"mine") as changes:
            server.kv.Set(kv_pb2.SetRequest(key=b"of others"))
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(ClientError):
                next(changes)
            position = changes.position
    server.stop()
    server = start_server("--listen", server.target)
    with Client(server.target, retry=PATIENT) as client, client.watch(b"mine", since=position) as changes:
        server.stop()
        server = start_server("--listen", server.target)
        for key in (b"mine 1", b"mine 2"):
            client.set(key, b"")
            assert next(changes).key == key
        with client.watch(since=changes.position) as again:
            client.set(b"last", b"")
            assert next(again).key == b"last"


@pytest.mark.parametrize("wanted", [{"prefix": b"mine"}, {"table": "mine"}], ids=["prefix", "table"])
def test_who_wants_little_is_told_how_far_it_is_before_a_stop(
    start_server: StartServer, wanted: dict[str, Any]
) -> None:
    server = start_server()
    with Client(server.target, retry=PATIENT) as client:
        client.create_table("mine")
        changes = client.watch(**wanted)
        client.set(b"of others", b"")
        server.stop()
        server = start_server("--listen", server.target)
        client.set(b"of others", b"")
        client.set(b"mine", b"", table=wanted.get("table", ""))
        assert next(changes).key == b"mine"


def test_a_server_that_stops_tells_everything_before(start_server: StartServer, pick: random.Random) -> None:
    """Who has watched until the end goes on after the start, though others write all the time."""
    server = start_server("--format", "4")
    writers, count = 8, 400
    acknowledged: list[bytes] = []
    stops = sorted(pick.sample(range(100, writers * count - 100), 3))

    def write(writer: int) -> None:
        with Client(server.target, retry=PATIENT) as client:
            for number in range(count):
                is_set = False
                while not is_set:
                    with suppress(ClientError):  # whether it was done may be unknown where a server stops
                        client.set(b"%d-%d" % (writer, number), b"")
                        is_set = True
                acknowledged.append(b"")

    with Client(server.target, retry=PATIENT) as client, ThreadPoolExecutor(writers) as pool:
        changes = client.watch()
        writing = [pool.submit(write, writer) for writer in range(writers)]
        seen: list[bytes] = []
        while len(set(seen)) < writers * count:
            if stops and len(acknowledged) >= stops[0]:
                del stops[0]
                server.stop()
                server = start_server("--listen", server.target)
            seen.append(next(changes).key)
        for one in writing:
            one.result()
    for writer in range(writers):
        own = [key for key in dict.fromkeys(seen) if key.startswith(b"%d-" % writer)]
        assert own == [b"%d-%d" % (writer, number) for number in range(count)]


@pytest.mark.parametrize("is_async", [False, True], ids=["Client", "AsyncClient"])
def test_a_watch_goes_on_where_its_connection_was_lost(shared: Server, table: str, is_async: bool) -> None:
    """At least once, in order: a proxy cuts the connections while keys are written and told."""
    count = 400

    async def write(client: AsyncClient, proxy: Proxy, seen: list[bytes]) -> None:
        for number in range(count):
            await client.set(b"%06d" % number, b"v")
            if number % 100 == 50:
                while len(seen) < number // 2:  # noqa: ASYNC110 - some were told over each connection
                    await asyncio.sleep(0.01)
                await proxy.close()

    async def run() -> list[bytes]:
        seen: list[bytes] = []
        proxy = Proxy(shared.target)
        listener = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
        host, port = listener.sockets[0].getsockname()
        target = f"{host}:{port}"
        async with AsyncClient(shared.target, table=table) as client:
            if is_async:
                async with AsyncClient(target, table=table, retry=PATIENT) as watching, watching.watch() as changes:
                    writing = asyncio.create_task(write(client, proxy, seen))
                    while not seen or seen[-1] != b"%06d" % (count - 1):
                        seen.append((await anext(changes)).key)
            else:
                with Client(target, table=table, retry=PATIENT) as watching_too:
                    changes_too = await asyncio.to_thread(watching_too.watch)
                    writing = asyncio.create_task(write(client, proxy, seen))
                    while not seen or seen[-1] != b"%06d" % (count - 1):
                        seen.append((await asyncio.to_thread(next, changes_too)).key)
                    changes_too.close()
            await writing
        await proxy.close()
        listener.close()
        return seen

    seen = asyncio.run(asyncio.wait_for(run(), 2 * SECONDS_MAX))
    assert set(seen) == {b"%06d" % number for number in range(count)}
    firsts = list(dict.fromkeys(seen))
    assert firsts == sorted(firsts)


def test_watches_leave_nothing_behind(start_server: StartServer) -> None:
    server = start_server(*LARGE)
    process = Path(f"/proc/{server.process.pid}")

    def threads() -> int:
        return len(list((process / "task").iterdir()))

    with Client(server.target) as client:
        client.watch().close()
        until(lambda: server.metric("gpkvs_watches") == 0)
        before = threads(), threading.active_count()
        for way in ("close", "drop", "cancel", "deadline"):
            watches: list[Any] = []
            for _ in range(60):
                if way in ("close", "drop"):
                    watches.append(client.watch())
                else:
                    watches.append(server.kv.Watch(kv_pb2.WatchRequest(), timeout=1.0 if way == "deadline" else None))
                    next(watches[-1])
            assert way == "deadline" or server.metric("gpkvs_watches") == 60
            assert server.metric("gpkvs_memory_bytes", kind="answers") > 0 or way == "deadline"
            client.set(b"k", way.encode())
            for watch in watches:
                if way == "close":
                    watch.close()
                elif way == "cancel":
                    watch.cancel()
            watch = None
            watches.clear()
            gc.collect()
            until(lambda: server.metric("gpkvs_watches") == 0)
            until(lambda: server.metric("gpkvs_memory_bytes", kind="answers") == 0)
        until(lambda: (threads(), threading.active_count()) <= before)
        with client.watch() as changes:
            client.set(b"k", b"more")
            assert next(changes).value == b"more"


def test_only_the_position(shared: Server, table: str) -> None:
    """Whoever asks for it is no watch; all that was executed lies before it."""
    with Client(shared.target, table=table) as client, client.follow() as following:
        for asked in ({"table": table}, {"all_tables": True}, {"table": table, "prefix": b"k"}):
            client.set(b"k", b"v")
            (response,) = shared.kv.Watch(kv_pb2.WatchRequest(only_position=True, **asked))
            assert not response.entries
            position = Position.parse(response.position)
            assert position == following.newest()
            entries: list[Changes] = []
            while not following.position.reaches(position):
                entries += following.read(timeout=SECONDS_MAX)
            assert told(entries) == [(SETS, b"k", b"v")]
        assert shared.metric("gpkvs_watches") == 1
    invalid, since = grpc.StatusCode.INVALID_ARGUMENT, response.position
    for wrong, code, text in (
        ({"table": "none"}, grpc.StatusCode.NOT_FOUND, "table: there is no table 'none'"),
        ({"since": since}, invalid, "since: a watch that only asks for the position begins now"),
    ):
        with Refused(code, text):
            next(shared.kv.Watch(kv_pb2.WatchRequest(only_position=True, **wrong)))


def test_who_only_asked_for_the_position_keeps_no_changes(start_server: StartServer) -> None:
    server = start_server()
    (response,) = server.kv.Watch(kv_pb2.WatchRequest(only_position=True))
    server.kv.Set(kv_pb2.SetRequest(key=b"k"))
    server.kv.Set(kv_pb2.SetRequest(key=b"k"))
    with Refused(grpc.StatusCode.OUT_OF_RANGE, "nobody followed meanwhile"):
        begun(server, since=response.position)


def test_watches_are_bounded(start_server: StartServer) -> None:
    server = start_server("--watches-max", "2")
    first, _second = begun(server), begun(server)
    with Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "watches full: 2 are open", "--watches-max", full="watches"):
        begun(server)
    with Client(server.target) as client:
        with pytest.raises(NoSpaceError, match="--watches-max") as refused:
            client.watch()
        assert refused.value.resource == "watches"
        with client.follow(all_tables=True):  # a backup is not refused for others' watches
            pass
        first.cancel()
        until(lambda: server.metric("gpkvs_watches") == 1)
        with client.follow() as following:
            assert following.newest() == following.position, "this takes no other place"


def test_all_that_wait_are_told(shared: Server, table: str) -> None:
    """One of them waits in the store; it may go while the others wait, and each may be the one."""
    streams = [begun(shared, table=table) for _ in range(20)]
    time.sleep(0.1)
    rng = random.Random(3)
    rng.shuffle(streams)
    for number in range(10):
        if number:
            streams.pop().cancel()
        shared.kv.Set(kv_pb2.SetRequest(table=table, key=b"%d" % number))
        began = time.monotonic()
        for stream in streams:
            assert told(entries_of(stream, 1)) == [(SETS, b"%d" % number, b"")]
        assert time.monotonic() - began < SECONDS_MAX
    for stream in streams:
        stream.cancel()


def test_entries_are_counted(shared: Server, table: str) -> None:
    before = shared.metric("gpkvs_watch_entries_total")
    with Client(shared.target, table=table) as client, client.watch() as changes, client.watch() as others:
        client.set(b"k", b"v")
        next(changes)
        next(others)
    assert shared.metric("gpkvs_watch_entries_total") == before + 2


def test_who_may_no_longer_read_hears_no_more(tmp_path: Path) -> None:
    accounts = Accounts(tmp_path / "users.toml", alice=Account(read=("*",)), root=Account(write=("*",)))
    alice, root = accounts.token("alice"), accounts.token("root")
    accounts.save()
    server = Server(tmp_path / "store", tmp_path, "--users", str(accounts.path))
    try:
        stream = server.kv.Watch(kv_pb2.WatchRequest(), metadata=alice)
        next(stream)
        server.kv.Set(kv_pb2.SetRequest(key=b"k"), metadata=root)
        assert told(entries_of(stream, 1)) == [(SETS, b"k", b"")]
        accounts.users["alice"].read = ()
        accounts.save()
        with Refused(grpc.StatusCode.PERMISSION_DENIED, "user alice may not read table 'default'"):
            for response in stream:
                assert not response.entries
        server.stop()
    finally:
        server.kill()


def test_transactions_come_whole(shared: Server, table: str) -> None:
    """However a client stops and goes on: the changes of a transaction have one position, with their last."""
    operations = [(Op.SET, b"%d" % number, b"") for number in range(5)]
    with Client(shared.target, table=table) as client:
        with client.watch() as changes:
            begin = changes.position
            client.execute(Batch.of(operations))
            found = [next(changes) for _ in operations]
            assert [change.position for change in found[:-1]] == [begin] * 4
            assert found[-1].position.number > begin.number
        for taken in range(1, 6):
            with client.watch(since=begin) as changes:
                where = [next(changes).position for _ in range(taken)][-1]
            if taken < 5:
                with client.watch(since=where) as changes:
                    assert [next(changes).key for _ in operations] == [change.key for change in found]
