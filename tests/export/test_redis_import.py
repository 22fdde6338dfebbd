"""Imports from Redis: what comes, with which expiry, what is left out and said, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpkvs.bench.peers.ports import free_port
from gpkvs.cli.main import app
from gpkvs.client import Client
from gpkvs.config import Limits
from gpkvs.export.file_format import ExportError
from gpkvs.export.redis_reader import RedisReader, RedisServer
from tests.certificates import Authority
from tests.ports import held_port
from tests.server.redis.two_servers import Connection, redis_server, resp_port
from tests.serving import Server

PASSWORD = "a long PASSWORD"
HOUR_MS = 3_600_000
MANY = {b"many:%05d" % n: b"%d" % n * (n % 50) for n in range(2500)}
ODD = {b"\x00\xff\r\n": b"", b"k" * 4096: b"\x00\r\n\xff", b"large": bytes(5 << 20), b"large too": b"x" * (5 << 20)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with the tables that tests write to."""
    folder = tmp_path_factory.mktemp("import")
    server = Server(folder / "store", folder, "--resp", "127.0.0.1:0", "--heap-bytes", "128MiB")
    try:
        with Client(server.target) as client:
            client.create_table("numbers", layout="u64", index_bytes=1 << 20)
        yield server
        server.stop()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of a Redis that asks for nothing."""
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture
def redis(port: int) -> Iterator[Connection]:
    with Connection(port) as connection:
        assert connection.call(b"FLUSHALL") == b"+OK\r\n"
        yield connection


@pytest.fixture
def table(server: Server, request: pytest.FixtureRequest) -> str:
    """Return a new table's name."""
    name = request.node.name.partition("[")[0][:60]
    with Client(server.target) as client:
        client.create_table(name, index_bytes=1 << 20)
    return str(name)


def gpkvs(server: Server, port: int, *words: str | Path, env: dict[str, str] | None = None) -> Result:
    arguments = ["import", "--from-redis", f"127.0.0.1:{port}", "--target", server.target, *map(str, words)]
    return CliRunner().invoke(app, arguments, env=env)


def refusal(server: Server, port: int, *words: str | Path, env: dict[str, str] | None = None) -> str:
    result = gpkvs(server, port, *words, env=env)
    assert result.exit_code == 2, result.output
    assert PASSWORD not in result.output
    return " ".join(result.stderr.split())


def contents(server: Server, table: str) -> dict[bytes, tuple[bytes, int]]:
    """Return values and expiries of a table."""
    with Client(server.target, table=table) as client:
        return {
            key: (value, expiry)
            for piece in client.scan_pieces()
            for (key, value), expiry in zip(piece.pairs(), piece.expiry_list(), strict=True)
        }


def store(redis: Connection, records: dict[bytes, bytes]) -> None:
    redis.send(*((b"SET", key, value) for key, value in records.items()))
    assert {redis.reply() for _ in records} == {b"+OK\r\n"}


def test_keys_come_with_their_expiries(server: Server, port: int, redis: Connection, table: str) -> None:
    store(redis, MANY | ODD)
    expiry = int(time.time() * 1000) + HOUR_MS
    assert redis.call(b"PEXPIREAT", b"many:00007", b"%d" % expiry) == b":1\r\n"
    made = gpkvs(server, port, "--table", table)
    assert made.exit_code == 0, made.output
    assert f"2,504 records stored in table {table}" in made.stdout
    expected = {key: (value, 0) for key, value in (MANY | ODD).items()}
    expected[b"many:00007"] = (MANY[b"many:00007"], expiry)
    assert contents(server, table) == expected
    # Again: what has changed in Redis has changed here.
    redis.call(b"SET", b"many:00007", b"new")
    assert gpkvs(server, port, "--table", table).exit_code == 0
    assert contents(server, table) == expected | {b"many:00007": (b"new", 0)}
    redis.call(b"SET", b"many:00007", b"newer")
    left = gpkvs(server, port, "--table", table, "--if-absent", "--json")
    assert json.loads(left.stdout) == {"table": table, "stored": 0, "there_already": 2504, "left_out": {}}
    assert contents(server, table)[b"many:00007"] == (b"new", 0)


