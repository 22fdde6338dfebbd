"""The audit log: each event is one line, none is lost unseen, and what must be durable is so before it happens."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import resource
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpkvs.errors import InvalidArgumentError
from gpkvs.server.access import audit_file as module
from gpkvs.server.access.audit import AuditError
from gpkvs.server.access.audit_file import QUEUE_LINES_MAX, REQUIRED_MAX, AuditFile
from gpkvs.server.access.fold import Fold
from gpkvs.server.access.rotated_file import RotatedFile
from gpkvs.server.signs.exporter import Metrics

MIB = 1 << 20
OpenAudit = Callable[..., AuditFile]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def audit(path: Path, metrics: Metrics) -> Iterator[AuditFile]:
    log = AuditFile(path, MIB, metrics)
    yield log
    log.close()


def lines(path: Path) -> list[dict[str, Any]]:
    """Return what a file holds, but for the line with which each log ends."""
    return [line for line in map(json.loads, path.read_bytes().splitlines()) if line.get("event") != "stop"]


def value(metrics: Metrics, name: str) -> float:
    found = metrics.registry.get_sample_value(f"gpkvs_audit_{name}")
    assert found is not None
    return found


def wait_until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Let the kernel refuse to write more into a file; a line may be written in part."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class HangingDisk:
    """A disk whose fsync waits for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.goes_on = threading.Event(), threading.Event()
        real = os.fsync

        def fsync(file: int) -> None:
            self.reached.set()
            self.goes_on.wait(30)
            real(file)

        monkeypatch.setattr(os, "fsync", fsync)


def test_events_are_lines_in_order_in_a_private_file(path: Path, audit: AuditFile) -> None:
    audit.note("start", version="1")
    audit.note("login", user="alice", method="token", address="192.0.2.1")
    audit.note("users_changed", added=["bob"], removed=[], changed={"alice": ["write"]})
    audit.close()
    first, second, third = lines(path)
    assert list(first) == ["time", "event", "version"]
    assert first["time"].endswith("Z")
    assert (second["event"], second["user"], second["address"]) == ("login", "alice", "192.0.2.1")
    assert third["changed"] == {"alice": ["write"]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_hostile_name_is_one_short_line(path: Path, audit: AuditFile) -> None:
    hostile = '\n{"event": "login", "user": "root"}\r\n\x00\u2028\ud800"'
    audit.note("refused", address="a", user=hostile, reason="wrong")
    audit.note("refused", address="a", user="x" * MIB, reason="wrong")
    audit.note("admin", user="u", rpc="CreateTable", arguments={"layout": "y" * MIB})
    audit.close()
    data = path.read_bytes()
    assert data.count(b"\n") == 4
    assert len(data) < 2000
    assert data.isascii()
    first, second, _ = lines(path)
    assert first["user"] == hostile
    assert second["user"].endswith("... (1,048,576 characters)")


def test_files_are_rotated_and_the_oldest_goes(path: Path, metrics: Metrics) -> None:
    log = AuditFile(path, 1000, metrics)
    for number in range(200):
        log.note("login", number=number)
    log.close()
    names = ["audit.log", *(f"audit.log.{number}" for number in range(1, 8))]
    assert sorted(file.name for file in path.parent.iterdir()) == names
    numbers = []
    for name in reversed(names):
        file = path.with_name(name)
        assert file.stat().st_size <= 1000
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        numbers += [line["number"] for line in lines(file)]
    assert numbers == list(range(numbers[0], 200))
    assert numbers[0] > 0


def test_a_crash_between_two_renames_loses_no_file(path: Path, metrics: Metrics) -> None:
    path.write_text('{"number": 1}\n')
    path.with_name("audit.log.2").write_text('{"number": 0}\n')
    log = AuditFile(path, 20, metrics)
    log.note("login", number=2)
    log.close()  # one more line, and so one more file
    kept = [lines(path.with_name(f"audit.log.{number}"))[0]["number"] for number in (1, 2, 3)]
    assert kept == [2, 1, 0]


def test_a_file_that_nobody_may_rename_costs_no_other(
    path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text('{"number": 1}\n')
    path.with_name("audit.log.1").write_text('{"number": 0}\n')
    rename = Path.replace

    def replace(old: Path, new: Path) -> Path:
        if old == path:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))  # as with chattr +a
        return rename(old, new)

    monkeypatch.setattr(Path, "replace", replace)
    file = RotatedFile(path, 20, 4)
    for _ in range(9):
        with pytest.raises(OSError, match="not permitted"):
            file.append(b'{"number": 2}\n')
    file.close()
    assert [lines(path.with_name(name))[0]["number"] for name in ("audit.log", "audit.log.2")] == [1, 0]


