"""Makes the store of format 4 beside this file. What it was at each draft made the stores of drafts.

python tests/data/make_format4.py
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path

import gpkvs

HERE = Path(__file__).parent
SIZES = {"index_bytes": 64 << 10, "heap_bytes": 128 << 10, "heap_bytes_max": 1 << 20, "log_bytes": 128 << 10}
LONG = 10**9  # seconds: the store is read in years, too


def fill(store: gpkvs.Store) -> dict[str, list[bytes]]:
    """Fill the tables; return the keys that each may hold."""
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    store.create_table("other", index_bytes=64 << 10)
    for i in range(60):
        store.set(b"key%d" % i, b"v" * (i * 7 % 300), **({"ttl": LONG} if i % 4 == 0 else {}))
    for i in range(4):  # in blobs
        store.set(b"large%d" % i, b"%d" % i * (70_000 + i * 65_536), **({"ttl": LONG} if i % 2 else {}))
    for i in range(0, 60, 5):
        store.delete(b"key%d" % i)
    for i in range(20):
        store.set(b"other%d" % i, b"%d" % i * i, table="other")
    for i in range(30):
        store.set(i.to_bytes(8, "little"), (i * i).to_bytes(8, "little"), table="numbers")
    return {
        "default": [*(b"key%d" % i for i in range(60)), *(b"large%d" % i for i in range(4))],
        "numbers": [i.to_bytes(8, "little") for i in range(30)],
        "other": [b"other%d" % i for i in range(20)],
    }


def main() -> None:
    """Make the archive."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        with gpkvs.open(path, store_format="4", commit="undo", durability="process", **SIZES) as store:
            keys = fill(store)
            ids = {table.name: table.id for table in store._files.catalog.tables}
            tables = {}
            for name, number in ids.items():
                found = [(key, store.get_with_version(key, table=name)) for key in keys[name]]
                versions = {key: pair[1] if name != "numbers" else 0 for key, pair in found if pair}
                records = [[key.hex(), pair[0].hex(), versions[key]] for key, pair in found if pair]
                tables[name] = {"id": number, "records": records}
            facts = {
                "tables": tables,
                "next_sequence": store.info().next_version,
                "next_table_id": store._files.catalog.next_table_id,
            }
        (path.parent / "expected.json").write_text(json.dumps(facts))
        for name in ("recovery.json", "LOCK"):
            (path / name).unlink(missing_ok=True)
        with tarfile.open(HERE / "format4.tar.xz", "w:xz") as archive:
            for name in ("store", "expected.json"):
                archive.add(path.parent / name, name, filter=_of_nobody)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
