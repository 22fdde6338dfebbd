"""An interrupt while a table grows leaves a store that goes on, or ends the process; nothing acknowledged is lost."""

from __future__ import annotations

import linecache
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import gpkvs
from gpkvs.backends.choose import VARIABLE
from gpkvs.engine.tables import index_room
from gpkvs.process.fatal import EXIT_FATAL
from gpkvs.recovery.startup.check import check
from tests import warm

FILES = (
    "engine/tables/growth.py",
    "engine/tables/schema.py",
    "media/index.py",
    "media/image.py",
    "pm/region.py",
    "pm/mapping.py",
)
KEYS, STEP = 12_000, 1000
OPTIONS: dict[str, Any] = {"index_bytes": 1 << 20, "heap_bytes": 1 << 20, "journal_bytes": 4 << 20}


def child(folder: Path, commit: Any, first: int, every: int) -> None:
    """Interrupt one life at each `every`-th of the places, from the first on, until a life meets no more."""
    number = first
    while True:
        path = folder / str(number)
        life = os.fork()
        if life == 0:
            grow(path, commit, number)
        _, status = os.waitpid(life, 0)
        code = os.waitstatus_to_exitcode(status)
        acknowledged = int((folder / "acknowledged").read_text())
        print(number, code, acknowledged, flush=True)
        if code == 0:
            return
        report = check(path)
        assert not report.violations, (number, report)
        with gpkvs.open(path, create=False) as store:
            keys = np.arange(acknowledged, dtype=np.uint64)
            values, found = store.get_many(keys, table="t")
            assert found.all(), (number, int(found.sum()), acknowledged)
            assert (values == keys).all(), number
        shutil.rmtree(path)
        number += every


def is_with(frame: FrameType) -> bool:
    """Whether the line is of a `with`: it comes again at its end, where no signal comes before a lock is free."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def grow(path: Path, commit: Any, number: int) -> None:
    """Set keys until the table has grown, with one interrupt; what it stopped is done again."""
    left = number
    signal.alarm(60)  # it hangs

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(FILES):
            return None if event == "call" else trace
        if event == "line" and not is_with(frame):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    with gpkvs.open(path, commit=commit, **OPTIONS) as store:
        store.create_table("t", layout="u64", index_bytes=64 << 10)
        (path.parent / "acknowledged").write_text("0")
        sys.settrace(trace)
        for first in range(0, KEYS, STEP):
            keys = np.arange(first, first + STEP, dtype=np.uint64)
            try:
                store.set_many(keys, keys, table="t")
            except KeyboardInterrupt:
                store.set_many(keys, keys, table="t")
            sys.settrace(None)
            (path.parent / "acknowledged").write_text(str(first + STEP))
            if left > 0:
                sys.settrace(trace)
        sys.settrace(None)
        keys = np.arange(KEYS, dtype=np.uint64)
        values, found = store.get_many(keys, table="t")
        assert found.all()
        assert (values == keys).all()
    os._exit(0 if left > 0 else 3)


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_an_interrupt_at_any_line_of_growth_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    """Every 21st place of them; another one first each time."""
    monkeypatch.setenv(VARIABLE, "cpu")  # lives are forks, which no driver of a GPU survives
    first = 1 + int(np.random.default_rng().integers(EVERY))
    print("first", first)
    done = warm.run([Path(__file__), tmp_path, commit, str(first), str(EVERY)], timeout=240)
    lives = [tuple(map(int, line.split())) for line in done.stdout.decode().splitlines()]
    assert done.returncode == 0, (first, lives[-3:], done.stderr.decode()[-2000:])
    codes = {code for _, code, _ in lives}
    assert codes <= {0, 3, EXIT_FATAL}, (first, [life for life in lives if life[1] not in (0, 3, EXIT_FATAL)])
    assert 3 in codes
    assert len(lives) > 20


EVERY = 21


@pytest.mark.parametrize("commit", ["undo", "journal"])
def test_an_interrupt_while_space_is_reserved_reserves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: Any
) -> None:
    """It was mapped for twice what its file has, and the catalogue said so."""
    extend, interrupts = index_room.extend_file, [KeyboardInterrupt()]

    def interrupted(*given: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        extend(*given)

    monkeypatch.setattr(index_room, "extend_file", interrupted)
    keys = np.arange(40_000, dtype=np.uint64)
    with gpkvs.open(tmp_path / "store", **OPTIONS, durability="process", commit=commit) as store:
        store.create_table("t", layout="u64", index_bytes=1 << 18)
        for first in range(0, len(keys), 500):
            with suppress(KeyboardInterrupt):
                store.set_many(keys[first : first + 500], keys[first : first + 500], table="t")
        assert not interrupts
        assert store.records("t") >= len(keys) - 500
    assert check(tmp_path / "store").is_clean
    with gpkvs.open(tmp_path / "store") as store:
        assert store.records("t") >= len(keys) - 500


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
