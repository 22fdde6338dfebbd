"""`gpkvs size`: what it predicts is what stores take."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import gpkvs
from gpkvs import Batch, Op
from gpkvs.cli.main import app
from gpkvs.cli.options.sizes import format_bytes, parse_count
from gpkvs.client import Client
from gpkvs.columns.row_layout import row_layout_of
from gpkvs.config import KIB, MIB, FormatName, Limits, ServerConfig
from gpkvs.engine.estimate import REST_BYTES, Estimate, Load, estimate
from gpkvs.server.account.bounds import bounds_of
from tests.serving import StartServer

SECONDS_MAX = 30
_SHARED_MEMORY = Path("/dev/shm")
_ROOM_OF_THE_FILE_SYSTEM = 1.005  # ext4 adds up to half a percent for its own tables


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return a directory on whatever the suite has, and one in memory."""
    if request.param == "disk":
        yield tmp_path
    elif not _SHARED_MEMORY.is_dir():
        pytest.skip("there is no /dev/shm")
    else:
        with TemporaryDirectory(dir=_SHARED_MEMORY) as made:
            yield Path(made)


def filled(path: Path, load: Load, index_bytes: int) -> tuple[Load, int]:
    """Fill a store, as the options say; return the load, with what the place is, and the journal's size."""
    commit: Any = "journal" if load.has_journal else "undo"
    first = index_bytes if load.layout == "bytes" else None
    form: Any = str(load.store_format)
    with gpkvs.open(path, commit=commit, store_format=form, index_bytes=first) as store:
        if load.layout != "bytes":
            store.create_table("numbers", layout=load.layout, records=load.records)
        for begin in range(0, load.records, load.transaction_ops):
            ids = range(begin, min(begin + load.transaction_ops, load.records))
            if load.layout == "u64":
                column = np.array(ids, np.uint64)
                store.table("numbers").set_many(column, column)
            elif rows := row_layout_of(load.layout):
                zeros = np.zeros((len(ids), *rows.shape), rows.dtype)
                store.rows(load.layout, table="numbers").set(ids, zeros, atomic=False)
            else:
                value = bytes(load.value_bytes)
                ttl = {"ttl": 3600.0} if load.is_expiring else {}
                with store.batch() as batch:
                    for i in ids:
                        batch.set(b"%0*d" % (load.key_bytes, i), value, **ttl)
        in_memory = store.domain.is_volatile
        load = Load(**{**vars(load), "is_in_memory": in_memory})
        wait_for_helpers(path, estimate(load))
        return load, store.info().journal_bytes


def index_size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("index-*"))


def wait_for_helpers(path: Path, expected: Estimate) -> None:
    """Wait until the thread that makes the files longer ahead of their need has done so."""
    give_up = time.monotonic() + SECONDS_MAX
    index = {part.name: part.disk_bytes for part in expected.parts}["index"]
    while index_size(path) < index and time.monotonic() < give_up:
        time.sleep(0.01)


CASES = [
    Load(120_000, 16, 100, layout, form, journal, is_expiring=False, transaction_ops=ops, is_in_memory=False)
    for layout in ("bytes", "u64")
    for form in (3, 4)
    for journal in (False, True)
    for ops in (2_000, 60_000)
] + [
    Load(60_000, 20, 500, "bytes", 4, False, is_expiring=True, transaction_ops=1_000, is_in_memory=False),
    Load(100, 16, 1 << 20, "bytes", 4, True, is_expiring=False, transaction_ops=10, is_in_memory=False),
    # Little more than what has the index prepared for its growth, and little less.
    Load(33_000, 16, 10, "bytes", 4, False, is_expiring=False, transaction_ops=1_000, is_in_memory=False),
    Load(300_000, 8, 8, "u64", 4, True, is_expiring=False, transaction_ops=200_000, is_in_memory=False),
    *[
        Load(60_000, 8, 256, "float32[64]", form, True, is_expiring=False, transaction_ops=2_000, is_in_memory=False)
        for form in (3, 4)
    ],
    Load(100, 8, 1 << 20, "uint8[1024,1024]", 4, False, is_expiring=False, transaction_ops=10, is_in_memory=False),
]


