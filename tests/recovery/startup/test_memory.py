"""Indexes that do not fit the memory are refused before anything is read or made; the error says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpkvs
from gpkvs.errors import NoSpaceError
from gpkvs.process import machine
from tests.conftest import SMALL

MIB = 1 << 20


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the machine have 1.5 MiB left."""
    monkeypatch.setattr("gpkvs.recovery.startup.memory.free_bytes", lambda: MIB * 3 // 2)


def test_a_store_that_does_not_fit_is_not_made(tmp_path: Path, little_memory: None) -> None:
    with pytest.raises(NoSpaceError, match="--commit undo") as refused:
        gpkvs.open(tmp_path / "store", **{**SMALL, "index_bytes": 2 * MIB}, commit="journal")
    assert refused.value.resource == "memory"
    assert not [file.name for file in (tmp_path / "store").iterdir() if file.name != "LOCK"]
    gpkvs.open(tmp_path / "store", **{**SMALL, "index_bytes": 2 * MIB}, commit="undo").close()


def test_a_store_that_no_longer_fits_is_refused_unread(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpkvs.open(store_path, **{**SMALL, "index_bytes": 2 * MIB}, commit="journal").close()
    with monkeypatch.context() as context:
        context.setattr("gpkvs.recovery.startup.memory.free_bytes", lambda: MIB)
        context.setattr("gpkvs.media.image.Image.load", lambda _: pytest.fail("it was read"))
        with pytest.raises(NoSpaceError, match=f"{2 * MIB:,} bytes, {MIB:,} are free"):
            gpkvs.open(store_path)
    gpkvs.open(store_path).close()


def test_a_table_that_does_not_fit_is_not_made(tmp_path: Path, little_memory: None) -> None:
    with gpkvs.open(tmp_path / "store", **SMALL, commit="journal") as store:
        with pytest.raises(NoSpaceError, match="memory"):
            store.create_table("large", index_bytes=2 * MIB)
        assert [table.name for table in store.info().tables] == ["default"]
        store.create_table("small", index_bytes=MIB)


def test_limits_of_control_groups_count(tmp_path: Path) -> None:
    groups = tmp_path / "sys/fs/cgroup"
    outer, inner = groups / "outer", groups / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit, used in ((outer, 100 * MIB, 90 * MIB), (inner, 60 * MIB, 45 * MIB)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon {used}\ninactive_file {4 * MIB}\nactive_file {6 * MIB}\n")
    (groups / "memory.max").write_text("max\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    assert machine.machine_bytes(tmp_path) == 60 * MIB
    assert machine.free_bytes(tmp_path) == 20 * MIB  # of the outer group; 25 of the inner one
    (outer / "memory.stat").unlink()
    assert machine.free_bytes(tmp_path) == 10 * MIB
