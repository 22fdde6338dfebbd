"""Made the stores of format 1 beside this file. It runs on commit 42791bd only, the last one that writes format 1.

python tests/data/make_format1.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

import gpkvs
from gpkvs.batch import Batch, Op

HERE = Path(__file__).parent
SIZES = {"index_bytes": 64 << 10, "heap_bytes": 1 << 20, "log_bytes": 128 << 10}
NUMBERS = [*range(24), 1 << 63, (1 << 64) - 1, *range(1000, 1060)]
LARGEST_KEY, LARGEST_VALUE = b"largest." * 512, b"0123456789abcdef" * (61408 // 16)  # they fill a segment


def fill(store: gpkvs.Store) -> dict[str, dict[bytes, tuple[bytes, int]]]:
    """Fill the tables; return what each holds: value and version by key (version 0 in a u64 table)."""
    store.create_table("other", index_bytes=192 << 10)
    store.create_table("gone", index_bytes=64 << 10)
    store.create_table("numbers", layout="u64", index_bytes=64 << 10)
    store.create_table("wide", layout="u64", index_bytes=128 << 10)
    content: dict[str, dict[bytes, tuple[bytes, int]]] = {name: {} for name in ("default", "other", "numbers", "wide")}

    def put(table: str, pairs: list[tuple[bytes, bytes]]) -> None:
        versions = store.execute(Batch.of([(Op.SET, key, value) for key, value in pairs]), table=table).versions
        for (key, value), version in zip(pairs, versions.tolist(), strict=True):
            content[table][key] = (value, version)

    def drop(table: str, keys: list[bytes]) -> None:
        store.execute(Batch.of([(Op.DELETE, key) for key in keys]), table=table)
        for key in keys:
            del content[table][key]

    store.execute(Batch.of([(Op.SET, b"lost%d" % i, b"x" * 100) for i in range(20)]), table="gone")
    for table in ("default", "other"):
        put(table, [(b"key%d" % i, b"value %d of %s" % (i, table.encode())) for i in range(120)])
        put(table, [(b"key%d" % i, b"overwritten %d" % i * (i % 7 + 1)) for i in range(0, 120, 3)])
        drop(table, [b"key%d" % i for i in range(0, 120, 5)])
        put(table, [(b"empty%d" % i, b"") for i in range(4)])
        put(table, [(b"\x00\xff" * 512, b"a long key"), (b"k", b"a short one")])
    put("default", [(LARGEST_KEY, LARGEST_VALUE)])
    store.drop_table("gone")
    for table in ("numbers", "wide"):
        keys = np.array(NUMBERS, np.uint64)
        store.set_many(keys, keys ^ np.uint64(0xABCD), table=table)
        store.delete_many(keys[40:50], table=table)
        store.set_many(keys[:5], np.zeros(5, np.uint64), table=table)
        left = np.delete(keys, slice(40, 50))
        values, found = store.get_many(left, table=table)
        assert found.all()
        content[table] = {
            int(key).to_bytes(8, "little"): (int(value).to_bytes(8, "little"), 0)
            for key, value in zip(left, values, strict=True)
        }
    return content


def expected(store: gpkvs.Store, content: dict[str, dict[bytes, tuple[bytes, int]]]) -> dict[str, object]:
    """Return what a reader must find, for JSON."""
    files = store._files
    return {
        "hash_key": files.root.hash_key.hex(),
        "store_id": files.root.store_id.hex(),
        "next_sequence": store.info().next_version,
        "next_table_id": files.catalog.next_table_id,
        "tables": {
            table.name: {
                "id": table.id,
                "layout": table.layout,
                "blocks": table.blocks,
                "records": [[key.hex(), value.hex(), version] for key, (value, version) in content[table.name].items()],
            }
            for table in files.catalog.tables
        },
    }


def pack(name: str, path: Path, facts: dict[str, object]) -> None:
    (path.parent / "expected.json").write_text(json.dumps(facts))
    (path / "LOCK").unlink()
    (path / "recovery.json").unlink()
    with tarfile.open(HERE / f"format1-{name}.tar.xz", "w:xz", preset=9) as archive:
        for file in (path.parent / "expected.json", *sorted(path.iterdir())):
            member = archive.gettarinfo(file, str(file.relative_to(path.parent)))
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
            with file.open("rb") as data:
                archive.addfile(member, data)


def die(path: Path) -> None:
    """Run a batch over all four tables, in a process that a failpoint kills."""
    with gpkvs.open(path, backend="cpu", threads=1) as store:
        mine = {name: store.table(name).id for name in ("default", "other", "numbers", "wide")}
        keys = [(Op.SET, b"key%d" % i, b"torn") for i in range(60)] + [(Op.DELETE, b"key%d" % i) for i in range(60, 90)]
        keys += [(Op.SET, b"new%d" % i, b"torn") for i in range(30)]
        numbers = [(Op.SET, n.to_bytes(8, "little"), b"torntorn") for n in range(12)]
        numbers += [(Op.DELETE, n.to_bytes(8, "little")) for n in range(12, 18)]
        requests = {"default": keys, "other": keys, "numbers": numbers, "wide": numbers}
        batches = [Batch.of(operations).on_table(mine[table]) for table, operations in requests.items()]
        store.execute_requests(Batch.concatenate(batches))


if __name__ == "__main__":
    if sys.argv[1:]:
        die(Path(sys.argv[1]))
        sys.exit("it was to be killed")
    # Killed in the middle of the third of four tables: two have all their new slots, one has half, one has none.
    for name, point in (("clean", ""), ("active", "mid_apply:3")):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            path = Path(directory) / "store"
            with gpkvs.open(path, backend="cpu", **SIZES) as store:
                facts = expected(store, fill(store))
            if point:
                environment = {**os.environ, "GPKVS_FAILPOINT": point}
                killed = subprocess.run([sys.executable, __file__, str(path)], env=environment, check=False)
                assert killed.returncode == -9
            pack(name, path, facts)
