"""The gathering clients of the examples in Node.js and Go, against real servers."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from grpc import StatusCode

from gpkvs.bench.peers.ports import free_port
from gpkvs.proto.v1 import admin_pb2
from tests.accounts import Account, Accounts
from tests.certificates import HERE, Authority, server_options
from tests.conftest import assert_clean
from tests.examples.gathering import Call, Driver, Outcome, Programs, driven, go_programs, nodejs_programs
from tests.ports import held_port
from tests.server.access.guarded import Guarded
from tests.serving import Server, StartServer

MIB = 1 << 20
CALLS = 1000


@pytest.fixture(scope="module", params=["nodejs", "go"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Return the programs of one language."""
    build = {"nodejs": nodejs_programs, "go": go_programs}[request.param]
    return build(tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server for several tests."""
    folder = tmp_path_factory.mktemp("gathering")
    server = Server(folder / "store", folder, "--heap-bytes-max=512MiB")
    try:
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


def code(status: StatusCode) -> int:
    """Return the number of a status."""
    number: int = status.value[0]
    return number


def sets_of(count: int, mark: str = "") -> list[Call]:
    """Return SETs of different keys, each of the value that is its key."""
    return [("set", b"%s%d" % (mark.encode(), number), b"%s%d" % (mark.encode(), number)) for number in range(count)]


def test_many_calls_are_few_messages(programs: Programs, shared: Server) -> None:
    with driven(programs, shared.target) as driver:
        before = shared.metric("gpkvs_batch_requests_sum")
        stored = driver.do(sets_of(CALLS))
        read = driver.do(("get", b"%d" % number) for number in range(CALLS + 1))
        gone = driver.do(("delete", b"%d" % number) for number in range(CALLS + 1))
        messages = shared.metric("gpkvs_batch_requests_sum") - before
    assert len({one["version"] for one in stored}) == CALLS
    assert read == [*({"found": True, "value": b"%d" % number} for number in range(CALLS)), {"found": False}]
    assert gone == [*({"found": True} for _ in range(CALLS)), {"found": False}]
    assert messages < CALLS / 3


def test_values_of_all_sizes(programs: Programs, shared: Server) -> None:
    sizes = (0, 1, 100, MIB, 16 * MIB)
    values = [(b"size %d" % size, bytes([size % 251]) * size) for size in sizes]
    with driven(programs, shared.target) as driver:
        stored = driver.do(("set", key, value) for key, value in values)
        assert all("version" in one for one in stored), stored
        assert driver.do(("get", key) for key, _ in values) == [{"found": True, "value": value} for _, value in values]
        too_long = driver.one("set", bytes(4097), b"")
        assert too_long["code"] == code(StatusCode.INVALID_ARGUMENT)
        assert "4,096" in too_long["text"]
        assert driver.do(("delete", key) for key, _ in values) == [{"found": True}] * len(sizes)


def test_a_table_of_numbers(programs: Programs, shared: Server) -> None:
    numbers = [number.to_bytes(8, "little") for number in range(500)]
    if "numbers" not in [table.name for table in shared.admin.ListTables(admin_pb2.ListTablesRequest()).tables]:
        shared.admin.CreateTable(admin_pb2.CreateTableRequest(name="numbers", layout="u64"))
    with driven(programs, shared.target, table="numbers") as driver:
        assert driver.do(("set", number, number[::-1]) for number in numbers) == [{"version": 0}] * 500
        found = driver.do(("get", number) for number in numbers)
        assert found == [{"found": True, "value": number[::-1]} for number in numbers]
        assert driver.one("set", b"short", numbers[0])["code"] == code(StatusCode.INVALID_ARGUMENT)
        assert driver.do(("delete", number) for number in numbers) == [{"found": True}] * 500


def test_a_bad_call_fails_alone(programs: Programs, shared: Server) -> None:
    calls = sets_of(400, "mixed")
    bad = range(7, 400, 50)
    for number in bad:
        calls[number] = ("get", bytes(5000)) if number % 100 < 50 else ("set", b"", b"")
    with driven(programs, shared.target) as driver:
        outcomes = driver.do(calls)
    assert [i for i, one in enumerate(outcomes) if "version" not in one] == list(bad)
    assert {outcomes[i]["code"] for i in bad} == {code(StatusCode.INVALID_ARGUMENT)}


def test_there_is_no_such_table(programs: Programs, shared: Server) -> None:
    with driven(programs, shared.target, table="nowhere") as driver:
        assert {one["code"] for one in driver.do(sets_of(9))} == {code(StatusCode.NOT_FOUND)}


def test_a_full_store_is_still_read(programs: Programs, start_server: StartServer) -> None:
    server = start_server("--heap-bytes", "4MiB", "--heap-bytes-max", "4MiB")
    with driven(programs, server.target) as driver:
        driver.one("set", b"there", b"it is")
        outcomes = driver.do([("get", b"there") if i % 2 else ("set", b"%d" % i, bytes(200_000)) for i in range(80)])
    assert [one["value"] for one in outcomes[1::2]] == [b"it is"] * 40
    stored = [one for one in outcomes[::2] if "version" in one]
    refused = [one for one in outcomes[::2] if one.get("code") == code(StatusCode.RESOURCE_EXHAUSTED)]
    assert 1 <= len(stored) <= 20
    assert len(stored) + len(refused) == 40


def set_until(driver: Driver, mark: str, seconds: float) -> dict[bytes, Outcome]:
    """Begin SETs for so long, one after the other, and wait for all of them; return the outcomes by key."""
    numbers = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = b"%s%d" % (mark.encode(), len(numbers))
        numbers[key] = driver.ask(("set", key, key))
        time.sleep(0.001)
    return {key: driver.outcome(number) for key, number in numbers.items()}


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Return a function that starts a server, each time on the same store and port."""
    data, listen = tmp_path / "store", f"127.0.0.1:{free_port()}"
    servers: list[Server] = []

    def start() -> Server:
        servers.append(Server(data, tmp_path, "--listen", listen))
        return servers[-1]

    try:
        yield start
        servers[-1].stop()
    finally:
        for server in servers:
            server.kill()
    assert_clean(data)


def test_calls_outlive_a_restart(programs: Programs, restarted: Callable[[], Server]) -> None:
    """A server that stops in order answers what it read, and the next one gets all others."""
    server = restarted()
    with driven(programs, server.target) as driver, ThreadPoolExecutor() as pool:
        assert "version" in driver.one("set", b"first", b"first")
        setting = pool.submit(set_until, driver, "key", 2.0)
        time.sleep(0.3)
        server.stop()
        restarted()
        outcomes = setting.result()
        assert len(outcomes) > 100
        assert all("version" in one for one in outcomes.values()), [one for one in outcomes.values() if "text" in one]
        found = driver.do(("get", key) for key in outcomes)
        assert found == [{"found": True, "value": key} for key in outcomes]


def test_a_write_without_an_answer_is_not_repeated(programs: Programs, restarted: Callable[[], Server]) -> None:
    server = restarted()
    with driven(programs, server.target) as driver:
        assert "version" in driver.one("set", b"there", b"it is")
        server.freeze()
        sent = driver.ask(("set", b"sent", b"1"))
        time.sleep(0.2)
        read = driver.ask(("get", b"there"))
        time.sleep(0.2)
        waiting = driver.ask(("set", b"waits", b"2"))  # two messages are in flight
        time.sleep(0.2)
        server.kill()
        restarted()
        assert driver.outcome(sent)["unknown"]
        assert driver.outcome(read) == {"found": True, "value": b"it is"}
        assert "version" in driver.outcome(waiting)
        assert driver.do([("get", b"sent"), ("get", b"waits")]) == [{"found": False}, {"found": True, "value": b"2"}]


def test_a_deadline_says_what_is_known(programs: Programs, server: Server) -> None:
    late = code(StatusCode.DEADLINE_EXCEEDED)
    with driven(programs, server.target) as driver:
        driver.one("set", b"there", b"it is")
        server.freeze()
        try:
            sent = driver.ask(("set", b"sent", b"1"), timeout_ms=400)
            time.sleep(0.2)
            read = driver.ask(("get", b"there"), timeout_ms=400)
            time.sleep(0.2)
            waiting = driver.ask(("set", b"waits", b"1"), timeout_ms=100)  # two messages are in flight
            patient = driver.ask(("get", b"there"))
            assert driver.outcome(sent)["unknown"]
            assert driver.outcome(read)["code"] == driver.outcome(waiting)["code"] == late
        finally:
            server.thaw()
        assert driver.outcome(patient) == {"found": True, "value": b"it is"}
        assert driver.one("get", b"waits") == {"found": False}
        assert driver.one("get", b"sent") == {"found": True, "value": b"1"}


def test_nobody_is_there(programs: Programs) -> None:
    with held_port() as port, driven(programs, f"127.0.0.1:{port}") as driver:
        # A read: of a write the client may say that nobody knows whether it was executed.
        outcome = driver.do([("get", b"k")], timeout_ms=300)[0]
    assert outcome.get("code") == code(StatusCode.DEADLINE_EXCEEDED), outcome
    assert "REFUSED" in outcome["text"].upper()  # it says why


def test_tls_and_rights(programs: Programs, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    everything = Account(read=("*",), write=("*",), admin=("*",))
    accounts = Accounts(tmp_path / "users.toml", root=everything, reader=Account(read=("*",)))
    options = server_options(authority.issue("server", *HERE))
    guarded = Guarded(accounts, tmp_path, *options, authority=authority)
    tokens = {name: header[0][1].removeprefix("Bearer ") for name, header in guarded.headers.items()}
    ca = str(tmp_path / "ca.pem")
    try:
        with driven(programs, guarded.server.target, ca=ca, token=tokens["root"]) as driver:
            assert driver.one("set", b"k", b"v")["version"]
        with driven(programs, guarded.server.target, ca=ca, token=tokens["reader"]) as driver:
            outcomes = driver.do([("get", b"k"), ("set", b"k", b"w")] * 20)
            assert outcomes[::2] == [{"found": True, "value": b"v"}] * 20
            assert {one["code"] for one in outcomes[1::2]} == {code(StatusCode.PERMISSION_DENIED)}
        with driven(programs, guarded.server.target, ca=ca, token="wrong") as driver:
            assert {one["code"] for one in driver.do(sets_of(3))} == {code(StatusCode.UNAUTHENTICATED)}
    finally:
        guarded.close()


def test_the_command_line_shows_the_gain(programs: Programs, shared: Server) -> None:
    command = [*programs.load, shared.target, "16", "0.2", *programs.load_ends]
    done = subprocess.run(command, env=programs.environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    shown = re.compile(r"(plain|gathered) (SET|GET) +([\d,]+) calls a second")
    lines = [shown.fullmatch(line) for line in done.stdout.decode().splitlines()]
    assert [line and line[1] + line[2] for line in lines] == ["plainSET", "gatheredSET", "plainGET", "gatheredGET"]
