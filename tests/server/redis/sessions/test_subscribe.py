"""Clients that have subscribed are told of keys that change: as by Redis, in order, whole or not at all."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis as redis_py

from gpkvs.client import Client
from tests.server.redis.two_servers import Connection, gpkvs_server, redis_server, resp_port
from tests.serving import Server, StartServer

OK = b"+OK\r\n"
SPACE, EVENT = b"__keyspace@9__:", b"__keyevent@9__:"
SECONDS_MAX = 60


def bulk(text: bytes) -> tuple[str, bytes]:
    return "bulk", text


def message(channel: bytes, payload: bytes) -> list[Any]:
    return [bulk(b"message"), bulk(channel), bulk(payload)]


def pmessage(pattern: bytes, channel: bytes, payload: bytes) -> list[Any]:
    return [bulk(b"pmessage"), bulk(pattern), bulk(channel), bulk(payload)]


def subscribed(connection: Connection, *names: bytes, kind: bytes = b"SUBSCRIBE") -> Connection:
    """Subscribe; return the connection."""
    connection.send((kind, *names))
    for _ in names:
        [told, *_] = connection.reply()
        assert told == bulk(kind.lower())
    return connection


def until(condition: Any) -> None:
    give_up = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < give_up, "it does not happen"
        time.sleep(0.01)


def ends(connection: Connection) -> bool:
    """Return whether a connection ends, whatever it is told before."""
    try:
        while True:
            connection.reply()
    except (EOFError, ConnectionError):
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("subscribe")
    made = Server(folder / "store", folder, "--resp", "127.0.0.1:0", "--watches-max", "1")
    with Client(made.target) as client:
        client.create_table("9")
    yield made
    made.stop()
    assert "Traceback" not in made.log.read_text()


@pytest.fixture
def port(server: Server) -> int:
    return resp_port(server)


@pytest.fixture
def writer(port: int) -> Iterator[Connection]:
    with Connection(port) as connection:
        assert connection.call(b"SELECT", b"9") == OK
        connection.call(b"FLUSHDB")
        yield connection


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Yield the ports of a Redis and of gpkvs."""
    folder = tmp_path_factory.mktemp("both")
    with redis_server(folder, "--notify-keyspace-events", "KEg$x") as expected, gpkvs_server(folder) as found:
        yield expected, found


# What a client says, with how many replies; in the middle another client writes.
SESSION = """
1 SUBSCRIBE __keyspace@9__:k|2 SUBSCRIBE __keyevent@9__:set __keyspace@9__:k|1 PING|1 PING word|1 GET k
1 PSUBSCRIBE __keyspace@9__:[jk]*|1 psubscribe __keyevent@*__:d?l|1 MULTI|1 DISCARD|1 SUBSCRIBE|1 UNSUBSCRIBE other
WRITE|1 UNSUBSCRIBE __keyspace@9__:k|1 PUNSUBSCRIBE __keyspace@9__:[jk]*|WRITE|1 PUNSUBSCRIBE|1 PUNSUBSCRIBE
1 UNSUBSCRIBE|1 UNSUBSCRIBE|1 GET k|1 PING|1 SET own 1|2 SUBSCRIBE __keyevent@9__:del __keyspace@9__:z|1 RESET|1 PING
1 SELECT 9|1 GET k|1 SUBSCRIBE __keyspace@9__:k|1 QUIT
"""


@pytest.mark.parametrize("protocol", [b"2", b"3"])
def test_a_session_is_that_of_redis(both: tuple[int, int], protocol: bytes) -> None:
    def session(port: int) -> list[Any]:
        told: list[Any] = []
        with Connection(port) as client, Connection(port) as other:
            for connection in (client, other):
                assert connection.call(b"SELECT", b"9") == OK
            other.call(b"DEL", b"k")
            client.call(b"HELLO", protocol)
            for line in SESSION.strip().replace("\n", "|").split("|"):
                if line == "WRITE":
                    for words in (b"SET k 1", b"DEL k", b"SET j 1", b"DEL j none", b"SET end 1"):
                        other.call(*words.split())
                    while repr(bulk(b"end")) not in repr(told[-1]):
                        told.append(client.reply())  # of __keyevent@9__:set, which comes last
                    continue
                count, *words = line.encode().split()
                client.send(words)
                told += [client.reply() for _ in range(int(count))]
            told.append(ends(client))
        return told

    expected, found = map(session, both)
    assert found == expected