@pytest.mark.parametrize(
    "load",
    CASES,
    ids=lambda load: (
        f"{load.layout}-{load.store_format}-{'j' if load.has_journal else 'u'}-"
        f"{load.records}x{load.value_bytes}-{load.transaction_ops}"
    ),
)
def test_stores_take_what_is_predicted(folder: Path, load: Load) -> None:
    path = folder / "s"
    load, journal_bytes = filled(path, load, estimate(load).index_bytes)
    found = estimate(load)
    parts = {part.name: part.disk_bytes for part in found.parts}
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    assert index_size(path) == parts["index"]
    if load.has_journal:
        heap, log = sizes["data"] - journal_bytes, journal_bytes
        assert log == parts["journal"]
    else:
        heap, log = sizes["heap"], sizes["log"]
        assert log == parts["undo log"]
    assert abs(heap - parts["heap"]) <= found.heap_off_by_bytes
    assert sizes.get("blobs", 0) <= parts.get("large values", 0) + 16 * MIB  # space ahead of the next ones
    assert sizes.get("blobs", 0) >= parts.get("large values", 0) - 4 * KIB
    known = ("index", "heap", "log", "data", "blobs")
    assert sum(size for name, size in sizes.items() if not name.startswith(known)) < REST_BYTES
    # All in all, as du sees it.
    taken, predicted = sum(file.stat().st_blocks * 512 for file in path.iterdir()), sum(parts.values())
    off = found.heap_off_by_bytes + REST_BYTES + (16 * MIB if parts.get("large values", 0) > MIB else 0)
    assert predicted - off <= taken <= (predicted + off) * _ROOM_OF_THE_FILE_SYSTEM


def test_a_journal_grows_with_the_indexes(tmp_path: Path) -> None:
    load = Load(3_000_000, 8, 8, "u64", 4, True, is_expiring=False, transaction_ops=1, is_in_memory=False)
    (journal,) = (part.disk_bytes for part in estimate(load).parts if part.name == "journal")
    assert journal > 20 * MIB
    with gpkvs.open(tmp_path / "s", commit="journal") as store:
        store.create_table("numbers", layout="u64", records=load.records)
        give_up = time.monotonic() + SECONDS_MAX
        while store.info().journal_bytes < journal and time.monotonic() < give_up:
            store.set(b"key", b"value")
            time.sleep(0.01)
        assert store.info().journal_bytes == journal


@pytest.mark.parametrize("form", [3, 4])
def test_a_record_takes_what_is_predicted(tmp_path: Path, form: int) -> None:
    load = Load(1, 17, 300, "bytes", form, False, is_expiring=False, transaction_ops=1, is_in_memory=False)
    with gpkvs.open(tmp_path / "s", store_format=cast(FormatName, str(form))) as store:
        store.set(bytes(17), bytes(300))
        assert store.info().heap_live_bytes == estimate(load).record_bytes
        store.set(bytes(17), bytes(300), ttl=60.0)
        expiring = Load(**{**vars(load), "is_expiring": True})
        assert store.info().heap_live_bytes == estimate(expiring).record_bytes


