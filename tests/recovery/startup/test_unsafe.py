"""durability=none: the UNSAFE mark, kills without an undo log, and what accepting the loss keeps."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.cli.main import app
from gpkvs.errors import UnsafeStoreError
from gpkvs.media.layout import BYTES_LAYOUT, DESCRIPTOR_OFFSETS, U64_LAYOUT
from gpkvs.recovery.startup.check import check
from tests.conftest import assert_clean
from tests.recovery.startup.child import SIZES
from tests.recovery.startup.harness import kill_at

pytestmark = pytest.mark.undo

KEYS = np.arange(3000, dtype=np.uint64)
WRITE = """
import sys, numpy as np, gpkvs
from gpkvs.batch import Batch, Op
keys = np.arange(3000, dtype=np.uint64)
with gpkvs.open(sys.argv[1], durability="none", threads=2) as store:
    for value in (1, 2, 3):
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"%d" % value) for i in range(500)]))
        store.set_many(keys, np.full(3000, value, np.uint64), table="numbers")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a u64 table `numbers`."""
    path = tmp_path / "store"
    with gpkvs.open(path, **SIZES) as store:
        store.create_table("numbers", layout="u64", index_bytes=128 << 10)
    return path


def test_a_clean_close_leaves_no_mark(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), gpkvs.open(path, durability="none") as store:
        assert "UNSAFE" in caplog.text
        info = store.info()
        assert info.domain == "none"
        assert "no undo log" in info.domain_note
        version = store.set(b"key", b"value")
        store.create_table("more", layout="u64", index_bytes=64 << 10)
        store.set_many(KEYS, KEYS, table="more")
    assert_clean(path)
    with gpkvs.open(path) as store:
        assert store.get(b"key") == b"value"
        assert store.set(b"key", b"later") > version
        assert np.array_equal(store.get_many(KEYS, table="more")[0], KEYS)


def test_no_undo_entry_is_written(path: Path) -> None:
    log = path / "log"
    with gpkvs.open(path, durability="none") as store:
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"x") for i in range(500)]))
    assert not any(log.read_bytes()[2 * 4096 :])


@pytest.mark.parametrize(
    "point",
    [
        "before_record",
        "before_log",
        "mid_apply:1",
        "mid_apply:2",
        "mid_apply:4",
        "before_idle_flag:2",
        "before_reply:3",
    ],
)
def test_after_a_kill_the_loss_must_be_accepted(path: Path, point: str) -> None:
    assert kill_at(["-c", WRITE, str(path)], point)
    report = check(path)
    assert report.is_unsafe
    assert not report.is_clean
    files = {file: file.read_bytes() for file in path.iterdir() if file.name != "LOCK"}
    with pytest.raises(UnsafeStoreError, match="--accept-loss"):
        gpkvs.open(path)
    assert {file: file.read_bytes() for file in files} == files, "a refusal changes nothing"
    with gpkvs.open(path, accept_loss=True, threads=2) as store:
        for i in range(500):
            assert store.get(b"key%d" % i) in (None, b"1", b"2", b"3")
        values, found = store.get_many(KEYS, table="numbers")
        assert set(values[found].tolist()) <= {1, 2, 3}
        next_version = store.info().next_version
        version = store.set(b"key0", b"after")
        assert version >= next_version
        assert "the loss was accepted" in store.recovery.text
    assert_clean(path)
    with gpkvs.open(path) as store:
        assert store.get(b"key0") == b"after"
        assert not store.recovery.dropped_slots


def test_what_a_power_loss_tore_is_dropped_and_the_rest_kept(path: Path) -> None:
    """Pages reach the disk in any order: old descriptors under new slots, and slots and records that are half there."""
    log = (path / "log").read_bytes()
    assert kill_at(["-c", WRITE, str(path)], "before_reply:6")
    with (path / "log").open("r+b") as file:
        file.write(log[: 2 * DESCRIPTOR_OFFSETS[1]])
    torn = _tear(path / "index-0-0", BYTES_LAYOUT.slot_bytes, 16, 10) + _tear(
        path / "index-1-0", U64_LAYOUT.slot_bytes, 0, 10
    )
    assert check(path).violations
    with gpkvs.open(path, accept_loss=True) as store:
        # A torn u64 key may by chance (2 in 1,024) belong where it is; nothing can tell.
        assert torn - 3 <= store.recovery.dropped_slots <= torn
        kept = [store.get(b"key%d" % i) for i in range(500)]
        assert kept.count(b"3") == 490
        values, found = store.get_many(KEYS, table="numbers")
        assert int(found.sum()) == 2990
        assert (values[found] == 3).all()
        assert store.info().next_version > 1500
        store.execute(Batch.of([(Op.SET, b"new%d" % i, b"x" * 50) for i in range(500)]))
        assert [store.get(b"key%d" % i) for i in range(500)] == kept, "new records must not lie over old ones"
    assert_clean(path)


LIFE = """
import os, sys, gpkvs
store = gpkvs.open(sys.argv[1], durability="none")
exec(sys.argv[2])
os._exit(9)
"""


def live_and_die(path: Path, statements: str) -> int:
    """Use a store without an undo log and leave it without a close; return what the statements print."""
    command = [sys.executable, "-c", LIFE, str(path), statements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 9, done.stderr
    return int(done.stdout)


def test_new_records_do_not_lie_over_those_that_were_kept(path: Path) -> None:
    """The descriptors that the power loss left say that the heap is empty; the slots that it left know better."""
    log = (path / "log").read_bytes()
    live_and_die(path, "for i in range(300): store.set(b'key%d' % i, b'value%d' % i)\nprint(i, flush=True)")
    (path / "log").write_bytes(log)
    with gpkvs.open(path, accept_loss=True) as store:
        assert store.recovery.dropped_slots == 0
        for i in range(300):
            store.set(b"new%d" % i, b"new value")
        assert [store.get(b"key%d" % i) for i in range(300)] == [b"value%d" % i for i in range(300)]
    assert_clean(path)


def test_versions_go_on_above_the_highest_of_all_tables(path: Path) -> None:
    with gpkvs.open(path) as store:
        store.create_table("last", index_bytes=64 << 10)
        store.set(b"key", b"value", table="last")
    log = (path / "log").read_bytes()
    given = live_and_die(path, "print([store.set(b'key%d' % i, b'value') for i in range(10)][-1], flush=True)")
    (path / "log").write_bytes(log)
    with gpkvs.open(path, accept_loss=True) as store:
        assert store.set(b"after", b"") > given
        assert store.set(b"after", b"", table="last") > given + 1


@pytest.mark.parametrize("batches", [3, 4])
def test_the_newer_descriptor_counts(path: Path, batches: int) -> None:
    """Whichever of the two places it has: it alone knows the versions of keys that their own batch deleted."""
    given = live_and_die(
        path,
        "from gpkvs.batch import Batch, Op\n"
        "batch = Batch.of([(Op.SET, b'key', b''), (Op.DELETE, b'key')])\n"
        f"print([int(store.execute(batch).versions[0]) for _ in range({batches})][-1], flush=True)",
    )
    with gpkvs.open(path, accept_loss=True) as store:
        assert store.set(b"after", b"") > given


def test_all_is_durable_before_the_mark_goes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power failure could bring back what was dropped, and nothing would say so."""
    done: list[str] = []

    def fdatasync(file: int) -> None:
        done.append(Path(f"/proc/self/fd/{file}").readlink().name)

    assert kill_at(["-c", WRITE, str(path)], "before_reply:6")
    _tear(path / "index-0-0", BYTES_LAYOUT.slot_bytes, 16, 10)
    _tear(path / "index-1-0", U64_LAYOUT.slot_bytes, 0, 10)
    monkeypatch.setattr("gpkvs.pm.region.os.fdatasync", fdatasync)
    with gpkvs.open(path, durability="none", accept_loss=True, on_progress=lambda step, _: done.append(step)) as store:
        assert store.recovery.dropped_slots
    salvaging = done[done.index("reading the transaction flag") : done.index("counting live records")]
    assert salvaging[-2:] == ["root", "root"], "the mark goes last, from both copies"
    assert {"index-0-0", "index-1-0", "log", "root"} <= set(salvaging[:-2])


