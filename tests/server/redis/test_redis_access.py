"""Who may do what over the Redis protocol, also for those who try something else."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis as redis_py

from gpkvs.client import Client
from gpkvs.server.redis.execution.command import COMMANDS
from gpkvs.server.redis.service import Service  # noqa: F401 - registers the commands
from tests.accounts import Account, Accounts
from tests.server.redis.two_servers import Connection, resp_port
from tests.serving import Server

OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"
NOAUTH = b"-NOAUTH Authentication required.\r\n"
PASSWORD = b"a long password"
SECONDS_MAX = 20
# What a client may say that has not logged in.
OPEN = {b"auth", b"hello", b"quit", b"reset"}
# Each with words that are right.
READING = [
    b"GET k", b"MGET k j", b"EXISTS k", b"TOUCH k", b"STRLEN k", b"GETRANGE k 0 1", b"SUBSTR k 0 1", b"TTL k",
    b"PTTL k", b"EXPIRETIME k", b"PEXPIRETIME k", b"TYPE k", b"KEYS *", b"SCAN 0", b"RANDOMKEY", b"DBSIZE", b"WATCH k",
    b"MEMORY USAGE k",
]  # fmt: skip
WRITING = [b"SET k w", b"SETEX k 10 w", b"PSETEX k 10 w", b"MSET k w", b"SET k w EX 10", b"SET k w KEEPTTL"]
BOTH = [
    b"SET k w NX", b"SET k w XX", b"SET k w GET", b"SETNX k w", b"MSETNX k w", b"GETSET k w", b"GETDEL k", b"GETEX k",
    b"GETEX k EX 10", b"GETEX k PERSIST", b"APPEND k w", b"SETRANGE k 1 w", b"INCR n", b"DECR n", b"INCRBY n 2",
    b"DECRBY n 2", b"INCRBYFLOAT n 2", b"DEL k", b"UNLINK k", b"RENAME k j", b"RENAMENX k j", b"COPY k j",
    b"EXPIRE k 9", b"PEXPIRE k 9", b"EXPIREAT k 9", b"PEXPIREAT k 9", b"PERSIST k",
]  # fmt: skip
ONLY_SESSION = [b"KEYS *", b"SCAN 0", b"RANDOMKEY", b"DBSIZE", b"WATCH k", b"MEMORY USAGE k"]  # none is queued


class Site:
    """A server with users and a table of database 9."""

    def __init__(self, folder: Path) -> None:
        everything = ("*",)
        self.accounts = Accounts(
            folder / "users.toml",
            root=Account(password=PASSWORD.decode(), read=everything, write=everything, admin=everything),
            reader=Account(password=PASSWORD.decode(), read=("default",)),
            writer=Account(password=PASSWORD.decode(), write=("default",)),
            mover=Account(read=("default",), write=("9",)),
        )
        self.tokens = {name: self._token(name) for name in ("root", "reader", "writer", "mover")}
        self.accounts.save()
        self.audit = folder / "audit.log"
        options = ("--users", str(self.accounts.path), "--audit-log", str(self.audit))
        self.server = Server(folder / "store", folder, "--resp", "127.0.0.1:0", *options)
        with Client(self.server.target, token=self.tokens["root"].decode()) as client:
            client.create_table("9")
            client.table("9").set(b"k", b"v")

    def _token(self, user: str) -> bytes:
        [(_, header)] = self.accounts.token(user)
        return header.removeprefix("Bearer ").encode()

    def connect(self, user: str = "") -> Connection:
        connection = Connection(resp_port(self.server))
        if user:
            assert connection.call(b"AUTH", self.tokens[user]) == OK
        return connection

    def new_user(self, name: str) -> bytes:
        """Return the token of a user who may read and write, when the server knows it."""
        self.accounts.users[name] = Account(read=("default",), write=("default",))
        token = self.tokens[name] = self._token(name)
        self.accounts.save()
        await_true(lambda: self.is_known(token))
        return token

    def is_known(self, token: bytes) -> bool:
        with self.connect() as redis:
            return redis.call(b"AUTH", token) == OK

    def refused(self) -> list[dict[str, str]]:
        lines = map(json.loads, self.audit.read_text().splitlines())
        return [line for line in lines if line["event"] == "refused"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("access"))
    try:
        yield made
        made.server.stop()
    finally:
        made.server.kill()
    assert "Traceback" not in made.server.log.read_text()


@pytest.fixture(autouse=True)
def _same_keys(site: Site) -> None:
    with site.connect("root") as redis:
        redis.call(b"DEL", b"k", b"j", b"n")
        redis.call(b"MSET", b"k", b"v", b"n", b"1")


def await_true(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < give_up, "it does not happen"
        time.sleep(0.02)


def ends(connection: Connection) -> bool:
    try:
        connection.reply()
    except (EOFError, ConnectionError):
        return True
    return False


def test_nobody_does_anything_without_a_login(site: Site) -> None:
    with site.connect() as redis:
        for name, command in COMMANDS.items():
            for second, arity in (command.subcommands or {"1": command.arity}).items():
                words = [name, second.encode(), *[b"1"] * abs(arity)][: abs(arity)]
                if name not in OPEN:
                    assert redis.call(*words) == NOAUTH, words
        assert redis.call(b"HELLO", b"3").startswith(b"-NOAUTH ")
        redis.send((b"MULTI",), (b"SET", b"k", b"w"), (b"EXEC",), (b"AUTH", site.tokens["reader"]), (b"GET", b"k"))
        assert [redis.reply() for _ in range(5)] == [NOAUTH, NOAUTH, NOAUTH, OK, ("bulk", b"v")]


@pytest.mark.parametrize(
    ("user", "allowed", "refused"), [("reader", READING, WRITING + BOTH), ("writer", WRITING, READING + BOTH)]
)
def test_each_command_needs_its_rights(site: Site, user: str, allowed: list[bytes], refused: list[bytes]) -> None:
    with site.connect(user) as redis:
        for line in refused:
            assert redis.call(*line.split()).startswith(b"-NOPERM user %b may not " % user.encode()), line
            if line not in ONLY_SESSION:
                redis.send((b"MULTI",), line.split(), (b"EXEC",))
                assert [redis.reply(), redis.reply()] == [OK, QUEUED], line
                assert b" NOPERM " in redis.reply(), line
        for line in allowed:
            reply = redis.call(*line.split())
            assert not str(reply).startswith(("b'-", 'b"-')), (line, reply)
            redis.call(b"UNWATCH")
    with site.connect("root") as redis:
        assert redis.call(b"MGET", b"k", b"n") == [("bulk", b"v" if user == "reader" else b"w"), ("bulk", b"1")]


def test_who_may_not_read_any_more_is_not_told_whether_a_watched_key_has_changed(site: Site) -> None:
    with site.connect("reader") as redis:
        assert redis.call(b"WATCH", b"k") == OK
        assert redis.call(b"AUTH", site.tokens["writer"]) == OK
        redis.send((b"MULTI",), (b"SET", b"new", b"w"), (b"EXEC",))
        assert [redis.reply(), redis.reply()] == [OK, QUEUED]
        assert b" NOPERM " in redis.reply()
    with site.connect("root") as redis:
        assert redis.call(b"EXISTS", b"new") == b":0\r\n"


def test_nobody_is_told_of_other_tables(site: Site) -> None:
    with site.connect("reader") as redis:
        for number in (b"9", b"8"):  # there is a table of one of them
            refusal = b"-NOPERM user reader may not read or write table '%s': " % number
            assert redis.call(b"SELECT", number).startswith(refusal)
        assert redis.call(b"GET", b"k") == ("bulk", b"v")
        assert b"db0:keys=" in redis.call(b"INFO", b"keyspace")[1]
        assert b"db9:" not in redis.call(b"INFO", b"keyspace")[1]
        assert b"'9'" not in redis.call(b"FLUSHALL")
    with site.connect("root") as redis:
        assert b"db9:keys=" in redis.call(b"INFO", b"keyspace")[1]


SUBSCRIBING = (b"SUBSCRIBE __keyspace@0__:k", b"SUBSCRIBE __keyevent@0__:set", b"PSUBSCRIBE __keyspace@0__:*")


def test_keys_that_change_are_told_to_who_may_read_them(site: Site) -> None:
    before = len(site.refused())
    with site.connect() as stranger, site.connect("writer") as writer, site.connect("reader") as reader:
        for line in SUBSCRIBING:
            assert stranger.call(*line.split()) == NOAUTH
            assert writer.call(*line.split()).startswith(b"-NOPERM user writer may not read table 'default'")
            assert reader.call(*line.split())[2].startswith(b":")
        for database in (b"9", b"8"):  # there is a table of one of them
            refusal = b"-NOPERM user reader may not read table '%s'" % database
            assert reader.call(b"SUBSCRIBE", b"__keyspace@0__:j", b"__keyspace@%s__:k" % database).startswith(refusal)
        for pattern in (b"__keyspace@*__:*", b"__keyevent@*__:set", b"__key*__:*"):
            refusal = b"-NOPERM user reader may not read all tables of the server"
            assert reader.call(b"PSUBSCRIBE", pattern).startswith(refusal)
        assert writer.call(b"SET", b"j", b"w") == OK
        assert writer.call(b"SET", b"k", b"w") == OK
        assert [reader.reply()[-1][1] for _ in range(5)] == [b"set", b"j", b"set", b"set", b"k"]
    with site.connect("root") as root:
        assert root.call(b"PSUBSCRIBE", b"__key*__:*")[2] == b":1\r\n"
    wanted = {
        ("writer", "may not read"),
        ("reader", "may not read"),
        ("reader", "may not read all tables of the server"),
    }
    await_true(lambda: wanted <= {(line["user"], line["reason"]) for line in site.refused()[before:]})


@pytest.mark.parametrize("protocol", [b"2", b"3"])
def test_who_may_not_read_any_more_is_not_told(site: Site, protocol: bytes) -> None:
    """A user whose right is taken away, one who is removed, and a connection that has become another user's."""
    names = [f"{kind}{protocol.decode()}" for kind in ("less", "gone", "stays")]
    for name in names:
        site.new_user(name)
    with site.connect(names[0]) as less, site.connect(names[1]) as gone, site.connect(names[2]) as stays:
        for connection in (less, gone, stays):
            connection.call(b"HELLO", protocol)
            connection.send((b"PSUBSCRIBE", b"__keyspace@0__:*"))
            connection.reply()
        site.accounts.users[names[0]] = replace(site.accounts.users[names[0]], read=())
        del site.accounts.users[names[1]]
        site.accounts.save()
        assert ends(less)
        assert ends(gone)
        with site.connect("root") as root:
            root.call(b"SET", b"secret", b"v")
        assert "secret" in str(stays.reply())
        if protocol == b"3":
            assert stays.call(b"AUTH", site.tokens["writer"]) == OK
            assert ends(stays)


