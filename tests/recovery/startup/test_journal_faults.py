"""Faults of a disk and kills whose meaning is another one where there is a journal (tests/faults/cases.py)."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.errors import CorruptStoreError, FormatError
from gpkvs.media.layout import ROOT_OFFSETS
from gpkvs.recovery.startup.check import check
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE
from tests.conftest import assert_clean
from tests.recovery.startup.child import SIZES
from tests.recovery.startup.harness import kill_at
from tests.recovery.startup.test_damage import digest, flip, invariants, shrink
from tests.recovery.startup.test_tables import KEYS, WRITE

ROOT_A, ROOT_B = ROOT_OFFSETS
SECTOR = 512
JOURNAL = {**SIZES, "journal_bytes": 1 << 20}

# Two checkpoints; the second one writes all pages, and a failpoint may keep it from the roots.
_CHECKPOINTS = """
import sys, gpkvs
from gpkvs.batch import Batch, Op
store = gpkvs.open(sys.argv[1])
for generation in (1, 2):
    store.execute(Batch.of([(Op.SET, b"key%d" % i, b"%d" % generation) for i in range(100)]))
    store._engine.committer.checkpointer.write(paced=False)
    store.execute(Batch.of([(Op.DELETE, b"key%d" % generation)]))
"""


@pytest.fixture(autouse=True)
def _journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "journal")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a closed store of 100 records, with a journal."""
    path = tmp_path / "store"
    with gpkvs.open(path, **JOURNAL) as store:
        store.execute(Batch.of([(Op.SET, b"key%d" % i, b"value%d" % i) for i in range(100)]))
    return path


@pytest.mark.parametrize("seed", range(8))
def test_a_torn_page_of_a_checkpoint_is_stored_whole_again(path: Path, seed: int) -> None:
    """A crash in a checkpoint leaves any sector of a page old or new: a replay stores it whole."""
    old = (path / "index-0-0").read_bytes()
    assert kill_at(["-c", _CHECKPOINTS, str(path)], "before_checkpoint_root:1")
    new = (path / "index-0-0").read_bytes()
    assert new != old
    before = np.frombuffer(old, np.uint8).reshape(-1, SECTOR)
    after = np.frombuffer(new, np.uint8).reshape(-1, SECTOR)
    is_new = np.random.default_rng(seed).random((len(after), 1)) < 0.5
    (path / "index-0-0").write_bytes(np.where(is_new, after, before).tobytes())
    with gpkvs.open(path) as store:
        assert {store.get(b"key%d" % i) for i in range(100)} == {b"1"}
    assert_clean(path)


# The third batch is one of records, the fourth of numbers.
@pytest.mark.parametrize("in_recovery", ["", "mid_replay:1"])
@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize("point", ["mid_log", "before_frame", "before_apply", "mid_apply", "before_reply"])
def test_a_batch_is_there_whole_or_not_at_all(tmp_path: Path, point: str, batch: int, in_recovery: str) -> None:
    path = tmp_path / "store"
    with gpkvs.open(path, **JOURNAL) as store:
        store.create_table("numbers", layout="u64", index_bytes=128 << 10)
    assert kill_at(["-c", WRITE, str(path)], f"{point}:{batch}")
    if in_recovery:
        assert kill_at(["-c", "import sys, gpkvs; gpkvs.open(sys.argv[1])", str(path)], in_recovery)
    with gpkvs.open(path) as store:
        records = {store.get(b"key%d" % i) for i in range(500)}
        numbers = set(store.get_many(KEYS, table="numbers")[0].tolist())
    without, with_it = {3: (({b"1"}, {1}), ({b"2"}, {1})), 4: (({b"2"}, {1}), ({b"2"}, {2}))}[batch]
    # A frame that was handed over may have been written by then, or not.
    is_handed_over = point not in ("mid_log", "before_frame")
    assert (records, numbers) == without or (is_handed_over and (records, numbers) == with_it)
    assert_clean(path)


@pytest.mark.parametrize("offset", [ROOT_A, ROOT_A + 30, ROOT_A + 140, ROOT_A + 505, ROOT_B + 8, ROOT_B + 200])
def test_one_damaged_root_copy_is_reported_and_repaired(path: Path, offset: int) -> None:
    flip(path / "root", offset)
    assert invariants(path) == {"root-copy"}
    with gpkvs.open(path) as store:
        assert store.recovery.root_copy_repaired == ("A" if offset < ROOT_B else "B")
        assert store.get(b"key5") == b"value5"
    assert_clean(path)


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        pytest.param(lambda p: (flip(p / "root", ROOT_A + 20), flip(p / "root", ROOT_B + 20)), "root-copy", id="roots"),
        pytest.param(lambda p: flip(p / "catalog-0.json", 5), "catalog", id="catalogue"),
        *[
            pytest.param(lambda p, n=name: shrink(p / n), "file-size", id=f"truncated-{name}")
            for name in ("root", "data", "index-0-0", "catalog-0.json")
        ],
        *[
            pytest.param(lambda p, n=name: (p / n).unlink(), "file-size", id=f"missing-{name}")
            for name in ("data", "index-0-0", "catalog-0.json")
        ],
    ],
)
def test_damage_that_is_refused(path: Path, damage: Callable[[Path], object], invariant: str) -> None:
    damage(path)
    before = digest(path)
    with pytest.raises(CorruptStoreError) as refused:
        gpkvs.open(path)
    assert refused.value.invariant == invariant
    assert digest(path) == before, "a refused store was written to"
    assert invariants(path) == {invariant}


@pytest.mark.parametrize("byte_order", [0x01020304, 0x04030201])
def test_another_format_is_refused_untouched(path: Path, byte_order: int) -> None:
    version = 5 if byte_order == 0x01020304 else 2
    with (path / "root").open("r+b") as file:
        for offset in ROOT_OFFSETS:
            file.seek(offset + 8)
            file.write(struct.pack("<II", version, byte_order))
    before = digest(path)
    for refuse in (gpkvs.open, check):
        with pytest.raises(FormatError, match="format version 5" if version == 5 else "byte order"):
            refuse(path)
    assert digest(path) == before


def test_roots_that_differ(path: Path, tmp_path: Path) -> None:
    """A crash between the two stores of a root leaves this: the newer copy counts, the other one is written again."""
    older = tmp_path / "older"
    shutil.copytree(path, older)
    gpkvs.open(path).close()
    with (older / "root").open("rb") as source, (path / "root").open("r+b") as target:
        target.write(source.read(SECTOR))
    with gpkvs.open(path) as store:
        assert store.recovery.root_copy_repaired == "A"
        assert store.get(b"key1") == b"value1"
    assert_clean(path)