def test_a_database_goes_to_its_table(server: Server, port: int, redis: Connection) -> None:
    redis.call(b"SELECT", b"3")
    redis.call(b"SET", b"k", b"in 3")
    assert "there is no table '3'" in refusal(server, port, "--redis-database", "3")
    assert gpkvs(server, port, "--redis-database", "3", "--create").exit_code == 0
    assert contents(server, "3") == {b"k": (b"in 3", 0)}
    assert gpkvs(server, port).exit_code == 0
    assert contents(server, "default") == {}
    assert "table 'numbers' has u64" in refusal(server, port, "--table", "numbers")


def test_what_gpkvs_cannot_hold_is_named(server: Server, port: int, redis: Connection, table: str) -> None:
    for n in range(5):
        redis.call(b"RPUSH", b"list%d" % n, b"a")
    redis.call(b"HSET", b"hash", b"a", b"b")
    store(redis, {b"": b"empty", b"k" * 4097: b"", b"fits": b"v" * 100})
    with Client(server.target) as client:
        value_bytes_max = client.info().value_bytes_max
    redis.call(b"SETRANGE", b"too large", b"%d" % value_bytes_max, b"x")
    result = gpkvs(server, port, "--table", table)
    assert result.exit_code == 1
    for said in (
        "5 keys of the type list: b'list",
        "1 key of the type hash: b'hash'",
        "2 keys not of 1 to 4,096 bytes: b'",
        f"1 key with a value of more than {value_bytes_max:,} bytes: b'too large'",
    ):
        assert said in result.stderr
    assert result.stderr.count("b'list") == 3
    assert contents(server, table) == {b"fits": (b"v" * 100, 0)}
    skipped = gpkvs(server, port, "--table", table, "--skip", "--json")
    assert skipped.exit_code == 0
    assert sum(json.loads(skipped.stdout)["left_out"].values()) == 9


def test_gpkvs_itself_is_a_source(server: Server, table: str) -> None:
    few = {key: MANY[key] for key in sorted(MANY)[:200]}
    with Client(server.target) as client:
        client.create_table("7", index_bytes=1 << 20)
    with Connection(resp_port(server)) as redis:
        redis.call(b"SELECT", b"7")
        store(redis, few)
        redis.call(b"PEXPIREAT", b"many:00001", b"4000000000000")
    made = gpkvs(server, resp_port(server), "--redis-database", "7", "--table", table)
    assert made.exit_code == 0, made.output
    expected = {key: (value, 0) for key, value in few.items()}
    assert contents(server, table) == expected | {b"many:00001": (MANY[b"many:00001"], 4_000_000_000_000)}


def test_a_redis_older_than_pexpiretime(server: Server, table: str, tmp_path: Path) -> None:
    with redis_server(tmp_path, "--rename-command", "PEXPIRETIME", "") as port, Connection(port) as redis:
        expiry = int(time.time() * 1000) + HOUR_MS
        store(redis, {b"stays": b"1", b"goes": b"2"})
        redis.call(b"PEXPIREAT", b"goes", b"%d" % expiry)
        assert gpkvs(server, port, "--table", table).exit_code == 0
        found = contents(server, table)
    assert found[b"stays"] == (b"1", 0)
    assert found[b"goes"][0] == b"2"
    assert abs(found[b"goes"][1] - expiry) <= 5


