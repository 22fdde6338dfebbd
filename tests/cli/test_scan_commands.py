"""gpkvs scan, count, exists, export, import: what they print, and files that are whole or refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from typer.testing import CliRunner, Result

from gpkvs.batch import Op
from gpkvs.cli import export
from gpkvs.cli.export_file import ExportFileError, ExportReader, ExportWriter, Header
from gpkvs.cli.main import app
from gpkvs.cli.scan import printable
from gpkvs.client import Client
from tests.conftest import assert_clean
from tests.serving import COMMAND, Server

WORDS = {b"user:1": b"ann", b"user:2": b"b\xff\n", b"item\t\\": b"", "schl\u00fcssel".encode(): b"1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("commands")
    server = Server(folder / "store", folder, "--heap-bytes", "64MiB", "--journal-bytes", "24MiB")
    try:
        with Client(server.target) as client:
            client.batch([(Op.SET, key, value) for key, value in WORDS.items()])
            client.create_table("n", layout="u64", index_bytes=1 << 20)
            client.create_table("n2", layout="u64", index_bytes=1 << 20)
            client.create_table("copy", index_bytes=1 << 20)
            client.create_table("large", index_bytes=1 << 20)
        yield server
        server.stop()
    finally:
        server.kill()
    assert_clean(folder / "store")


def gpkvs(server: Server, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--target", server.target])


def contents(server: Server, table: str = "") -> dict[bytes, bytes]:
    with Client(server.target, table=table) as client:
        return {key: value for piece in client.scan_pieces() for key, value in piece.pairs()}


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


def test_scan_of_numbers(server: Server) -> None:
    assert gpkvs(server, "set", "42", "7", "--table", "n").exit_code == 0
    assert gpkvs(server, "scan", "--table", "n").stdout == "42\t7\n"
    assert json.loads(gpkvs(server, "scan", "--table", "n", "--json").stdout) == {"key": 42, "value": 7}
    refused = gpkvs(server, "scan", "--table", "n", "--prefix", "4")
    assert refused.exit_code == 2
    assert "a table of the layout u64 has no prefixes" in refused.stderr
    assert gpkvs(server, "scan", "--table", "x").exit_code == 2


def test_escapes_can_be_undone() -> None:
    for data in (b"plain", b"\\", b"\\x41", bytes(range(256)), "\u2028\U0001f600".encode(), b"\xed\xa0\x80"):
        text = printable(data)
        assert text.isprintable()
        undone = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
        again = b"".join(
            character.encode() if ord(character) > 0xFF or character.encode() in data else character.encode("latin-1")
            for character in undone
        )
        assert again == data or data == bytes(range(256))
    assert len({printable(bytes([byte])) for byte in range(256)}) == 256
    assert printable(b"\xc3\xa9") != printable(b"\\xc3\\xa9")


def test_count_and_exists(server: Server) -> None:
    assert gpkvs(server, "count").stdout == "4\n"
    assert gpkvs(server, "count", "--prefix", "user:").stdout == "2\n"
    assert json.loads(gpkvs(server, "count", "--json").stdout) == {"count": 4}
    assert gpkvs(server, "exists", "user:1").exit_code == 0
    assert gpkvs(server, "exists", "user:3").exit_code == 1
    assert json.loads(gpkvs(server, "exists", "user:3", "--json").stdout) == {"found": False}
    assert gpkvs(server, "exists", "user:1", "--table", "x").exit_code == 2


def test_export_and_import(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out.msgpack"
    result = gpkvs(server, "export", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert "4 records" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.msgpack"]
    header, *records, end = msgpack.Unpacker(out.open("rb"))
    assert header == {"format": "gpkvs-export", "version": 1, "table": "default", "layout": "bytes", "prefix": ""}
    assert {key: value for key, value, _ in records} == WORDS
    assert all(expiry == 0 for _, _, expiry in records)
    assert list(end) == ["end"]
    assert gpkvs(server, "import", str(out), "--table", "copy").exit_code == 0
    assert contents(server, "copy") == WORDS
    again = gpkvs(server, "export", "--out", str(out))
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)
    for words, text in (
        (("--table", "n"), "has the layout u64"),
        (("--table", "x"), "gpkvs table create x --layout bytes"),
    ):
        refused = gpkvs(server, "import", str(out), *words)
        assert (refused.exit_code, text in refused.stderr) == (2, True), refused.stderr


def test_numbers_to_a_file_and_back(server: Server, tmp_path: Path) -> None:
    numbers = {
        key: (key * 0x9E3779B97F4A7C15) % (1 << 64) for key in (0, 1, 255, 256, 1 << 32, (1 << 64) - 1, *range(999))
    }
    with Client(server.target, table="n2") as client:
        client.batch([(Op.SET, k.to_bytes(8, "little"), v.to_bytes(8, "little")) for k, v in numbers.items()])
        assert gpkvs(server, "export", "--out", str(tmp_path / "n"), "--table", "n2").exit_code == 0
        _, *records, _ = msgpack.Unpacker((tmp_path / "n").open("rb"))
        assert {key: value for key, value, _ in records} == numbers
        before = contents(server, "n2")
        client.batch([(Op.DELETE, k.to_bytes(8, "little")) for k in numbers])
        assert gpkvs(server, "import", str(tmp_path / "n")).exit_code == 0
    assert contents(server, "n2") == before


@pytest.fixture(scope="module")
def large(server: Server) -> dict[bytes, bytes]:
    held = {b"key%05d" % n: bytes([n % 251]) * (n % 3000) for n in range(9000)}
    pairs = list(held.items())
    with Client(server.target, table="large") as client:
        for first in range(0, len(pairs), 1000):
            client.batch([(Op.SET, key, value) for key, value in pairs[first : first + 1000]])
    return held


def records_of(path: Path) -> dict[bytes, bytes]:
    reader = ExportReader(path)
    records = [record for batch in reader.batches(100, 1 << 30) for record in batch]
    found = {key: value for key, value, _ in records}
    assert len(found) == len(records) == reader.records
    return found


def test_an_interrupted_export_goes_on(
    server: Server, large: dict[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after each piece in turn, whatever was written behind the last mark."""
    out, header = tmp_path / "out", Header("large", "bytes")
    with Client(server.target, table="large") as client:
        for keeps in (True, False, True):
            writer = ExportWriter(out, header)
            resumed_at = writer.state.records
            pieces = client.scan_pieces(cursor=bytes.fromhex(writer.state.cursor or ""))
            writer.write(next(pieces))
            if keeps:
                writer.keep()
            writer.write(next(pieces))
            writer.close()
    assert resumed_at > 0
    for wrong in (Header("large", "bytes", b"k".hex()), Header("other", "bytes")):
        with pytest.raises(ExportFileError, match="was begun for table 'large'"):
            ExportWriter(out, wrong)
    writer = ExportWriter(out, header)
    with pytest.raises(ExportFileError, match="another export writes"):
        ExportWriter(out, header)
    writer.close()
    result = gpkvs(server, "export", "--out", str(out), "--table", "large")
    assert result.exit_code == 0, result.stderr
    assert "going on behind" in result.stderr
    assert records_of(out) == large
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "new.part.state").write_text("{")
    assert "not readable" in gpkvs(server, "export", "--out", str(tmp_path / "new"), "--table", "large").stderr


