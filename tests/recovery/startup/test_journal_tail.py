"""The end of a journal after a kill: which frames are kept, which are cut, and what `gpkvs check` says before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gpkvs
from gpkvs.errors import CorruptRecordError, CorruptStoreError
from gpkvs.media.data_file import DataFile
from gpkvs.media.frame import HEADER_BYTES
from gpkvs.media.layout import ROOT_OFFSETS, VERSION_MAX, Root
from gpkvs.media.root_copies import RootCopies
from gpkvs.pm.region import Region
from gpkvs.recovery.startup.check import check
from gpkvs.recovery.startup.opening import COMMIT_VARIABLE
from tests.conftest import assert_clean
from tests.recovery.startup.harness import Operation, run_child
from tests.recovery.startup.test_journal_damage import frames
from tests.serving import run_gpkvs

FIRST: list[Operation] = [["set", f"key{i}", f"first{i}"] for i in range(20)]
SECOND: list[Operation] = [["set", "key0", "second, and here is what makes it easy to find"]]
CHECKPOINT = """
import sys
import gpkvs
from gpkvs.process import failpoint
from gpkvs.batch import Batch, Op
store = gpkvs.open(sys.argv[1])
checkpointer = store._engine.committer.checkpointer
checkpointer.stop()
if sys.argv[2] == "after another":
    checkpointer.write(paced=False)
store.execute(Batch.of([(Op.SET, b"key0", b"third, which is easy to find too"), (Op.DELETE, b"key1")]))
failpoint.arm("before_checkpoint_root")
checkpointer.write(paced=False)
"""
THIRD = b"third, which is easy to find too"


@pytest.fixture(autouse=True)
def _journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "journal")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store that was killed when its second batch was durable, and no later frame said so."""
    path = tmp_path / "store"
    assert run_child(path, [FIRST, SECOND], "before_reply:2").killed
    return path


def place_of_second(path: Path) -> int:
    """Return where the record of the second batch lies in the file of data."""
    return (path / "data").read_bytes().index(SECOND[0][2].encode())


def flip(path: Path, offset: int) -> None:
    with (path / "data").open("r+b") as file:
        os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, offset)[0] ^ 1]), offset)


def read(path: Path) -> tuple[gpkvs.RecoveryReport, bytes | None]:
    with gpkvs.open(path, create=False) as store:
        assert store.info().tables[0].records == len(FIRST)
        return store.recovery, store.get(b"key0")


def test_a_whole_frame_is_kept(path: Path) -> None:
    assert_clean(path)
    report, value = read(path)
    assert (report.cut_batches, value) == (0, SECOND[0][2].encode())


def test_a_frame_whose_record_was_not_written_is_cut(path: Path) -> None:
    flip(path, place_of_second(path))
    # Nobody was told of the batch: a tail is no damage, before the cut and after it.
    assert_clean(path)
    assert check(path).records == len(FIRST)
    said = run_gpkvs("check", "--json", str(path))
    assert said.returncode == 0
    assert json.loads(said.stdout)["clean"]
    report, value = read(path)
    assert (report.cut_batches, value) == (1, b"first0")
    assert "1 transaction of which nobody was told dropped" in report.text
    assert_clean(path)
    assert read(path)[0].cut_batches == 0


def test_records_are_verified_from_the_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a write that failed, the page cache shows what the device never got."""
    lost, read_pages = place_of_second(path), DataFile.read_pages

    def read_device(self: DataFile, into: NDArray[np.uint8], offset: int) -> None:
        read_pages(self, into, offset)
        if offset <= lost < offset + len(into):
            into[lost - offset :][:16] = 0

    with monkeypatch.context() as patch:
        patch.setattr(DataFile, "read_pages", read_device)
        report, _ = read(path)
    assert report.cut_batches == 1


def kill_in_checkpoint(path: Path, when: str) -> None:
    """Run a third batch, and die when the index files show it and the root does not say so."""
    killed = subprocess.run([sys.executable, "-c", CHECKPOINT, str(path), when], check=False)
    assert killed.returncode == -signal.SIGKILL


def require_refused(path: Path) -> None:
    with pytest.raises(CorruptStoreError, match=r"the index shows it|shows later ones") as refused:
        gpkvs.open(path, create=False)
    assert refused.value.invariant == "journal"
    assert [violation.invariant for violation in check(path).violations][:1] == ["journal"]


@pytest.mark.parametrize("when", ["after another", "first"])
def test_a_frame_that_an_index_shows_is_never_cut(path: Path, when: str) -> None:
    """It was durable (W2): its record is damaged. That the replay stores an older slot there hides nothing."""
    kill_in_checkpoint(path, when)
    flip(path, (path / "data").read_bytes().index(THIRD))
    require_refused(path)


@pytest.mark.parametrize("inside", [0, HEADER_BYTES + 8], ids=["header", "entries"])
def test_a_frame_that_is_lost_and_that_an_index_shows_is_damage(path: Path, inside: int) -> None:
    """What is left would be a part of its batch: the slots, and not their versions."""
    kill_in_checkpoint(path, "after another")
    flip(path, frames(path)[-1] + inside)
    require_refused(path)
    # Without the record, such a slot is damage of its key alone.
    flip(path, (path / "data").read_bytes().index(THIRD))
    assert "record-checksum" in {violation.invariant for violation in check(path).violations}
    with gpkvs.open(path, create=False) as store, pytest.raises(CorruptRecordError):
        store.get(b"key0")


def test_a_frame_whose_removal_an_index_shows_is_never_cut(path: Path) -> None:
    """Without the refusal the key would be gone that the batch removed, and the one be there that it changed."""
    kill_in_checkpoint(path, "after another")
    flip(path, (path / "data").read_bytes().index(THIRD))
    index = np.fromfile(path / "index-0-0", np.uint64).reshape(-1, 4)
    changed = int((index[:, 3] & np.uint64(VERSION_MAX)).argmax())
    index[changed] = 0  # as if the checkpoint had not come so far
    index.tofile(path / "index-0-0")
    require_refused(path)


@pytest.mark.parametrize("failpoint", ["between_roots:2", "before_checkpoint_root"])
def test_roots_that_a_checkpoint_was_changing_are_no_violation(tmp_path: Path, failpoint: str) -> None:
    path = tmp_path / "store"
    batches = [[["set", f"key{i % 50}", f"{i}"]] for i in range(300)]  # more than the journal holds
    assert run_child(path, batches, failpoint).killed
    copies = root_copies(path)
    assert (copies.copies[0] == copies.copies[1]) == (failpoint == "before_checkpoint_root")
    assert_clean(path)


@pytest.mark.parametrize("behind", [0, 2])
def test_roots_that_no_checkpoint_leaves_are_a_violation(path: Path, behind: int) -> None:
    read(path)
    root = root_copies(path).copies[1]
    assert isinstance(root, Root)
    other = replace(root, sequence=root.sequence - behind, flags=2)
    with (path / "root").open("r+b") as file:
        os.pwrite(file.fileno(), other.pack(), ROOT_OFFSETS[1])
    assert [violation.invariant for violation in check(path).violations] == ["roots-equal"]


def root_copies(path: Path) -> RootCopies:
    region = Region(path / "root", None)
    try:
        return RootCopies.read(region)
    finally:
        region.close()
