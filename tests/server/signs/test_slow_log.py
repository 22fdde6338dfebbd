"""The slow log: what stands in it, who may read it, and the ids by which calls are found again."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpkvs.config import StoreConfig
from gpkvs.proto.metadata import REQUEST_ID_KEY
from gpkvs.proto.v1 import admin_pb2, kv_pb2
from gpkvs.server.calls.running_call import RunningCall
from gpkvs.server.signs.slow_log import PHASES, SlowCall, SlowLog
from gpkvs.store import Store
from tests import warm
from tests.accounts import Account, Accounts
from tests.server.wire import GET, SET, Refused, batch, trailing_of, u64
from tests.serving import Server, StartServer, start_server

__all__ = ["start_server"]

ALL = ("--slow-log-over-ms", "0")
MADE = re.compile("[0-9a-f]{16}")


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """Return a server that notes every call."""
    return start_server(*ALL)


def log(server: Server, **asked: Any) -> list[admin_pb2.SlowCall]:
    """Return the slow log, the oldest first."""
    return list(reversed(server.admin.SlowLog(admin_pb2.SlowLogRequest(**asked)).calls))


def given(name: str) -> list[tuple[str, str]]:
    return [(REQUEST_ID_KEY, name)]


def command(*words: str, env: dict[str, str]) -> Any:
    """Run a command of gpkvs."""
    return warm.run(["-m", "gpkvs.cli", *words], env={**os.environ, **env})


def total_ms(call: admin_pb2.SlowCall) -> float:
    return sum(getattr(call, f"{phase}_ms") for phase in PHASES)


def test_scans_are_in_it_with_what_their_pieces_took(server: Server) -> None:
    kv = server.kv
    kv.Batch(batch([(SET, b"key%03d" % number, bytes(1000)) for number in range(300)]))
    server.admin.SlowLog(admin_pb2.SlowLogRequest(clear=True))
    found = list(kv.Scan(kv_pb2.ScanRequest(prefix=b"key1"), metadata=given("mine")))
    assert sum(len(piece.key_lengths) // 4 for piece in found) == 100
    next(iter(kv.Scan(kv_pb2.ScanRequest(limit=1))))
    assert kv.Count(kv_pb2.CountRequest(prefix=b"key2")).count == 100
    scan, one, count = (call for call in log(server) if call.command in ("Scan", "Count"))
    assert (scan.command, scan.request_id, scan.table, scan.key) == ("Scan", "mine", "default", b"key1")
    assert (scan.operations, scan.bytes_out) == (100, 100 * (6 + 1000))
    assert (one.command, one.operations, one.key_bytes) == ("Scan", 1, 0)
    assert MADE.fullmatch(one.request_id)
    assert (count.command, count.operations, count.bytes_out) == ("Count", 100, 600)
    for call in (scan, one, count):
        assert call.executing_ms > 0
        assert call.durable_ms == 0


def test_a_scan_does_not_count_its_reader() -> None:
    noted = SlowLog(over_ms=30, entries_max=8)
    for read_ms in (10, 30):
        call = RunningCall(noted, "ipv4:127.0.0.1:1", "grpc", "Scan")
        call.begin()
        for _ in range(2):
            call.was_scanned(waited_ns=1_000_000, read_ns=500_000 * read_ms, keys=5, bytes_out=50)
        call.end_scan()
    [(_, slow)] = noted.last()
    assert (slow.waiting_ns, slow.executing_ns, slow.durable_ns, slow.answering_ns) == (2_000_000, 30_000_000, 0, 0)
    assert (slow.operations, slow.bytes_out) == (10, 100)


def test_each_method_says_what_it_did(server: Server) -> None:
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="numbers", layout="u64"), metadata=given("made"))
    kv, key = server.kv, b"k" * 100
    took_ms = {}
    for name, call in {
        "Set": lambda name: kv.Set(kv_pb2.SetRequest(key=key, value=b"a value"), metadata=given(name)),
        "Get": lambda name: kv.Get(kv_pb2.GetRequest(key=key), metadata=given(name)),
        "MultiGet": lambda name: kv.MultiGet(kv_pb2.MultiGetRequest(keys=[b"none", key]), metadata=given(name)),
        "Increment": lambda name: kv.Increment(
            kv_pb2.IncrementRequest(table="numbers", key=u64(7), delta=1), metadata=given(name)
        ),
        "Batch": lambda name: kv.Batch(batch([(SET, b"a", b"1"), (SET, b"b", b""), (GET, b"a")]), metadata=given(name)),
        "Pipeline": lambda name: list(kv.Pipeline(iter([batch([(GET, key)], id=3)]), metadata=given(name))),
        "Delete": lambda name: kv.Delete(kv_pb2.DeleteRequest(key=key), metadata=given(name)),
    }.items():
        began = time.monotonic()
        call(name)
        took_ms[name] = 1e3 * (time.monotonic() - began)
    calls = log(server)
    assert [call.command for call in calls] == ["CreateTable", *took_ms]
    assert [call.request_id for call in calls] == ["made", *took_ms]
    assert [call.number for call in calls] == list(range(8))
    assert all(call.protocol == "grpc" and call.user == "" for call in calls)
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", call.peer) for call in calls)
    assert [call.table for call in calls] == ["", *["default"] * 3, "numbers", *["default"] * 3]
    assert [call.operations for call in calls] == [0, 1, 1, 2, 1, 3, 1, 1]
    assert [call.bytes_in for call in calls] == [0, 107, 100, 104, 16, 4, 100, 100]
    assert [call.bytes_out for call in calls] == [0, 0, 7, 7, 8, 1, 7, 0]
    assert [call.key for call in calls] == [b"", key[:32], key[:32], b"none", b"7", b"a", key[:32], key[:32]]
    assert [call.key_bytes for call in calls] == [0, 100, 100, 4, 8, 1, 100, 100]
    for call in calls[1:]:
        parts = {phase: getattr(call, f"{phase}_ms") for phase in PHASES}
        assert all(part > 0 for part in parts.values()), (call.command, parts)
        assert total_ms(call) <= took_ms[call.command]
    assert [call.ended_us for call in calls] == sorted(call.ended_us for call in calls)
    assert abs(calls[-1].ended_us / 1e6 - time.time()) < 60
    assert server.metric("gpkvs_slow_calls_total") >= 8


def test_a_key_of_a_table_of_rows_is_a_number(server: Server) -> None:
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="rows", layout="int8[2]"))
    server.kv.Set(kv_pb2.SetRequest(table="rows", key=u64(7), value=b"ab"))
    server.kv.Batch(batch([(GET, u64(300))], table="rows"))
    assert [(call.table, call.key, call.key_bytes) for call in log(server)[1:]] == [
        ("rows", b"7", 8),
        ("rows", b"300", 8),
    ]


def test_it_shows_so_many_and_forgets(server: Server) -> None:
    for number in range(5):
        server.kv.Get(kv_pb2.GetRequest(key=b"%d" % number))
    assert [call.key for call in log(server, entries=2)] == [b"3", b"4"]
    assert [call.command for call in log(server, clear=True)] == [*["Get"] * 5, "SlowLog"]
    [call] = log(server)
    assert (call.command, call.number) == ("SlowLog", 6)  # numbers go on


def test_ids_in_errors(server: Server) -> None:
    """A client's id comes back; one that is none, or none at all, is replaced."""
    server.kv.Set(kv_pb2.SetRequest(key=b"text", value=b"no number"))
    ids = []
    for name in ("mine-1", "~!#", "x" * 64, "x" * 65, "two words", "", None):
        metadata = [] if name is None else given(name)
        for method, message in (
            (server.kv.Get, kv_pb2.GetRequest(table="nosuch", key=b"k")),
            (server.kv.Set, kv_pb2.SetRequest(key=b"", value=b"v")),
            (server.kv.Increment, kv_pb2.IncrementRequest(key=b"text", delta=1)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                method(message, metadata=metadata)
            error: Any = caught.value
            assert trailing_of(error) == {"gpkvs-executed": "no"}
            told = dict(error.trailing_metadata())[REQUEST_ID_KEY]
            if name in ("mine-1", "~!#", "x" * 64):
                assert told == name
            else:
                assert MADE.fullmatch(told)
                ids.append(told)
    assert len(set(ids)) == len(ids)
    assert {call.request_id for call in log(server)} >= {"mine-1", "~!#", "x" * 64, *ids}
    done, call = server.kv.Get.with_call(kv_pb2.GetRequest(key=b"k"), metadata=given("mine-2"))
    assert not done.found
    assert REQUEST_ID_KEY not in dict(call.trailing_metadata())


def test_a_stream_ends_with_its_id(server: Server) -> None:
    stream = server.kv.Pipeline(iter([kv_pb2.BatchRequest()]), metadata=given("stream"), timeout=0)
    assert stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert dict(stream.trailing_metadata() or ()).get(REQUEST_ID_KEY, "stream") == "stream"


def test_quick_calls_are_not_in_it(start_server: StartServer) -> None:
    server = start_server("--slow-log-over-ms", "86400000")
    server.kv.Get(kv_pb2.GetRequest(key=b"k"))
    answer = server.admin.SlowLog(admin_pb2.SlowLogRequest())
    assert (list(answer.calls), answer.over_ms, answer.entries_max) == ([], 86_400_000, 128)


def test_it_keeps_the_last_ones_or_none(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(*ALL, "--slow-log-entries-max", "3")
    for number in range(10):
        server.kv.Get(kv_pb2.GetRequest(key=b"%d" % number))
    assert [call.key for call in log(server)] == [b"7", b"8", b"9"]
    server.stop()
    server = start_server(*ALL, "--slow-log-entries-max", "0")
    server.kv.Get(kv_pb2.GetRequest(key=b"k"))
    assert log(server) == []
    assert server.metric("gpkvs_slow_calls_total") == 0


def test_administrators_alone_read_it(start_server: StartServer, tmp_path: Path) -> None:
    root = Account(read=("*",), write=("*",), admin=("*",))
    other = Account(read=("*",), write=("*",), admin=("default",))
    accounts = Accounts(tmp_path / "users.toml", root=root, other=other)
    tokens = {name: accounts.token(name) for name in ("root", "other")}
    accounts.save()
    server = start_server(*ALL, "--users", str(accounts.path))
    server.kv.Set(kv_pb2.SetRequest(key=b"k", value=b"a secret value"), metadata=tokens["other"])
    with Refused(grpc.StatusCode.PERMISSION_DENIED, "administer"):
        server.admin.SlowLog(admin_pb2.SlowLogRequest(clear=True), metadata=tokens["other"])
    with Refused(grpc.StatusCode.UNAUTHENTICATED):
        server.admin.SlowLog(admin_pb2.SlowLogRequest(clear=True))
    answer = server.admin.SlowLog(admin_pb2.SlowLogRequest(), metadata=tokens["root"])
    calls = [(call.command, call.user) for call in reversed(answer.calls)]
    assert calls[:2] == [("Set", "other"), ("SlowLog", "other")]
    assert b"secret" not in answer.SerializeToString()


def test_the_command_shows_it(server: Server) -> None:
    server.kv.Set(kv_pb2.SetRequest(key=b"\xff" * 40, value=b"v"), metadata=given("mine"))
    environment = {"GPKVS_TARGET": server.target}
    shown = command("slowlog", env=environment)
    assert shown.returncode == 0, shown.stderr
    first, second, third = shown.stdout.decode().splitlines()[-3:]
    assert re.fullmatch(r"#0  20\S+ \S+\+00:00  \S+ ms  Set default (\\xff){32}\.\.\. \(40 bytes\)", first)
    number = r"[\d.e-]+"
    phases = ", ".join(f"{phase} {number}" for phase in PHASES)
    assert re.fullmatch(rf"    {phases} ms; 1 operation, 41 B in, 0 B out", second)
    assert re.fullmatch(r"    127\.0\.0\.1:\d+, request mine", third)
    found = json.loads(command("slowlog", "--json", "-n", "0", "--clear", env=environment).stdout)
    [first, *_] = reversed(found["calls"])
    assert first["total_ms"] == pytest.approx(sum(first[f"{phase}_ms"] for phase in PHASES))
    assert (found["over_ms"], found["entries_max"]) == (0, 128)
    left = json.loads(command("slowlog", "--json", env=environment).stdout)
    assert [call["command"] for call in left["calls"]] == ["SlowLog"]


def a_call(ended_us: int, **fields: Any) -> SlowCall:
    empty = dict.fromkeys(("user", "peer", "protocol", "command", "table", "request_id"), "")
    numbers = dict.fromkeys(("key_bytes", "operations", "bytes_in", "bytes_out", "words"), 0)
    phases = {f"{phase}_ns": 1 for phase in PHASES}
    return SlowCall(ended_us=ended_us, key=b"", **(phases | empty | numbers | fields))


def test_tables_are_named_until_the_store_is_to_be_closed(tmp_path: Path) -> None:
    slow_log = SlowLog(10.0, 4)
    assert slow_log.named(0, b"k") == ("", b"k")
    with Store(tmp_path / "store", StoreConfig()) as store:
        slow_log.attach(store)
        number = store.open_table("default").id
        assert slow_log.named(number, b"k") == ("default", b"k")
        assert slow_log.named(number + 1, b"k") == ("", b"k")
        slow_log.attach(None)
    assert slow_log.named(number, b"k") == ("", b"k")


def test_calls_of_all_sources_are_numbered_by_their_ends() -> None:
    slow_log = SlowLog(10.0, 4)
    noted = [a_call(2), a_call(5)]

    def source() -> list[SlowCall]:
        taken = noted[:]
        noted.clear()
        return taken

    slow_log.follow(source)
    slow_log.note(a_call(3, protocol="redis"))
    slow_log.note(a_call(1))
    assert [(entry.number, entry.call.ended_us) for entry in slow_log.last()] == [(3, 5), (2, 3), (1, 2), (0, 1)]
    slow_log.note(a_call(6, protocol="redis"))
    assert [entry.number for entry in slow_log.last(2)] == [4, 3]
    assert [entry.number for entry in slow_log.last(protocol="redis")] == [4, 2]
    slow_log.clear("redis")
    assert [entry.number for entry in slow_log.last()] == [3, 1]
