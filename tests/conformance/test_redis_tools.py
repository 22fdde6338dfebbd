"""redis-cli and redis-benchmark, as their users call them."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import require
from tests.server.redis.two_servers import DATABASE, encoded, gpkvs_server, redis_server

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield where a server with the table of `DATABASE` speaks the Redis protocol."""
    with gpkvs_server(tmp_path_factory.mktemp("gpkvs")) as port:
        yield port


def run(*command: str, stdin: bytes = b"") -> str:
    """Return what a command prints; fail if it fails."""
    require(command[0])
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.decode()


def redis_cli(port: int, *words: str, stdin: bytes = b"") -> str:
    """Return what redis-cli prints of a command, or of the lines that it reads."""
    return run("redis-cli", "-p", str(port), "-n", str(DATABASE), *words, stdin=stdin)


SESSION = b"""
set greeting "hello world" EX 100
get greeting
ttl greeting
incr greeting
mset a 1 b 2
mget a none b
multi
incr a
get a
exec
lpush list 1
set k v wrong
time now
"""


@pytest.mark.parametrize("options", [(), ("-2",), ("-3",), ("--json",), ("--csv",), ("-3", "--no-raw")], ids=str)
def test_lines_print_what_they_print_with_redis(port: int, tmp_path: Path, options: tuple[str, ...]) -> None:
    printed = redis_cli(port, *options, stdin=SESSION)
    with redis_server(tmp_path) as real:
        wanted = redis_cli(real, *options, stdin=SESSION.replace(b"lpush list 1", b"lpushed list 1"))
    assert printed == wanted.replace("'lpushed'", "'lpush'")


def test_mass_insertion_and_scan(port: int) -> None:
    assert redis_cli(port, "FLUSHDB") == "OK\n"
    keys = [b"key:%d" % i for i in range(20_000)]
    commands = b"".join(encoded((b"SET", key, b"value of " + key)) for key in keys)
    assert "errors: 0, replies: 20000" in redis_cli(port, "--pipe", stdin=commands)
    assert redis_cli(port, "DBSIZE") == "20000\n"
    assert sorted(redis_cli(port, "--scan").encode().split()) == sorted(keys)
    assert sorted(redis_cli(port, "--scan", "--pattern", "key:1999?").split()) == [f"key:1999{i}" for i in range(10)]
    assert redis_cli(port, "GET", "key:777") == "value of key:777\n"


@pytest.mark.parametrize("options", [(), ("-P", "64"), ("-3",)], ids=str)
def test_benchmark(port: int, options: tuple[str, ...]) -> None:
    tests = "ping_inline,ping_mbulk,set,get,incr,mset"
    command = ["redis-benchmark", "-p", str(port), "-n", "5000", "-r", "1000", "-t", tests, "--csv", "-e", *options]
    rows = list(csv.DictReader(run(*command).splitlines()))
    assert [row["test"] for row in rows] == ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET (10 keys)"]
    assert all(float(row["rps"]) > 0 for row in rows)
