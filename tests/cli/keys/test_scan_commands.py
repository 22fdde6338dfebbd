"""gpkvs scan, count, exists: what they print."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gpkvs.batch import Op
from gpkvs.cli.keys import kv
from gpkvs.cli.keys.scan_run import printable
from gpkvs.cli.main import app
from gpkvs.cli.options import typed_keys
from gpkvs.client import Client
from gpkvs.proto.v1 import kv_pb2
from tests.conftest import assert_clean
from tests.serving import COMMAND, Server

WORDS = {b"user:1": b"ann", b"user:2": b"b\xff\n", b"item\t\\": b"", "schl\u00fcssel".encode(): b"1"}
ROWS = {"r": "float32[2,2]", "w": "uint64[1]", "m": "uint64[2]", "h": "float16[3]", "b": "bfloat16[2]"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("commands")
    server = Server(folder / "store", folder, "--heap-bytes", "64MiB", "--journal-bytes", "24MiB")
    try:
        with Client(server.target) as client:
            client.batch([(Op.SET, key, value) for key, value in WORDS.items()])
            client.create_table("n", layout="u64", index_bytes=1 << 20)
            for name, layout in ROWS.items():
                client.create_table(name, layout=layout, index_bytes=1 << 16)
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


def gpkvs(server: Server, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--target", server.target])


def test_scan_prints_lines(server: Server) -> None:
    result = gpkvs(server, "scan")
    assert result.exit_code == 0
    expected = ["item\\t\\\\\t", "schl\u00fcssel\t1", "user:1\tann", "user:2\tb\\xff\\n"]
    assert sorted(result.stdout.splitlines()) == expected
    assert sorted(gpkvs(server, "scan", "--prefix", "user:", "--keys-only").stdout.split()) == ["user:1", "user:2"]
    assert len(gpkvs(server, "scan", "--limit", "3").stdout.splitlines()) == 3
    lines = [json.loads(line) for line in gpkvs(server, "scan", "--json", "--prefix", "user:").stdout.splitlines()]
    assert {line["key"]: line.get("value", line.get("value_base64")) for line in lines} == {
        "user:1": "ann",
        "user:2": "Yv8K",
    }
    assert all(line["version"] in range(1, 5) for line in lines)


def test_a_scan_goes_on_at_its_cursor(server: Server) -> None:
    shown: list[str] = []
    cursor: tuple[str, ...] = ()
    for _ in range(len(WORDS) + 1):
        part = gpkvs(server, "scan", "--keys-only", "--limit", "1", *cursor)
        shown += part.stdout.splitlines()
        told, _, hexadecimal = part.stderr.strip().partition(" --cursor ")
        if not told:
            break
        assert told == "gpkvs: go on with"
        cursor = ("--cursor", hexadecimal)
    assert sorted(shown) == sorted(gpkvs(server, "scan", "--keys-only").stdout.splitlines())
    assert len(shown) == len(WORDS)
    for wrong, text in (("x", "'x' is none that gpkvs scan printed"), ("00ff", "these bytes are no cursor of a scan")):
        refused = gpkvs(server, "scan", "--cursor", wrong)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"gpkvs: cursor: {text}")
        assert refused.stderr.count("\n") == 1


def test_scan_of_numbers(server: Server) -> None:
    assert gpkvs(server, "set", "42", "7", "--table", "n").exit_code == 0
    assert gpkvs(server, "scan", "--table", "n").stdout == "42\t7\n"
    assert json.loads(gpkvs(server, "scan", "--table", "n", "--json").stdout) == {"key": 42, "value": 7}
    refused = gpkvs(server, "scan", "--table", "n", "--prefix", "4")
    assert refused.exit_code == 2
    assert "a table of the layout u64 has no prefixes" in refused.stderr
    assert gpkvs(server, "scan", "--table", "x").exit_code == 2


def test_rows_are_typed_as_arrays(server: Server) -> None:
    table = ("--table", "r")
    assert gpkvs(server, "set", "42", "[[1, 0.1], [-2.5, 1e30]]", *table).exit_code == 0
    assert gpkvs(server, "set", "0xff", '[["NaN", "Infinity"], [NaN, -Infinity]]', *table).exit_code == 0
    with Client(server.target) as client:
        rows, found = client.rows(ROWS["r"], table="r").get([42, 255])
    assert found.all()
    assert rows[0].tolist() == np.array([[1, 0.1], [-2.5, 1e30]], np.float32).tolist()
    assert np.array_equal(rows[1], np.array([[np.nan, np.inf], [np.nan, -np.inf]], np.float32), equal_nan=True)
    # As few digits as tell the number; and JSON has neither NaN nor infinities.
    assert gpkvs(server, "get", "42", *table).stdout == "[[1.0, 0.1], [-2.5, 1e+30]]"
    assert json.loads(gpkvs(server, "get", "42", *table, "--json").stdout)["value"] == [[1, 0.1], [-2.5, 1e30]]
    lines = gpkvs(server, "scan", *table).stdout.splitlines()
    assert sorted(lines) == [
        '255\t[["NaN", "Infinity"], ["NaN", "-Infinity"]]',
        "42\t[[1.0, 0.1], [-2.5, 1e+30]]",
    ]
    for line in gpkvs(server, "scan", *table, "--json").stdout.splitlines():
        record = json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
        assert record["key"] in (42, 255)
    assert sorted(gpkvs(server, "scan", *table, "--keys-only").stdout.split()) == ["255", "42"]
    again = lines[0].partition("\t")[2]
    assert gpkvs(server, "set", "1", again, *table).exit_code == 0
    assert gpkvs(server, "get", "1", *table).stdout == again
    assert [gpkvs(server, "exists", key, *table).exit_code for key in ("1", "2")] == [0, 1]
    assert gpkvs(server, "expire", "1", "1000", *table).exit_code == 0
    assert float(gpkvs(server, "ttl", "1", *table).stdout) > 900
    assert gpkvs(server, "delete", "1", *table).exit_code == 0
    assert gpkvs(server, "get", "1", *table).exit_code == 1
    assert gpkvs(server, "count", *table).stdout == "2\n"


def test_numbers_of_rows_are_exact(server: Server) -> None:
    most = (1 << 64) - 1
    assert gpkvs(server, "set", "1", f"[{most}]", "--table", "w").exit_code == 0
    assert gpkvs(server, "get", "1", "--table", "w").stdout == f"[{most}]"
    assert gpkvs(server, "set", "1", f"[1, {most}]", "--table", "m").exit_code == 0
    assert gpkvs(server, "get", "1", "--table", "m").stdout == f"[1, {most}]"
    assert gpkvs(server, "set", "1", "[0.1, 65504, 6e-8]", "--table", "h").exit_code == 0
    assert gpkvs(server, "get", "1", "--table", "h").stdout == "[0.1, 65500.0, 6e-08]"
    with Client(server.target) as client:
        client.rows(ROWS["b"], table="b").set([1], np.array([[0x3F80, 0x4049]], np.uint16))
    assert gpkvs(server, "get", "1", "--table", "b").stdout == "[1.0, 3.140625]"
    refused = gpkvs(server, "set", "1", "[1, 2]", "--table", "b")
    assert (refused.exit_code, "no row of bfloat16 can be typed" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("table", "value"),
    [
        *[("r", value) for value in ("abc", "", "1", "[]", "[1, 2, 3, 4]", "[[1, 2], [3]]", '[["a", 1], [2, 3]]')],
        *[("r", value) for value in ("[[1, 2], [3, null]]", "[[1, 2], [3, 1e39]]", "{}", "[" * 100_000, "\x00")],
        *[("w", value) for value in ("[-1]", "[1.5]", f"[{1 << 64}]", "[null]", '["1"]')],
        ("h", "[1, 2, 65520]"),
    ],
)
def test_what_is_no_row_is_refused(server: Server, table: str, value: str) -> None:
    command = ["set", "7", "--table", table, "--target", server.target]
    refused = CliRunner().invoke(app, command, input=value)
    assert refused.exit_code == 2, refused.output
    assert refused.stderr.startswith(f"gpkvs: value: table '{table}' has the layout {ROWS[table]}: its values are")
    assert refused.stderr.count("\n") == 1
    assert gpkvs(server, "exists", "7", "--table", table).exit_code == 1


def test_what_tables_of_rows_do_not_have_is_refused(server: Server) -> None:
    layout = f"the layout {ROWS['w']}"
    for words, said in (
        (("get", "k"), f"key: table 'w' has {layout}: its keys are numbers from 0 to"),
        (("incr", "1"), f"table: table 'w' has {layout}: its values are rows, which are neither incremented nor"),
        (("append", "1", "x"), "rows, which are neither incremented nor appended to"),
        (("scan", "--prefix", "1"), f"prefix: a table of {layout} has no prefixes: its keys are numbers"),
        (("count", "--prefix", "1"), f"prefix: a table of {layout} has no prefixes: its keys are numbers"),
        (("watch", "1"), f"prefix: a table of {layout} has no prefixes: its keys are numbers"),
    ):
        refused = gpkvs(server, *words, "--table", "w")
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.output


def test_a_server_that_knows_no_rows(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one does not read which layout a request asks for."""
    asked = kv_pb2.BatchRequest

    def without_layout(**fields: Any) -> kv_pb2.BatchRequest:
        return asked(**{name: field for name, field in fields.items() if name != "layout"})

    monkeypatch.setattr(typed_keys, "kv_pb2", SimpleNamespace(BatchRequest=without_layout))
    assert gpkvs(server, "set", "43", "8", "--table", "n").exit_code == 0
    assert gpkvs(server, "get", "43", "--table", "n").stdout == "8"
    with Client(server.target) as client:
        client.create_table("text", index_bytes=1 << 16)
    assert gpkvs(server, "set", "43", "8", "--table", "text").exit_code == 0
    assert gpkvs(server, "scan", "--table", "text").stdout == "43\t8\n"


