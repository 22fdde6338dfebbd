"""Tables of rows: they go to a file and back in either form, and rows of other programs come in whole or not at all."""

from __future__ import annotations

import os
import random
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from gpkvs import open as gpkvs_open
from gpkvs.cli.main import app
from gpkvs.client import Client
from gpkvs.columns.row_layout import ELEMENTS, require_row_layout
from gpkvs.export.file_format import PIECES_FORMAT, End, ExportError, Header
from gpkvs.export.pieces import PieceReader, encode_piece
from gpkvs.export.reader import ExportReader
from gpkvs.export.writer import ExportWriter
from gpkvs.scan import ScanPiece
from tests.conftest import SMALL as SMALL_STORE
from tests.export.served import gpkvs, names, refusal, served_tables
from tests.serving import Server

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'gpkvs[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")

FORMS = ("msgpack", "parquet")
LAYOUT = "float32[2,3]"
_MOST = (1 << 64) - 1

Contents = dict[int, tuple[bytes, int]]
"""Of each key the bytes of its row, and when it expires."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served_tables(tmp_path_factory.mktemp("rows"), "small") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client
        for table in client.list_tables():
            if table.name not in ("default", "small", "numbers", "copied_numbers"):
                client.drop_table(table.name)


@pytest.fixture
def pick() -> random.Random:
    seed = int(os.environ.get("GPKVS_SEED", random.Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return random.Random(seed)


def array_of(layout: str, data: bytes) -> NDArray[Any]:
    return require_row_layout(layout).array_of(np.frombuffer(data, np.uint8))


def fill(client: Client, table: str, layout: str, pick: random.Random, count: int = 300) -> None:
    """Make a table of rows of any bits, some of which expire."""
    client.create_table(table, layout=layout, index_bytes=1 << 16)
    rows = client.rows(layout, table=table)
    keys = np.array([0, 1, _MOST, *(pick.randrange(1 << 64) for _ in range(count))], np.uint64)
    given = array_of(layout, pick.randbytes(rows.layout.row_bytes * len(keys)))
    rows.set(keys, given, atomic=False)
    rows.set(keys[:2], given[:2], ttl=1000)


def held(client: Client, table: str) -> Contents:
    found: Contents = {}
    for piece in client.scan_pieces(table=table):
        keys, _ = piece.rows()
        found.update(zip(keys.tolist(), zip(piece.value_list(), piece.expiry_list(), strict=True), strict=True))
    return found


def export(server: Server, out: Path, table: str, form: str, *words: str) -> None:
    made = gpkvs(server, "export", "--out", out, "--table", table, "--format", form, *words)
    assert made.exit_code == 0, made.output


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_rows_go_to_a_file_and_back(
    server: Server, client: Client, tmp_path: Path, pick: random.Random, element: str, form: str
) -> None:
    shape = pick.choice(["1", "7", "2,3", "1,2,1,2"])
    layout, out = f"{element}[{shape}]", tmp_path / "out"
    fill(client, "from", layout, pick)
    export(server, out, "from", form)
    assert names(tmp_path) == ["out"]
    assert "there is no table 'to'" in refusal(server, "import", out, "--table", "to")
    words = ("import", out, "--table", "to", "--create", "--batch", str(pick.choice([7, 1000])))
    for stored, already in ((303, 0), (0, 303)):
        told = gpkvs(server, *words, "--if-absent")
        assert f"{stored} records stored in table to, {already} were there already" in told.stdout, told.output
    assert {table.layout for table in client.list_tables() if table.name == "to"} == {layout}
    assert held(client, "to") == held(client, "from")
    assert sum(expiry > 0 for _, expiry in held(client, "to").values()) == 2


def test_any_program_reads_an_export(server: Server, client: Client, tmp_path: Path, pick: random.Random) -> None:
    out = tmp_path / "out"
    fill(client, "from", LAYOUT, pick)
    export(server, out, "from", "msgpack")
    header, *records, end = msgpack.Unpacker(out.open("rb"))
    assert (header["version"], header["table"], header["layout"]) == (2, "from", LAYOUT)
    assert {key: (value, expiry) for key, value, expiry in records} == held(client, "from")
    assert end == {"records": 303, "damaged": 0, "crc32": zlib.crc32(out.read_bytes()[:-4])}


def test_any_program_reads_a_parquet_file(server: Server, client: Client, tmp_path: Path, pick: random.Random) -> None:
    out = tmp_path / "out"
    fill(client, "from", LAYOUT, pick)
    export(server, out, "from", "parquet")
    table = pq.read_table(out)
    inner = "fixed_size_list<element: fixed_size_list<element: float>[3]>[2]"
    kinds = [("uint64", False), (inner, False), ("uint64", False), ("timestamp[ms, tz=UTC]", True)]
    assert [(str(field.type), field.nullable) for field in table.schema] == kinds
    there = held(client, "from")
    rows = table["value"].combine_chunks().flatten().flatten().to_numpy().reshape(-1, 2, 3)
    expires = [expiry or 0 for expiry in table["expires"].cast(pa.int64()).to_pylist()]
    found = zip(
        table["key"].to_pylist(), ((row.tobytes(), at) for row, at in zip(rows, expires, strict=True)), strict=True
    )
    assert dict(found) == there
    assert min(table["version"].to_pylist()) > 0


@pytest.mark.parametrize("form", FORMS)
def test_pieces_and_row_groups_of_any_size(
    server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: random.Random, form: str
) -> None:
    layout = pick.choice(["int8[1000]", "float64[33]"])
    fill(client, "from", layout, pick, count=3000)
    monkeypatch.setattr("gpkvs.export.parquet._GROUP_BYTES", pick.choice([1, 100_000]))
    monkeypatch.setattr("gpkvs.export.parquet._PAGE_NUMBERS_STEP", pick.choice([1, 100]))
    monkeypatch.setattr("gpkvs.export.parquet_reader._READ_BYTES", pick.choice([1, 50_000]))
    monkeypatch.setattr("gpkvs.export.importer.BATCH_BYTES_MAX", pick.choice([1, 5000]))
    export(server, tmp_path / "out", "from", form)
    told = gpkvs(server, "import", tmp_path / "out", "--table", "to", "--create")
    assert "3,003 records stored" in told.stdout, told.output
    assert held(client, "to") == held(client, "from")


@pytest.mark.parametrize("form", FORMS)
def test_a_store_without_a_server_is_exported(store_path: Path, tmp_path: Path, form: str, server: Server) -> None:
    with gpkvs_open(store_path, **SMALL_STORE) as store:
        store.create_table("r", layout="int16[2]", index_bytes=1 << 16)
        store.rows("int16[2]", table="r").set([5], [[1, -2]])
    words = ["export", "--out", str(tmp_path / "out"), "--data", str(store_path), "--table", "r", "--format", form]
    refused = CliRunner().invoke(app, [*words, "--prefix", "5"])
    assert (refused.exit_code, "int16[2] has no prefixes" in refused.stderr) == (2, True)
    assert CliRunner().invoke(app, [*words, "--overwrite"]).exit_code == 0
    with Client(server.target) as client:
        assert gpkvs(server, "import", tmp_path / "out", "--create").exit_code == 0
        rows, found = client.rows("int16[2]", table="r").get([5])
        assert (rows.tolist(), found.tolist()) == ([[1, -2]], [True])
        client.drop_table("r")


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_table_is_an_export_too(server: Server, client: Client, tmp_path: Path, form: str) -> None:
    client.create_table("none", layout=LAYOUT, index_bytes=1 << 16)
    export(server, tmp_path / "out", "none", form)
    client.drop_table("none")
    assert "0 records stored" in gpkvs(server, "import", tmp_path / "out", "--create").stdout
    assert [table.layout for table in client.list_tables() if table.name == "none"] == [LAYOUT]


@pytest.mark.parametrize("form", FORMS)
def test_layouts_must_be_the_same(
    server: Server, client: Client, tmp_path: Path, pick: random.Random, form: str
) -> None:
    fill(client, "from", LAYOUT, pick, count=2)
    export(server, tmp_path / "out", "from", form)
    others = {"bytes": "bytes", "u64": "u64", "turned": "float32[3,2]", "whole": "int32[2,3]"}
    for table, layout in others.items():
        client.create_table(table, layout=layout, index_bytes=1 << 16)
        said = refusal(server, "import", tmp_path / "out", "--table", table)
        assert f"its records are of the layout {LAYOUT}, table '{table}' has {layout}" in said
        said = refusal(server, "import", tmp_path / "out", "--table", table, "--create")
        assert f"there is a table '{table}' already, of the layout {layout}, not {LAYOUT}" in said
        assert client.count(table=table) == 0
    export(server, tmp_path / "small", "small", form)
    assert f"of the layout bytes, table 'from' has {LAYOUT}" in refusal(
        server, "import", tmp_path / "small", "--table", "from"
    )


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_export_goes_on(
    server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: random.Random, form: str
) -> None:
    fill(client, "from", "float32[1000]", pick, count=1000)
    out, add = tmp_path / "out", ExportWriter.add
    words = ("export", "--out", out, "--table", "from", "--format", form)
    added = []

    def one(self: ExportWriter, piece: ScanPiece) -> None:
        if added:
            raise ExportError("stopped")
        added.append(len(piece))
        add(self, piece)

    with monkeypatch.context() as patch:
        patch.setattr(ExportWriter, "add", one)
        assert "stopped" in refusal(server, *words)
    assert 0 < added[0] < 1003
    # A table of the name, of another layout, has other records.
    client.create_table("other", layout="uint32[1000]", index_bytes=1 << 16)
    assert "(float32[1000])" in refusal(server, *words[:4], "other", *words[5:], "--resume")
    assert gpkvs(server, *words, "--resume").exit_code == 0
    assert gpkvs(server, "import", out, "--table", "to", "--create").exit_code == 0
    assert held(client, "to") == held(client, "from")


def test_a_table_that_is_made_anew_meanwhile(
    server: Server, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: random.Random
) -> None:
    fill(client, "from", "float32[2]", pick)
    monkeypatch.setattr("gpkvs.cli.data.export_run.layout_at", lambda *_: "int32[2]")
    said = refusal(server, "export", "--out", tmp_path / "out", "--table", "from")
    assert "the table has the layout float32[2] now, and had int32[2]: it was made anew" in said


def write_export(path: Path, header: Header, records: list[Any]) -> None:
    """Write an export, which may be one that no `ExportWriter` writes."""
    data = header.encode() + b"".join(map(msgpack.packb, records))
    path.write_bytes(data + End(len(records), 0).encode(zlib.crc32(data)))


def test_an_export_of_another_program(server: Server, client: Client, tmp_path: Path) -> None:
    """It may write numbers in as few bytes as they take."""
    soon = (int(time.time()) + 1000) * 1000
    write_export(tmp_path / "x", Header("made", "int8[3]"), [(1, b"\x01\x02\xff", 0), (_MOST, b"abc", soon)])
    assert gpkvs(server, "import", tmp_path / "x", "--create").exit_code == 0
    assert held(client, "made") == {1: (b"\x01\x02\xff", 0), _MOST: (b"abc", soon)}


@pytest.mark.parametrize(
    "record",
    [
        (b"12345678", b"abc", 0),
        (-1, b"abc", 0),
        (1, b"abcd", 0),
        (1, b"ab", 0),
        (1, 2, 0),
        (1, b"abc", -1),
        (1, b"abc"),
    ],
)
def test_a_record_that_is_none_is_refused(tmp_path: Path, record: Any) -> None:
    write_export(tmp_path / "out", Header("copy", "int8[3]"), [(5, b"abc", 0), record])
    with pytest.raises(ExportError, match=r"is no record of the layout int8\[3\]"):
        list(ExportReader(tmp_path / "out").chunks())


def piece_of(layout: str, keys: bytes, values: bytes, lengths: tuple[int, int]) -> ScanPiece:
    numbers, none = np.array([1], np.uint64), np.empty(0, np.uint64)
    key_length, value_length = (np.array([length], np.uint32) for length in lengths)
    key_column, value_column = (np.frombuffer(column, np.uint8) for column in (keys, values))
    return ScanPiece(key_column, key_length, value_column, value_length, numbers, none, 0, b"", layout)


def test_pieces_of_other_lengths_are_damaged(tmp_path: Path) -> None:
    """Arrow trusts them, before the checksum is known."""
    header = Header("t", "int8[3]", format=PIECES_FORMAT)
    for keys, values, is_right in (
        (b"12345678", b"abc", True),
        (b"1234567", b"abc", False),
        (b"12345678", b"a", False),
    ):
        data = header.encode() + encode_piece(piece_of("int8[3]", keys, values, (len(keys), len(values))))
        (tmp_path / "p").write_bytes(data + End(1, 0).encode(zlib.crc32(data)))
        reader = PieceReader(tmp_path / "p")
        if is_right:
            [piece] = reader.pieces()
            assert piece.rows()[1].tolist() == [[97, 98, 99]]
        else:
            with pytest.raises(ExportError, match="is damaged"):
                list(reader.pieces())


def write(path: Path, **given: Any) -> Path:
    """Write a Parquet file as other programs do."""
    pq.write_table(pa.table(given), path)
    return path


def lists(rows: list[Any], kind: Any, *sizes: int) -> Any:
    for size in reversed(sizes):
        kind = pa.list_(kind, size)
    return pa.array(rows, kind)


def test_rows_of_others(server: Server, client: Client, tmp_path: Path) -> None:
    values = lists([[[1, 2]], [[3, 4]]], pa.float16(), 1, 2)
    out = write(tmp_path / "x", other=["a", "b"], id=pa.array([5, 6], pa.int16()), vector=values, until=[None, None])
    named = ("--key", "id", "--value", "vector", "--table", "made")
    assert gpkvs(server, "import", out, *named, "--create").exit_code == 0
    assert [table.layout for table in client.list_tables() if table.name == "made"] == ["float16[1,2]"]
    rows, found = client.rows("float16[1,2]", table="made").get([5, 6, 7])
    assert (rows.tolist(), found.tolist()) == ([[[1, 2]], [[3, 4]], [[0, 0]]], [True, True, False])


def test_parts_of_columns_and_many_row_groups(server: Server, client: Client, tmp_path: Path) -> None:
    """What a program has cut off a column is not read, and rows lie where their part begins."""
    count = 1000
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4 * count, dtype=np.int32)), 4)
    table = pa.table({"key": pa.array(range(count), pa.uint32()), "value": values})
    with pq.ParquetWriter(tmp_path / "x", table.schema) as writer:
        for first, rows in ((0, 1), (1, 0), (1, 700), (701, 299)):
            writer.write_table(table.slice(first, rows), row_group_size=97)
    assert gpkvs(server, "import", tmp_path / "x", "--table", "made", "--create", "--batch", "7").exit_code == 0
    rows, found = client.rows("int32[4]", table="made").get(range(count))
    assert found.all()
    assert np.array_equal(rows.ravel(), np.arange(4 * count))


def test_expiries_of_others(server: Server, client: Client, tmp_path: Path) -> None:
    soon = (int(time.time()) + 1000) * 1000
    values = lists([[1], [2], [3]], pa.uint8(), 1)
    out = write(tmp_path / "x", key=[1, 2, 3], value=values, expires=pa.array([soon, None, 0], pa.int64()))
    assert gpkvs(server, "import", out, "--table", "made", "--create").exit_code == 0
    assert held(client, "made") == {1: (b"\x01", soon), 2: (b"\x02", 0), 3: (b"\x03", 0)}


def test_bfloat16_is_told_from_uint16(server: Server, client: Client, tmp_path: Path, pick: random.Random) -> None:
    for element in ("bfloat16", "uint16"):
        fill(client, element, f"{element}[2]", pick)
        export(server, tmp_path / element, element, "parquet")
        told = pq.read_schema(tmp_path / element)
        assert str(told.field("value").type) == "fixed_size_list<element: uint16>[2]"
        assert gpkvs(server, "import", tmp_path / element, "--table", f"{element}.", "--create").exit_code == 0
    layouts = {table.name: table.layout for table in client.list_tables()}
    assert (layouts["bfloat16."], layouts["uint16."]) == ("bfloat16[2]", "uint16[2]")
    assert "of the layout uint16[2], table 'bfloat16' has bfloat16[2]" in refusal(
        server, "import", tmp_path / "uint16", "--table", "bfloat16"
    )
    # The metadata says nothing of a column that has another type.
    schema = pq.read_schema(tmp_path / "bfloat16")
    other = pa.table({"key": [1], "value": lists([[1, 2]], pa.uint32(), 2)}).replace_schema_metadata(schema.metadata)
    pq.write_table(other, tmp_path / "other")
    assert gpkvs(server, "import", tmp_path / "other", "--table", "other", "--create").exit_code == 0
    assert [table.layout for table in client.list_tables() if table.name == "other"] == ["uint32[2]"]


_ONE = [[1.0, 2.0]]
_WRONG: dict[str, tuple[Any, Any, str]] = {
    "a row that is missing": ([1, 2], lists([[1.0], None], pa.float32(), 1), "a row or an element is missing"),
    "an element that is missing": ([1, 2], lists([[1.0], [None]], pa.float32(), 1), "a row or an element is missing"),
    "an inner row": ([1], lists([[[1.0], None]], pa.float32(), 2, 1), "a row or an element is missing"),
    "a key that is missing": ([1, None], lists([[1.0], [2.0]], pa.float32(), 1), "numbers are missing"),
    "a negative key": ([-1], lists(_ONE, pa.float32(), 2), "numbers that do not fit"),
    "keys of text": (["a"], lists(_ONE, pa.float32(), 2), "have the types string and fixed_size_list<"),
    "lists of any size": ([1], _ONE, "lists of a fixed size of numbers (layouts of rows)"),
    "truths": ([1], lists([[True]], pa.bool_(), 1), "have the types int64 and fixed_size_list<"),
    "texts": ([1], lists([["a"]], pa.string(), 1), "have the types int64 and fixed_size_list<"),
    "rows that are too long": (
        pa.array([], pa.int64()),
        lists([], pa.uint8(), 1 << 28),
        "a row of 268,435,456 bytes, the limit is 67,043,328 (value_bytes_max)",
    ),
}


@pytest.mark.parametrize("name", _WRONG)
def test_what_does_not_fit_is_refused_before_anything_is_stored(
    server: Server, client: Client, tmp_path: Path, name: str
) -> None:
    keys, values, said = _WRONG[name]
    out = write(tmp_path / "x", key=keys, value=values)
    assert said in refusal(server, "import", out, "--table", "new", "--create")
    assert "new" not in [table.name for table in client.list_tables()]


def test_a_file_that_was_changed_is_refused(
    server: Server, client: Client, tmp_path: Path, pick: random.Random
) -> None:
    out = tmp_path / "out"
    fill(client, "from", "float32[8]", pick)
    export(server, out, "from", "parquet")
    whole, chunk = out.read_bytes(), pq.ParquetFile(out).metadata.row_group(0).column(1)
    at = chunk.data_page_offset + chunk.total_compressed_size // 2
    out.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert "it is damaged" in refusal(server, "import", out, "--table", "to", "--create")