def test_overwritten_records_take_more(folder: Path) -> None:
    load = Load(150_000, 16, 100, "bytes", 4, False, is_expiring=False, transaction_ops=1_000, is_in_memory=False)
    path = folder / "s"
    load, _ = filled(path, load, estimate(load).index_bytes)
    ids = np.random.default_rng(7)
    with gpkvs.open(path) as store:
        for _ in range(4 * load.records // load.transaction_ops):
            chosen = ids.integers(load.records, size=load.transaction_ops)
            store.execute(Batch.of([(Op.SET, b"%016d" % i, bytes(100)) for i in chosen]))
        found = estimate(load)
        (heap,) = (part for part in found.parts if part.name == "heap")
        assert abs(store.info().heap_bytes - heap.disk_bytes - heap.more_bytes) <= found.heap_off_by_bytes


@pytest.mark.own_python
@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_a_server_takes_the_memory_that_is_estimated(start_server: StartServer, commit: str) -> None:
    records, ops = 300_000, 10_000
    said = size("--records", str(records), "--value", "100", "--commit", commit, "--json")
    server = start_server(*said["options"][0].split()[4:], "--heap-bytes", "4MiB", "--heap-bytes-max", "1TiB")
    with Client(server.target) as client:
        for begin in range(0, records, ops):
            client.execute(Batch.of([(Op.SET, b"%016d" % i, bytes(100)) for i in range(begin, begin + ops)]))
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (taken,) = (int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith("RssAnon"))
    assert 0.8 < taken / said["all"]["memory_bytes"] < 1.2


def size(*arguments: str, status: int = 0) -> Any:
    done = CliRunner().invoke(app, ["size", *arguments], env={"COLUMNS": "1000"})
    assert done.exit_code == status, done.output
    if status:
        return " ".join(done.stderr.split())
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def test_what_scripts_get() -> None:
    said = size("--records", "1.5M", "--value", "1KiB", "--key", "20", "--json")
    load = Load(1_500_000, 20, 1024, "bytes", 4, True, is_expiring=False, transaction_ops=10_000, is_in_memory=False)
    assert said["load"] == vars(load)
    found = estimate(load)
    assert said["parts"][: len(found.parts)] == [part._asdict() for part in found.parts]
    assert said["all"]["disk_bytes"] == sum(part.disk_bytes for part in found.parts)
    assert said["options"] == [f"gpkvs serve --data DIR --commit journal --index-bytes {found.index_bytes // KIB}KiB"]
    older = size("--records", "1.5M", "--value", "1KiB", "--key", "20", "--format", "3", "--json")
    assert older["record_bytes"] - said["record_bytes"] == 16
    assert "--format 3" in older["options"][0]
    # An index with a journal is held in memory; else it is the page cache's.
    assert said["parts"][0]["memory_bytes"] > found.index_bytes
    undo = size("--records", "1.5M", "--value", "1KiB", "--commit", "undo", "--json")
    assert (undo["parts"][0]["memory_bytes"], undo["parts"][0]["cache_bytes"]) == (0, found.index_bytes)


def test_what_people_see() -> None:
    text = size("--records", "10M", "--layout", "u64", "--in-memory")
    assert "undo log, in memory" in text
    assert "  gpkvs table create NAME --layout u64 --records 10000000\n" in text
    rows = size("--records", "10M", "--layout", "float32[128]")
    assert "10,000,000 records, keys of 8 and values of 512 bytes, layout float32[128], format 4" in rows
    assert "  gpkvs serve --data DIR --commit journal\n" in rows
    assert "  gpkvs table create NAME --layout 'float32[128]' --records 10000000\n" in rows
    assert size("--records", "10M", "--layout", "float32[128]", "--value", "512", "--key", "8") == rows
    assert "an estimate, within a fifth" in text
    disk = size("--records", "10M", "--value", "200")
    assert "the heap may have 258.3 MiB more or less, a step of its growth and one transaction" in disk
    assert "While records are overwritten: about " in disk


@pytest.mark.parametrize(
    "words",
    [["--value", "200"], ["--layout", "u64"], ["--value", "200", "--in-memory"], ["--value", "9", "--records", "9"]],
)
def test_a_server_within_the_limit_of_memory_has_room_for_its_clients(words: list[str]) -> None:
    said = size("--records", "10M", *words, "--json")
    limit, whole = said["memory_limit_bytes"], said["all"]
    assert limit % (64 * MIB) == 0
    # As deploy/README.md says it.
    needed = whole["memory_bytes"] + (whole["disk_bytes"] if said["load"]["is_in_memory"] else 0)
    assert limit >= needed + 1.3 * limit / 4 + 100 * MIB
    bounds_of(ServerConfig(), Limits(), 64 * MIB, limit // 4)  # it starts
    shown = size("--records", "10M", *words)
    assert f"Memory limit (systemd's MemoryMax, a container's): {format_bytes(limit)} or more." in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--records", "10M"], "say how long a value is"),
        (
            ["--records", "10M", "--value", "200", "--layout", "u64"],
            "a value of the layout u64 has 8 bytes: leave it out",
        ),
        (["--records", "1", "--key", "16", "--layout", "int8[3]"], "a key of the layout int8[3] has 8 bytes"),
        (["--records", "1", "--value", "8", "--layout", "int8[3]"], "a value of the layout int8[3] has 3 bytes"),
        (
            ["--records", "1", "--layout", "int8"],
            "'int8': there are bytes, u64, and layouts of rows: that is a type and",
        ),
        (["--records", "10M", "--layout", "u64", "--expiring"], "has no expiry"),
        (["--records", "0", "--value", "1"], "allowed are 1 to"),
        (["--records", "1K", "--value", "64MiB", "--format", "3"], "choose format 4"),
        (["--records", "1K", "--value", "2GiB"], "a value has at most"),
        (["--records", "1G", "--value", "1MiB"], "at most"),
        (["--records", "1K", "--value", "1", "--ops-per-transaction", "2M"], "allowed are 1 to 1,048,576"),
        (["--records", "ten", "--value", "1"], "'ten' is no count"),
    ],
)
def test_what_cannot_be(words: list[str], said: str) -> None:
    assert said in size(*words, status=2)


@pytest.mark.parametrize(
    ("text", "count"), [("7", 7), (7, 7), ("10K", 10_000), ("1.5m", 1_500_000), ("2G", 2 * 10**9), ("1.000k", 1000)]
)
def test_counts(text: object, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5", "1.5555K", "1KiB", "1e6", "9" * 40])
def test_bad_counts(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_count(text)


def test_long_keys_and_values_need_their_limits() -> None:
    said = size("--records", "10", "--value", "512MiB", "--key", "5KiB", "--json")
    assert said["options"][0].endswith(" --key-bytes-max 5KiB --value-bytes-max 512MiB")
    assert os.linesep not in said["options"][0]
