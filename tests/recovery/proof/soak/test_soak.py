"""The soak: a short one from end to end, and that it sees what it must see."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

import gpkvs
from gpkvs.proto.v1 import kv_pb2
from gpkvs.recovery.proof.drill.ledger import Cell
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerOptions, ServerProcess
from gpkvs.recovery.proof.soak.clients import NUMBERS, SoakClients
from gpkvs.recovery.proof.soak.expiring import ExpiringKeys, Lease
from gpkvs.recovery.proof.soak.heap_use import HeapUse, breaks_promise, heap_use
from gpkvs.recovery.proof.soak.memory import SECONDS_MIN, MemoryOfLife
from gpkvs.recovery.proof.soak.tables import Fate, Refusal, SoakTable
from gpkvs.server.signs.metrics_reader import Scrape
from tests.conftest import assert_clean


def run_soak(*arguments: str, seconds_max: float = 120) -> subprocess.CompletedProcess[str]:
    command = [*GPKVS, "soak", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds_max, check=False)


def test_a_short_soak_finds_nothing_wrong(tmp_path: Path) -> None:
    data = tmp_path / "soak"
    done = run_soak("--minutes=0.05", "--seed=5", f"--data={data}", "--heap-bytes=8MiB", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["seed"] == 5
    assert report["violations"] == []
    assert sum(report["kills"].values()) >= 1
    assert report["lives"] == done.stderr.count("none wrong") >= 2
    assert report["writes_acknowledged"] > 100
    assert report["tables_made"] > 0
    assert report["tables_dropped"] > 0  # also one whose making nobody was told of: the server died
    # At the end of each life all keys are read: one has expired, one lives for 30 s.
    assert report["leases_seen"] > 0
    assert report["expired_seen"] > 0
    assert not report["memory_judged"]
    assert_clean(data / "store")


def test_a_short_soak_with_blobs_finds_nothing_wrong(tmp_path: Path) -> None:
    options = ("--heap-bytes=16MiB", "--format=4", "--commit=undo", "--json")
    done = run_soak("--minutes=0.05", "--seed=6", f"--data={tmp_path / 'soak'}", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert report["lives"] >= 2
    assert report["blobs_written"] > 0
    assert report["tables_dropped"] > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("commit", ["journal"] if os.environ.get("CI") else ["undo", "journal"])
def test_a_short_soak_with_copies_finds_nothing_wrong(tmp_path: Path, commit: str) -> None:
    """Nobody is refused for a copy, though the heap is nearly full; and copies fail only when the server dies."""
    options = ("--heap-bytes=33MiB", "--copies", f"--commit={commit}", "--json")
    done = run_soak("--minutes=0.05", f"--data={tmp_path / 'soak'}", *options, seconds_max=800)  # one copy is awaited
    print(done.stderr)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert report["promise_judged"]
    assert report["copies"] > 0
    assert report["tables_made"] > 0


def test_a_copy_that_fails_beside_a_living_server_is_found(tmp_path: Path) -> None:
    soaked = Soaked(tmp_path / "store", tmp_path / "copies")
    (tmp_path / "copies" / "copy").mkdir()  # no backup goes there
    asyncio.run(soaked.write())
    assert any("gpkvs backup: exit status 1" in problem for problem in soaked.clients.violations)


def test_a_soak_that_fails_says_how_to_repeat_it_and_keeps_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPKVS_THREADS", "-1")  # no server starts with that
    done = run_soak("--minutes=0.05", "--seed=7", f"--data={tmp_path / 'soak'}", "--json")
    assert done.returncode == 1
    failure = json.loads(done.stdout)
    assert failure["seed"] == 7
    assert failure["violations"]
    assert "seed 7" in done.stderr
    assert str(tmp_path) in done.stderr
    assert Path(failure["directory"]).with_name("store.server.log").exists()


SERVER = ServerOptions(backend="cpu", heap="8MiB", more=("--format=4",))


class Soaked:
    """A store that real clients wrote to, whose contents can then be changed behind their backs."""

    def __init__(self, path: Path, copies: Path | None = None) -> None:
        self.path = path
        self.clients = SoakClients(path, "soaked", copies)

    async def write(self) -> None:
        with closing(ServerProcess(self.path, SERVER)) as server:
            await server.ready()
            await self.clients.prepare(server.target)
            load = asyncio.create_task(self.clients.run(server.target))
            await asyncio.wait([load], timeout=1.0)
            while self.clients.copying and not self.clients.copying.cut and not load.done():
                await asyncio.wait([load], timeout=0.1)
            self.clients.stop()
            await load
            await self.clients.settle(server.target)
            await server.stop()

    async def settle(self) -> list[str]:
        with closing(ServerProcess(self.path, SERVER)) as server:
            await server.ready()
            await self.clients.settle(server.target)
            await server.stop()
        return self.clients.violations

    def cells(self, table: str) -> list[Cell]:
        ledger = next(one.ledger for one in self.clients.tables if one.name == table)
        return [cell for cell in ledger.cells if any(cell.newest.state)]


def present(cell: Cell) -> bytes:
    return next(key for key, value in zip(cell.keys, cell.newest.state, strict=True) if value is not None)


def test_a_soak_finds_what_was_done_to_a_store(tmp_path: Path) -> None:
    soaked = Soaked(tmp_path / "store")
    asyncio.run(soaked.write())
    assert soaked.clients.violations == []
    records, numbers = soaked.cells("default"), soaked.cells(NUMBERS)
    lost, old, halved = present(records[0]), present(records[1]), present(numbers[0])
    with gpkvs.open(soaked.path) as store:
        store.delete(lost)
        store.set(old, (1 << 16).to_bytes(8, "little"))
        store.set(b"leaked", b"a key that nobody wrote" * 4_000)
        store.delete(halved, table=NUMBERS)
        for info in store.info().tables:
            if info.name.startswith("passing-"):
                store.drop_table(info.name)
        store.create_table("strange")
    found = "\n".join(asyncio.run(soaked.settle()))
    assert f"table default: lost: key {lost!r}" in found
    assert f"key {old!r}" in found
    assert f"table numbers: lost: key {halved!r}" in found
    assert "table strange: it is there, and must not be" in found
    assert "blobs must have" in found
    records_present = sum(value is not None for cell in records for value in cell.newest.state)
    assert f"table default: {records_present:,} records must be there" not in found  # one less, one more
    assert "table numbers: " in found
    assert "are counted" in found


def test_a_table_that_vanished_is_seen_and_one_whose_making_was_cut_is_not(tmp_path: Path) -> None:
    clients = SoakClients(tmp_path, "tables")

    fates: dict[str, Fate] = {"a": "there", "b": "making", "c": "dropping", "d": "dropping"}
    clients._passing = {name: SoakTable(name, "bytes", clients.totals, fate) for name, fate in fates.items()}
    clients._settle_tables({"default": 0, NUMBERS: 0, "d": 0})
    assert clients.problems == ["table a: it was made, nobody dropped it, and it is gone"]
    assert [table.name for table in clients.tables] == ["default", NUMBERS, "d"]


@pytest.mark.parametrize(
    ("used", "released", "in_flight", "full", "broken"),
    [
        (840, 0, 5, "heap", True),
        (851, 0, 0, "heap", False),
        (840, 0, 6, "heap", False),  # its own record may have been too much
        (840, 6, 0, "heap", False),  # somebody deleted meanwhile
        (840, 0, 5, "index", False),
    ],
)
def test_refusals_below_the_promise(used: int, released: int, in_flight: int, full: str, *, broken: bool) -> None:
    refusal = Refusal(full, "", released_before=100, in_flight_bytes=in_flight)
    assert breaks_promise(refusal, HeapUse(used, 1000, is_promised=True), 100 + released) == broken
    assert not breaks_promise(refusal, HeapUse(used, 1000), 100 + released)


class _Metrics(Scrape):
    def __init__(self, **values: float) -> None:
        self._samples = {f"gpkvs_heap_{name}": [({}, value)] for name, value in values.items()}


def test_use_of_a_heap() -> None:
    live = {"bytes": 1000.0, "live_bytes": 300.0}
    assert heap_use(_Metrics(**live)) == HeapUse(300, 1000)
    compacted = heap_use(_Metrics(**live, charged_bytes=340.0, charged_bytes_max=680.0))
    assert compacted == HeapUse(340, 800, is_promised=True)


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ([50] * 30 + [100] * 60, 0),  # what fills up at first does not count
        ([100] * 60 + [300] + [100] * 30, 0),  # nor does one peak
        ([1000] * 60 + [1019] * 30, 0),
        ([1000] * 60 + [1021] * 30, 1),
        (list(range(1000, 1090)), 1),
    ],
)
def test_drift_of_memory(samples: list[int], found: int) -> None:
    assert len(MemoryOfLife(SECONDS_MIN, samples).problems) == found
    assert not MemoryOfLife(SECONDS_MIN - 1, samples).problems


@pytest.mark.parametrize(
    ("found", "value", "sent_s", "came_s", "wrong"),
    [
        (True, b"v", 9.0, 9.1, ""),
        (False, b"", 9.0, 9.1, "gone"),
        (False, b"", 9.0, 10.1, ""),  # it may have been gone when the server looked
        (True, b"v", 10.1, 11.2, ""),
        (True, b"v", 11.1, 11.2, "there"),
        (False, b"", 11.1, 11.2, ""),
        (True, b"w", 9.0, 9.1, "has"),
    ],
)
def test_a_key_is_there_for_its_time(*, found: bool, value: bytes, sent_s: float, came_s: float, wrong: str) -> None:
    keys, lease = ExpiringKeys("1"), Lease(b"v", 10.0, 11.0)
    keys.judge(b"k", lease, kv_pb2.GetResponse(found=found, value=value), sent_s, came_s)
    assert len(keys.problems) == bool(wrong)
    assert wrong in "".join(keys.problems)
