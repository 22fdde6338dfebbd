"""What a large table takes while it becomes a Parquet file, and while one is checked: not more than a smaller one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20

# A process of its own has the peak of one step at a time. The values are the same, so that the files are small.
_SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import pyarrow as pa, pyarrow.compute, pyarrow.parquet as pq
from gpkvs.export.file_format import Header
from gpkvs.export.parquet_reader import ParquetReader
from gpkvs.export.writer import ExportWriter
from gpkvs.scan import ScanPiece

folder, value_bytes, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def status(name):
    return int(Path("/proc/self/status").read_text().partition(name + ":")[2].split()[0]) << 10

def peak_of(step):
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    step()
    return status("VmHWM") - before

def pieces():
    each = max(1, (1 << 20) // value_bytes)
    value = np.random.default_rng(1).integers(0, 256, value_bytes, np.uint8)
    for first in range(0, count, each):
        n = min(each, count - first)
        keys = np.arange(first, first + n, dtype="<u8").view(np.uint8)
        lengths = np.full(n, 8, np.uint32), np.full(n, value_bytes, np.uint32)
        numbers = np.arange(n, dtype=np.uint64), np.empty(0, np.uint64)
        cursor = b"" if first + n == count else b"more"
        yield ScanPiece(keys, lengths[0], np.tile(value, n), lengths[1], *numbers, 0, cursor)

out = folder / "out"
with ExportWriter(out, Header("t", "bytes"), parquet=True) as writer:
    for piece in pieces():
        writer.add(piece)
    peaks = {"export": peak_of(writer.finish)}

peaks["import"] = peak_of(lambda: ParquetReader(out).check())

# As others write it: one row group, in which the file has the value once.
def repeated():
    rows = max(count, 128)
    value = pa.array([bytes(value_bytes), b"short"])
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(rows, dtype=np.int32) % 2), value)
    table = pa.table({"key": [b"%d" % number for number in range(rows)], "value": column})
    with pq.ParquetWriter(folder / "repeated", table.schema, store_schema=False) as other:
        other.write_table(table)

repeated()
peaks["repeated"] = peak_of(lambda: ParquetReader(folder / "repeated").check())

# One row group, in which each value lies by itself. A page is read as a whole: here it has 1 MiB, or one value.
def plain():
    rows, page_rows = min(count, (256 << 20) // value_bytes), max(1, (1 << 20) // value_bytes)
    keys = pa.array(np.arange(rows)).cast(pa.string()).cast(pa.binary())
    ends = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * value_bytes)
    data = pa.py_buffer(np.random.default_rng(2).bytes(rows * value_bytes))
    table = pa.table({"key": keys, "value": pa.Array.from_buffers(pa.binary(), rows, [None, ends, data])})
    pq.write_table(table, folder / "plain", use_dictionary=False, row_group_size=rows, write_batch_size=page_rows)

plain()
peaks["plain"] = peak_of(lambda: ParquetReader(folder / "plain").check())
print(json.dumps(peaks))
"""


@pytest.mark.parametrize(("value_bytes", "count"), [(16 * MIB, 32), (100, 3_400_000)])
def test_the_memory_does_not_grow_with_the_table(tmp_path: Path, value_bytes: int, count: int) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'gpkvs[parquet]'")
    words = [sys.executable, "-c", _SCRIPT, str(tmp_path), str(value_bytes), str(count)]
    peaks = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    print(peaks)
    assert value_bytes * count > 320 * MIB
    assert peaks["export"] < 320 * MIB
    assert peaks["import"] < 160 * MIB
    assert peaks["repeated"] < 200 * MIB
    assert peaks["plain"] < 160 * MIB


_ROWS_SCRIPT = (
    _SCRIPT.partition("def pieces():")[0]
    + """
from gpkvs.columns.row_layout import require_row_layout
layout = require_row_layout(sys.argv[4])
rows = np.random.default_rng(1).integers(0, 100, (count, *layout.shape), np.uint8).astype(layout.dtype)
each = max(1, (1 << 20) // value_bytes)

def pieces():
    for first in range(0, count, each):
        part = rows[first : first + each]
        keys = np.arange(first, first + len(part), dtype="<u8").view(np.uint8)
        lengths = np.full(len(part), 8, np.uint32), np.full(len(part), value_bytes, np.uint32)
        numbers = np.arange(len(part), dtype=np.uint64), np.empty(0, np.uint64)
        cursor = b"" if first + len(part) == count else b"more"
        yield ScanPiece(keys, lengths[0], part.reshape(-1).view(np.uint8), lengths[1], *numbers, 0, cursor, layout.name)

with ExportWriter(folder / "out", Header("t", layout.name), parquet=True) as writer:
    for piece in pieces():
        writer.add(piece)
    peaks = {"export": peak_of(writer.finish)}
peaks["import"] = peak_of(lambda: ParquetReader(folder / "out").check())

# As others write them, in one row group: each by itself, and all the same, which the file has once.
def foreign(name, given, **options):
    values = pa.FixedSizeListArray.from_arrays(pa.array(given.reshape(-1)), layout.shape[0])
    table = pa.table({"key": pa.array(range(count)), "value": values})
    pq.write_table(table, folder / name, row_group_size=count, **options)

foreign("plain", rows, use_dictionary=False)
foreign("repeated", np.zeros_like(rows))
del rows
for name in ("plain", "repeated"):
    peaks[name] = peak_of(lambda: ParquetReader(folder / name).check())
print(json.dumps(peaks))
"""
)


@pytest.mark.parametrize(
    ("layout", "value_bytes", "count"), [("float32[128]", 512, 700_000), ("int8[500]", 500, 200_000)]
)
def test_the_memory_does_not_grow_with_the_rows(tmp_path: Path, layout: str, value_bytes: int, count: int) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'gpkvs[parquet]'")
    words = [sys.executable, "-c", _ROWS_SCRIPT, str(tmp_path), str(value_bytes), str(count), layout]
    peaks = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    print(peaks)
    assert peaks["export"] < 280 * MIB
    assert max(peaks[name] for name in ("import", "plain", "repeated")) < 64 * MIB