def test_a_copy_needs_rights_to_both_tables(site: Site) -> None:
    for user in ("reader", "writer"):
        with site.connect(user) as redis:
            for number in (b"9", b"8"):
                assert redis.call(b"COPY", b"k", b"j", b"DB", number).startswith(b"-NOPERM ")
    with site.connect("mover") as redis:  # without REPLACE it would be told whether the key is there
        assert redis.call(b"COPY", b"k", b"j", b"DB", b"9").startswith(b"-NOPERM user mover may not read table '9'")
        assert redis.call(b"COPY", b"k", b"j", b"DB", b"9", b"REPLACE") == b":1\r\n"
        assert redis.call(b"COPY", b"k", b"j").startswith(b"-NOPERM user mover may not write table 'default'")


def test_a_copy_to_another_database_needs_both_rights(site: Site) -> None:
    site.accounts.users["copier"] = Account(read=("default",), write=("9",))
    site.tokens["copier"] = site._token("copier")
    site.accounts.save()
    await_true(lambda: site.is_known(site.tokens["copier"]))
    copy = (b"COPY", b"k", b"copied", b"DB")
    with site.connect("copier") as copier, site.connect("reader") as reader, site.connect("writer") as writer:
        assert copier.call(*copy, b"9").startswith(b"-NOPERM ")  # its reply would tell whether the copy is there
        assert copier.call(*copy, b"9", b"REPLACE") == b":1\r\n"
        assert copier.call(b"SELECT", b"9") == OK
        assert copier.call(*copy, b"0").startswith(b"-NOPERM ")
        for number in (b"9", b"8"):  # whether there is such a table or not
            assert reader.call(*copy, number).startswith(b"-NOPERM ")
        assert writer.call(*copy, b"9").startswith(b"-NOPERM ")