def test_an_export_that_is_killed_goes_on(server: Server, large: dict[bytes, bytes], tmp_path: Path) -> None:
    """SIGKILL at any moment: nothing has the file's name before it is whole, and the next call ends it."""
    out = tmp_path / "out"
    words = [*COMMAND, "export", "--out", str(out), "--table", "large", "--target", server.target]
    killed = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + 60
    while not (tmp_path / "out.part").exists() and killed.poll() is None:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    if not out.exists():
        assert gpkvs(server, "export", "--out", str(out), "--table", "large").exit_code == 0
    assert records_of(out) == large


def test_a_file_that_was_cut_or_damaged_is_refused(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpkvs(server, "export", "--out", str(out)).exit_code == 0
    whole = out.read_bytes()
    for end in range(len(whole)):
        out.write_bytes(whole[:end])
        with pytest.raises(ExportFileError, match=r"was cut, or is damaged|is no file of gpkvs export"):
            ExportReader(out)
    for at in range(len(whole)):
        out.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ExportFileError):
            ExportReader(out)
    out.write_bytes(whole[:-1])
    refused = gpkvs(server, "import", str(out))
    assert (refused.exit_code, "was cut, or is damaged: nothing is imported" in refused.stderr) == (2, True)
    out.write_bytes(b"other words" * 30)
    assert "is no file of gpkvs export" in gpkvs(server, "import", str(out)).stderr
    assert "cannot read" in gpkvs(server, "import", str(tmp_path / "none")).stderr


def test_an_export_without_damaged_records_says_so(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(self: Client, *arguments: Any, **options: Any) -> Iterator[Any]:
        for piece in pieces(self, *arguments, **options):
            object.__setattr__(piece, "damaged", 2)
            yield piece

    pieces = Client.scan_pieces
    monkeypatch.setattr(export.Client, "scan_pieces", damaged)
    for words in (("export", "--out", str(tmp_path / "out")), ("scan",)):
        result = gpkvs(server, *words)
        assert result.exit_code == 1
        assert "2 records damaged and left out" in result.stderr
    assert records_of(tmp_path / "out") == WORDS
    shutil.rmtree(tmp_path)
    assert gpkvs(server, "export", "--out", str(tmp_path / "out")).exit_code == 2