def test_secrets_and_tls(server: Server, table: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("redis", "IP:127.0.0.1")
    tls_port = free_port()
    options = ("--tls-port", str(tls_port), "--tls-cert-file", str(pair.cert), "--tls-key-file", str(pair.key))
    options += ("--tls-ca-cert-file", str(authority.path), "--tls-auth-clients", "no", "--requirepass", PASSWORD)
    credentials = tmp_path / "redis.toml"
    credentials.touch(0o600)
    with redis_server(tmp_path, *options) as port:
        assert "Authentication required: put the password in GPKVS_REDIS_PASSWORD" in refusal(server, port)
        wrong = refusal(server, port, env={"GPKVS_REDIS_PASSWORD": "wrong"})
        assert "invalid username-password pair" in wrong
        assert gpkvs(server, port, "--table", table, env={"GPKVS_REDIS_PASSWORD": PASSWORD}).exit_code == 0
        credentials.write_text(f'user = "default"\npassword = "{PASSWORD}"\nca = "{authority.path}"\n')
        given = ("--table", table, "--redis-credentials", credentials)
        made = gpkvs(server, tls_port, *given)
        assert made.exit_code == 0, made.output
        assert "speak TLS or plain?" in refusal(server, port, "--timeout", "0.5", *given)
        credentials.write_text(f'password = "{PASSWORD}"\nca = "{tmp_path}/none.pem"\n')
        assert "none.pem: No such file" in refusal(server, tls_port, *given)
    far = CliRunner().invoke(
        app, ["import", "--from-redis", "192.0.2.1:6379", "--target", server.target], env={"GPKVS_REDIS_PASSWORD": "p"}
    )
    assert far.exit_code == 2
    assert "would go to 192.0.2.1:6379 unencrypted" in far.stderr


def test_a_cluster_is_refused(server: Server, tmp_path: Path) -> None:
    with redis_server(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as port:
        assert "is a node of a Redis Cluster" in refusal(server, port)


def test_what_to_do_is_said(server: Server, port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with held_port() as closed:
        assert "Connection refused: is a Redis there" in refusal(server, closed)
    assert "out of range" in refusal(server, port, "--redis-database", "99")
    assert "give one of them" in refusal(server, port, tmp_path / "file")
    assert "give one of them" in CliRunner().invoke(app, ["import"]).stderr
    monkeypatch.setitem(sys.modules, "redis", None)
    assert "run pip install 'gpkvs[redis]'" in refusal(server, port)


def test_rights_are_named(server: Server, port: int, redis: Connection) -> None:
    redis.call(b"ACL", b"SETUSER", b"weak", b"on", b">weak", b"~*", b"+@read", b"-get")
    redis.call(b"SET", b"k", b"v")
    reader = RedisServer("127.0.0.1", port, user="weak", password="weak")
    with pytest.raises(ExportError, match=r"\+strlen \+get"):
        list(chunks_of(reader))
    assert "weak'" not in repr(reader).partition("user='weak'")[2]


def chunks_of(server: RedisServer) -> Iterator[list[Any]]:
    return RedisReader(server, Limits(), timeout=10).chunks()


class Meddler(RedisReader):
    """Lets something happen before it asks for the types of keys, or for their values."""

    redis: Connection
    before_types: tuple[bytes, ...]
    before_values: list[tuple[bytes, ...]]

    def _piped(self, keys: list[bytes], command: str) -> list[Any]:
        if command == "type":
            self.redis.call(*self.before_types)
        return super()._piped(keys, command)

    def _records(self, keys: list[bytes]) -> Any:
        for words in self.before_values:
            self.redis.call(*words)
        return super()._records(keys)


def test_keys_that_change_meanwhile(port: int, redis: Connection) -> None:
    store(redis, dict.fromkeys((b"stays", b"goes", b"other type", b"grows", b"new value"), b"1"))
    redis.call(b"RPUSH", b"list that goes", b"a")
    reader = Meddler(RedisServer("127.0.0.1", port), Limits(value_bytes_max=10), timeout=10)
    reader.redis = redis
    reader.before_types = (b"DEL", b"list that goes")
    reader.before_values = [
        (b"DEL", b"goes", b"other type"),
        (b"RPUSH", b"other type", b"a"),
        (b"SET", b"grows", b"12345678901"),
        (b"SET", b"new value", b"2", b"PXAT", b"4000000000000"),
    ]
    found = sorted(record for chunk in reader.chunks() for record in chunk)
    assert found == [(b"new value", b"2", 4_000_000_000_000), (b"stays", b"1", 0)]
    assert reader.left_out.counts == {"of the type list": 1, "with a value of more than 10 bytes": 1}


def test_a_lost_connection_is_not_made_again(tmp_path: Path) -> None:
    with ExitStack() as first:
        port = first.enter_context(redis_server(tmp_path))
        with Connection(port) as redis:
            store(redis, MANY)
        chunks = chunks_of(RedisServer("127.0.0.1", port))
        next(chunks)
        with Connection(port) as redis:
            redis.call(b"CLIENT", b"KILL", b"TYPE", b"normal")
        with pytest.raises(ExportError, match="closed"):
            list(chunks)


def test_redis_is_loaded_when_it_is_asked_for() -> None:
    code = "import sys, gpkvs.cli.data.import_run; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