def test_nobody_is_told_of_other_users(site: Site) -> None:
    with site.connect("reader") as redis, site.connect("root") as root:
        for one, users in ((redis, {b"user=reader"}), (root, {b"user=reader", b"user=root"})):
            listed = one.call(b"CLIENT", b"LIST")[1].split()
            assert {word for word in listed if word.startswith(b"user=")} == users


@pytest.mark.parametrize("login", [(b"AUTH",), (b"HELLO", b"3", b"AUTH", b"root")])
@pytest.mark.parametrize("first", [(b"SET", b"k", b"w"), (b"INCR", b"n")])
def test_nobody_becomes_another_inside_a_transaction(site: Site, login: tuple[bytes, ...], first: tuple[bytes]) -> None:
    """One that the door queues, and one that Python does."""
    with site.connect("reader") as redis:
        redis.send((b"MULTI",), first, (*login, site.tokens["root"]), (b"EXEC",))
        assert [redis.reply(), redis.reply()] == [OK, QUEUED]
        assert b" is not possible inside MULTI here" in redis.reply()
        assert redis.reply().startswith(b"-EXECABORT ")
        assert redis.call(b"ACL", b"WHOAMI") == ("bulk", b"reader")
        assert redis.call(b"MGET", b"k", b"n") == [("bulk", b"v"), ("bulk", b"1")]