def undone(text: str) -> bytes:
    """Return the bytes that `printable` was given."""
    short = {"\\": b"\\", "n": b"\n", "r": b"\r", "t": b"\t"}
    found = b""
    while text:
        plain, escape, text = text.partition("\\")
        found += plain.encode()
        if not escape:
            break
        if text[0] == "x":
            found, text = found + bytes.fromhex(text[1:3]), text[3:]
        else:
            found, text = found + short[text[0]], text[1:]
    return found


def test_escapes_can_be_undone() -> None:
    every = bytes(range(256))
    for data in (
        b"plain",
        b"\\",
        b"\\x41",
        b"\\n",
        every,
        "\u2028\x85\U0001f600".encode(),
        b"\xed\xa0\x80",
        b"\xc3\xa9",
    ):
        assert printable(data).isprintable()
        assert undone(printable(data)) == data
    assert printable(b"a\tb\n\\") == r"a\tb\n\\"


def test_count_and_exists(server: Server) -> None:
    assert gpkvs(server, "count").stdout == "4\n"
    assert gpkvs(server, "count", "--prefix", "user:").stdout == "2\n"
    assert json.loads(gpkvs(server, "count", "--json").stdout) == {"count": 4}
    assert gpkvs(server, "exists", "user:1").exit_code == 0
    assert gpkvs(server, "exists", "user:3").exit_code == 1
    assert json.loads(gpkvs(server, "exists", "user:3", "--json").stdout) == {"found": False}
    assert gpkvs(server, "exists", "user:1", "--table", "x").exit_code == 2


def test_exists_of_a_damaged_record_fails(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that cannot be read is neither there nor not there."""
    corrupt = kv_pb2.BatchResponse(status=bytes([kv_pb2.STATUS_CORRUPT]))
    monkeypatch.setattr(
        kv, "kv_pb2_grpc", SimpleNamespace(KVStub=lambda _channel: SimpleNamespace(Batch=lambda *_, **__: corrupt))
    )
    result = gpkvs(server, "exists", "user:1")
    assert (result.exit_code, "fails its check" in result.stderr) == (2, True)


def test_a_reader_that_ends_early_ends_the_scan(server: Server) -> None:
    command = shlex.join([*COMMAND, "scan", "--target", server.target])
    done = subprocess.run(["sh", "-c", f"{command} | head -n 1"], capture_output=True, timeout=60, check=False)
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_damaged_records_are_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(self: Client, *arguments: Any, **options: Any) -> Iterator[Any]:
        for piece in pieces(self, *arguments, **options):
            yield replace(piece, damaged=2)

    pieces = Client.scan_pieces
    monkeypatch.setattr(Client, "scan_pieces", damaged)
    result = gpkvs(server, "scan")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 4)
    assert "2 records damaged and left out" in result.stderr
