"""The tests of redis-py, valkey-py and fakeredis pass on gpkvs, but for those that are not for it."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from gpkvs.client import Client
from tests.conformance.python_suites import Outcome, outside, run_suite, unpacked
from tests.server.redis.two_servers import Connection, redis_server, resp_port
from tests.serving import Server, StartServer

DATABASE = 9
FILES = ("test_commands", "test_lock", "test_pipeline", "test_encoding")
TESTS = [f"tests/{name}.py" for name in (*FILES, "test_multiprocessing", *(f"test_asyncio/{name}" for name in FILES))]
ROOMY = ("--heap-bytes", "256MiB", "--journal-bytes", "128MiB")

LEFT_OUT = {
    "settings are given to `gpkvs serve`": (
        "test_auth",
        "test_config_get",
        "test_config_get_multi_params",
        "test_config_set",
        "test_config_set_multi_params",
        "test_slowlog_get",
        "test_slowlog_get_limit",
        "test_slowlog_length",
    ),
    "FLUSHDB keeps the table `default`": ("test_reset", "test_copy_to_another_database"),
    "no count of commands in INFO": ("test_config_resetstat",),
    "users stand in a file": ("test_acl_list",),
    "CLIENT LIST does not tell of buffers and sockets": ("test_client_info", "test_client_kill_filter_by_laddr"),
    "it counts the commands of Redis": ("test_command", "test_command_count", "test_command_list"),
    "SYNC, PSYNC": ("test_sync", "test_psync"),
    "it kills the connection of another client, with timing that fails on Redis, too": ("test_interrupted_command",),
}
LEFT_OUT_OF_VALKEY = {**LEFT_OUT, "INFO of Valkey": ("test_info", "test_info_multi_sections")}


def serve(start_server: StartServer) -> Server:
    """Return a server with the databases of Redis."""
    server = start_server("--resp", "127.0.0.1:0", *ROOMY)
    with Client(server.target) as client:
        for number in range(1, 16):
            client.create_table(str(number))
    return server


@pytest.fixture(scope="module")
def missing(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the commands that Redis has, and gpkvs not."""
    with redis_server(tmp_path_factory.mktemp("redis")) as port, Connection(port) as redis:
        return outside([name.decode() for _, name in redis.call(b"COMMAND", b"LIST")])


def require(outcome: Outcome, passed_min: int) -> None:
    """Fail unless so many tests passed, and no test failed."""
    print(outcome.passed, "passed;", Counter(line.rpartition("outside: ")[2] for line in outcome.skipped))
    assert not outcome.failed, outcome.output
    assert outcome.passed >= passed_min


# In CI each library runs in the protocol that it speaks by default.
@pytest.mark.parametrize("protocol", [3] if os.environ.get("CI") else [3, 2])
def test_redis_py(start_server: StartServer, tmp_path: Path, missing: list[str], protocol: int) -> None:
    root = unpacked("redis", tmp_path, {"tracemalloc.start()": "pass", "tracemalloc.stop()": "pass"})
    url = f"redis://127.0.0.1:{resp_port(serve(start_server))}/{DATABASE}"
    outcome = run_suite(
        *(root, "redis", missing, LEFT_OUT),
        *("--redis-url", url, f"--protocol={protocol}", "-m", "not onlycluster and not redismod", *TESTS),
    )
    require(outcome, 570)


@pytest.mark.parametrize("protocol", [2] if os.environ.get("CI") else [2, 3])
def test_valkey_py(start_server: StartServer, tmp_path: Path, missing: list[str], protocol: int) -> None:
    root = unpacked("valkey", tmp_path, {'info["valkey_version"]': 'info["redis_version"]'})
    url = f"valkey://127.0.0.1:{resp_port(serve(start_server))}/{DATABASE}"
    outcome = run_suite(
        *(root, "valkey", missing, LEFT_OUT_OF_VALKEY),
        *("--valkey-url", url, f"--protocol={protocol}", "-m", "not onlycluster and not valkeymod", *TESTS),
    )
    require(outcome, 510)


MIXINS = [
    f"test/test_mixins/test_{name}_commands.py"
    for name in ("string", "generic", "generic_scan", "transactions", "connection", "server")
]
LEFT_OUT_OF_FAKEREDIS = {
    "a value has up to 16 MiB": ("test_setrange",),
    "a key has 1 byte at least": ("test_keys",),
    "FLUSHALL keeps the table `default`": ("test_copy_to_db_0",),
    "channels are those of keys that change": ("test_reset_unsubscribes",),
}


def fakeredis(start_server: StartServer, folder: Path) -> tuple[Path, list[Path]]:
    """Return fakeredis' source, which takes gpkvs for the real server, and the libraries that it compares."""
    port = resp_port(serve(start_server))
    replaced = {"6390": str(port), 'server_type = client_info["server_name"]': 'server_type = "redis"'}
    root = unpacked("fakeredis", folder, replaced)
    return root, [unpacked(library, folder / library, {}) for library in ("redis", "valkey")]


def test_fakeredis_tests_of_a_real_server(start_server: StartServer, tmp_path: Path, missing: list[str]) -> None:
    root, path = fakeredis(start_server, tmp_path)
    # Each test is there for RESP2 and RESP3; some sleep for seconds.
    chosen = "Strict3 and not test_getex" if os.environ.get("CI") else "Strict"
    outcome = run_suite(root, "redis", missing, LEFT_OUT_OF_FAKEREDIS, "-m", "real", "-k", chosen, *MIXINS, path=path)
    require(outcome, 150)


def test_fakeredis_machines(
    start_server: StartServer, tmp_path: Path, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random sequences of commands: gpkvs answers as fakeredis, which was compared with Redis."""
    root, path = fakeredis(start_server, tmp_path)
    monkeypatch.setenv("FAKEREDIS_HYPOTHESIS_EXAMPLES", "20" if os.environ.get("CI") else "50")
    seed = random.randrange(1 << 32)
    machines = [f"test/test_hypothesis/test_{name}.py" for name in ("string", "transaction", "server", "connection")]
    outcome = run_suite(
        *(root, "redis", missing, {}, "-p", "same_answers", f"--hypothesis-seed={seed}", "--timeout=140", *machines),
        path=path,
    )
    print("seed", seed)
    require(outcome, len(machines))