def test_a_token_is_of_one_user(site: Site) -> None:
    with site.connect() as redis:
        for name in (b"default", b"reader"):
            assert redis.call(b"AUTH", name, site.tokens["reader"]) == OK
        assert redis.call(b"AUTH", b"writer", site.tokens["reader"]).startswith(b"-WRONGPASS ")
        assert redis.call(b"HELLO", b"2", b"AUTH", b"root", site.tokens["reader"]).startswith(b"-WRONGPASS ")
        assert redis.call(b"ACL", b"WHOAMI") == ("bulk", b"reader")


def test_a_user_who_is_removed_is_out(site: Site) -> None:
    """Idle, in a transaction of the door or of Python, or beside another user on one connection."""
    site.new_user("leaver")
    idle, native, python, shared = (site.connect("leaver") for _ in range(4))
    assert shared.call(b"AUTH", site.tokens["reader"]) == OK
    assert shared.call(b"AUTH", site.tokens["leaver"]) == OK
    native.send((b"MULTI",), (b"SET", b"k", b"w"))
    python.send((b"MULTI",), (b"SET", b"k", b"w"), (b"INCR", b"n"))
    assert [native.reply(), native.reply()] == [OK, QUEUED]
    assert [python.reply() for _ in range(3)] == [OK, QUEUED, QUEUED]
    assert shared.call(b"GET", b"k") == ("bulk", b"v")
    del site.accounts.users["leaver"]
    began = time.monotonic()
    site.accounts.save()
    for connection in (idle, native, python):
        assert ends(connection)
    assert time.monotonic() - began < SECONDS_MAX  # of which the file takes most, and a slow machine the rest
    for words in ((b"GET", b"k"), (b"PING",), (b"CLIENT", b"LIST"), (b"MULTI",), (b"SET", b"k", b"w")):
        assert shared.call(*words) == NOAUTH
    assert shared.call(b"AUTH", site.tokens["reader"]) == OK
    assert shared.call(b"GET", b"k") == ("bulk", b"v")
    for connection in (idle, native, python, shared):
        connection.__exit__()


def test_a_user_who_is_removed_is_out_after_many_connections(site: Site) -> None:
    """So many that the server looks which of them are still there."""
    token = site.new_user("leaver")
    with site.connect("leaver") as first:
        for _ in range(1100):
            with site.connect() as redis:
                assert redis.call(b"AUTH", token) == OK
        time.sleep(0.2)
        del site.accounts.users["leaver"]
        site.accounts.save()
        assert ends(first)


def test_refusals_are_noted(site: Site) -> None:
    """Those of one second share a line."""
    before = len(site.refused())
    with site.connect() as redis:
        redis.call(b"INCR", b"n")
        redis.call(b"AUTH", b"nobody", b"a secret")
        redis.call(b"AUTH", site.tokens["reader"])
        redis.call(b"SET", b"k", b"w")
        redis.send((b"MULTI",), (b"INCR", b"n"), (b"EXEC",))
        for _ in range(3):
            redis.reply()
    wanted = {("", "missing"), ("nobody", "wrong"), ("reader", "may not write")}

    def noted() -> list[dict[str, str]]:
        return [line for line in site.refused()[before:] if (line["user"], line["reason"]) in wanted]

    await_true(lambda: {(line["user"], line["reason"]) for line in noted()} == wanted)
    assert all(line["rpc"].startswith("redis.") and line["address"] == "127.0.0.1" for line in noted())
    assert "a secret" not in site.audit.read_text()


def test_wrong_passwords_are_slowed(site: Site) -> None:
    """A right one too: nobody finds it out by trying."""
    site.accounts.users["guessed"] = Account(password=PASSWORD.decode(), read=("default",))
    site.accounts.save()
    with site.connect() as redis:
        replies = [redis.call(b"AUTH", b"guessed", b"%d" % guess) for guess in range(6)]
        assert replies[0].startswith(b"-WRONGPASS invalid username-password pair")
        assert replies[-1].startswith(
            b"-WRONGPASS too many failed logins, as this user or from this address, with a wrong user, password or "
            b"token: try again in "
        )
        assert redis.call(b"AUTH", b"guessed", PASSWORD).startswith(b"-WRONGPASS too many failed logins")
    with site.connect() as other:
        assert other.call(b"AUTH", b"reader", PASSWORD).startswith(b"-WRONGPASS too many failed logins")
        assert other.call(b"AUTH", site.tokens["reader"]) == OK


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_says_that_the_password_is_wrong(site: Site, protocol: int) -> None:
    """It tries again by itself, and shows the last answer: mostly that of somebody who has to wait."""
    port = resp_port(site.server)
    with contextlib.closing(redis_py.Redis(port=port, username="root", password="wrong", protocol=protocol)) as client:
        for _ in range(2):
            with pytest.raises(redis_py.AuthenticationError, match=r"invalid username-password pair|wrong .*password"):
                client.ping()
