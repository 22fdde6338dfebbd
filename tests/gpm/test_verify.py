"""`gpkvs check` on files of gpkvs.gpm: every kind is known, and damage is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpkvs.errors import CorruptStoreError, FormatError
from gpkvs.gpm import Checkpoint, CoalescedLog, PartitionedLog, PersistentArray, Versions, verify
from gpkvs.gpm.file import create, publish
from gpkvs.gpm.opened import Opened
from tests.serving import run_gpkvs

MADE: dict[str, Callable[[Path], Opened]] = {
    "PersistentArray": lambda path: PersistentArray.create(path, 5),
    "CoalescedLog": lambda path: CoalescedLog.create(path, 5, 8),
    "PartitionedLog": lambda path: PartitionedLog.create(path, 5, 8),
    "Checkpoint": lambda path: Checkpoint.create(path, {"g": {"a": np.zeros(5)}}),
    "Versions": lambda path: Versions.create(path, {"a": ((5,), "f4")}),
}


@pytest.mark.parametrize("kind", MADE)
def test_each_kind_is_checked_and_stays_as_it_is(memory: Path, kind: str) -> None:
    path = memory / "x.gpm"
    with MADE[kind](path) as made:
        header_bytes = made._file.state_at
    good = path.read_bytes()
    assert f"<{kind} {path}, " in verify(path)
    assert path.read_bytes() == good
    damaged = [good[:20] + b"\xff" + good[21:]]
    if kind != "PersistentArray":  # which has no state
        damaged.append(good[:header_bytes] + bytes(8) + good[header_bytes + 8 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(CorruptStoreError):
            verify(path)


def test_the_command(memory: Path) -> None:
    path = memory / "c.gpm"
    with Checkpoint.create(path, {"g": {"a": np.zeros(5)}}) as checkpoint:
        checkpoint.save("g", {"a": np.ones(5)})
    done = run_gpkvs("check", str(path))
    assert done.returncode == 0
    assert b"g saved 1 times, cpu, process>: clean" in done.stdout
    data = bytearray(path.read_bytes())
    at = data.index(np.ones(5).tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    done = run_gpkvs("check", "--json", str(path))
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert not found["clean"]
    assert "block 0 of g/a" in found["violation"]
    path.write_bytes(b"a text")
    done = run_gpkvs("check", str(path))
    assert done.returncode == 3
    assert b"is no file of gpkvs.gpm" in done.stderr


def test_what_a_later_version_made_is_told(memory: Path) -> None:
    file = create(memory / "x.gpm", "picture", {}, 8, "auto")
    publish(file, replace=False)
    file.close()
    with pytest.raises(FormatError, match="'picture', which this version of gpkvs does not know"):
        verify(memory / "x.gpm")
