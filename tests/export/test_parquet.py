"""Parquet: every layout goes out and comes back, and files of others come in whole or not at all."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gpkvs import open as gpkvs_open
from gpkvs.batch import Batch, Op
from gpkvs.cli.main import app
from gpkvs.client import Client
from gpkvs.columns.arrow import bytes_of
from gpkvs.export.file_format import ExportError
from gpkvs.export.writer import ExportWriter
from gpkvs.scan import ScanPiece
from tests.conftest import SMALL as SMALL_STORE
from tests.export.served import NUMBERS, SMALL, contents, empty, gpkvs, names, refusal, served_tables
from tests.serving import Server

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'gpkvs[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")

FUTURE_MS = 4_000_000_000_123

Record = tuple[bytes, int, int]
"""Value, version, expiry."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with one table of each kind; tests write to others."""
    with served_tables(tmp_path_factory.mktemp("parquet"), "small", "random", "copy") as server:
        yield server


def records(server: Server, table: str) -> dict[bytes, Record]:
    """Return what a table has, of each key its value, its version and when it expires."""
    with Client(server.target, table=table) as client:
        return {
            key: (value, version, expiry)
            for piece in client.scan_pieces()
            for (key, value), version, expiry in zip(
                piece.pairs(), piece.versions.tolist(), piece.expiry_list(), strict=True
            )
        }


def records_in(path: Path) -> dict[bytes, Record]:
    """Return what a file of gpkvs has, as another program reads it."""
    table = pq.read_table(path)
    assert str(table.schema.field("expires").type) == "timestamp[ms, tz=UTC]"
    expires = table["expires"].cast(pa.int64()).to_pylist()
    assert 0 not in expires
    found = {
        key: (value, version, expiry or 0)
        for key, value, version, expiry in zip(
            table["key"].to_pylist(), table["value"].to_pylist(), table["version"].to_pylist(), expires, strict=True
        )
    }
    assert len(found) == table.num_rows
    return found


def without_versions(found: dict[bytes, Record]) -> dict[bytes, tuple[bytes, int]]:
    return {key: (value, expiry) for key, (value, _, expiry) in found.items()}


def export(server: Server, out: Path, table: str, *words: str) -> None:
    made = gpkvs(server, "export", "--out", out, "--table", table, "--format", "parquet", *words)
    assert made.exit_code == 0, made.output


def write(path: Path, **given: Any) -> Path:
    """Write a file as other programs do."""
    pq.write_table(pa.table(given), path)
    return path


