"""What the metrics and INFO say of commands, errors and connections of the Redis protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.server.redis.two_servers import Connection, resp_port, wait_for_connections
from tests.serving import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("stats")
    started = Server(folder / "store", folder, "--resp", "127.0.0.1:0")
    try:
        yield started
        started.stop()
    finally:
        started.kill()


def counted(server: Server, name: str, label: str) -> Counter[str]:
    return Counter(
        {sample.labels[label]: int(sample.value) for sample in server.samples() if sample.name == f"gpkvs_redis_{name}"}
    )


NATIVE = [[b"SET", b"a", b"1"], [b"get", b"a"], [b"MGET", b"a", b"b"], [b"PING"], [b"DEL", b"a", b"b"]]
PYTHONS = [[b"INCR", b"n"], [b"SETEX", b"k", b"100", b"v"], [b"GET"], [b"Nonsense", b"GET"], [b"CLIENT", b"ID"]]
QUEUED = [[b"MULTI"], [b"SET", b"a", b"1"], [b"GET", b"a"]]


@pytest.mark.parametrize(
    ("commands", "unknown", "errors"),
    [
        (NATIVE, 0, {}),
        (PYTHONS, 1, {"ERR": 2}),
        ([*QUEUED, [b"EXEC"]], 0, {}),
        ([*QUEUED, [b"DISCARD"]], 0, {}),
        ([[b"MULTI"], [b"EXEC"]], 0, {}),
        ([*QUEUED, [b"APPEND", b"a", b"x"], [b"INCR", b"a"], [b"EXEC"]], 0, {"ERR": 1}),
        ([*QUEUED, [b"NONSENSE"], [b"EXEC"]], 1, {"ERR": 1, "EXECABORT": 1}),
        ([[b"EXEC"], [b"AUTH", b"somebody", b"pass"]], 0, {"ERR": 1, "WRONGPASS": 1}),
    ],
)
def test_each_command_and_error_counts_once(
    server: Server, commands: Sequence[Sequence[bytes]], unknown: int, errors: dict[str, int]
) -> None:
    before = [counted(server, name, label) for name, label in (("commands_total", "command"), ("errors_total", "kind"))]
    with Connection(resp_port(server)) as redis:
        redis.send(*commands)
        for _ in commands:
            redis.reply()
    now = [counted(server, name, label) for name, label in (("commands_total", "command"), ("errors_total", "kind"))]
    names = Counter(words[0].decode().lower() for words in commands)
    del names["nonsense"]
    assert now[0] - before[0] == names + Counter(unknown=unknown)
    assert now[1] - before[1] == Counter(errors)


def test_an_error_of_the_protocol_counts(server: Server) -> None:
    before = server.metric("gpkvs_redis_errors_total", kind="ERR")
    with Connection(resp_port(server)) as redis:
        redis.send([b"PING"])
        redis.send_bytes(b"*1\r\n?\r\n")
        assert redis.reply() == b"+PONG\r\n"
        assert redis.reply().startswith(b"-ERR Protocol error")
    assert server.metric("gpkvs_redis_errors_total", kind="ERR") == before + 1


def test_an_error_that_is_not_sent_counts(server: Server) -> None:
    before = [server.metric("gpkvs_redis_errors_total", kind=kind) for kind in ("ERR", "OOM")]
    large = [b"large%d" % i for i in range(40)]
    with Connection(resp_port(server)) as redis:
        redis.send([b"CLIENT", b"REPLY", b"OFF"], *([b"SET", key, bytes(500_000)] for key in large))
        redis.send([b"GET"], [b"CLIENT", b"REPLY", b"ON"])
        assert redis.reply() == b"+OK\r\n"
        redis.call(b"DEL", *large)  # not before: values that one batch stores and deletes take no room
    now = [server.metric("gpkvs_redis_errors_total", kind=kind) for kind in ("ERR", "OOM")]
    assert now[0] == before[0] + 1
    assert now[1] > before[1]


def test_connections_are_counted_and_info_says_the_same(server: Server) -> None:
    wait_for_connections(server, 0)
    opened = server.metric("gpkvs_redis_connections_opened_total")
    with Connection(resp_port(server)) as one, Connection(resp_port(server)) as two:
        for redis in (one, two):
            redis.call(b"PING")
        wait_for_connections(server, 2)
        assert server.metric("gpkvs_redis_connections_opened_total") == opened + 2
        commands = int(server.metric("gpkvs_redis_commands_total"))
        _, lines = one.call(b"INFO")
        assert {
            b"connected_clients:2",
            b"total_connections_received:%d" % (opened + 2),
            b"total_commands_processed:%d" % commands,
        } <= set(lines.splitlines())
    wait_for_connections(server, 0)