def test_a_torn_last_line_is_ended(path: Path, metrics: Metrics) -> None:
    path.write_text('{"event": "login"}\n{"event": "lo')
    log = AuditFile(path, MIB, metrics)
    log.note("start")
    log.close()
    first, torn, new, _ = path.read_text().splitlines()
    assert (json.loads(first)["event"], torn, json.loads(new)["event"]) == ("login", '{"event": "lo', "start")


def test_a_renamed_file_is_opened_again(path: Path, audit: AuditFile) -> None:
    audit.note("login", number=1)
    wait_until(lambda: path.stat().st_size > 0)
    path.rename(path.with_name("old"))
    audit.reopen()
    audit.note("login", number=2)
    wait_until(path.exists)
    path.unlink()  # nobody said so
    audit.note("login", number=3)
    audit.close()
    assert [line["number"] for line in lines(path.with_name("old"))] == [1]
    assert [line["number"] for line in lines(path)] == [3]


def test_a_link_that_takes_the_file_s_place_is_not_followed(path: Path, audit: AuditFile) -> None:
    """The server would write into any file of its account."""
    other = path.with_name("other")
    other.write_bytes(b"somebody's\n")
    asyncio.run(audit.require("admin", number=1))
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(AuditError, match="it has become a link"):
        asyncio.run(audit.require("admin", number=2))
    path.unlink()
    asyncio.run(audit.require("admin", number=3))
    assert [line.get("number") for line in lines(path)] == [None, 3]  # behind the line of what was lost
    assert other.read_bytes() == b"somebody's\n"


def test_a_link_to_the_file_is_followed_when_it_is_opened(path: Path, metrics: Metrics) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    log = AuditFile(link, MIB, metrics)
    asyncio.run(log.require("admin", number=1))
    log.close()
    assert lines(path)[0]["number"] == 1


@pytest.mark.parametrize("kind", ["folder", "missing", "pipe"])
def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path, metrics: Metrics, kind: str) -> None:
    path = tmp_path / "there"
    match kind:
        case "folder":
            path.mkdir()
        case "missing":
            path /= "audit.log"
        case "pipe":
            os.mkfifo(path)
    with pytest.raises(InvalidArgumentError, match=f"audit_log: cannot write {path}: "):
        AuditFile(path, MIB, metrics)


def test_a_full_disk_refuses_and_what_was_lost_is_told(
    path: Path, metrics: Metrics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)
    caplog.set_level("INFO", "gpkvs.server")
    log = AuditFile(path, MIB, metrics)
    asyncio.run(log.require("admin", rpc="CreateTable", table="a"))
    with no_file_larger_than(path.stat().st_size + 20):
        log.note("login", user="alice")
        log.note("login", user="bob")
        with pytest.raises(AuditError, match="File too large"):
            asyncio.run(log.require("admin", rpc="DropTable", table="a"))
        assert (value(metrics, "log_good"), value(metrics, "lost_total")) == (0, 3)
        assert len(lines(path)) == 1  # nothing is written in part
    wait_until(lambda: value(metrics, "log_good") == 1)
    asyncio.run(log.require("admin", rpc="DropTable", table="b"))
    log.close()
    assert [(line["event"], line.get("count")) for line in lines(path)] == [
        ("admin", None),
        ("lost", 3),
        ("admin", None),
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_what_is_required_is_durable_first_and_many_share_an_fsync(
    audit: AuditFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, syncs = HangingDisk(monkeypatch), itertools.count()
    waiting = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (next(syncs), waiting(file)))

    async def run() -> None:
        first = asyncio.create_task(audit.require("admin", table="first"))
        assert await asyncio.to_thread(disk.reached.wait, 5)
        others = [asyncio.create_task(audit.require("admin", table=str(n))) for n in range(REQUIRED_MAX - 1)]
        await asyncio.sleep(0.05)
        assert [line["table"] for line in lines(path)] == ["first"]
        assert not first.done()
        with pytest.raises(AuditError, match="64 calls wait"):
            await audit.require("admin", table="one more")
        gone = others.pop()
        gone.cancel()
        await asyncio.wait([gone])
        disk.goes_on.set()
        await asyncio.gather(first, *others)

    asyncio.run(run())
    assert next(syncs) == 2
    assert [line["table"] for line in lines(path)] == ["first", *map(str, range(REQUIRED_MAX - 2))]
    asyncio.run(audit.require("admin", table="room again"))


def test_notes_are_durable_soon(path: Path, audit: AuditFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYNC_SECONDS", 0.01)
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_bytes()))
    audit.note("login", user="alice")
    wait_until(lambda: len(synced) == 1)
    audit.note("login", user="bob")
    wait_until(lambda: len(synced) == 2)
    assert [data.count(b"\n") for data in synced] == [1, 2]
    audit.note("login", user="carol")
    audit.close()
    assert synced[-1].endswith(b'"event": "stop"}\n')


