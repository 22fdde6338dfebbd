"""What the Redis protocol promises beside single replies: transactions, sessions, logins, durability, other clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpkvs.client import Client
from tests.accounts import Account, Accounts
from tests.server.redis.two_servers import Connection, resp_port
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

    threads = [threading.Thread(target=append, args=(letter,)) for letter in (b"a", b"b", b"c")]
    threads.append(threading.Thread(target=increment))
    for thread in threads:
        thread.start()
    for _ in range(100):
        redis.call(b"INCR", b"number")
    for thread in threads:
        thread.join()
    assert sorted(redis.call(b"GET", b"text")[1]) == sorted(b"abc" * 100)
    assert redis.call(b"GET", b"number") == bulk(b"200")


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


def test_the_default_table_is_not_emptied(site: Site) -> None:
    with site.connect() as redis:
        redis.call(b"SET", b"k", b"v")
        assert redis.call(b"FLUSHDB").startswith(b"-ERR the table 'default' is not emptied by FLUSHDB")
        assert redis.call(b"FLUSHALL") == OK
        assert redis.call(b"GET", b"k") == bulk(b"v")


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
        assert redis.call(b"TTL", b"k7") in (b":1000\r\n", b":999\r\n", b":998\r\n", b":997\r\n")
    again.server.stop()


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
        assert redis.call(b"GET", b"k") == bulk(b"v")
    made.server.stop()