def test_patterns_are_those_of_redis(both: tuple[int, int]) -> None:
    seed = int(os.environ.get("SEED", random.getrandbits(32)))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    texts = {b"".join(rng.choices([b"a", b"b", b"-", b"]", b"\\", b"^"], k=rng.randint(1, 6))) for _ in range(60)}
    pieces = [b"a", b"b", b"*", b"?", b"[", b"]", b"^", b"-", b"\\", b"**", b"[a-b]", b"[^a]", b"[\\]]", b"*b", b"a*"]
    patterns = list({SPACE + b"".join(rng.choices(pieces, k=rng.randint(0, 5))) for _ in range(40)})

    def fitting(port: int) -> list[tuple[bytes, bytes]]:
        found = []
        with Connection(port) as client, Connection(port) as writer:
            subscribed(client, *patterns, kind=b"PSUBSCRIBE")
            subscribed(client, EVENT + b"set")
            writer.call(b"SELECT", b"9")
            for text in sorted(texts):
                writer.call(b"SET", text, b"v")
            writer.call(b"SET", b"end", b"v")
            while (told := client.reply()) != message(EVENT + b"set", b"end"):  # the last of all
                if told[0] == bulk(b"pmessage"):
                    found.append((told[1][1], told[2][1]))
            return sorted(found)

    expected, found = map(fitting, both)
    assert found == expected
    assert found


def test_what_becomes_of_keys_is_told_in_order(port: int, writer: Connection) -> None:
    with Connection(port) as client:
        subscribed(client, SPACE + b"*", kind=b"PSUBSCRIBE")
        for words, events in (
            (b"SET k 1", [b"k set"]), (b"INCR k", [b"k set"]), (b"EXPIRE k 1000", [b"k set"]), (b"GET k", []),
            (b"RENAME k l", [b"k del", b"l set"]), (b"DEL l none", [b"l del"]), (b"MSET a 1 b 2", [b"a set", b"b set"]),
            (b"APPEND a x", [b"a set"]), (b"SET a 1 NX", []), (b"GETDEL a", [b"a del"]), (b"PERSIST b", []),
            (b"SET c 1 PX 20", [b"c set", b"c expired"]), (b"FLUSHDB", [b"b del"]), (b"DEL none", []),
        ):  # fmt: skip
            writer.call(*words.split())
            found = [client.reply() for _ in events]
            expected = [pmessage(SPACE + b"*", SPACE + key, event) for key, event in map(bytes.split, events)]
            assert sorted(found) == sorted(expected), words


def test_a_transaction_tells_what_it_leaves(port: int, writer: Connection) -> None:
    with Connection(port) as client:
        subscribed(client, EVENT + b"*", kind=b"PSUBSCRIBE")
        writer.call(b"SET", b"old", b"1")
        writer.call(b"MULTI")
        for words in (b"SET k 1", b"SET k 2", b"DEL k", b"SET k 3", b"SET gone 1", b"DEL gone", b"DEL old", b"INCR n"):
            writer.call(*words.split())
        writer.call(b"EXEC")
        writer.call(b"SET", b"end", b"1")
        found = [client.reply()[2:] for _ in range(5)]
        told = [(event.removeprefix(EVENT), key) for (_, event), (_, key) in found]
        assert told[0] == (b"set", b"old")
        assert sorted(told[1:4]) == [(b"del", b"old"), (b"set", b"k"), (b"set", b"n")]
        assert told[4] == (b"set", b"end")


def test_many_keys_of_one_command_and_of_grpc(port: int, writer: Connection, server: Server) -> None:
    keys = [b"key:%d" % number for number in range(3000)]
    with Connection(port) as client, Client(server.target) as grpc:
        subscribed(client, SPACE + b"key:*", EVENT + b"del", kind=b"PSUBSCRIBE")
        grpc.table("9").set(b"key:0", b"v")
        assert client.reply() == pmessage(SPACE + b"key:*", SPACE + b"key:0", b"set")
        assert writer.call(b"MSET", *(word for key in keys for word in (key, b"v"))) == OK
        assert sorted(client.reply()[2][1] for _ in keys) == sorted(SPACE + key for key in keys)
        assert writer.call(b"DEL", *keys) == b":3000\r\n"
        found = [client.reply() for _ in range(2 * len(keys))]
        assert sorted(told[3][1] for told in found if told[2][1] == EVENT + b"del") == sorted(keys)
        assert sorted(told[2][1] for told in found if told[3][1] == b"del") == sorted(SPACE + key for key in keys)


