"""A backup whose files are not what was written there is refused, or what is damaged is nothing that it holds.

Each page of each file is flipped, cut, swapped with another one, or repeated; GPKVS_ALL_DAMAGE=1 does all of that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

import gpkvs
from gpkvs.archive.restore import restore
from gpkvs.config import CommitName, FormatName
from gpkvs.errors import GpkvsError, StoreError
from tests.backup.writers import held_by

PAGE = 4096
KINDS = ("flipped", "cut", "zeroed", "swapped", "repeated")


@pytest.fixture
def pick() -> Random:
    seed = int(os.environ.get("GPKVS_SEED", Random().randrange(1 << 32)))
    print(f"GPKVS_SEED={seed}")
    return Random(seed)


def make_backup(folder: Path, commit: CommitName, store_format: FormatName) -> Path:
    """Return a backup of records, keys that expire, large values and numbers."""
    sizes = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "journal_bytes": 1 << 20, "log_bytes": 1 << 20}
    with gpkvs.open(folder / "store", **sizes, commit=commit, store_format=store_format) as store:
        store.create_table("numbers", layout="u64", index_bytes=64 << 10)
        numbers = np.arange(500, dtype=np.uint64)
        store.set_many(numbers, numbers * np.uint64(3), table="numbers")
        for key in range(200):
            store.set(b"%d" % key, b"value %d" % key * 5, ttl=1000 if key % 5 == 0 else None)
        store.set(b"large", bytes(range(256)) * (300 if store_format == "4" else 100))
        store.backup(folder / "backup")
    return folder / "backup"


def damages(files: dict[str, bytes], pick: Random) -> Iterator[tuple[str, str, bytes]]:
    """Yield what may become of each page that holds something: the file, the kind, and what the file is then."""
    for name, data in files.items():
        places = [at for at in range(0, len(data), PAGE) if data[at : at + PAGE].strip(b"\0")]
        for at in places:
            other = pick.choice(places)
            page, another = data[at : at + PAGE], data[other : other + PAGE]
            byte = at + pick.choice([place for place, value in enumerate(page) if value])
            swapped = put(put(data, at, another), other, page)
            for kind, changed in zip(
                KINDS,
                (
                    put(data, byte, bytes([data[byte] ^ 1 << pick.randrange(8)])),
                    data[: at + len(page) // 2],
                    put(data, at, bytes(len(page))),
                    swapped,
                    put(data, at, another),
                ),
                strict=True,
            ):
                if changed != data:
                    yield name, kind, changed


def put(data: bytes, at: int, part: bytes) -> bytes:
    return (data[:at] + part + data[at + len(part) :])[: len(data)]


def refusal(backup: Path, new: Path) -> str:
    """Restore a backup; return why that is refused, if it is."""
    try:
        restore(backup, new, None, lambda *_: None)
    except GpkvsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("commit", "store_format"), [("undo", "3"), ("journal", "4")])
def test_every_page_that_is_not_what_was_written(
    tmp_path: Path, commit: CommitName, store_format: FormatName, pick: Random
) -> None:
    backup = make_backup(tmp_path, commit, store_format)
    wanted = held_by(backup).tables
    files = {path.name: path.read_bytes() for path in backup.iterdir()}
    found = list(damages(files, pick))
    if not os.environ.get("GPKVS_ALL_DAMAGE"):
        pick.shuffle(found)
        found = list({(name, kind): (name, kind, data) for name, kind, data in found}.values())
    refused = set()
    for name, kind, data in found:
        (backup / name).write_bytes(data)
        print(name, kind)
        if error := refusal(backup, tmp_path / "new"):
            refused.add(name)
            assert str(tmp_path) in error
            assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "store"]
        else:
            assert held_by(tmp_path / "new").tables == wanted
            shutil.rmtree(tmp_path / "new")
        (backup / name).write_bytes(files[name])
    assert refused >= {"index-0-0", "index-1-0", "BACKUP.json", "catalog-1.json"}
    restore(backup, tmp_path / "new", None, lambda *_: None)


def test_a_number_that_has_rotted(tmp_path: Path) -> None:
    """Slots of numbers have no checksum: the backup has one of the whole table."""
    backup = make_backup(tmp_path, "undo", "3")
    index = backup / "index-1-0"
    data = bytearray(index.read_bytes())
    at = data.index((3 * 177).to_bytes(8, "little"))
    data[at] ^= 2
    index.write_bytes(data)
    with pytest.raises(StoreError, match=r"backup: table 'numbers' does not hold the numbers that were written there"):
        restore(backup, tmp_path / "new", None, lambda *_: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "store"]


def test_files_of_another_backup(tmp_path: Path) -> None:
    """Whole files are swapped between two backups of one store: what is restored is the first one, or nothing."""
    first = make_backup(tmp_path, "undo", "3")
    wanted = held_by(first).tables
    with gpkvs.open(tmp_path / "store") as store:
        store.set(b"7", b"of the second one")
        store.set_many([7], [8], table="numbers")
        store.backup(tmp_path / "second")
    refused = set()
    for path in sorted(first.iterdir()):
        kept = path.read_bytes()
        if kept == (tmp_path / "second" / path.name).read_bytes() or path.name in ("LOCK", "recovery.json"):
            continue
        shutil.copy(tmp_path / "second" / path.name, path)
        if refusal(first, tmp_path / "new"):
            refused.add(path.name)
        else:  # the heap of the second one may still have all records of the first
            assert held_by(tmp_path / "new").tables == wanted, path.name
            shutil.rmtree(tmp_path / "new")
        path.write_bytes(kept)
    assert refused >= {"index-0-0", "index-1-0", "BACKUP.json"}
    restore(first, tmp_path / "new", None, lambda *_: None)