def test_bytes_go_to_parquet_and_back(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    export(server, out, "small")
    assert names(tmp_path) == ["out.parquet"]
    assert out.stat().st_mode & 0o777 == 0o600
    schema = pq.read_schema(out)
    assert {field.name: (str(field.type), field.nullable) for field in schema} == {
        "key": ("binary", False),
        "value": ("binary", False),
        "version": ("uint64", False),
        "expires": ("timestamp[ms, tz=UTC]", True),
    }
    assert records_in(out) == records(server, "small")
    assert {key: value for key, (value, _, _) in records_in(out).items()} == SMALL
    empty(server, "copy")
    stored = gpkvs(server, "import", out, "--table", "copy", "--json")
    assert json.loads(stored.stdout) == {"table": "copy", "stored": 5, "there_already": 0}
    assert contents(server, "copy") == SMALL
    # An import gives new versions.
    assert not {version for _, version, _ in records(server, "copy").values()} & {
        version for _, version, _ in records_in(out).values()
    }
    again = gpkvs(server, "import", out, "--table", "copy", "--if-absent", "--json")
    assert json.loads(again.stdout) == {"table": "copy", "stored": 0, "there_already": 5}


def random_records(pick: random.Random) -> dict[bytes, tuple[bytes, int]]:
    """Return keys with values and expiries; a key is as short as one may be, or as long."""
    longest = pick.choice([1, 20, 3000])
    values = [pick.randbytes(pick.choice([0, 1, 20, longest, 70_000])) for _ in range(pick.randint(1, 6))]
    expiries = pick.choice([[0], [0, FUTURE_MS, (1 << 63) - 1], [FUTURE_MS + 1]])
    return {
        pick.randbytes(pick.choice([1, 2, 8, 40, 4096])): (
            pick.choice(values) if pick.random() < 0.5 else pick.randbytes(pick.randint(0, longest)),
            pick.choice(expiries),
        )
        for _ in range(pick.choice([0, 1, 10, 700]))
    }


def store(server: Server, table: str, given: dict[bytes, tuple[bytes, int]]) -> None:
    """Store records with their expiries."""
    keys, found = list(given), list(given.values())
    if not keys:
        return
    batch = Batch(
        ops=np.full(len(keys), Op.SET, np.uint8),
        keys=np.frombuffer(b"".join(keys), np.uint8),
        key_lengths=np.array([len(key) for key in keys], np.uint32),
        values=np.frombuffer(b"".join(value for value, _ in found), np.uint8),
        value_lengths=np.array([len(value) for value, _ in found], np.uint32),
        expiries=np.array([expiry for _, expiry in found], np.uint64),
    )
    with Client(server.target, table=table) as client:
        assert not client.execute(batch).status.any()


def test_random_records_are_what_the_table_has(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    pick = random.Random(seed)
    for number in range(12):
        out = tmp_path / f"{number}.parquet"
        empty(server, "random")
        given = random_records(pick)
        store(server, "random", given)
        monkeypatch.setattr("gpkvs.export.parquet._GROUP_BYTES", pick.choice([1, 5000, 1 << 20, 64 << 20]))
        monkeypatch.setattr("gpkvs.export.parquet_reader._READ_BYTES", pick.choice([1, 5000, 4 << 20]))
        monkeypatch.setattr("gpkvs.export.parquet_reader._REPEATED_BYTES_MAX", pick.choice([1, 5000, 64 << 20]))
        monkeypatch.setattr("gpkvs.export.importer.BATCH_BYTES_MAX", pick.choice([1, 5000, 1 << 20]))
        export(server, out, "random")
        there = records(server, "random")
        assert without_versions(there) == given
        assert records_in(out) == there
        empty(server, "copy")
        stored = gpkvs(server, "import", out, "--table", "copy", "--batch", str(pick.choice([1, 7, 1000])))
        assert stored.exit_code == 0, stored.output
        assert without_versions(records(server, "copy")) == given


def test_a_table_of_many_pieces_has_row_groups_of_many(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {b"key%05d" % n: (bytes([n % 251]) * 1000, 0) for n in range(4000)}
    empty(server, "random")
    for part in range(0, 4000, 500):
        store(server, "random", dict(list(given.items())[part : part + 500]))
    monkeypatch.setattr("gpkvs.export.parquet._GROUP_BYTES", 2 << 20)
    export(server, tmp_path / "out", "random")
    found = pq.ParquetFile(tmp_path / "out").metadata
    sizes = [found.row_group(number).num_rows * 1008 for number in range(found.num_row_groups)]
    assert 2 <= len(sizes) <= 5
    assert max(sizes) <= 2 << 20
    assert records_in(tmp_path / "out") == records(server, "random")


def test_an_expiry_later_than_a_timestamp_is_the_last_one(server: Server, tmp_path: Path) -> None:
    empty(server, "random")
    store(server, "random", {b"k": (b"v", (1 << 64) - 1)})
    export(server, tmp_path / "out", "random")
    assert without_versions(records_in(tmp_path / "out")) == {b"k": (b"v", (1 << 63) - 1)}


def test_a_store_without_a_server_is_exported(store_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with gpkvs_open(store_path, **SMALL_STORE) as opened:
        opened.set(b"user:1", b"ann")
        opened.set(b"item", b"x")
        version = next(iter(opened.scan_pieces(b"user:"))).versions.tolist()[0]
    words = ["export", "--out", str(out), "--data", str(store_path), "--prefix", "user:", "--format", "parquet"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert records_in(out) == {b"user:1": (b"ann", version, 0)}


def test_an_empty_table_is_a_file_too(server: Server, tmp_path: Path) -> None:
    empty(server, "random")
    export(server, tmp_path / "out", "random")
    assert records_in(tmp_path / "out") == {}
    assert "0 records stored" in gpkvs(server, "import", tmp_path / "out").stdout


def test_numbers_go_to_parquet_and_back(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    export(server, out, "numbers")
    assert names(tmp_path) == ["out.parquet"]
    table = pq.read_table(out)
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == NUMBERS
    assert [str(field.type) for field in table.schema] == ["uint64", "uint64"]
    empty(server, "copied_numbers")
    assert gpkvs(server, "import", out, "--table", "copied_numbers").exit_code == 0
    assert contents(server, "copied_numbers") == contents(server, "numbers")


@pytest.mark.parametrize("table", ["small", "numbers"])
def test_a_file_that_was_cut_or_changed_is_refused(server: Server, tmp_path: Path, table: str) -> None:
    out = tmp_path / "out.parquet"
    export(server, out, table)
    words = ("import", out, "--table", {"small": "copy", "numbers": "copied_numbers"}[table])
    empty(server, str(words[-1]))
    whole = out.read_bytes()
    for end in (5, len(whole) // 2, len(whole) - 1):
        out.write_bytes(whole[:end])
        assert "it is no whole Parquet file" in refusal(server, *words)
    out.write_bytes(whole)
    chunk = pq.ParquetFile(out).metadata.row_group(0).column(1)
    begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    at = begin + chunk.total_compressed_size // 2
    out.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert "it is damaged" in refusal(server, *words)
    assert contents(server, str(words[-1])) == {}


def test_damaged_records_are_told(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ExportWriter.add

    def with_damage(self: ExportWriter, piece: ScanPiece) -> None:
        object.__setattr__(piece, "damaged", 2)
        add(self, piece)

    monkeypatch.setattr(ExportWriter, "add", with_damage)
    out = tmp_path / "out"
    result = gpkvs(server, "export", "--out", out, "--table", "small", "--format", "parquet")
    assert (result.exit_code, "2 records whose checks fail" in result.stderr) == (1, True)
    assert records_in(out) == records(server, "small")
    imported = gpkvs(server, "import", out, "--table", "copy")
    assert (imported.exit_code, "2 records failed their checks" in imported.stderr) == (0, True)


@pytest.mark.parametrize("table", ["small", "numbers"])
def test_an_interrupted_export_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    out = tmp_path / "out"
    words = ("export", "--out", out, "--table", table, "--format", "parquet")
    with monkeypatch.context() as patch:
        patch.setattr("gpkvs.export.writer.convert", lambda *_: (_ for _ in ()).throw(ExportError("stopped")))
        assert "stopped" in refusal(server, *words)
    assert "was interrupted" in refusal(server, *words)
    assert "has another --format" in refusal(server, *words[:-1], "msgpack", "--resume")
    assert "it is a part of an export to Parquet" in refusal(server, "import", tmp_path / "out.partial")
    assert gpkvs(server, *words, "--resume").exit_code == 0
    assert names(tmp_path) == ["out"]
    expected = NUMBERS if table == "numbers" else SMALL
    found = pq.read_table(out)
    assert dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == expected


def test_what_was_damaged_meanwhile_becomes_no_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    from gpkvs.export import writer  # noqa: PLC0415 - its `convert` is what is replaced

    convert = writer.convert

    def damaged_convert(pieces: Path, parquet: Path) -> None:
        data = bytearray(pieces.read_bytes())
        data[data.index(b"ann")] ^= 1
        pieces.write_bytes(data)
        convert(pieces, parquet)

    monkeypatch.setattr(writer, "convert", damaged_convert)
    words = ("export", "--out", out, "--table", "small", "--format", "parquet")
    assert "out.partial is damaged" in refusal(server, *words)
    assert not out.exists()


def test_without_pyarrow_it_says_what_to_install(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    words = ("export", "--out", tmp_path / "x", "--table", "numbers", "--format", "parquet")
    assert "run pip install 'gpkvs[parquet]'" in refusal(server, *words)
    assert names(tmp_path) == []


BYTE_TYPES = {
    "binary": (pa.binary(), [b"k1", b"k2"], [b"", b"\xff"]),
    "large_binary": (pa.large_binary(), [b"k1", b"k2"], [b"", b"\xff"]),
    "fixed": (pa.binary(2), [b"k1", b"k2"], [b"\x00\x00", b"\xff\xfe"]),
    "string": (pa.string(), ["ä", "k2"], ["", "€"]),
    "large_string": (pa.large_string(), ["ä", "k2"], ["", "€"]),
    "string_view": (pa.string_view(), ["ä", "k2"], ["", "€"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["ä", "k2"], ["same", "same"]),
}


def as_bytes(given: str | bytes) -> bytes:
    return given.encode() if isinstance(given, str) else given


@pytest.mark.parametrize("name", BYTE_TYPES)
def test_bytes_of_others(server: Server, tmp_path: Path, name: str) -> None:
    kind, keys, values = BYTE_TYPES[name]
    empty(server, "copy")
    out = write(tmp_path / "x", value=pa.array(values, kind), other=[1.5, None], key=pa.array(keys, kind))
    assert gpkvs(server, "import", out, "--table", "copy").exit_code == 0
    assert contents(server, "copy") == dict(zip(map(as_bytes, keys), map(as_bytes, values), strict=True))


def test_a_part_of_a_column_has_its_own_bytes() -> None:
    given = [b"one", b"", b"three", b"4", b"", b""]
    column = pa.array(given, pa.large_binary())
    for first in range(7):
        for last in range(first, 7):
            data, lengths = bytes_of(column[first:last])
            assert data.tobytes() == b"".join(given[first:last])
            assert lengths.tolist() == [len(value) for value in given[first:last]]


def test_bytes_of_many_row_groups(server: Server, tmp_path: Path) -> None:
    keys, values = [b"%d" % n for n in range(1000)], [b"v" * (n % 97) for n in range(1000)]
    table = pa.table({"key": keys, "value": values})
    empty(server, "copy")
    with pq.ParquetWriter(tmp_path / "x", table.schema) as writer:
        for first, count in ((0, 1), (1, 0), (1, 700), (701, 299)):
            writer.write_table(table.slice(first, count), row_group_size=100)
    assert gpkvs(server, "import", tmp_path / "x", "--table", "copy", "--batch", "7").exit_code == 0
    assert contents(server, "copy") == dict(zip(keys, values, strict=True))


def test_numbers_of_others(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "other"

    def stored(**numbers: Any) -> str:
        result = gpkvs(server, "import", write(out, **numbers), "--table", "copied_numbers")
        return "" if result.exit_code == 0 else result.stderr

    empty(server, "copied_numbers")
    assert stored(other=pa.array(["x"]), key=pa.array([5], pa.int16()), value=pa.array([6], pa.int64())) == ""
    eight = {number: number.to_bytes(8, "little") for number in (5, 6)}
    assert contents(server, "copied_numbers") == {eight[5]: eight[6]}
    assert "numbers are missing" in stored(key=[1, 2], value=[1, None])
    assert "numbers that do not fit" in stored(key=[1, 2], value=[1, -1])
    assert contents(server, "copied_numbers") == {eight[5]: eight[6]}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (pa.int64(), FUTURE_MS, FUTURE_MS),
        (pa.int64(), 0, 0),
        (pa.uint32(), 4_000_000_000, None),
        (pa.timestamp("s"), FUTURE_MS // 1000, FUTURE_MS // 1000 * 1000),
        (pa.timestamp("ms", "UTC"), FUTURE_MS, FUTURE_MS),
        (pa.timestamp("us", "Europe/Berlin"), FUTURE_MS * 1000 + 999, FUTURE_MS),
        (pa.timestamp("ns", "-08:00"), FUTURE_MS * 1_000_000 + 999_999, FUTURE_MS),
        (pa.timestamp("ms"), 0, None),
        (pa.timestamp("us"), -1, None),
        (pa.timestamp("s"), -(1 << 50), None),
        (pa.timestamp("ms"), 1, None),
    ],
)
def test_when_records_expire(server: Server, tmp_path: Path, kind: Any, given: int, expected: int | None) -> None:
    """None: it has expired already; then it is stored, and nobody sees it, as from the other form of an export."""
    empty(server, "copy")
    out = write(
        tmp_path / "x", key=["a", "b", "c"], value=["1", "2", "3"], expires=pa.array([given, None, given], kind)
    )
    stored = gpkvs(server, "import", out, "--table", "copy")
    assert "3 records stored" in stored.stdout, stored.output
    there = {} if expected is None else {b"a": (b"1", expected), b"c": (b"3", expected)}
    assert without_versions(records(server, "copy")) == {b"b": (b"2", 0), **there}


def test_none_expires_and_no_column_are_the_same(server: Server, tmp_path: Path) -> None:
    for expires in ({}, {"expires": pa.nulls(1, pa.timestamp("ms"))}):
        empty(server, "copy")
        assert gpkvs(server, "import", write(tmp_path / "x", key=["a"], value=["1"], **expires), "--table", "copy")
        assert without_versions(records(server, "copy")) == {b"a": (b"1", 0)}


def test_columns_have_any_names(server: Server, tmp_path: Path) -> None:
    empty(server, "copy")
    until = datetime.fromtimestamp(FUTURE_MS // 1000, UTC)
    given = {"key": ["no", "no"], "user.id": ["a", "b"], "the name": ["1", "2"], "until": [until, None]}
    out = write(tmp_path / "x", **given)
    named = ("--key", "user.id", "--value", "the name", "--expires", "until")
    assert gpkvs(server, "import", out, "--table", "copy", *named).exit_code == 0
    assert without_versions(records(server, "copy")) == {b"a": (b"1", FUTURE_MS // 1000 * 1000), b"b": (b"2", 0)}
    there = "there are key, user.id, the name, until"
    for option, others in (("--key", named[2:]), ("--value", named[:2]), ("--expires", named[:4])):
        said = refusal(server, "import", out, "--table", "copy", *others, option, "x")
        assert ("there is no column 'x'" in said, there in said) == (True, True), said
    assert "there is no column 'value'" in refusal(server, "import", out, "--table", "copy")
    same = refusal(server, "import", out, "--table", "copy", "--key", "until", "--value", "until")
    assert "are the same column" in same


def test_columns_are_of_parquet_alone(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpkvs(server, "export", "--out", out, "--table", "small").exit_code == 0
    for option in ("--key", "--value", "--expires"):
        assert "of a Parquet file, and it is none" in refusal(server, "import", out, option, "x")


def test_an_import_makes_the_table_that_the_columns_mean(server: Server, tmp_path: Path) -> None:
    for layout, given in (("bytes", {"key": ["a"], "value": ["b"]}), ("u64", {"key": [1], "value": [2]})):
        out = write(tmp_path / layout, **given)
        name = f"made_{layout}"
        assert f"there is no table '{name}'" in refusal(server, "import", out, "--table", name)
        for _ in range(2):
            assert gpkvs(server, "import", out, "--table", name, "--create").exit_code == 0
        with Client(server.target) as client:
            assert next(one.layout for one in client.list_tables() if one.name == name) == layout
    assert "'made_bytes' has bytes" in refusal(server, "import", tmp_path / "u64", "--table", "made_bytes")
    assert "'made_u64' has u64" in refusal(server, "import", tmp_path / "bytes", "--table", "made_u64")
    crossed = refusal(server, "import", tmp_path / "u64", "--table", "made_bytes", "--create")
    assert "of the layout bytes, not u64" in crossed
    assert contents(server, "made_bytes") == {b"a": b"b"}
    with Client(server.target) as client:
        for name in ("made_bytes", "made_u64"):
            client.drop_table(name)


WRONG = {
    "a key that is missing": ({"key": ["a", None], "value": ["1", "2"]}, "column 'key' has no value in 1 record"),
    "a value that is missing": ({"key": ["a", "b"], "value": ["1", None]}, "column 'value' has no value in 1 record"),
    "no column": ({"key": ["a"], "values": ["1"]}, "there is no column 'value'; there are key, values"),
    "numbers with bytes": ({"key": [1], "value": ["1"]}, "'key' and 'value' have the types int64 and string"),
    "bytes with numbers": ({"key": ["1"], "value": [1]}, "have the types string and int64"),
    "fractions": ({"key": ["a"], "value": [1.5]}, "have the types string and double"),
    "lists": ({"key": ["a"], "value": [["b"]]}, "have the types string and list<"),
    "structs": ({"key": ["a"], "value": [{"b": "c"}]}, "have the types string and struct<"),
    "nothing but nulls": ({"key": ["a"], "value": [None]}, "have the types string and null"),
    "truths": ({"key": [True], "value": [True]}, "have the types bool and bool"),
    "a long key": ({"key": ["a", "b" * 4097], "value": ["1", "2"]}, "key of record 2 has 4,097 bytes"),
    "an empty key": ({"key": ["a", "b", ""], "value": ["1", "2", "3"]}, "key of record 3 has 0 bytes"),
    "an expiry of text": ({"key": ["a"], "value": ["1"], "expires": ["2030"]}, "column 'expires' has the type string"),
    "an expiry before all": ({"key": ["a"], "value": ["1"], "expires": [-1]}, "'expires' has negative numbers"),
    "a larger number of an expiry": (
        {"key": ["a"], "value": ["1"], "expires": pa.array([1 << 63], pa.uint64())},
        "numbers that do not fit",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_stored(server: Server, tmp_path: Path, name: str) -> None:
    given, said = WRONG[name]
    empty(server, "copy")
    assert said in refusal(server, "import", write(tmp_path / "x", **given), "--table", "copy")
    assert "there is no table" not in refusal(server, "import", tmp_path / "x", "--table", "new", "--create")
    assert contents(server, "copy") == {}
    with Client(server.target) as client:
        assert "new" not in [table.name for table in client.list_tables()]


def test_a_value_that_is_too_long_is_refused(server: Server, tmp_path: Path) -> None:
    with Client(server.target) as client:
        value_bytes_max = client.info().value_bytes_max
    out = write(tmp_path / "x", key=["a", "b"], value=[b"1", bytes(value_bytes_max + 1)])
    empty(server, "copy")
    assert f"value of record 2 has {value_bytes_max + 1:,} bytes" in refusal(server, "import", out, "--table", "copy")
    assert contents(server, "copy") == {}


def test_a_column_that_is_there_twice_is_refused(server: Server, tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["key", "value", "value"])
    pq.write_table(twice, tmp_path / "x")
    assert "has the column 'value' 2 times" in refusal(server, "import", tmp_path / "x", "--table", "copy")


def test_numbers_do_not_expire(server: Server, tmp_path: Path) -> None:
    out = write(tmp_path / "x", key=[1], value=[2], expires=[int(time.time())])
    said = refusal(server, "import", out, "--table", "copied_numbers", "--expires", "expires")
    assert "of the layout u64, and those do not expire" in said
    assert gpkvs(server, "import", out, "--table", "copied_numbers").exit_code == 0
