"""A disk whose writes and flushes take 50 ms each, under stores with a journal: slow, in order, and within bounds."""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.consistency import consistency
from gpkvs.recovery.proof.consistency.clients import ConsistencyClientOptions
from gpkvs.recovery.proof.servers.kill_plan import SIGKILL, Round
from gpkvs.recovery.proof.servers.server_process import ServerOptions
from tests.faults.conftest import ROOT
from tests.server.wire import SET, batch
from tests.serving import Server, StartServer

SLOW_MS = 50
MIB = 1 << 20
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


def slow(path: Path) -> dict[str, str]:
    """Return what makes a process's writes below a directory slow, together with the preloaded shim."""
    return {"GPKVS_SHIM": f"slow:{SLOW_MS}", "GPKVS_SHIM_PATH": f"{path}/"}


def rounds() -> list[Round]:
    """Return kills at moments that a slow disk reaches, some of them in a checkpoint and in recovery."""
    kinds = ((SIGKILL, "", 0), ("mid_checkpoint", "mid_checkpoint", 0), ("mid_replay", "before_apply", 1))
    hits = {"mid_checkpoint": 1, "before_apply": 8}
    return [
        Round(number, kind, 1.5, point, hits.get(point, 1), recovery_kills, "journal")
        for number, (kind, point, recovery_kills) in enumerate([*kinds, (SIGKILL, "", 0)], 1)
    ]


