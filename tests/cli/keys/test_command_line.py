"""gpkvs get, set, delete, incr, append, expire, ttl, table, info against a running server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

from gpkvs.proto.v1 import admin_pb2, kv_pb2
from tests.record_header import HEADER_BYTES
from tests.serving import COMMAND, Server, error_line, run_gpkvs


def test_set_get_delete(server: Server) -> None:
    target = ("--target", server.target)
    assert run_gpkvs("get", "k", *target).returncode == 1
    stored = run_gpkvs("set", "k", "value", "--json", *target)
    assert stored.returncode == 0
    version = json.loads(stored.stdout)["version"]
    found = run_gpkvs("get", "k", *target)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"value", b"")
    assert json.loads(run_gpkvs("get", "k", "--json", *target).stdout) == {
        "found": True,
        "value": "value",
        "version": version,
    }
    assert json.loads(run_gpkvs("delete", "k", "--json", *target).stdout) == {"found": True}
    again = run_gpkvs("delete", "k", *target)
    assert (again.returncode, again.stderr) == (0, b"gpkvs: no key 'k'\n")
    missing = run_gpkvs("get", "k", "--json", *target)
    assert (missing.returncode, json.loads(missing.stdout)) == (1, {"found": False, "value": None, "version": 0})


def test_conditions_say_what_is_there(server: Server) -> None:
    environment = {"GPKVS_TARGET": server.target}
    version = json.loads(run_gpkvs("set", "k", "one", "--if-absent", "--json", env=environment).stdout)["version"]
    for arguments, there in (
        (("set", "k", "two", "--if-absent"), f"key 'k' has the version (or number) {version};"),
        (("set", "none", "two", "--if-present"), "key 'none' is not there"),
        (("set", "k", "two", "--if-version", "999"), f"key 'k' has the version (or number) {version};"),
        (("set", "none", "two", "--if-version", "1"), "key 'none' is not there"),
        (("delete", "k", "--if-version", "999"), f"key 'k' has the version (or number) {version};"),
    ):
        assert there in error_line(run_gpkvs(*arguments, env=environment), 1)
    assert server.kv.Get(kv_pb2.GetRequest(key=b"k")).value == b"one"
    refused = run_gpkvs("set", "k", "v", "--if-absent", "--if-present", env=environment)
    assert refused.returncode == 2
    assert run_gpkvs("set", "k", "two", "--if-version", str(version), env=environment).returncode == 0
    assert run_gpkvs("delete", "none", "--if-version", "1", env=environment).returncode == 0


def test_counters_text_and_time(server: Server) -> None:
    environment = {"GPKVS_TARGET": server.target}

    def out(*arguments: str) -> bytes:
        done = run_gpkvs(*arguments, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert out("incr", "n") == b"1\n"
    assert out("incr", "n", "--", "-43") == b"-42\n"
    assert json.loads(out("incr", "n", "2", "--json"))["number"] == -40
    out("append", "text", "one")
    out("append", "text", ", two")
    assert out("get", "text") == b"one, two"
    assert "decimal number" in error_line(run_gpkvs("incr", "text", env=environment), 2)
    assert "64 bits" in error_line(run_gpkvs("incr", "n", str(1 << 63), env=environment), 2)
    assert out("ttl", "n") == b"never\n"
    out("set", "n", "7", "--ttl", "1000")
    assert 900 < float(out("ttl", "n")) <= 1001
    out("expire", "n", "100")
    assert 50 < json.loads(out("ttl", "n", "--json"))["seconds"] <= 101
    out("expire", "n")
    assert out("ttl", "n") == b"never\n"
    out("expire", "n", "0.001")
    for arguments in (("ttl", "n"), ("expire", "n"), ("ttl", "none")):
        assert "no key" in error_line(run_gpkvs(*arguments, env=environment), 1)


def test_bytes_that_are_no_text(server: Server) -> None:
    environment = {"GPKVS_TARGET": server.target}
    data = bytes(range(256))
    assert run_gpkvs("set", "raw", stdin=data, env=environment).returncode == 0
    assert server.kv.Get(kv_pb2.GetRequest(key=b"raw")).value == data
    assert run_gpkvs("get", "raw", env=environment).stdout == data
    assert "value_base64" in json.loads(run_gpkvs("get", "raw", "--json", env=environment).stdout)


def test_info(server: Server) -> None:
    info = json.loads(run_gpkvs("info", "--json", "--target", server.target).stdout)
    assert info["path"] == str(server.data)
    assert info["tables"][0]["records"] == 0
    assert info["last_recovery"]["undone"] is False
    text = run_gpkvs("info", "--target", server.target, env={"COLUMNS": "200"}).stdout.decode()
    for word in (str(server.data), info["domain_note"], info["last_recovery"]["report"], "default"):
        assert word in text


def test_info_says_what_a_record_takes(server: Server) -> None:
    def shown() -> tuple[float, str]:
        table = json.loads(run_gpkvs("info", "--json", "--target", server.target).stdout)["tables"][0]
        line = run_gpkvs("table", "list", "--target", server.target, env={"COLUMNS": "200"}).stdout.decode()
        return table["bytes_per_key"], next(row for row in line.splitlines() if "default" in row).split()[-4]

    assert shown() == (0, "-")
    server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"value"))
    size = 32 + -(-(HEADER_BYTES + 8) // 16) * 16  # a slot, a record; not a whole index
    assert shown() == (size, str(size))


def test_info_says_what_the_process_wrote(server: Server) -> None:
    server.kv.Set(kv_pb2.SetRequest(key=b"key", value=bytes(100_000)))
    counts = dict(line.split(": ") for line in Path(f"/proc/{server.process.pid}/io").read_text().splitlines())
    info = json.loads(run_gpkvs("info", "--json", "--target", server.target).stdout)
    assert info["process_written_bytes"] >= int(counts["write_bytes"])
    assert info["process_read_bytes"] >= int(counts["read_bytes"])
    if info["domain"] == "msync":  # a disk
        assert info["process_written_bytes"] >= 100_000
    assert server.metric("gpkvs_process_written_bytes_total") >= info["process_written_bytes"]
    assert server.metric("gpkvs_process_read_bytes_total") >= info["process_read_bytes"]
    text = run_gpkvs("info", "--target", server.target, env={"COLUMNS": "200"}).stdout.decode()
    assert "read by the process since it started" in text


def test_tables(server: Server) -> None:
    target = ("--target", server.target)
    created = run_gpkvs("table", "create", "n", "--layout", "u64", "--index-bytes", "1MiB", "--json", *target)
    made = json.loads(created.stdout)
    assert (made["name"], made["layout"], made["index_bytes"], made["slots"]) == ("n", "u64", 1 << 20, 1 << 16)
    assert run_gpkvs("set", "7", "42", "--table", "n", *target).returncode == 0
    tables = json.loads(run_gpkvs("table", "list", "--json", *target).stdout)
    assert [(table["name"], table["records"]) for table in tables] == [("default", 0), ("n", 1)]
    assert "u64" in run_gpkvs("table", "list", *target, env={"COLUMNS": "200"}).stdout.decode()
    assert "ALREADY_EXISTS" in error_line(run_gpkvs("table", "create", "n", *target), 2)
    created = run_gpkvs("table", "create", "m", "--records", "1000000", "--json", *target)
    assert json.loads(created.stdout)["index_bytes"] == 752 * 65536  # of 1,331 records, 0.65 of its slots, each
    created = run_gpkvs(
        "table", "create", "rows", "--layout", "float32[3,64]", "--records", "1000000", "--json", *target
    )
    made = json.loads(created.stdout)
    assert (made["layout"], made["index_bytes"]) == ("float32[3,64]", 752 * 65536)
    shown = run_gpkvs("table", "list", *target, env={"COLUMNS": "80"}).stdout.decode()
    assert " float32[3,64] " in shown, "the layout is not cut"
    told = run_gpkvs("table", "create", "o", "--layout", "float[3]", *target)
    assert (told.returncode, "a type and a shape, such as" in told.stderr.decode()) == (2, True)
    assert "a row of 2,000,000,000 bytes" in error_line(
        run_gpkvs("table", "create", "o", "--layout", "int8[2000000000]", *target), 2
    )
    both = ("--records", "5", "--index-bytes", "1MiB")
    assert "not both" in error_line(run_gpkvs("table", "create", "o", *both, *target), 2)
    assert run_gpkvs("table", "drop", "m", "--yes", *target).returncode == 0
    assert run_gpkvs("table", "drop", "n", *target, stdin=b"n\n").returncode == 1
    assert "--yes" in error_line(run_gpkvs("table", "drop", "n", *target), 2)
    assert run_gpkvs("table", "drop", "n", *target, stdin=b"y\n").returncode == 0
    assert "NOT_FOUND" in error_line(run_gpkvs("table", "drop", "n", "--yes", *target), 2)
    assert "1 to 64" in error_line(run_gpkvs("table", "create", "N", *target), 2)


def test_numbers_are_typed_as_numbers(server: Server) -> None:
    environment, table = {"GPKVS_TARGET": server.target}, ("--table", "n")
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="n", layout="u64", index_bytes=1 << 20))
    most = (1 << 64) - 1
    assert run_gpkvs("set", "7", "42", *table, env=environment).returncode == 0
    assert run_gpkvs("set", "0x8", *table, stdin=b"%d\n" % most, env=environment).returncode == 0
    stored = kv_pb2.GetRequest(table="n", key=(7).to_bytes(8, "little"))
    assert server.kv.Get(stored).value == (42).to_bytes(8, "little")
    assert run_gpkvs("get", "007", *table, env=environment).stdout == b"42"
    assert json.loads(run_gpkvs("get", "8", "--json", *table, env=environment).stdout)["value"] == most
    assert run_gpkvs("get", "9", *table, env=environment).returncode == 1
    for key, value, field in (
        ("k", "1", "key"),
        ("1", "abcdefgh", "value"),
        (str(most + 1), "1", "key"),
        ("1", "-1", "value"),
    ):
        line = error_line(run_gpkvs("set", *table, "--", key, value, env=environment), 2)
        assert f"{field}: table 'n' has the layout u64" in line
        assert "0 to 18446744073709551615" in line
    assert json.loads(run_gpkvs("delete", "7", "--json", *table, env=environment).stdout) == {"found": True}
    assert not server.kv.Get(stored).found
    # Digits are text where keys are bytes, also in a table with a name.
    server.admin.CreateTable(admin_pb2.CreateTableRequest(name="text", layout="bytes", index_bytes=1 << 20))
    assert run_gpkvs("set", "7", "42", "--table", "text", env=environment).returncode == 0
    assert server.kv.Get(kv_pb2.GetRequest(table="text", key=b"7")).value == b"42"


def test_a_value_on_a_terminal_ends_its_line(server: Server) -> None:
    server.kv.Set(kv_pb2.SetRequest(key=b"key", value=b"value"))
    outer, inner = pty.openpty()
    try:
        subprocess.run([*COMMAND, "get", "key", "--target", server.target], stdout=inner, timeout=60, check=True)
        assert os.read(outer, 100) == b"value\r\n"  # the terminal makes both of \n
    finally:
        os.close(outer)
        os.close(inner)


def test_the_environment_names_the_server(server: Server) -> None:
    environment = {
        "GPKVS_TARGET": server.target,
        "GPKVS_METRICS_TARGET": server.metrics_address,
        "GPKVS_METRICS": "0.0.0.0:1",  # where a server listens
    }
    for command in (
        ("set", "k", "v"),
        ("get", "k"),
        ("delete", "k"),
        ("info",),
        ("table", "create", "t", "--index-bytes", "1MiB"),
        ("table", "list"),
        ("table", "drop", "t", "--yes"),
        ("top", "--once", "--interval", "0.1"),
        ("ycsb", "load", "-p", "recordcount=1"),
        ("ycsb", "run", "--workload", "c", "-p", "recordcount=1", "-p", "operationcount=1"),
    ):
        result = run_gpkvs(*command, env=environment)
        assert result.returncode == 0, (command, result.stderr)


def test_errors_are_one_line(server: Server) -> None:
    target = ("--target", server.target)
    assert "there is no table 'users'" in error_line(run_gpkvs("get", "k", "--table", "users", *target), 2)
    assert "a key of 0 bytes" in error_line(run_gpkvs("set", "", "v", *target), 2)
    nobody = ("--target", "127.0.0.1:1")
    for command in (("get", "k"), ("set", "k", "v"), ("delete", "k"), ("info",)):
        assert "127.0.0.1:1: UNAVAILABLE" in error_line(run_gpkvs(*command, *nobody), 2)
