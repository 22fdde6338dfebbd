"""The names of files: two processes that make, open or replace one at the same time; what is left behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpkvs.errors import (
    BackendError,
    FormatError,
    InvalidArgumentError,
    NoSpaceError,
    StoreAccessError,
    StoreError,
    StoreLockedError,
)
from gpkvs.gpm import Checkpoint, CoalescedLog, PersistentArray, Versions, coalesced_log, header, log, verify
from gpkvs.gpm import file as file_module
from gpkvs.gpm import names as module
from gpkvs.gpm.file import create, discard, open_file, publish
from gpkvs.gpm.names import replaceable

KERNELS = Path(header.__code__.co_filename).parents[1] / "kernels"


def test_of_two_that_make_a_file_the_second_is_refused(memory: Path) -> None:
    path = memory / "a.gpm"
    late = create(path, "array", {"shape": [3], "dtype": "<f4"}, 12, "auto")
    with PersistentArray.create(path, 5) as first:
        first.host[:] = 7
        first.persist()
        with pytest.raises(InvalidArgumentError, match="there already"):
            publish(late, replace=False)
        with pytest.raises(StoreLockedError):
            publish(late, replace=True)
        discard(late)
        assert (first.host == 7).all()
    assert [file.name for file in memory.iterdir()] == ["a.gpm"]


def test_it_appears_between_the_look_and_the_link(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = memory / "a.gpm"
    late = create(path, "array", {"shape": [3], "dtype": "<f4"}, 12, "auto")
    with PersistentArray.create(path, 5), monkeypatch.context() as patched:
        patched.setattr(Path, "exists", lambda _: False)
        with pytest.raises(InvalidArgumentError, match="somebody has made it meanwhile"):
            publish(late, replace=False)
    discard(late)
    with PersistentArray.open(path) as array:
        assert array.shape == (5,)


def test_a_file_without_hard_links(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    PersistentArray.create(memory / "a.gpm", 3).close()
    assert [file.name for file in memory.iterdir()] == ["a.gpm"]


def test_who_replaces_a_file_keeps_others_from_it(memory: Path) -> None:
    path = memory / "a.gpm"
    PersistentArray.create(path, 3).close()
    new = create(path, "array", {"shape": [5], "dtype": "<f4"}, 20, "auto")
    with replaceable(path) as name:
        with pytest.raises(StoreLockedError):
            PersistentArray.open(path)
        assert new.begun
        name(new.begun)
        with pytest.raises(StoreLockedError):  # the new one is locked before it has its name
            PersistentArray.open(path)
    new.begun = None
    new.close()
    with PersistentArray.open(path) as array:
        assert array.shape == (5,)


def test_what_was_replaced_while_it_was_opened_is_not_served(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = memory / "a.gpm"
    PersistentArray.create(path, 3).close()
    real, once = module.lock, []

    def lock(of: Path, file: int, *, shared: bool) -> None:
        if not once:
            once.append(1)
            PersistentArray.create(path, 5, replace=True).close()
        real(of, file, shared=shared)

    monkeypatch.setattr(module, "lock", lock)
    with PersistentArray.open(path) as array:
        assert array.shape == (5,)


def test_a_refusal_keeps_the_file_that_was_to_be_replaced(memory: Path, tmp_path: Path) -> None:
    path = memory / "x.gpm"
    with CoalescedLog.create(path, 4, 8) as made:
        made.insert(np.arange(4, dtype=np.uint64))
    good = path.read_bytes()
    with pytest.raises(BackendError, match="ordinary disk"):
        CoalescedLog.create(path, 4, 8, durability="msync", replace=True)
    with pytest.raises(InvalidArgumentError, match="durability"):
        Checkpoint.create(path, {"g": {"a": np.zeros(3)}}, durability="fsync", replace=True)  # type: ignore[arg-type]
    with pytest.raises(NoSpaceError):
        PersistentArray.create(path, 1 << 50, replace=True)
    assert path.read_bytes() == good
    assert [file.name for file in memory.iterdir()] == ["x.gpm"]


@pytest.fixture
def small() -> Iterator[Path]:
    """Return a directory of a file system of 1 MiB, for its root and three files."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=4", "none", folder], check=True, capture_output=True
            )
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("a file system cannot be mounted here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.machine
def test_holes_are_filled_when_a_file_is_opened(small: Path, memory: Path) -> None:
    """A store to a hole of a full file system would end the process."""
    with PersistentArray.create(memory / "a.gpm", 600_000, "u1") as array:
        size = os.fstat(array._file._file).st_size
    data = (memory / "a.gpm").read_bytes()[:8192]
    path = small / "a.gpm"
    path.write_bytes(data)
    os.truncate(path, size)
    with PersistentArray.open(path) as array:
        array.host[:] = 1
        array.persist()
        assert os.fstat(array._file._file).st_blocks * 512 >= size
    path.write_bytes(data)
    os.truncate(path, size)
    with pytest.raises(StoreAccessError, match="has holes"):
        PersistentArray.open(path, readonly=True)
    (small / "other").write_bytes(bytes(600_000))
    with pytest.raises(NoSpaceError, match="has holes"):
        PersistentArray.open(path)


@pytest.mark.machine
def test_a_file_system_without_a_place_for_a_file_is_full(small: Path) -> None:
    for number in range(3):
        (small / f"{number}").touch()
    with pytest.raises(NoSpaceError, match=r"a\.gpm needs 8,202 bytes: No space left on device"):
        PersistentArray.create(small / "a.gpm", 10, "u1")
    assert len([*small.iterdir()]) == 3


def test_space_that_is_not_there_is_not_taken_first(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = []
    monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: reserved.append(arguments))
    with pytest.raises(NoSpaceError, match="needs"):
        PersistentArray.create(memory / "a.gpm", 1 << 45)
    assert not reserved


def test_the_file_that_is_locked_is_the_one_that_is_mapped(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody moves another file to the name, past the lock."""
    path = memory / "a.gpm"
    PersistentArray.create(path, 3).close()
    PersistentArray.create(memory / "b.gpm", 5).close()
    real = file_module.read_header

    def move(*arguments: Any) -> Any:
        (memory / "b.gpm").rename(path)
        return real(*arguments)

    monkeypatch.setattr(file_module, "read_header", move)
    with PersistentArray.open(path) as array:
        assert array.shape == (3,)
        array.host[:] = 7
        array.persist()
    monkeypatch.undo()
    with PersistentArray.open(path) as array:
        assert not array.host.any()


def test_links_are_followed(memory: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "t.gpm", memory / "l.gpm"
    link.symlink_to(target)
    PersistentArray.create(link, 3).close()
    PersistentArray.create(link, 5, replace=True).close()
    assert link.is_symlink()
    with PersistentArray.open(target) as array:
        assert array.shape == (5,)


def test_a_file_with_several_names_is_refused_until_it_is_copied(memory: Path) -> None:
    """Who writes to a snapshot of hard links would write to the file, and the other way round."""
    path, link, real = memory / "a.gpm", memory / "b.gpm", memory / "c.gpm"
    with PersistentArray.create(path, 3) as array:
        os.link(path, link)
        with pytest.raises(StoreLockedError):
            PersistentArray.open(link)
        array.host[:] = 1
        array.persist()
    for name in (path, link):
        for readonly in (False, True):
            with pytest.raises(StoreError, match=r"has 2 names \(hard links\)") as refused:
                PersistentArray.open(name, readonly=readonly)
        with pytest.raises(StoreError, match="has 2 names"):
            verify(name)
    command = str(refused.value).rpartition("use the copy: ")[2].replace(" NEW", f" {real}")
    subprocess.run(command.split(), check=True)
    PersistentArray.open(real).close()
    link.unlink()
    PersistentArray.open(path).close()


def test_the_name_that_a_killed_creation_left_does_not_count(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = memory / "a.gpm"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda _path, missing_ok=False: None)
        PersistentArray.create(path, 3).close()
    assert path.stat().st_nlink == 2
    PersistentArray.open(path).close()
    os.link(path, memory / "b.gpm")
    with pytest.raises(StoreError, match="has 2 names"):
        PersistentArray.open(path)


def test_pipes_and_long_names(memory: Path) -> None:
    pipe = memory / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FormatError, match="is no file"):
        verify(pipe)
    with pytest.raises(InvalidArgumentError, match="it is not replaced"):
        PersistentArray.create(pipe, 3, replace=True)
    PersistentArray.create(memory / ("x" * 255), 3).close()
    with pytest.raises(StoreAccessError, match="name too long"):
        PersistentArray.create(memory / ("x" * 256), 3)
    with pytest.raises(InvalidArgumentError, match="is no path"):
        PersistentArray.create(f"{memory}/a\0b", 3)


def test_what_killed_processes_left_is_removed(memory: Path) -> None:
    left = create(memory / "a.gpm", "array", {"shape": [3], "dtype": "<f4"}, 12, "auto")
    assert left.begun
    os.utime(left.begun, (0, 0))
    other = memory / left.begun.name.replace(left.begun.name[:9], ".00000000")
    other.write_text("of another file")
    os.utime(other, (0, 0))
    PersistentArray.create(memory / "a.gpm", 3).close()
    assert left.begun.exists()  # somebody has it
    left.close()
    PersistentArray.create(memory / "a.gpm", 3, replace=True).close()
    assert sorted(file.name for file in memory.iterdir()) == sorted(["a.gpm", other.name])


def test_what_nobody_closes_leaves_no_descriptor(memory: Path, tmp_path: Path) -> None:
    arrays = {"g": {"a": np.zeros(3)}}
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for number in range(10):
        PersistentArray.create(memory / f"a{number}", 3)
        for folder in (memory, tmp_path):
            Checkpoint.create(folder / f"c{number}", arrays).save("g", arrays["g"])
        Versions.create(memory / f"v{number}", {"t": (3, "f4")})
        CoalescedLog.create(memory / f"l{number}", 3, 8)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # noqa: PTH208


def test_what_nobody_closes_is_locked_while_there_are_views(memory: Path) -> None:
    path = memory / "a.gpm"
    view = PersistentArray.create(path, 3).host
    gc.collect()
    with pytest.raises(StoreLockedError):
        PersistentArray.open(path)
    del view
    gc.collect()
    PersistentArray.open(path).close()


def test_constants_are_those_of_the_kernels() -> None:
    def of(header: str, pattern: str) -> str:
        (found,) = re.findall(pattern, (KERNELS / "gpm" / header).read_text(), re.DOTALL)
        return str(found)

    assert of("gpm_log.cuh", r"GPM_LANES = (\d+)") == str(coalesced_log.LANES)
    refusals = of("gpm_log.cuh", r"enum GpmRefusal : u64 \{ (.*?) \}").replace(" = 1", "").split(", ")
    assert refusals.index("GPM_FULL") + 1 == log._FULL
    assert refusals.index("GPM_DAMAGED") + 1 == log._DAMAGED
    assert len(refusals) == 2 + len(log._REFUSALS)
    of_logs, of_partitions = ["threads", "depth", "words"], ["locks", "partitions", "words"]
    for struct, words in (("GpmLog", of_logs), ("GpmPartitions", of_partitions)):
        fields = re.findall(r"(\w+)[,;]", re.sub(r"//.*", "", of("gpm_log.cuh", rf"struct {struct} \{{(.*?)\}};")))
        assert fields == ["tails", "entries", "counts", "refusal", *words, "epoch"]


def test_files_are_opened_by_what_they_are(memory: Path) -> None:
    PersistentArray.create(memory / "a.gpm", 3).close()
    with pytest.raises(StoreLockedError, match="in this process or in another one: close it there"):
        _both(memory / "a.gpm")


def _both(path: Path) -> None:
    first = open_file(path, "array", "auto")
    try:
        open_file(path, None, "auto", readonly=True)
    finally:
        first.close()