def test_a_line_without_memory_is_lost_and_the_next_one_is_written(
    path: Path, audit: AuditFile, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object, __: bytes) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(RotatedFile, "append", fails)
        audit.note("login", user="alice")
        wait_until(lambda: value(metrics, "lost_total") == 1)
    audit.note("login", user="bob")
    wait_until(lambda: any(line.get("user") == "bob" for line in lines(path)))
    assert [line["event"] for line in lines(path)] == ["lost", "login"]


def test_notes_that_the_disk_forgets_are_lost(
    path: Path, audit: AuditFile, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SYNC_SECONDS", 0.01)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.01)
    failures = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fsync(_file: int) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(os, "fsync", fsync)
    with audit._wake:  # both are one sync
        audit.note("login", user="alice")
        audit.note("login", user="bob")
    wait_until(lambda: value(metrics, "lost_total") == 2)
    wait_until(lambda: value(metrics, "log_good") == 1)
    assert [(line["event"], line.get("count")) for line in lines(path)] == [
        ("login", None),
        ("login", None),
        ("lost", 2),
    ]


def test_a_rotation_that_fails_refuses_what_was_written_before_it(
    path: Path, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditFile(path, 300, metrics)
    disk, syncs = HangingDisk(monkeypatch), itertools.count()
    waiting = os.fsync

    def fsync(file: int) -> None:
        if next(syncs) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        waiting(file)

    monkeypatch.setattr(os, "fsync", fsync)

    async def run() -> list[BaseException | None]:
        first = asyncio.create_task(log.require("admin"))
        await asyncio.to_thread(disk.reached.wait)
        others = [asyncio.create_task(log.require("admin", table=table)) for table in ("a", "b" * 150, "c" * 150)]
        await asyncio.sleep(0)
        disk.goes_on.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, *others, last = asyncio.run(run())
    log.close()
    assert (first, last) == (None, None)
    assert [str(error) for error in others] == [
        f"the audit log {path} cannot be written (Input/output error), so this was not done: "
        "see that its disk works and has room, and try again"
    ] * 2


def test_a_disk_that_hangs_holds_up_nobody(
    path: Path, audit: AuditFile, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUIRED_SECONDS_MAX", 0.05)
    disk = HangingDisk(monkeypatch)
    with pytest.raises(AuditError, match="does not answer"):
        asyncio.run(audit.require("admin"))
    begin = time.monotonic()
    for number in range(QUEUE_LINES_MAX + 7):
        audit.note("login", number=number)
    assert time.monotonic() - begin < 5
    assert (value(metrics, "log_good"), value(metrics, "lost_total")) == (0, 7)
    disk.goes_on.set()
    wait_until(lambda: value(metrics, "log_good") == 1)
    audit.close()
    kept = lines(path)
    assert len(kept) == 1 + 1 + QUEUE_LINES_MAX
    assert (kept[1]["event"], kept[1]["count"]) == ("lost", 7)


def test_refusals_that_are_the_same_are_one_line_with_a_count(path: Path, audit: AuditFile) -> None:
    for number in range(1000):
        audit.note("refused", address="a", user="alice", reason="wrong", rpc=str(number))
    audit.note("refused", address="b", user="alice", reason="wrong", rpc="other")
    for _ in range(100):
        audit.note("admin", address="a", user="alice", rpc="Info")
    audit.close()  # tells what it has counted
    found = [(line["event"], line["address"], line["rpc"], line.get("count")) for line in lines(path)]
    assert found == [
        ("refused", "a", "0", None),
        ("refused", "b", "other", None),
        ("admin", "a", "Info", None),
        ("refused", "a", "999", 999),
        ("admin", "a", "Info", 99),
    ]


def test_a_count_follows_when_its_second_is_over(path: Path, audit: AuditFile) -> None:
    for _ in range(3):
        audit.note("refused", address="a", user="alice", reason="wrong")
    wait_until(lambda: len(lines(path)) == 2)
    assert [line.get("count") for line in lines(path)] == [None, 2]


def test_a_flood_of_names_takes_bounded_memory_and_few_lines() -> None:
    fold, said = Fold(1.0, ("user",)), []
    for number in range(20_000):
        now = number / 2000
        said += list(fold.ended(now))
        if fold.admits({"user": f"user {number}"}, now):
            said.append({})
    said += list(fold.ended(20))
    assert len(said) < 10 * 70
    assert sum(int(str(line.get("count", 1))) for line in said) == 20_000
