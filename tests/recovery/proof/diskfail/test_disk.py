"""The model of a disk: what a power failure keeps, and what it may lose."""

from __future__ import annotations

from random import Random

import numpy as np

from gpkvs.recovery.proof.diskfail.disk import SECTOR, Disk
from gpkvs.recovery.proof.diskfail.recorder import Event, Kind

_FILE = 7  # the inode of the file `data`


def disk_of(sectors: int) -> Disk:
    """Return a disk with one file of zeros."""
    disk = Disk.of({"data": np.zeros(sectors * SECTOR, np.uint8)})
    disk.attach({"data": _FILE})
    return disk


def write(number: int, at: int, data: bytes) -> Event:
    return Event(Kind.WRITE, number, _FILE, at, len(data), data)


def event(kind: Kind, number: int, inode: int = _FILE, amount: int = 0, data: bytes = b"") -> Event:
    return Event(kind, number, inode, 0, amount, data)


def run(disk: Disk, *events: Event) -> None:
    for each in events:
        disk.apply(each)


def held(disk: Disk, *, everything: bool = False) -> bytes:
    """Return the first byte of each sector after a crash that loses what it can, or nothing."""
    state = disk.state(disk.everything() if everything else disk.nothing())
    return state["data"][::SECTOR].tobytes()


def test_a_flush_covers_what_was_written_before_it_began() -> None:
    disk = disk_of(2)
    run(disk, write(1, 0, b"a" * SECTOR), event(Kind.WRITE_END, 1), event(Kind.FLUSH, 2))
    run(disk, write(3, SECTOR, b"b" * SECTOR), event(Kind.WRITE_END, 3))
    assert held(disk) == b"\0\0"
    run(disk, event(Kind.FLUSH_END, 2))
    assert held(disk) == b"a\0"
    assert held(disk, everything=True) == b"ab"


def test_a_write_under_way_when_the_flush_began_is_not_covered() -> None:
    disk = disk_of(1)
    run(disk, write(1, 0, b"a" * SECTOR), event(Kind.FLUSH, 2), event(Kind.WRITE_END, 1), event(Kind.FLUSH_END, 2))
    assert held(disk) == b"\0"


def test_a_later_write_may_survive_without_an_earlier_one_and_the_newest_survivor_counts() -> None:
    disk = disk_of(2)
    for number, text in ((1, b"a"), (2, b"b")):
        run(disk, write(number, 0, text * 2 * SECTOR), event(Kind.WRITE_END, number))
    kept = disk.nothing()
    kept[1][1] = True
    assert disk.state(kept)["data"][::SECTOR].tobytes() == b"\0b"
    kept[0][:] = True
    assert disk.state(kept)["data"][::SECTOR].tobytes() == b"ab"


def test_names_and_sizes_are_durable_when_they_were_flushed() -> None:
    disk = disk_of(1)
    run(disk, event(Kind.CREATE, 1, 8, data=b"new.tmp"), event(Kind.SIZE, 2, 8, 100))
    run(disk, event(Kind.FLUSH, 3, 8), event(Kind.FLUSH_END, 3, 8))
    assert set(disk.state(disk.nothing())) == {"data"}
    assert len(disk.state(disk.everything())["new.tmp"]) == 100
    run(disk, event(Kind.RENAME, 4, 8, data=b"new.tmp\0new"))
    assert set(disk.state(disk.everything())) == {"data", "new"}
    run(disk, event(Kind.NAMES_FLUSH, 5), event(Kind.NAMES_FLUSH_END, 5))
    assert set(disk.state(disk.nothing())) == {"data", "new"}
    run(disk, event(Kind.UNLINK, 6, data=b"new"))
    assert set(disk.state(disk.nothing())) == {"data", "new"}
    assert set(disk.state(disk.everything())) == {"data"}


def test_after_a_kill_nothing_is_lost_until_the_power_fails() -> None:
    disk = disk_of(1)
    run(disk, write(1, 0, b"a" * SECTOR))
    disk.attach({"data": 9})
    assert held(disk, everything=True) == b"a"
    assert held(disk) == b"\0"
    run(disk, event(Kind.FLUSH, 1, 9), event(Kind.FLUSH_END, 1, 9))
    assert held(disk) == b"a"


def test_choices_are_of_the_seed_and_have_the_extremes() -> None:
    disk = disk_of(8)
    for number in range(4):
        run(disk, write(number, number * 2 * SECTOR, b"x" * 2 * SECTOR), event(Kind.WRITE_END, number))
    seen = {
        held_by.tobytes()
        for seed in range(40)
        for choice in disk.choices(Random(seed), 6)
        for held_by in (np.concatenate(list(choice.values())),)
    }
    assert bytes(8) in seen
    assert b"\1" * 8 in seen
    assert any(sum(each) == 1 for each in seen)
    assert any(sum(each) == 7 for each in seen)
    again = [disk.choices(Random(5), 6) for _ in range(2)]
    assert [str(choice) for choice in again[0]] == [str(choice) for choice in again[1]]


def test_systematic_choices_lose_and_keep_each_unit_alone_and_tear_all_that_is_small() -> None:
    disk = disk_of(3)
    for number in range(3):
        run(disk, write(number, number * SECTOR, b"x" * SECTOR), event(Kind.WRITE_END, number))
    choices = disk.systematic()
    kept = [held_by.tobytes() for choice in choices for held_by in (disk.state(choice)["data"][::SECTOR],)]
    assert {b"\0\0\0", b"xxx", b"x\0\0", b"\0x\0", b"\0\0x", b"\0xx", b"x\0x", b"xx\0"} == set(kept)
    torn = disk.state(choices[-1])["data"].tobytes()
    assert torn == (b"x" * (SECTOR // 2) + bytes(SECTOR // 2)) * 3


def test_a_copy_that_nobody_flushed_is_there_until_the_power_fails() -> None:
    disk = Disk.of_copy({"data": np.full(SECTOR, 7, np.uint8)})
    disk.attach({"data": _FILE})
    assert held(disk, everything=True) == b"\7"
    assert disk.state(disk.nothing()) == {}
    run(
        disk, event(Kind.FLUSH, 1), event(Kind.FLUSH_END, 1), event(Kind.NAMES_FLUSH, 2), event(Kind.NAMES_FLUSH_END, 2)
    )
    assert held(disk) == b"\7"
