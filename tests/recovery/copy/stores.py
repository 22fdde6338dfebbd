"""Stores to copy, and what must be in a copy."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import gpkvs
from gpkvs.batch import Batch, Op, Status
from gpkvs.config import CommitName, FormatName
from gpkvs.media.layout import FINAL_DRAFT, ROOT_OFFSETS, STRUCTURE_BYTES
from gpkvs.native import crc32c
from gpkvs.recovery.copy.copy import CopyReport, CopySizes, copy_store
from tests.conftest import assert_clean

DATA = Path(__file__).parents[2] / "data"
_GETS_AT_ONCE = 1000

AFTER = b"after the copy"  # a key that `assert_holds` stores
Records = dict[bytes, tuple[bytes, int]]  # value and version by key


@dataclass(frozen=True)
class Expected:
    """What is in a store: the records of each table, the table ids, and the numbers that must go on."""

    tables: dict[str, Records]
    ids: dict[str, int]
    next_sequence: int
    next_table_id: int


def format1(name: str, directory: Path) -> tuple[Path, Expected]:
    """Unpack one of the kept stores of format 1; return its directory and what it holds."""
    return _unpack(f"format1-{name}.tar.xz", directory)


def format4(draft: int, directory: Path) -> tuple[Path, Expected]:
    """Unpack the kept store of format 4, or of one of its drafts; return its directory and what it holds."""
    return _unpack(f"format4-draft{draft}.tar.xz" if draft != FINAL_DRAFT else "format4.tar.xz", directory)


def _unpack(name: str, directory: Path) -> tuple[Path, Expected]:
    with tarfile.open(DATA / name) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has Python 3.11.2, without it
        archive.extractall(directory)
    facts = json.loads((directory / "expected.json").read_text())
    tables = {
        table: {bytes.fromhex(key): (bytes.fromhex(value), version) for key, value, version in found["records"]}
        for table, found in facts["tables"].items()
    }
    ids = {table: found["id"] for table, found in facts["tables"].items()}
    return directory / "store", Expected(tables, ids, facts["next_sequence"], facts["next_table_id"])


def assert_holds(path: Path, expected: Expected) -> None:
    """Fail unless a store holds exactly this, is clean, and goes on where the other one stopped."""
    assert_clean(path)
    with gpkvs.open(path) as store:
        catalog = store._files.catalog
        assert {table.name: table.id for table in catalog.tables} == expected.ids
        assert catalog.next_table_id == expected.next_table_id
        assert store.info().next_version == expected.next_sequence
        for table in store.info().tables:
            assert table.records == len(expected.tables[table.name]), table.name
        for name, records in expected.tables.items():
            assert read_all(store, name, list(records)) == records, name
        assert store.set(AFTER, b"x") == expected.next_sequence
    assert_clean(path)


def read_all(store: gpkvs.Store, table: str, keys: list[bytes]) -> Records:
    """Return value and version of each key that is there."""
    found: Records = {}
    for first in range(0, len(keys), _GETS_AT_ONCE):
        part = keys[first : first + _GETS_AT_ONCE]
        result = store.execute(Batch.of([(Op.GET, key) for key in part]), table=table)
        rows = zip(part, result.status.tolist(), result.value_list(), result.versions.tolist(), strict=True)
        found |= {key: (value or b"", version) for key, status, value, version in rows if status == Status.OK.value}
    return found


def copy(
    old: Path, new: Path, commit: CommitName = "auto", store_format: FormatName = "auto", **sizes: object
) -> CopyReport:
    """Copy a store; a journal is small."""
    given = CopySizes(**{"journal_bytes": 1 << 20, **sizes})  # type: ignore[arg-type]
    return copy_store(old, new, given, lambda step, share: None, commit=commit, store_format=store_format)


def snapshot(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file of a directory, with the time of its last change."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir()}


def change_root(path: Path, offset: int, data: bytes) -> None:
    """Change a field in both root copies, and seal them again."""
    root = bytearray((path / "root").read_bytes())
    for copy_offset in ROOT_OFFSETS:
        root[copy_offset + offset : copy_offset + offset + len(data)] = data
        body = bytes(root[copy_offset : copy_offset + STRUCTURE_BYTES - 8])
        root[copy_offset + len(body) : copy_offset + STRUCTURE_BYTES] = crc32c(body).to_bytes(8, "little")
    (path / "root").write_bytes(root)


def flip(file: Path, offset: int, mask: int = 1) -> None:
    """Invert a bit of a file."""
    data = bytearray(file.read_bytes())
    data[offset] ^= mask
    file.write_bytes(data)