def test_a_client_of_resp3_hears_of_its_own_commands_behind_subscribe(port: int) -> None:
    """They come with SUBSCRIBE, and are executed behind it."""
    with Connection(port) as client:
        client.call(b"HELLO", b"3")
        client.call(b"SELECT", b"9")
        for number in range(100):
            key = b"own %d" % number
            client.send((b"SUBSCRIBE", SPACE + key), (b"SET", key, b"1", b"KEEPTTL"))
            assert client.reply() == ("push", [bulk(b"subscribe"), bulk(SPACE + key), b":1\r\n"])
            assert sorted(map(str, (client.reply(), client.reply()))) == sorted(
                map(str, (OK, ("push", message(SPACE + key, b"set"))))
            )
            client.send((b"UNSUBSCRIBE",), (b"GET", key))
            assert client.reply() == ("push", [bulk(b"unsubscribe"), bulk(SPACE + key), b":0\r\n"])
            assert client.reply() == bulk(b"1")


def test_messages_that_wait_come_before_the_end_of_their_subscription(
    port: int, writer: Connection, server: Server
) -> None:
    """A client of RESP2 would take one behind it for the reply to its next command."""
    keys = [b"%d" % number + bytes(4000) for number in range(100)]
    with Connection(port) as client:
        subscribed(client, EVENT + b"set")
        told = server.metric("gpkvs_redis_messages_total") + 40 * len(keys)
        for _ in range(40):  # more than sockets take
            assert writer.call(b"MSET", *(word for key in keys for word in (key, b"v"))) == OK
        until(lambda: server.metric("gpkvs_redis_messages_total") == told)
        client.send((b"UNSUBSCRIBE",), (b"GET", b"none"), (b"PING",))
        until(lambda: b"sub=1" not in writer.call(b"CLIENT", b"LIST")[1])
        assert writer.call(b"SET", b"later", b"v") == OK
        for _ in range(40):
            assert sorted(client.reply()[2][1] for _ in keys) == sorted(keys)
        assert client.reply() == [bulk(b"unsubscribe"), bulk(EVENT + b"set"), b":0\r\n"]
        assert client.reply() is None
        assert client.reply() == b"+PONG\r\n"


def test_nothing_is_lost_behind_the_answer_to_subscribe(port: int, writer: Connection) -> None:
    """However often somebody begins while another client writes."""
    for number in range(100):
        with Connection(port) as client:
            key = b"k%d" % number
            subscribed(client, SPACE + key)
            assert writer.call(b"SET", key, b"1") == OK
            assert client.reply() == message(SPACE + key, b"set")


def test_redis_py_listens(port: int, writer: Connection) -> None:
    for protocol in (2, 3):
        client = redis_py.Redis(port=port, db=9, protocol=protocol)
        with client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.psubscribe("__keyspace@9__:user:*")
            pubsub.subscribe("__keyevent@9__:expired")
            pubsub.check_health()
            assert pubsub.get_message(timeout=10) is None
            assert pubsub.get_message(timeout=10) is None
            writer.call(b"SET", b"user:1", b"v", b"PX", b"30")
            found = []
            while len(found) < 3:
                if told := pubsub.get_message(timeout=10):
                    found.append((told["type"], told["pattern"], told["channel"], told["data"]))
            assert sorted(found, key=repr) == [
                ("message", None, b"__keyevent@9__:expired", b"user:1"),
                ("pmessage", b"__keyspace@9__:user:*", b"__keyspace@9__:user:1", b"expired"),
                ("pmessage", b"__keyspace@9__:user:*", b"__keyspace@9__:user:1", b"set"),
            ]
        client.close()


def test_a_follower_is_there_while_somebody_has_subscribed(port: int, writer: Connection, server: Server) -> None:
    """Whichever way these go: the store holds no changes for nobody. Backups and watches find their places."""
    until(lambda: server.metric("gpkvs_redis_subscribers") == 0)
    names = [b"__keyspace@*__:*", SPACE + b"x", b"__keyevent@0__:set"]
    with Connection(port) as first, Connection(port) as second, Connection(port) as third:
        subscribed(first, names[0], kind=b"PSUBSCRIBE")
        subscribed(second, names[1])
        subscribed(third, names[2])
        assert server.metric("gpkvs_redis_subscribers") == 3
        assert b"pubsub_clients:3" in writer.call(b"INFO", b"clients")[1]
        listed = writer.call(b"CLIENT", b"LIST", b"TYPE", b"pubsub")[1]
        assert [b"sub=0 psub=1" in listed, listed.count(b"flags=P"), listed.count(b"sub=1 psub=0")] == [True, 3, 2]
        with Client(server.target) as client, client.watch(b"") as watch:
            client.set(b"k", b"v")
            assert next(watch).key == b"k"
            assert first.reply() == pmessage(names[0], b"__keyspace@0__:k", b"set")
            assert third.reply() == message(names[2], b"k")
            client.delete(b"k")
        messages = server.metric("gpkvs_redis_messages_total")
        assert messages >= 2
        second.call(b"UNSUBSCRIBE")
        third.call(b"RESET")
        assert second.call(b"GET", b"x") is None
        assert server.metric("gpkvs_redis_subscribers") == 1
    until(lambda: server.metric("gpkvs_redis_subscribers") == 0)
    with Connection(port) as again:
        subscribed(again, SPACE + b"again")
        writer.call(b"SET", b"again", b"1")
        assert again.reply() == message(SPACE + b"again", b"set")


