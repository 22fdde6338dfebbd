"""What the Redis protocol promises beside single replies: transactions, sessions, logins, durability, other clients."""

from __future__ import annotations

import hashlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.client import Client
from gpkvs.proto.v1 import kv_pb2
from tests.accounts import Account, Accounts
from tests.server.redis.two_servers import Connection, resp_port
from tests.server.wire import GET, SET, TTL_MS_MAX, batch, u64
from tests.serving import Server

OK = b"+OK\r\n"


class Site:
    """A server with a Redis port, and the table of database 9."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.server = Server(folder / "store", folder, "--resp", "127.0.0.1:0", *options)
        self.port = resp_port(self.server)

    def connect(self) -> Connection:
        return Connection(self.port)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("redis"))
    with Client(made.server.target) as client:
        client.create_table("9")
    yield made
    made.server.stop()
    assert "Traceback" not in made.server.log.read_text()


@pytest.fixture
def redis(site: Site) -> Iterator[Connection]:
    with site.connect() as connection:
        assert connection.call(b"SELECT", b"9") == OK
        assert connection.call(b"FLUSHDB") == OK
        yield connection


def bulk(value: bytes) -> tuple[str, bytes]:
    return "bulk", value


def test_the_same_keys_over_grpc(site: Site) -> None:
    with site.connect() as redis, Client(site.server.target) as client:
        assert redis.call(b"SET", b"over redis", b"1") == OK
        assert client.get(b"over redis") == b"1"
        client.set(b"over grpc", b"2")
        assert redis.call(b"INCR", b"over grpc") == b":3\r\n"
        assert client.get(b"over grpc") == b"3"
        assert redis.call(b"DEL", b"over redis", b"over grpc") == b":2\r\n"


def test_a_database_is_a_table(redis: Connection, site: Site) -> None:
    redis.call(b"SET", b"k", b"in 9")
    with Client(site.server.target) as client:
        assert client.table("9").get(b"k") == b"in 9"
        assert client.get(b"k") is None
    assert redis.call(b"SELECT", b"8") == b"-ERR DB index is out of range\r\n"
    assert redis.call(b"GET", b"k") == bulk(b"in 9")


def test_what_nobody_asks_for_expires(redis: Connection) -> None:
    redis.call(b"SET", b"kept", b"v")
    for number in range(300):
        ttl = [(b"SETEX", b"1"), (b"PSETEX", b"100")][number % 2]
        assert redis.call(ttl[0], b"k%d" % number, ttl[1], b"v") == OK
    assert redis.call(b"SET", b"k0", b"v") == OK
    end = time.monotonic() + 20
    while redis.call(b"DBSIZE") != b":2\r\n":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert redis.call(b"TTL", b"k0") == b":-1\r\n"


def test_many_connections_count_and_lock_at_once(redis: Connection, site: Site) -> None:
    """Their commands run together; each has its own reply, and those that are wrong their own error."""
    counted: list[int] = []
    holders: list[int] = []
    wrong: list[bytes] = []

    def count(number: int) -> None:
        with site.connect() as connection:
            connection.call(b"SELECT", b"9")
            for step in range(40):
                counted.append(int(connection.call(b"INCR", b"shared")[1:]))
                assert connection.call(b"INCRBY", b"own %d" % number, b"3") == b":%d\r\n" % (3 * step + 3)
                if connection.call(b"SET", b"lock %d" % step, b"%d" % number, b"NX", b"EX", b"100") == OK:
                    holders.append(step)
                reply = connection.call(b"INCR", b"text")
                wrong.append(reply if number % 2 else connection.call(b"TTL", b"text"))

    redis.call(b"SET", b"text", b"none")
    threads = [threading.Thread(target=count, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert redis.call(b"SET", b"beside", b"v") == OK
    for thread in threads:
        thread.join()
    assert sorted(counted) == list(range(1, 24 * 40 + 1))
    assert sorted(holders) == list(range(40))
    assert set(wrong) == {b":-1\r\n", b"-ERR value is not an integer or out of range\r\n"}
    assert redis.call(b"GET", b"shared") == bulk(b"%d" % (24 * 40))


def test_a_copy_goes_to_another_database(redis: Connection, site: Site) -> None:
    for words in ((b"SETEX", b"k", b"1000", b"v"), (b"SET", b"other", b"w")):
        assert redis.call(*words) == OK
    with Client(site.server.target) as client:
        client.create_table("10")
        assert redis.call(b"COPY", b"k", b"k", b"DB", b"10") == b":1\r\n"
        assert redis.call(b"COPY", b"other", b"k", b"DB", b"10") == b":0\r\n"
        assert client.table("10").get(b"k") == b"v"
        assert redis.call(b"COPY", b"other", b"k", b"REPLACE", b"DB", b"10") == b":1\r\n"
        assert client.table("10").get(b"k") == b"w"
        assert redis.call(b"COPY", b"k", b"k", b"DB", b"0") == b":1\r\n"
        assert redis.call(b"COPY", b"none", b"k", b"DB", b"0", b"REPLACE") == b":0\r\n"
        assert client.get(b"k") == b"v"
    with site.connect() as default:
        assert 990 < int(default.call(b"TTL", b"k")[1:]) <= 1000
        default.call(b"DEL", b"k")
    assert redis.call(b"COPY", b"k", b"k", b"DB", b"-1") == b"-ERR DB index is out of range\r\n"
    assert redis.call(b"COPY", b"k", b"k", b"DB", b"12") == b"-ERR DB index is out of range\r\n"
    assert redis.call(b"COPY", b"k", b"k", b"DB", b"9").startswith(b"-ERR source and destination")
    assert redis.call(b"COPY", b"k", b"other", b"DB", b"9") == b":0\r\n"
    assert redis.call(b"COPY", b"k", b"other", b"DB", b"9", b"REPLACE") == b":1\r\n"
    assert redis.call(b"GET", b"other") == bulk(b"v")
    assert redis.call(b"MULTI") == OK
    assert redis.call(b"COPY", b"k", b"k", b"DB", b"10") == b"+QUEUED\r\n"
    [reply] = redis.call(b"EXEC")
    assert b"not possible inside MULTI" in reply


def test_commands_run_in_their_order_whoever_runs_them(redis: Connection) -> None:
    """Native code runs SET and GET, Python the others."""
    commands = [words for i in range(200) for words in ((b"SET", b"n", b"%d" % i), (b"INCR", b"n"), (b"GET", b"n"))]
    redis.send(*commands)
    replies = [redis.reply() for _ in commands]
    assert replies == [reply for i in range(200) for reply in (OK, b":%d\r\n" % (i + 1), bulk(b"%d" % (i + 1)))]


def test_a_transaction_is_one(redis: Connection, site: Site) -> None:
    """Whoever reads two keys finds them alike."""
    stop = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        with site.connect() as other:
            other.call(b"SELECT", b"9")
            while not stop.is_set():
                one, two = other.call(b"MGET", b"one", b"two")
                if one != two:
                    wrong.append((one, two))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for i in range(300):
            number = b"%d" % i
            redis.send((b"MULTI",), (b"SET", b"one", number), (b"SET", b"two", number), (b"INCR", b"count"), (b"EXEC",))
            assert [redis.reply() for _ in range(4)] == [OK] + [b"+QUEUED\r\n"] * 3
            assert redis.reply() == [OK, OK, b":%d\r\n" % (i + 1)]
    finally:
        stop.set()
        looking.join()
    assert not wrong


def test_commands_that_read_and_write_lose_no_write(redis: Connection, site: Site) -> None:
    """Others write the same key natively, over Python and over gRPC."""

    def append(letter: bytes) -> None:
        with site.connect() as other:
            other.call(b"SELECT", b"9")
            for _ in range(100):
                other.call(b"APPEND", b"text", letter)

    def increment() -> None:
        with Client(site.server.target) as client:
            for _ in range(100):
                client.table("9").incr(b"number")

    def add() -> None:
        with site.connect() as other:
            other.call(b"SELECT", b"9")
            for _ in range(100):
                other.call(b"INCRBYFLOAT", b"number", b"1")

    threads = [threading.Thread(target=append, args=(letter,)) for letter in (b"a", b"b", b"c")]
    threads += [threading.Thread(target=increment), threading.Thread(target=add)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        redis.call(b"INCR", b"number")
    for thread in threads:
        thread.join()
    assert sorted(redis.call(b"GET", b"text")[1]) == sorted(b"abc" * 100)
    assert redis.call(b"GET", b"number") == bulk(b"300")


def test_a_watched_key_that_changes_stops_the_transaction(redis: Connection, site: Site) -> None:
    redis.call(b"SET", b"k", b"1")
    for changes in (False, True):
        redis.call(b"WATCH", b"k")
        if changes:
            with Client(site.server.target) as client:
                client.table("9").set(b"k", b"2")
        redis.send((b"MULTI",), (b"SET", b"k", b"3"), (b"EXEC",))
        assert [redis.reply(), redis.reply()] == [OK, b"+QUEUED\r\n"]
        assert redis.reply() == ("null array" if changes else [OK])
    assert redis.call(b"GET", b"k") == bulk(b"2")


def test_a_command_that_cannot_be_queued_discards_the_transaction(redis: Connection) -> None:
    redis.call(b"MULTI")
    redis.call(b"SET", b"k", b"1")
    assert redis.call(b"KEYS", b"*") == b"-ERR KEYS is not possible inside MULTI here\r\n"
    assert redis.call(b"EXEC") == b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    assert redis.call(b"GET", b"k") is None


@pytest.mark.parametrize("wrong", [b"WATCH", b"DISCARD now", b"MULTI now", b"RESET now", b"UNWATCH now"])
@pytest.mark.parametrize("queued", [b"DEL", b"INCR"])
def test_a_rule_with_wrong_words_discards_the_transaction(redis: Connection, queued: bytes, wrong: bytes) -> None:
    redis.call(b"SET", b"n", b"7")
    redis.call(b"MULTI")
    assert redis.call(queued, b"n") == b"+QUEUED\r\n"
    assert redis.call(*wrong.split()).startswith(b"-ERR wrong number of arguments for '")
    assert redis.call(b"EXEC") == b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    assert redis.call(b"GET", b"n") == bulk(b"7")


def test_tables_that_no_database_has_are_left_alone(redis: Connection, site: Site) -> None:
    """Tables of numbers, and names that SELECT does not reach."""
    with Client(site.server.target) as client:
        client.create_table("7", layout="u64")
        for name in ("0", "07"):
            client.create_table(name)
            client.table(name).set(b"k", b"v")
        client.table("7").set(b"8 bytes.", b"a number")
        assert redis.call(b"SELECT", b"7") == b"-ERR DB index is out of range: the table '7' has the layout u64\r\n"
        assert redis.call(b"COPY", b"k", b"k", b"DB", b"7").startswith(b"-ERR DB index is out of range")
        redis.call(b"SET", b"k", b"of 9")
        assert redis.call(b"FLUSHALL") == OK
        assert redis.call(b"GET", b"k") is None
        assert client.table("7").get(b"8 bytes.") == b"a number"
        assert [client.table(name).get(b"k") for name in ("0", "07")] == [b"v", b"v"]
        redis.call(b"SELECT", b"0")
        redis.call(b"SET", b"k", b"v")
        records = redis.call(b"DBSIZE").strip(b":\r\n")
        assert b"\r\ndb0:keys=%s," % records in redis.call(b"INFO", b"keyspace")[1]
        assert b"db7:" not in redis.call(b"INFO", b"keyspace")[1]


def test_info_counts_keys_with_an_expiry(redis: Connection) -> None:
    def expires() -> int:
        redis.call(b"SELECT", b"0")
        [found] = re.findall(rb"\r\ndb0:keys=\d+,expires=(\d+),", redis.call(b"INFO", b"keyspace")[1])
        return int(found)

    redis.call(b"SELECT", b"0")
    redis.call(b"MSET", b"a", b"1", b"b", b"2")
    before = expires()
    for words, more in (
        ((b"EXPIRE", b"a", b"1000"), 1),
        ((b"SET", b"b", b"v", b"EX", b"1000"), 2),
        ((b"SET", b"b", b"w", b"KEEPTTL"), 2),
        ((b"PERSIST", b"a"), 1),
        ((b"DEL", b"b"), 0),
    ):
        redis.call(*words)
        assert expires() == before + more, words


@pytest.mark.parametrize("setting", [(b"maxmemory", b"1gb"), (b"slowlog-log-slower-than", b"0")])
def test_a_setting_that_would_not_be_so_is_refused(redis: Connection, setting: tuple[bytes, bytes]) -> None:
    assert redis.call(b"CONFIG", b"SET", *setting).startswith(b"-ERR CONFIG SET failed (possibly related to argument '")
    assert redis.call(b"CONFIG", b"SET", b"maxmemory", b"0") == OK  # it is so


@pytest.mark.parametrize("queued", [b"GET", b"INCR"])  # native code runs the first transaction, Python the other
def test_exec_with_arguments_discards_the_transaction(redis: Connection, queued: bytes) -> None:
    text = b"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n"
    assert redis.call(b"EXEC", b"now") == text
    assert redis.call(b"MULTI") == OK
    assert redis.call(queued, b"n") == b"+QUEUED\r\n"
    assert redis.call(b"EXEC", b"now") == text
    assert redis.call(b"EXEC") == b"-ERR EXEC without MULTI\r\n"
    assert redis.call(b"GET", b"n") is None


def test_resp3(redis: Connection) -> None:
    hello = redis.call(b"HELLO", b"3", b"SETNAME", b"me")
    assert hello["('bulk', b'proto')"] == b":3\r\n"
    redis.send((b"GET", b"nothing"), (b"GETDEL", b"nothing"))
    assert redis._stream.readline() == b"_\r\n"
    assert redis._stream.readline() == b"_\r\n"
    assert redis.call(b"CLIENT", b"GETNAME") == bulk(b"me")
    assert redis.call(b"HELLO", b"4") == b"-NOPROTO unsupported protocol version\r\n"


def test_scan_returns_all_keys(redis: Connection) -> None:
    keys = {b"key:%d" % i for i in range(3000)}
    redis.call(b"MSET", *(word for key in keys for word in (key, b"v")))
    assert redis.call(b"DBSIZE") == b":3000\r\n"
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        (_, cursor), page = redis.call(b"SCAN", cursor, b"COUNT", b"100")
        found |= {key for _, key in page}
        if cursor == b"0":
            break
    assert found == keys
    assert redis.call(b"RANDOMKEY")[1] in keys
    assert {key for _, key in redis.call(b"KEYS", b"key:29?")} == {b"key:%d" % i for i in range(290, 300)}
    assert redis.call(b"FLUSHDB") == OK
    assert redis.call(b"DBSIZE") == b":0\r\n"
    assert redis.call(b"RANDOMKEY") is None


def test_randomkey_favours_no_key_of_a_small_table(redis: Connection) -> None:
    keys = {b"key:%d" % i for i in range(8)}
    redis.call(b"MSET", *(word for key in keys for word in (key, b"v")))
    found = Counter(redis.call(b"RANDOMKEY")[1] for _ in range(800))
    assert set(found) == keys
    assert min(found.values()) > 50  # of 100; less by chance once in 30 million runs


def test_a_scan_of_few_keys_in_a_large_table_is_one_command(tmp_path: Path) -> None:
    made = Site(tmp_path, "--index-bytes", "16MiB")
    with made.connect() as redis:
        redis.call(b"MSET", b"a", b"1", b"b", b"2", b"c", b"3")
        cursor, keys = redis.call(b"SCAN", b"0")
        assert (cursor, sorted(keys)) == (bulk(b"0"), [bulk(b"a"), bulk(b"b"), bulk(b"c")])
    made.server.stop()


def test_the_default_table_is_not_emptied(site: Site) -> None:
    with site.connect() as redis:
        redis.call(b"SET", b"k", b"v")
        assert redis.call(b"FLUSHDB").startswith(b"-ERR the table 'default' is not emptied by FLUSHDB")
        assert redis.call(b"FLUSHALL") == OK
        assert redis.call(b"GET", b"k") == bulk(b"v")


def test_client_takes_options(site: Site) -> None:
    with site.connect() as redis, site.connect() as other:
        mine, others = (int(each.call(b"CLIENT", b"ID")[1:]) for each in (redis, other))

        def numbers(*options: bytes) -> list[int]:
            _, lines = redis.call(b"CLIENT", b"LIST", *options)
            return [int(line.split()[0].removeprefix(b"id=")) for line in lines.splitlines()]

        assert {mine, others} <= set(numbers()) == set(numbers(b"TYPE", b"normal"))
        assert numbers(b"type", b"replica") == []
        assert numbers(b"ID", b"%d" % others, b"%d" % mine, b"999999") == [others, mine]
        assert redis.call(b"CLIENT", b"LIST", b"TYPE", b"other") == b"-ERR Unknown client type 'other'\r\n"
        assert redis.call(b"CLIENT", b"LIST", b"ID", b"one") == b"-ERR Invalid client ID\r\n"
        for options in ((b"ID",), (b"TYPE",), (b"TYPE", b"normal", b"ID"), (b"OTHER", b"1")):
            assert redis.call(b"CLIENT", b"LIST", *options) == b"-ERR syntax error\r\n"
        assert redis.call(b"CLIENT", b"NO-EVICT", b"on") == OK
        assert redis.call(b"CLIENT", b"NO-EVICT", b"maybe") == b"-ERR syntax error\r\n"


def test_the_door_forgets_scripts_with_python(redis: Connection, site: Site) -> None:
    release = b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end'
    name = hashlib.sha1(release).hexdigest().encode()
    for _ in range(2):
        assert redis.call(b"EVAL", release, b"1", b"lock", b"me") == b":0\r\n"
        asked = lambda: site.server.metric("gpkvs_operations_total", op="require")  # noqa: E731 - by the door alone
        before, give_up = asked(), time.monotonic() + 60
        while asked() == before:
            assert redis.call(b"EVALSHA", name, b"1", b"lock", b"me") == b":0\r\n"
            assert time.monotonic() < give_up, "the door does not get to know the script"
        assert redis.call(b"SCRIPT", b"FLUSH") == OK
        assert redis.call(b"EVALSHA", name, b"1", b"lock", b"me").startswith(b"-NOSCRIPT ")


def test_locks_are_released_by_their_scripts(redis: Connection) -> None:
    """The text is known however it is spaced."""
    release = b"""
        -- only my own
        if redis.call('get', KEYS[1]) == ARGV[1] then
            return redis.call("del",KEYS[1])
        else
            return 0
        end
    """
    extend = (
        b'if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end'
    )
    assert redis.call(b"SET", b"lock", b"me", b"NX", b"PX", b"30000") == OK
    assert redis.call(b"EVALSHA", b"0" * 40, b"1", b"lock", b"me").startswith(b"-NOSCRIPT ")
    assert redis.call(b"EVAL", extend, b"1", b"lock", b"you", b"90000") == b":0\r\n"
    assert redis.call(b"EVAL", extend, b"1", b"lock", b"me", b"90000") == b":1\r\n"
    assert int(redis.call(b"PTTL", b"lock")[1:]) > 30_000
    _, name = redis.call(b"SCRIPT", b"LOAD", release)
    assert redis.call(b"SCRIPT", b"EXISTS", name, b"0" * 40) == [b":1\r\n", b":0\r\n"]
    assert redis.call(b"EVALSHA", name, b"1", b"lock", b"you") == b":0\r\n"
    assert redis.call(b"EVALSHA", name, b"1", b"lock", b"me") == b":1\r\n"
    assert redis.call(b"EXISTS", b"lock") == b":0\r\n"
    assert redis.call(b"EVAL", b"return 1", b"0").startswith(b"-ERR no scripts run here but those of well-known locks")


def test_a_command_with_too_many_keys_is_refused(tmp_path: Path) -> None:
    made = Site(tmp_path, "--message-bytes-max", "64KiB")
    with made.connect() as redis:
        words = [word for i in range(600) for word in (b"%d" % i, b"v")]
        assert redis.call(b"MSETNX", *words) == (
            b"-ERR this takes 1,200 operations, allowed are 1,024 (request_ops_max): name fewer keys\r\n"
        )
        assert redis.call(b"MSETNX", *words[:400]) == b":1\r\n"
        assert redis.call(b"GET", b"1") == bulk(b"v")
    made.server.stop()


def test_quit_ends_the_connection(site: Site) -> None:
    with site.connect() as redis:
        redis.send((b"SET", b"k", b"v"), (b"QUIT",))
        assert [redis.reply(), redis.reply()] == [OK, OK]
        with pytest.raises(EOFError):
            redis.reply()


def test_a_stop_closes_connections(tmp_path: Path) -> None:
    """Idle ones, one that Python knows, and one in the middle of a transaction."""
    made = Site(tmp_path)
    connections = [made.connect() for _ in range(3)]
    assert connections[1].call(b"INCR", b"n") == b":1\r\n"
    connections[2].send((b"MULTI",), (b"SET", b"k", b"v"))
    assert [connections[2].reply(), connections[2].reply()] == [OK, b"+QUEUED\r\n"]
    began = time.monotonic()
    made.server.stop()
    assert time.monotonic() - began < 4
    for connection in connections:
        with connection, pytest.raises((EOFError, ConnectionError)):
            connection.reply()
    assert "Traceback" not in made.server.log.read_text()


def test_a_set_with_a_condition_is_one_request(site: Site, redis: Connection) -> None:
    def requests() -> float:
        return site.server.metric("gpkvs_batch_requests_sum")

    for words, reply, value in (
        ((b"SET", b"k", b"1", b"XX"), None, None),
        ((b"SET", b"k", b"2", b"NX", b"EX", b"1000"), OK, bulk(b"2")),
        ((b"SET", b"k", b"3", b"NX"), None, bulk(b"2")),
        ((b"SETNX", b"k", b"4"), b":0\r\n", bulk(b"2")),
        ((b"SET", b"k", b"5", b"XX"), OK, bulk(b"5")),
        ((b"SETNX", b"other", b"6"), b":1\r\n", bulk(b"5")),
    ):
        before = requests()
        assert redis.call(*words) == reply
        assert requests() == before + 1
        assert redis.call(b"GET", b"k") == value
    assert redis.call(b"TTL", b"k") == b":-1\r\n"


def test_a_set_with_a_condition_where_there_is_more_to_it(redis: Connection) -> None:
    """Other options, an expiry that has passed, a transaction, commands that come together."""
    assert redis.call(b"SET", b"k", b"1") == OK
    assert redis.call(b"SET", b"k", b"2", b"NX", b"KEEPTTL") is None
    assert redis.call(b"SET", b"k", b"2", b"NX", b"GET") == bulk(b"1")
    assert redis.call(b"SET", b"k", b"2", b"NX", b"PXAT", b"1") is None
    assert redis.call(b"SET", b"k", b"2", b"XX", b"PXAT", b"1") == OK
    assert redis.call(b"EXISTS", b"k") == b":0\r\n"
    redis.send(
        (b"MULTI",), (b"SETNX", b"k", b"1"), (b"SET", b"k", b"2", b"NX"), (b"SET", b"k", b"3", b"XX"), (b"EXEC",)
    )
    assert [redis.reply() for _ in range(5)][-1] == [b":1\r\n", None, OK]
    redis.send((b"SETNX", b"k", b"4"), (b"SETNX", b"new", b"5"), (b"SET", b"new", b"6", b"NX"))
    assert [redis.reply() for _ in range(3)] == [b":0\r\n", b":1\r\n", None]
    assert [redis.call(b"GET", key) for key in (b"k", b"new")] == [bulk(b"3"), bulk(b"5")]


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    made = Site(tmp_path)
    with made.connect() as redis:
        for i in range(50):
            assert redis.call(b"SETEX", b"k%d" % i, b"1000", b"v") == OK
            assert redis.call(b"SET", b"n%d" % i, b"v") == OK
    made.server.kill()
    again = Site(tmp_path)
    with again.connect() as redis:
        assert redis.call(b"EXISTS", *(b"%c%d" % (letter, i) for letter in b"kn" for i in range(50))) == b":100\r\n"
        assert 900 < int(redis.call(b"TTL", b"k7")[1:]) <= 1000
    again.server.stop()


def test_where_nobody_must_log_in_any_password_of_default_is_right(site: Site) -> None:
    with site.connect() as redis:
        assert redis.call(b"AUTH", b"default", b"anything") == OK
        assert redis.call(b"HELLO", b"2", b"AUTH", b"default", b"anything")[0] == bulk(b"server")
        for words in ((b"AUTH", b"root", b"anything"), (b"HELLO", b"2", b"AUTH", b"root", b"anything")):
            assert redis.call(*words).startswith(b"-WRONGPASS ")
        assert redis.call(b"AUTH", b"anything").startswith(b"-ERR AUTH <password> called without any password")


def test_info_tells_what_clients_ask_for(redis: Connection) -> None:
    _, lines = redis.call(b"INFO", b"server")
    assert {b"redis_version:7.0.15", b"server_name:gpkvs", b"arch_bits:64"} <= set(lines.splitlines())


def test_users_log_in(tmp_path: Path) -> None:
    root = Account(password="a long password", read=("*",), write=("*",))
    accounts = Accounts(tmp_path / "users.toml", alice=Account(read=("*",)), root=root)
    [(_, shown)] = accounts.token("alice")
    accounts.save()
    made = Site(tmp_path, "--users", str(accounts.path))
    with made.connect() as redis:
        for words in ((b"GET", b"k"), (b"SET", b"k", b"v"), (b"KEYS", b"*"), (b"PING",)):
            assert redis.call(*words) == b"-NOAUTH Authentication required.\r\n"
        assert redis.call(b"AUTH", b"root", b"wrong").startswith(b"-WRONGPASS ")
        assert redis.call(b"AUTH", b"root", b"a long password") == OK
        assert redis.call(b"SET", b"k", b"v") == OK
        assert redis.call(b"INCR", b"n") == b":1\r\n"
        assert redis.call(b"ACL", b"WHOAMI") == bulk(b"root")
        assert redis.call(b"RESET") == b"+RESET\r\n"
        assert redis.call(b"GET", b"k") == b"-NOAUTH Authentication required.\r\n"
        assert redis.call(b"AUTH", shown.removeprefix("Bearer ").encode()) == OK
        assert redis.call(b"GET", b"k") == bulk(b"v")
        for words in ((b"SET", b"k", b"w"), (b"INCR", b"n"), (b"SETEX", b"k", b"10", b"w")):
            assert redis.call(*words).startswith(b"-NOPERM ")
        redis.send([b"TTL", b"k"], [b"INCR", b"n"], [b"TTL", b"k"])
        assert redis.reply() == b":-1\r\n"
        assert redis.reply().startswith(b"-NOPERM ")
        assert redis.reply() == b":-1\r\n"
        assert redis.call(b"GET", b"k") == bulk(b"v")
    made.server.stop()


def test_an_option_may_be_said_again(redis: Connection) -> None:
    assert redis.call(b"SET", b"k", b"v", b"EX", b"100") == OK
    assert redis.call(b"GETEX", b"k", b"PERSIST", b"persist") == ("bulk", b"v")
    assert redis.call(b"TTL", b"k") == b":-1\r\n"
    assert redis.call(b"GETEX", b"k", b"PERSIST", b"EX", b"10").startswith(b"-ERR syntax error")


def batches(site: Site) -> float:
    return site.server.metric("gpkvs_batch_operations_count")


def test_commands_of_pythons_that_come_together_are_stored_together(redis: Connection, site: Site) -> None:
    redis.call(b"SET", b"k", b"v")
    before = batches(site)
    redis.send(*[[b"SET", b"k", b"%d" % i, b"XX", b"KEEPTTL"] for i in range(64)])
    assert [redis.reply() for _ in range(64)] == [OK] * 64
    assert batches(site) - before < 64
    assert redis.call(b"GET", b"k") == bulk(b"63")


def test_commands_that_come_together_are_stored_together(redis: Connection, site: Site) -> None:
    redis.call(b"PING")
    before = batches(site)
    redis.send(*[[b"SETRANGE", b"k", b"%d" % i, b"%d" % (i % 10)] for i in range(64)])
    assert [redis.reply() for _ in range(64)] == [b":%d\r\n" % (i + 1) for i in range(64)]
    assert batches(site) - before < 64
    assert redis.call(b"GETRANGE", b"k", b"0", b"11") == bulk(b"012345678901")


@pytest.mark.parametrize("wrong", [(b"INCR", b"text"), (b"INCR",), (b"EXPIRE", b"n", b"soon"), (b"INCR", b"")])
def test_one_that_fails_changes_nothing_and_the_others_are_executed(redis: Connection, wrong: tuple[bytes]) -> None:
    redis.call(b"SET", b"text", b"t")
    redis.send([b"INCR", b"n"], wrong, [b"INCR", b"n"], [b"GET", b"n"], [b"APPEND", b"text", b"u"], [b"GET", b"text"])
    assert redis.reply() == b":1\r\n"
    assert redis.reply().startswith(b"-ERR ")
    assert [redis.reply() for _ in range(4)] == [b":2\r\n", bulk(b"2"), b":2\r\n", bulk(b"tu")]


def test_commands_that_come_together_with_others(redis: Connection) -> None:
    """A transaction, a name, silence and an end among them."""
    redis.send(
        [b"INCR", b"n"], [b"MULTI"], [b"INCR", b"n"], [b"TTL", b"n"], [b"EXEC"], [b"INCR", b"n"], [b"DECR", b"n"]
    )
    expected = [b":1\r\n", OK, b"+QUEUED\r\n", b"+QUEUED\r\n", [b":2\r\n", b":-1\r\n"], b":3\r\n", b":2\r\n"]
    assert [redis.reply() for _ in expected] == expected
    redis.send([b"CLIENT", b"REPLY", b"SKIP"], [b"INCR", b"n"], [b"INCR", b"n"])
    assert redis.reply() == b":4\r\n"
    redis.send([b"INCR", b"n"], [b"QUIT"], [b"INCR", b"n"], [b"INCR", b"n"])
    assert [redis.reply(), redis.reply()] == [b":5\r\n", OK]
    with pytest.raises(EOFError):
        redis.reply()


def test_what_was_sent_together_is_executed_though_the_client_goes(redis: Connection, site: Site) -> None:
    with site.connect() as other:
        other.call(b"SELECT", b"9")
        other.send(*[[b"INCR", b"gone"]] * 50)
    deadline = time.monotonic() + 60
    while redis.call(b"GET", b"gone") != bulk(b"50"):
        assert time.monotonic() < deadline


SIZES = (0, 1, 4095, 4096, 8192, 30_000, 60_000, 70_000, 1 << 20, 3 << 20)


@pytest.mark.parametrize("size", SIZES)
def test_a_value_that_python_reads_alone(redis: Connection, size: int) -> None:
    """Whatever its size: what Python is answered is its own memory."""
    value = random.Random(size).randbytes(size)
    assert redis.call(b"SET", b"k", value) == OK
    for _ in range(3):
        assert redis.call(b"MEMORY", b"USAGE", b"k") != b"$-1\r\n"
        assert redis.call(b"RENAME", b"k", b"moved") == OK
        assert redis.call(b"RENAME", b"moved", b"k") == OK
    assert redis.call(b"GET", b"k") == bulk(value)


@pytest.mark.parametrize("size", SIZES[:-2])
def test_a_batch_that_is_not_plain(site: Site, size: int) -> None:
    """Python runs it: its time to live is longer than the door takes."""
    site.server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"v" * size))
    message = batch([(GET, b"k"), (SET, b"other", b"v")], ttls=u64(0, 2 * TTL_MS_MAX))
    for _ in range(3):
        assert site.server.kv.Batch(message).values == b"v" * size
