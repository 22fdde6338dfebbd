"""Exports: files that are whole or have another name, that go on after an interruption, and come back as they were."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gpkvs import open as gpkvs_open
from gpkvs.cli.main import app
from gpkvs.client import Client, UnavailableError
from gpkvs.export.file_format import END_BYTES, End, ExportError, Header, encode_records
from gpkvs.export.reader import ExportReader
from gpkvs.export.writer import ExportWriter
from gpkvs.scan import ScanPiece
from tests.conftest import SMALL as SMALL_STORE
from tests.export.served import NUMBERS, SMALL, contents, empty, fill, gpkvs, names, refusal, served_tables
from tests.serving import COMMAND, Server

LARGE = {b"key%05d" % n: bytes([n % 251]) * (n % 3000) for n in range(6000)}
HEADER = Header("large", "bytes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with one table of each kind; tests write to others."""
    with served_tables(tmp_path_factory.mktemp("export"), "small", "large", "copy") as server:
        fill(server, "large", LARGE)
        yield server


def records_of(path: Path) -> dict[bytes, bytes]:
    reader = ExportReader(path)
    records = [record for chunk in reader.chunks() for record in chunk]
    found = {key: value for key, value, _ in records}
    assert len(found) == len(records) == reader.end.records
    return found


def test_records_go_to_a_file_and_back(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = gpkvs(server, "export", "--out", out, "--table", "small")
    assert (made.exit_code, "5 records of table small" in made.stdout) == (0, True), made.output
    assert names(tmp_path) == ["out"]
    assert out.stat().st_mode & 0o777 == 0o600  # as the store that it came from
    # Any program can read it.
    header, *records, end = msgpack.Unpacker(out.open("rb"))
    assert (header["format"], header["version"], header["table"]) == ("gpkvs-export", 1, "small")
    assert {key: value for key, value, _ in records} == SMALL
    assert end == {"records": 5, "damaged": 0, "crc32": zlib.crc32(out.read_bytes()[:-4])}
    empty(server, "copy")
    stored = gpkvs(server, "import", out, "--table", "copy", "--json")
    assert json.loads(stored.stdout) == {"table": "copy", "stored": 5, "there_already": 0}
    assert contents(server, "copy") == SMALL


def test_numbers_go_to_a_file_and_back(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpkvs(server, "export", "--out", out, "--table", "numbers").exit_code == 0
    _, *records, _ = msgpack.Unpacker(out.open("rb"))
    assert {key: value for key, value, _ in records} == NUMBERS
    empty(server, "copied_numbers")
    assert gpkvs(server, "import", out, "--table", "copied_numbers", "--batch", "100").exit_code == 0
    assert contents(server, "copied_numbers") == contents(server, "numbers")


def test_a_prefix_and_expiries(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpkvs(server, "export", "--out", out, "--table", "small", "--prefix", "user:").exit_code == 0
    assert records_of(out) == {key: value for key, value in SMALL.items() if key.startswith(b"user:")}
    piece = ScanPiece(
        keys=np.frombuffer(b"ab", np.uint8),
        key_lengths=np.array([1, 1], np.uint32),
        values=np.frombuffer(b"x", np.uint8),
        value_lengths=np.array([0, 1], np.uint32),
        versions=np.array([1, 2], np.uint64),
        expiries=np.array([0, 1 << 42], np.uint64),
        damaged=0,
        cursor=b"",
    )
    packed = bytes(encode_records(piece, HEADER))
    assert list(msgpack.Unpacker(iter_file(packed), use_list=False)) == [(b"a", b"", 0), (b"b", b"x", 1 << 42)]


def iter_file(data: bytes) -> Any:
    import io  # noqa: PLC0415

    return io.BytesIO(data)


def test_an_import_keeps_the_expiries(server: Server, tmp_path: Path) -> None:
    soon = (int(time.time()) + 1000) * 1000
    out = tmp_path / "out"
    write_export(out, Header("copy", "bytes"), [(b"never", b"1", 0), (b"soon", b"2", soon)])
    empty(server, "copy")
    assert gpkvs(server, "import", out).exit_code == 0
    assert gpkvs(server, "export", "--out", tmp_path / "again", "--table", "copy").exit_code == 0
    _, *records, _ = msgpack.Unpacker((tmp_path / "again").open("rb"))
    assert sorted(records) == [[b"never", b"1", 0], [b"soon", b"2", soon]]


def write_export(path: Path, header: Header, records: list[Any], count: int | None = None) -> None:
    """Write an export, which may be one that no `ExportWriter` writes."""
    data = header.encode() + b"".join(map(msgpack.packb, records))
    path.write_bytes(data + End(len(records) if count is None else count, 0).encode(zlib.crc32(data)))


def test_an_import_may_leave_what_is_there(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpkvs(server, "export", "--out", out, "--table", "small").exit_code == 0
    empty(server, "copy")
    fill(server, "copy", {b"user:1": b"newer"})
    stored = gpkvs(server, "import", out, "--table", "copy", "--if-absent")
    assert "4 records stored in table copy, 1 were there already" in stored.stdout
    assert contents(server, "copy") == {**SMALL, b"user:1": b"newer"}
    assert gpkvs(server, "import", out, "--table", "copy").exit_code == 0
    assert contents(server, "copy") == SMALL


def test_an_import_makes_its_table(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_export(out, Header("made", "u64"), [(1, 2, 0)])
    assert "there is no table 'made'" in refusal(server, "import", out)
    for _ in range(2):
        assert gpkvs(server, "import", out, "--create").exit_code == 0
    assert contents(server, "made") == {n(1): n(2)}
    assert "'small' already, of the layout bytes, not u64" in refusal(
        server, "import", out, "--create", "--table", "small"
    )
    with Client(server.target) as client:
        client.drop_table("made")


def n(number: int) -> bytes:
    return number.to_bytes(8, "little")


def test_a_store_without_a_server_is_exported(store_path: Path, tmp_path: Path) -> None:
    def export(name: str, *words: str | Path) -> Result:
        return CliRunner().invoke(app, ["export", "--out", str(tmp_path / name), *map(str, words)])

    missing = export("out", "--data", store_path)
    assert (missing.exit_code, missing.stderr.count("\n"), store_path.exists()) == (2, 1, False)
    with gpkvs_open(store_path, **SMALL_STORE) as store:
        store.create_table("users", index_bytes=1 << 20)
        store.set(b"user:1", b"ann", table="users", ttl=1000)
        store.set(b"item", b"x", table="users")
        locked = export("out", "--data", store_path, "--table", "users")
        assert (locked.exit_code, "is open in this process already" in locked.stderr) == (3, True)
    assert export("out", "--data", store_path, "--table", "users", "--prefix", "user:").exit_code == 0
    header, (key, value, expiry), end = msgpack.Unpacker((tmp_path / "out").open("rb"))
    assert (header["table"], key, value, end["records"]) == ("users", b"user:1", b"ann", 1)
    assert expiry > time.time() * 1000


def test_an_empty_table_is_an_export_too(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    empty(server, "copy")
    assert gpkvs(server, "export", "--out", out, "--table", "copy").exit_code == 0
    assert records_of(out) == {}
    assert "0 records stored" in gpkvs(server, "import", out).stdout


def test_what_does_not_fit_is_refused(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpkvs(server, "export", "--out", out, "--table", "small").exit_code == 0
    before = out.read_bytes()
    assert "it is there already: --overwrite replaces it" in refusal(server, "export", "--out", out, "--table", "large")
    assert "is there already" in refusal(server, "export", "--out", out, "--table", "large", "--resume")
    assert out.read_bytes() == before
    assert gpkvs(server, "export", "--out", out, "--table", "large", "--overwrite").exit_code == 0
    assert records_of(out) == LARGE
    assert "there is no table 'x'" in refusal(server, "export", "--out", tmp_path / "x", "--table", "x")
    assert "there is no table 'x'" in refusal(server, "import", out, "--table", "x")
    assert "has u64" in refusal(server, "import", out, "--table", "numbers")
    assert "No such file" in refusal(server, "import", tmp_path / "nothing")
    assert "No such file" in refusal(server, "export", "--out", tmp_path / "no" / "folder", "--table", "small")
    assert names(tmp_path) == ["out"]


def test_a_file_that_was_cut_or_changed_anywhere_is_refused(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_export(out, Header("copy", "bytes"), [(b"a", b"1", 0), (b"b", b"2", 0)])
    whole = out.read_bytes()
    assert records_of(out) == {b"a": b"1", b"b": b"2"}
    empty(server, "copy")
    for end in range(len(whole)):
        out.write_bytes(whole[:end])
        with pytest.raises(ExportError):
            ExportReader(out)
    for at in range(len(whole)):
        out.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ExportError):
            ExportReader(out)
    for wrong in (whole + b"\0", whole[: -END_BYTES - 2] + whole[-END_BYTES:], whole + whole):
        out.write_bytes(wrong)
        with pytest.raises(ExportError):
            ExportReader(out)
    out.write_bytes(whole[:-1])
    assert "it has no end: it was cut" in refusal(server, "import", out)
    out.write_bytes(whole.replace(b"\xc4\x01a", b"\xc4\x01c"))
    assert "it is damaged" in refusal(server, "import", out)
    out.write_bytes(b"other words" * 30)
    assert "it is no export of gpkvs" in refusal(server, "import", out)
    assert contents(server, "copy") == {}


@pytest.mark.parametrize(
    ("layout", "record"),
    [
        ("bytes", (1, b"", 0)),
        ("bytes", ("text", b"", 0)),
        ("bytes", (b"k", b"v")),
        ("bytes", (b"k", b"v", -1)),
        ("bytes", (b"k", b"v", b"")),
        ("bytes", {b"k": b"v"}),
        ("u64", (b"12345678", 1, 0)),
        ("u64", (-1, 1, 0)),
        ("u64", (1, True, 0)),
    ],
)
def test_a_record_that_is_none_is_refused(tmp_path: Path, layout: str, record: Any) -> None:
    write_export(tmp_path / "out", Header("copy", layout), [record])
    with pytest.raises(ExportError, match=f"is no record of the layout {layout}"):
        list(ExportReader(tmp_path / "out").chunks())


def test_records_are_counted_and_versions_known(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_export(out, Header("copy", "bytes"), [(b"k", b"v", 0)], count=2)
    with pytest.raises(ExportError, match="1 records were read, its end says 2"):
        list(ExportReader(out).chunks())
    later = msgpack.packb({"format": "gpkvs-export", "version": 3})
    out.write_bytes(later + End(0, 0).encode(zlib.crc32(later)))
    with pytest.raises(ExportError, match="its format has the version 3, this gpkvs knows 1 and 2"):
        ExportReader(out)


@pytest.mark.parametrize("length", [4096, (1 << 16) - 1, 3 << 20])
def test_a_prefix_is_as_long_as_a_key_may_be(tmp_path: Path, length: int) -> None:
    """A finished export could not be read, and an interrupted one did not go on."""
    file, header = tmp_path / "long", Header("small", "bytes", b"k" * length)
    with ExportWriter(file, header) as writer:
        writer.save()
    with ExportWriter(file, header, resume=True) as writer:
        writer.add(
            ScanPiece(
                keys=np.frombuffer(header.prefix, np.uint8),
                key_lengths=np.array([length], np.uint32),
                values=np.frombuffer(b"v", np.uint8),
                value_lengths=np.array([1], np.uint32),
                versions=np.array([1], np.uint64),
                expiries=np.empty(0, np.uint64),
                damaged=0,
                cursor=b"",
            )
        )
        writer.finish()
    assert ExportReader(file).header == header
    assert records_of(file) == {header.prefix: b"v"}


def test_an_export_goes_on_behind_what_is_saved(server: Server, tmp_path: Path) -> None:
    """Ended after each piece in turn, some saved and some not, with other bytes behind what is saved."""
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    progress, resumed = 0, 0
    with Client(server.target, table="large") as client:
        while True:
            with ExportWriter(out, HEADER, resume=True) as writer:
                assert writer.records == progress
                for number, piece in enumerate(client.scan_pieces(cursor=writer.cursor)):
                    writer.add(piece)
                    if not number:
                        writer.save()
                        progress = writer.records
                    if number == 1:
                        break
                if writer.is_scanned:
                    break
            resumed += 1
            with partial.open("ab") as file:
                file.write(b"torn")
        writer = ExportWriter(out, HEADER, resume=True)
        for piece in client.scan_pieces(cursor=writer.cursor) if not writer.is_scanned else ():
            writer.add(piece)
        writer.finish()
        writer.close()
    assert resumed >= 3
    assert records_of(out) == LARGE
    assert names(tmp_path) == ["out"]


def saved_part(server: Server, out: Path) -> int:
    """Leave a part of an export of `large`; return how many records it has."""
    with ExportWriter(out, HEADER) as writer, Client(server.target, table="large") as client:
        writer.add(next(iter(client.scan_pieces())))
        writer.save()
        return writer.records


def test_an_interrupted_export_is_neither_mixed_nor_lost(server: Server, tmp_path: Path) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    part = saved_part(server, out)
    large = ("export", "--out", out, "--table", "large")
    assert f"was interrupted after {part:,} records: --resume goes on" in refusal(server, *large)
    assert "is of table 'large'" in refusal(server, "export", "--out", out, "--table", "small", "--resume")
    assert "is of table 'large'" in refusal(server, *large, "--prefix", "k", "--resume")
    before = partial.read_bytes()
    for wrong in (before[:-1], before[:-1] + bytes([before[-1] ^ 1])):
        partial.write_bytes(wrong)
        assert "out.partial is damaged" in refusal(server, *large, "--resume")
    partial.write_bytes(before)
    with ExportWriter(out, HEADER, resume=True):
        assert "another process is writing this export" in refusal(server, *large, "--resume")
    assert gpkvs(server, *large, "--resume").exit_code == 0
    assert records_of(out) == LARGE
    saved_part(server, tmp_path / "anew")
    assert gpkvs(server, "export", "--out", tmp_path / "anew", "--table", "small", "--overwrite").exit_code == 0
    assert records_of(tmp_path / "anew") == SMALL
    assert names(tmp_path) == ["anew", "out"]


def test_an_export_is_not_finished_twice(server: Server, tmp_path: Path) -> None:
    """Ended when all was scanned, or between the two names: nothing is scanned again behind the end."""
    out = tmp_path / "out"
    with ExportWriter(out, HEADER) as writer, Client(server.target, table="large") as client:
        for piece in client.scan_pieces():
            writer.add(piece)
        writer.save()
    saved = (tmp_path / "out.progress").read_bytes()
    with (tmp_path / "out.partial").open("ab") as file:
        file.write(b"torn" * 100)  # longer than the end
    assert gpkvs(server, "export", "--out", out, "--table", "large", "--resume").exit_code == 0
    assert records_of(out) == LARGE
    (tmp_path / "out.progress").write_bytes(saved)
    out.unlink()
    assert gpkvs(server, "export", "--out", out, "--table", "large").exit_code == 0
    assert records_of(out) == LARGE


def test_a_killed_export_goes_on(server: Server, tmp_path: Path) -> None:
    """SIGKILL at any moment: what has the name is whole, and --resume ends it."""
    out = tmp_path / "out"
    words = ("export", "--out", str(out), "--table", "large", "--target", server.target)
    killed = subprocess.Popen([*COMMAND, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + 60
    while not (tmp_path / "out.partial").exists() and killed.poll() is None:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    if not out.exists():
        assert gpkvs(server, "export", "--out", out, "--table", "large", "--resume").exit_code == 0
    assert records_of(out) == LARGE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_what_came(server: Server, tmp_path: Path, number: signal.Signals) -> None:
    """The server is stopped in the middle: the export waits for it, is ended, and goes on when it is back."""
    out = tmp_path / "out"
    script = (
        "import sys; from gpkvs.client import Client; from gpkvs.cli.__main__ import main; import time\n"
        "pieces = Client.scan_pieces\n"
        "def slow(self, *a, **k):\n"
        "    for n, piece in enumerate(pieces(self, *a, **k)):\n"
        "        yield piece\n"
        "        print('piece', flush=True)\n"
        "        time.sleep(60 if n else 0)\n"
        "Client.scan_pieces = slow; main()"
    )
    command = [COMMAND[0], "-c", script, "export", "--out", str(out), "--table", "large", "--target", server.target]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert [running.stdout.readline() for _ in range(2)] == [b"piece\n"] * 2
    running.send_signal(number)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert b"--resume goes on" in errors
    assert b"Traceback" not in errors
    saved = json.loads((tmp_path / "out.progress").read_text())
    assert 0 < saved["records"] < len(LARGE)
    done = gpkvs(server, "export", "--out", out, "--table", "large", "--resume")
    assert done.exit_code == 0
    assert records_of(out) == LARGE


def test_a_restart_of_the_server_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed after the first piece, and after the first batch of an import; both go on by themselves."""
    server = Server(tmp_path / "store", tmp_path)
    servers, out = [server], tmp_path / "out"

    def restart() -> None:
        if len(servers) < 3:
            servers[-1].kill()
            servers.append(Server(tmp_path / "store", tmp_path, "--listen", server.target))

    add, execute = ExportWriter.add, Client.execute

    def add_and_kill(self: ExportWriter, piece: ScanPiece) -> None:
        add(self, piece)
        if len(servers) == 1:
            restart()

    def execute_and_kill(self: Client, *arguments: Any, **options: Any) -> Any:
        result = execute(self, *arguments, **options)
        if len(servers) == 2:
            restart()
            raise UnavailableError("the response is lost")
        return result

    try:
        with Client(server.target) as client:
            client.create_table("large", index_bytes=1 << 20)
            client.create_table("copy", index_bytes=1 << 20)
        records = dict(islice(LARGE.items(), 2500))
        fill(server, "large", records)
        monkeypatch.setattr(ExportWriter, "add", add_and_kill)
        assert gpkvs(server, "export", "--out", out, "--table", "large").exit_code == 0
        assert len(servers) == 2
        assert records_of(out) == records
        monkeypatch.setattr(Client, "execute", execute_and_kill)
        assert gpkvs(server, "import", out, "--table", "copy").exit_code == 0
        assert len(servers) == 3
        monkeypatch.undo()
        assert contents(server, "copy") == records
        servers[-1].stop()
    finally:
        for one in servers:
            one.kill()


def test_a_server_that_stays_away_is_not_waited_for_for_ever(server: Server, tmp_path: Path) -> None:
    away = ("--target", "127.0.0.1:1")
    for words in (("export", "--out", str(tmp_path / "out")), ("import", str(tmp_path / "in"))):
        write_export(tmp_path / "in", Header("copy", "bytes"), [])
        result = CliRunner().invoke(app, [*words, *away])
        assert result.exit_code == 2
        assert "is the server running there?" in result.stderr
    with pytest.MonkeyPatch.context() as patch:

        def gone(*_: Any, **__: Any) -> Any:
            raise UnavailableError("gone")

        write_export(tmp_path / "in", Header("copy", "bytes"), [(b"k", b"v", 0)])
        patch.setattr(Client, "execute", gone)
        assert "gone" in refusal(server, "import", tmp_path / "in", "--timeout", "0.1")


def test_damaged_records_are_told(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ExportWriter.add

    def with_damage(self: ExportWriter, piece: ScanPiece) -> None:
        object.__setattr__(piece, "damaged", 2)
        add(self, piece)

    monkeypatch.setattr(ExportWriter, "add", with_damage)
    out = tmp_path / "out"
    result = gpkvs(server, "export", "--out", out, "--table", "small")
    assert (result.exit_code, "2 records whose checks fail" in result.stderr) == (1, True)
    assert ExportReader(out).end == End(5, 2)
    imported = gpkvs(server, "import", out, "--table", "copy")
    assert (imported.exit_code, "2 records failed their checks" in imported.stderr) == (0, True)