REFUSED = {
    b"SUBSCRIBE news": rb"ERR there is no channel 'news'",
    b"SUBSCRIBE __keyspace@9__:": rb"ERR there is no channel",
    b"SUBSCRIBE __keyspace@09__:k": rb"ERR there is no channel",
    b"SUBSCRIBE __keyspace@*__:k": rb"ERR there is no channel",
    b"SUBSCRIBE __keyspace@9__:a news": rb"ERR there is no channel 'news'",
    b"SUBSCRIBE __keyevent@9__:expire": rb"ERR there is no event",
    b"SUBSCRIBE __keyspace@8__:k": rb"ERR DB index is out of range",
    b"SUBSCRIBE __keyspace@9__:" + bytes(4097): rb"ERR a key of 4,097 bytes",
    b"SUBSCRIBE": rb"ERR wrong number of arguments for 'subscribe' command",
    b"PSUBSCRIBE *": rb"ERR there is no channel '\*'",
    b"PSUBSCRIBE __keyspace@?__:*": rb"ERR there is no channel",
    b"PSUBSCRIBE __keyevent@9__:e*e": rb"ERR there is no event",
    b"PSUBSCRIBE __keyspace@8__:*": rb"ERR DB index is out of range",
    b"PSUBSCRIBE __keyspace@9__:" + bytes(1024): rb"ERR patterns of 1,039 bytes on one connection, allowed are 1,024",
    b"PUBLISH __keyspace@9__:k set": rb"ERR unknown command 'PUBLISH': clients send each other nothing",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_there_is_not_is_refused(writer: Connection, line: bytes) -> None:
    reply = writer.call(*line.split(b" "))
    assert reply.startswith(b"-" + REFUSED[line].replace(b"\\", b""))
    assert writer.call(b"GET", b"k") is None  # it has not subscribed to the others either


def test_one_connection_subscribes_to_so_much(port: int, writer: Connection) -> None:
    with Connection(port) as client:
        for first in range(0, 1024, 512):
            subscribed(client, *(SPACE + b"%d" % number for number in range(first, first + 512)))
        assert client.call(b"SUBSCRIBE", SPACE + b"more").startswith(b"-ERR 1,025 channels and patterns")
        writer.call(b"SET", b"1023", b"v")
        assert client.reply() == message(SPACE + b"1023", b"set")
    assert writer.call(b"MULTI") == OK
    assert writer.call(b"SUBSCRIBE", SPACE + b"k") == b"-ERR SUBSCRIBE is not possible inside MULTI here\r\n"
    writer.call(b"DISCARD")


def test_the_setting_is_what_is_told(writer: Connection) -> None:
    assert writer.call(b"CONFIG", b"GET", b"notify-keyspace-events")[1] == bulk(b"g$xKE")
    for value in (b"Ex", b"KEA", b"AKE", b"K$", b"Eg$lshzxetd"):
        assert writer.call(b"CONFIG", b"SET", b"notify-keyspace-events", value) == OK
    for value in (b"", b"x", b"KEAm", b"KEAn", b"yes"):
        assert writer.call(b"CONFIG", b"SET", b"notify-keyspace-events", value).startswith(b"-ERR CONFIG SET failed")


def test_a_dropped_database_ends_who_was_told_of_it(port: int, server: Server) -> None:
    with Client(server.target) as client, ExitStack() as stack:
        client.create_table("7")
        opened = [stack.enter_context(Connection(port)) for _ in range(3)]
        subscribed(opened[0], b"__keyspace@7__:k")
        subscribed(opened[1], b"__key*__:k", kind=b"PSUBSCRIBE")
        subscribed(opened[2], SPACE + b"k")
        client.drop_table("7")
        assert ends(opened[0])
        assert ends(opened[1])
        client.table("9").set(b"k", b"v")
        assert opened[2].reply() == message(SPACE + b"k", b"set")


def test_who_does_not_read_is_cut_off_and_nobody_waits(start_server: StartServer) -> None:
    server = start_server("--resp", "127.0.0.1:0", "--stream-bytes-max", "1MiB")
    port = resp_port(server)
    with Connection(port) as sleeper, Connection(port) as reader, Connection(port) as writer:
        subscribed(sleeper, b"__keyspace@0__:*", kind=b"PSUBSCRIBE")
        subscribed(reader, b"__keyevent@0__:set")
        rounds = 0
        keys = [b"%d" % number + bytes(4000) for number in range(100)]
        while not server.metric("gpkvs_redis_subscribers_lost_total"):
            assert writer.call(b"MSET", *(word for key in keys for word in (key, b"v"))) == OK
            assert sorted(reader.reply()[2][1] for _ in keys) == sorted(keys)
            rounds += 1
            assert rounds < 200
        assert ends(sleeper)
        assert server.metric("gpkvs_connections_closed_total", reason="behind") == 1
        until(lambda: server.metric("gpkvs_redis_subscribers") == 1)
        assert writer.call(b"SET", b"k", b"v") == OK
        assert reader.reply() == message(b"__keyevent@0__:set", b"k")
    server.stop()
    assert "did not read as fast as these came" in server.log.read_text()


def test_messages_count_before_they_are_made(start_server: StartServer) -> None:
    """What waits for three who do not read is counted, up to 1 MiB for each, and given back."""
    server = start_server("--resp", "127.0.0.1:0", "--memory-max", "64MiB", "--stream-bytes-max", "1GiB")
    port = resp_port(server)
    with ExitStack() as stack, Connection(port) as writer, Connection(port) as reader:
        assert writer.call(b"PING") == b"+PONG\r\n"  # there are few places for those who have asked for nothing
        subscribed(reader, b"__keyspace@0__:last")
        for _ in range(3):
            subscribed(stack.enter_context(Connection(port)), b"__key*__:*", kind=b"PSUBSCRIBE")
        number = 0
        held = 0.0
        while server.metric("gpkvs_redis_subscribers_lost_total") < 3:
            number += 10
            keys = [*(b"%d" % at + bytes(4000) for at in range(number, number + 10)), b"last"]
            assert writer.call(b"MSET", *(word for key in keys for word in (key, b"v"))) == OK
            # All have been told of the round before: the first to be cut off held 1 MiB without two rounds of 84 KiB.
            assert reader.reply() == message(b"__keyspace@0__:last", b"set")
            held = max(held, server.metric("gpkvs_memory_bytes", kind="answers"))
            assert number < 50_000
        assert server.metric("gpkvs_connections_closed_total", reason="behind") == 3
        assert 3 << 18 < held < 8 << 20
        until(lambda: server.metric("gpkvs_memory_bytes", kind="answers") < 1 << 16)


def test_nothing_is_held_for_nobody(start_server: StartServer) -> None:
    server = start_server("--resp", "127.0.0.1:0")
    with Connection(resp_port(server)) as writer:
        with Connection(resp_port(server)) as client:
            subscribed(client, b"__keyspace@0__:k")
            assert writer.call(b"SET", b"k", b"v") == OK
            assert server.metric("gpkvs_changes_held_bytes") > 0
        # The log ends between two batches.
        until(lambda: writer.call(b"SET", b"k", b"v") == OK and server.metric("gpkvs_changes_held_bytes") == 0)


def test_the_server_stops_while_clients_have_subscribed(start_server: StartServer) -> None:
    server = start_server("--resp", "127.0.0.1:0")
    with ExitStack() as stack:
        opened = [stack.enter_context(Connection(resp_port(server))) for _ in range(5)]
        for connection in opened:
            subscribed(connection, b"__keyspace@0__:*", kind=b"PSUBSCRIBE")
        opened[0].end()
        server.stop()
        assert all(map(ends, opened[1:]))
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_the_follower_falls_behind_and_all_end(start_server: StartServer) -> None:
    """One transaction is larger than what the store holds of changes: nobody is told less than there is."""
    server = start_server("--resp", "127.0.0.1:0", "--changes-bytes", "64KiB")
    port = resp_port(server)
    with Connection(port) as client, Connection(port) as writer:
        subscribed(client, b"__keyspace@0__:*", kind=b"PSUBSCRIBE")
        assert writer.call(b"SET", b"k", bytes(100_000)) == OK
        assert ends(client)
        assert server.metric("gpkvs_redis_subscribers_lost_total") == 1
        until(lambda: server.metric("gpkvs_redis_subscribers") == 0)
        with Connection(port) as again:
            subscribed(again, b"__keyspace@0__:k")
            assert writer.call(b"SET", b"k", b"v") == OK
            assert again.reply() == message(b"__keyspace@0__:k", b"set")
    assert "cannot be told of all of them" in server.log.read_text()