def test_order_is_kept(tmp_path: Path, shim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gpkvs consistency` with a slow disk: a gate that opens too early has time to be seen."""
    for name, value in {"LD_PRELOAD": str(shim), **slow(tmp_path / "store")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(consistency, "plan", lambda *_: rounds())
    seed = secrets.randbelow(1 << 32)
    options = consistency.ConsistencyOptions(
        operations=6000 if os.environ.get("CI") else 9000,
        faults=5,
        seed=seed,
        directory=tmp_path,
        server=ServerOptions(commit="journal", durability="msync", index="64KiB", heap="64MiB"),
        clients=ConsistencyClientOptions(keys=200),
    )
    begin = time.monotonic()
    report = asyncio.run(consistency.check_consistency(options, lambda *death: print(seed, *death)))
    print(report, f"{time.monotonic() - begin:.1f} s")
    assert report.kills == Counter({SIGKILL: 2, "mid_checkpoint": 1, "before_apply": 1, "mid_replay": 1})
    assert report.judgement.is_serializable
    assert report.judgement.writing > 100
    assert report.judgement.unknown_done + report.judgement.unknown_not_done > 20


READ_AT_ONCE = """
import sys
import gpkvs
from gpkvs.batch import Batch, Op
from tests.engine.native_driver import NativeDriver

with gpkvs.open(sys.argv[1], commit="journal", durability="msync", heap_bytes=1 << 20, index_bytes=1 << 16) as store:
    store.create_table("numbers", layout="u64", index_bytes=1 << 16)
    store.set(b"old", b"value")
    driver = NativeDriver(store)
    driver.waits = False
    for table, key in (("default", b"key"), ("numbers", b"8 bytes.")):
        for write in ((Op.SET, key, b"a value."), (Op.DELETE, key)):
            driver.native.begin_turn()
            number = store.table(table).id
            gate, *gates = [
                driver.run(Batch.of([operation]).on_table(number)).gate
                for operation in (write, (Op.GET, key), (Op.EXISTS, key))
            ]
            if write[0] is Op.DELETE:
                gates.append(driver.run(Batch.of([write]).on_table(number)).gate)
            assert driver.durable() < gate, "the disk is not slow"
            print([each - gate for each in gates])
            if table == "default":
                assert driver.run(Batch.of([(Op.GET, b"old")]).on_table(number)).gate < gate
            driver.native.end_turn()
"""


def test_the_native_engine_shows_nothing_before_it_is_durable(tmp_path: Path, shim: Path) -> None:
    """What was read has the gate of the batch that it comes from, and a key that is gone that of its DELETE."""
    done = subprocess.run(
        [sys.executable, "-c", READ_AT_ONCE, tmp_path / "store"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(shim), "GPKVS_HOST_OPS_MAX": "", **slow(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 0]\n[0, 0, 0]\n" * 2


class Callers:
    """Many callers of one server that never wait for each other, and what became of their calls.

    Attributes
    ----------
    seconds
        That each call took which was done.
    refused_seconds
        That each call took which was refused.
    refusals
        What was full, for each.
    written
        The newest number that each key surely has.
    """

    def __init__(self, server: Server) -> None:
        self.seconds: list[float] = []
        self.refused_seconds: list[float] = []
        self.refusals: Counter[str] = Counter()
        self.written: dict[bytes, int] = {}
        self._target = server.target
        self._stub: kv_pb2_grpc.KVStub

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep a connection."""
        async with grpc.aio.insecure_channel(self._target) as channel:
            self._stub = kv_pb2_grpc.KVStub(channel)
            yield

    async def keep_writing(self, key: int, until: float, operations: int = 1) -> None:
        """Write rising numbers to keys, also after a refusal."""
        number = 0
        while time.monotonic() < until:
            number += 1
            began = time.monotonic()
            keys = [b"%d-%d" % (key, i) for i in range(operations)]
            try:
                await self._stub.Batch(batch([(SET, each, b"%d" % number) for each in keys]), timeout=60)
            except grpc.aio.AioRpcError as error:
                if error.code() is not FULL:
                    raise
                metadata = dict(error.trailing_metadata())
                assert metadata["gpkvs-executed"] == "no"
                self.refusals[str(metadata["gpkvs-full"])] += 1
                self.refused_seconds.append(time.monotonic() - began)
                await asyncio.sleep(0.02)
            else:
                self.seconds.append(time.monotonic() - began)
                self.written.update(dict.fromkeys(keys, number))


class Gauges:
    """The largest values of a server's metrics."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.peaks: Counter[str] = Counter()
        self.slowest = 0.0

    async def watch(self, until: float) -> None:
        """Look again and again; a server that waits for its disk must still say so."""
        names = ("gpkvs_queue_requests", "gpkvs_memory_bytes", "gpkvs_journal_used_bytes")
        while time.monotonic() < until:
            for name in names:
                began = time.monotonic()
                value = await asyncio.to_thread(self._server.metric, name)
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.peaks[name] = max(self.peaks[name], int(value))
            await asyncio.sleep(0.1)


def peak_bytes(server: Server) -> int:
    """Memory that the server took at most, with its mapped files."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) << 10


def test_bounds_are_kept(start_server: StartServer, shim: Path, tmp_path: Path) -> None:
    """A journal that fills up faster than its checkpoints are written: callers wait or are refused, nothing grows."""
    memory, queue = 256 * MIB, 40
    server = start_server(
        *("--commit=journal", "--durability=msync", "--journal-bytes=1MiB", "--index-bytes=4MiB"),
        *("--queue-requests-max", str(queue), "--memory-max", str(memory)),
        env={"LD_PRELOAD": str(shim), **slow(tmp_path / "store")},
    )
    server.kv.Set(kv_pb2.SetRequest(key=b"first", value=b""))
    before = peak_bytes(server)
    callers, gauges = Callers(server), Gauges(server)

    async def work() -> None:
        until = time.monotonic() + 9
        async with callers.connected():
            large = [callers.keep_writing(-1 - i, until, operations=400) for i in range(4)]
            small = [callers.keep_writing(i, until) for i in range(80)]
            await asyncio.gather(gauges.watch(until), *large, *small)

    asyncio.run(work())
    assert callers.refusals.keys() == {"queue"}
    info = {name: server.metric(name) for name in ("gpkvs_journal_wait_seconds_total", "gpkvs_checkpoints_total")}
    print(
        f"done {len(callers.seconds)}, median {statistics.median(callers.seconds):.2f} s, longest "
        f"{max(callers.seconds):.2f} s; refused {callers.refusals}, median "
        f"{statistics.median(callers.refused_seconds):.4f} s; {gauges.peaks}, slowest look {gauges.slowest:.2f} s; "
        f"memory {(peak_bytes(server) - before) / MIB:.1f} MiB more; {info}"
    )
    assert info["gpkvs_journal_wait_seconds_total"] > 0.5  # the journal was full
    flushes, seconds = (server.metric(f"gpkvs_journal_{name}_total") for name in ("flushes", "flush_seconds"))
    assert flushes > 0
    assert SLOW_MS / 1000 <= seconds / flushes < 1
    assert len(callers.seconds) > 100
    assert callers.refusals["queue"] > 100
    assert gauges.peaks["gpkvs_queue_requests"] <= queue
    assert gauges.peaks["gpkvs_memory_bytes"] < memory
    assert gauges.peaks["gpkvs_journal_used_bytes"] <= server.metric("gpkvs_journal_capacity_bytes")
    assert peak_bytes(server) - before < 64 * MIB
    # A batch waits for one checkpoint at most. Neighbouring pages are written at once: at most every second is alone.
    writes = (4 << 20) // 4096 // 2
    assert max(callers.seconds) < writes * SLOW_MS / 1000 + 5
    assert statistics.median(callers.refused_seconds) < statistics.median(callers.seconds)
    assert gauges.slowest < 5

    server.kill()
    server.process.returncode = 0  # it was meant; the fixture's own stop has nothing left to do
    again = start_server("--durability=msync")
    for key, number in callers.written.items():
        found = int(again.kv.Get(kv_pb2.GetRequest(key=key)).value)
        assert found >= number, f"{key!r}: {number} was acknowledged, {found} is there"