def _tear(index: Path, slot_bytes: int, at: int, count: int) -> int:
    """Change a word in `count` slots that hold something, so that they cannot be taken for whole; return `count`."""
    slots = np.memmap(index, np.uint64, "r+").reshape(-1, slot_bytes // 8)
    held = np.flatnonzero(slots.all(axis=1))[:count]
    assert len(held) == count
    slots[held, at // 8] ^= np.uint64(0xFFFF_FFFF_0000_0000)
    slots.flush()
    return count


def test_an_occupant_between_its_two_buckets_is_kept_once(path: Path) -> None:
    with gpkvs.open(path, durability="none") as store:
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"v") for i in range(100)]))
        index = store._files.indexes[0].region
        slots = index.words(0, store.info().tables[0].slots * 4).reshape(-1, 4).copy()
        source = int(np.flatnonzero(slots[:, 3])[0])
        bucket = source // 8
        free = next(slot for slot in range(8 * bucket, 8 * bucket + 8) if not slots[slot].any())
    twice = np.memmap(path / "index-0-0", np.uint64, "r+").reshape(-1, 4)
    twice[free] = twice[source]
    twice.flush()
    script = "import sys, os, gpkvs; gpkvs.open(sys.argv[1], durability='none'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 9
    with gpkvs.open(path, accept_loss=True) as store:
        assert store.recovery.dropped_slots == 1
        assert all(store.get(b"key%d" % i) == b"v" for i in range(100))
    assert_clean(path)


def test_on_the_command_line(path: Path) -> None:
    assert kill_at(["-c", WRITE, str(path)], "mid_apply:2")
    run = CliRunner().invoke
    checked = run(app, ["check", str(path)])
    assert checked.exit_code in (1, 2)
    assert "UNSAFE" in checked.output
    refused = run(app, ["recover", str(path)])
    assert refused.exit_code == 1
    assert "--accept-loss" in refused.output
    accepted = run(app, ["recover", "--accept-loss", str(path)])
    assert accepted.exit_code == 0, accepted.output
    assert "the loss was accepted" in accepted.output
    assert run(app, ["check", str(path)]).exit_code == 0


def test_what_was_undone_is_durable_before_the_flag_also_without_an_undo_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = WRITE.replace('durability="none"', 'durability="msync"')
    assert kill_at(["-c", logged, str(path)], "mid_apply:1")
    synced: list[str] = []

    def fdatasync(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)

    monkeypatch.setattr("gpkvs.pm.region.os.fdatasync", fdatasync)
    with gpkvs.open(path, durability="none") as store:
        assert store.recovery.undone
    assert "index-0-0" in synced[: synced.index("root")]
