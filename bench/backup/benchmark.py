"""The benchmark of backups: how long one takes, and what those feel who write meanwhile.

`gpkvs backup` copies the store of `gpkvs serve --resp`, and BGSAVE makes a snapshot of redis. Both hold the same
records. One connection sends SETs of random keys, each after the response to the one before, or some at a time.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpkvs.bench.peers.contender import BenchError, Progress, Promise, require_promise
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import KEY_BYTES, RespPort, keys_of, require_redis
from gpkvs.bench.report.machine import describe_run
from gpkvs.bench.report.tables import Rows
from gpkvs.bench.report.timeline_plot import Mark, Panel, draw_panels
from gpkvs.bench.server.measured_server import serve
from gpkvs.info import package_version
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerOptions, ServerProcess

_PERCENTILES = (50, 99, 99.9)
_SENDS = 500  # different ones of the traffic
_LOOK_SECONDS = 0.01
_BUCKET_SECONDS = 0.1
_SAVING = Mark("is_saving", "a copy is made", "#fff1c2")


@dataclass(frozen=True)
class BackupOptions:
    """What to measure.

    Parameters
    ----------
    directory
        For stores and backups: its file system decides the promise.
    promise
        What an acknowledged write must survive.
    records, value_bytes
        That both hold.
    pipelines
        How many SETs are sent at a time.
    seconds
        Of the traffic before a backup.
    redis
        Whether to compare with redis.
    """

    directory: Path
    promise: Promise = "process"
    records: int = 4_000_000
    value_bytes: int = 100
    pipelines: tuple[int, ...] = (1, 64)
    seconds: float = 5.0
    redis: bool = True


class _Saved(Protocol):
    """A server that can save what it holds while it is used."""

    name: str
    version: str
    settings: str

    @property
    def port(self) -> RespPort:
        """Where clients write."""

    def save(self) -> None:
        """Save everything; returns when it is done."""


class _Gpkvs:
    name, version, settings = "gpkvs", package_version(), "gpkvs backup"

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.port = RespPort(int(server.resp[0].rpartition(":")[2]))
        self._target = server.target
        self._backup = folder / "backup"

    def save(self) -> None:
        done = subprocess.run(
            [*GPKVS, "backup", str(self._backup), "--target", self._target], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"gpkvs backup: {done.stderr}")
        shutil.rmtree(self._backup)


class _Redis:
    name = "redis"

    def __init__(self, redis: Redis) -> None:
        self.port = redis
        self.version, self.settings = redis.version, f"BGSAVE, {redis.settings}"

    def save(self) -> None:
        with self.port.connect() as connection:
            _asked(connection.sendall, connection.recv, b"BGSAVE\r\n")
            while b"rdb_bgsave_in_progress:1" in (
                info := _asked(connection.sendall, connection.recv, b"INFO persistence\r\n")
            ):
                time.sleep(_LOOK_SECONDS)
        if b"rdb_last_bgsave_status:ok" not in info:
            raise BenchError("redis did not save")


def _asked(send: Callable[[bytes], None], receive: Callable[[int], bytes], command: bytes) -> bytes:
    send(command)
    text = receive(1 << 16)
    if text.startswith(b"$"):
        head, _, rest = text.partition(b"\r\n")
        while len(rest) < int(head[1:]):
            rest += receive(1 << 16)
        return rest
    return text


def run_backup(options: BackupOptions, progress: Progress) -> dict[str, Any]:
    """Run the benchmark; return the result, ready for JSON.

    Raises
    ------
    BenchError
        If redis is not installed, the directory gives another promise, or a backup fails.
    """
    began = time.perf_counter()
    require_promise(options.directory, options.promise)
    if options.redis:
        require_redis()
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="gpkvs-bench-") as name:
        measured = [asyncio.run(_measure_gpkvs(options, Path(name), progress))]
        if options.redis:
            with closing(Redis(Path(name) / "redis", options.promise)) as redis:
                measured.append(_measure(_Redis(redis), options, progress))
    return {
        "benchmark": "backup",
        "promise": options.promise,
        **describe_run(options.directory),
        "seconds": time.perf_counter() - began,
        "parameters": {
            **{name: value for name, value in asdict(options).items() if name != "directory"},
            "key_bytes": KEY_BYTES,
            "runs": 1,
        },
        "measurements": measured,
    }


async def _measure_gpkvs(options: BackupOptions, folder: Path, progress: Progress) -> dict[str, Any]:
    sizes = replace(ServerOptions(), index="", heap="", log="", journal="", commit="auto", more=("--resp=127.0.0.1:0",))
    async with serve(folder / "store", sizes) as server:
        found = await asyncio.to_thread(_measure, _Gpkvs(server, folder), options, progress)
    shutil.rmtree(folder / "store")
    return found


def _measure(server: _Saved, options: BackupOptions, progress: Progress) -> dict[str, Any]:
    progress(f"{server.name}: loading")
    server.port.load(options.records, options.value_bytes)
    progress(f"{server.name}: nobody writes")
    began = time.perf_counter()
    server.save()
    idle_seconds = time.perf_counter() - began
    live_bytes = options.records * (KEY_BYTES + options.value_bytes)
    return {
        "contender": server.name,
        "version": server.version,
        "settings": server.settings,
        "idle_seconds": idle_seconds,
        "idle_bytes_per_second": live_bytes / idle_seconds,
        "beside": [_beside(server, options, pipeline, progress) for pipeline in options.pipelines],
    }


def _beside(server: _Saved, options: BackupOptions, pipeline: int, progress: Progress) -> dict[str, Any]:
    progress(f"{server.name}: SETs, {pipeline} at a time")
    rng = np.random.default_rng(1)
    value = np.full((pipeline, options.value_bytes), ord("y"), np.uint8)
    sends = [server.port.commands(keys_of(rng.integers(0, options.records, pipeline)), value) for _ in range(_SENDS)]
    before = _traffic(server.port, sends, pipeline, lambda: time.sleep(options.seconds))
    began = time.perf_counter()
    during = _traffic(server.port, sends, pipeline, server.save)
    return {"pipeline": pipeline, "seconds": time.perf_counter() - began, "before": before, "during": during}


def _traffic(port: RespPort, sends: list[bytes], pipeline: int, while_this: Callable[[], None]) -> dict[str, Any]:
    """Send SETs while something is done; return how many in a second, and what each send took, in all and over time."""
    taken: list[float] = []
    ended: list[float] = []
    is_over = threading.Event()
    errors: list[Exception] = []

    def write() -> None:
        try:
            with port.connected() as send:
                while not is_over.is_set():
                    start = time.perf_counter()
                    send(sends[len(taken) % len(sends)], pipeline)
                    end = time.perf_counter()
                    taken.append(end - start)
                    ended.append(end - began)
        except (OSError, BenchError) as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    began = time.perf_counter()
    writer.start()
    try:
        while_this()
    finally:
        is_over.set()
        writer.join()
    if errors:
        raise BenchError(f"the SETs failed: {errors[0]}")
    seconds = time.perf_counter() - began
    found = np.array(taken) * 1000
    percentiles = {f"p{number:g}_ms": float(np.percentile(found, number)) for number in _PERCENTILES}
    return {
        "per_second": len(taken) * pipeline / seconds,
        **percentiles,
        "max_ms": float(found.max()),
        "buckets": _buckets(np.array(ended), found),
    }


def _buckets(ended: NDArray[np.float64], taken_ms: NDArray[np.float64]) -> list[dict[str, float]]:
    """Return what sends took over time; one that took long counts where it ended."""
    of_bucket = (ended / _BUCKET_SECONDS).astype(int)
    buckets = []
    for number in np.unique(of_bucket):
        figures = np.percentile(taken_ms[of_bucket == number], (50, 99, 100)).round(4).tolist()
        end = round((int(number) + 1) * _BUCKET_SECONDS, 1)
        buckets.append({"end_seconds": end, **dict(zip(("p50_ms", "p99_ms", "longest_ms"), figures, strict=True))})
    return buckets


def draw_backups(result: dict[str, Any]) -> str:
    """Return the SVG of what SETs took over time, before each backup and beside it."""
    panels = []
    for measured in result["measurements"]:
        for beside in measured["beside"]:
            before, during = beside["before"], beside["during"]
            begin = before["buckets"][-1]["end_seconds"]
            buckets = [
                *({**bucket, _SAVING.flag: False} for bucket in before["buckets"]),
                *(
                    {**bucket, "end_seconds": begin + bucket["end_seconds"], _SAVING.flag: True}
                    for bucket in during["buckets"]
                ),
            ]
            share = during["per_second"] / before["per_second"]
            title = f"{measured['contender']}, {beside['pipeline']} SETs at a time: {share:.2f} of the rate before"
            panels.append(Panel(title, buckets))
    return draw_panels("SETs beside a backup", result, panels, (_SAVING,))


def backup_rows(result: dict[str, Any]) -> Rows:
    """Return a result as a table."""
    parameters = result["parameters"]
    lines = []
    for measured in result["measurements"]:
        idle = (f"{measured['idle_seconds']:.1f}", f"{measured['idle_bytes_per_second'] / 1e6:,.0f}")
        for beside in measured["beside"]:
            before, during = beside["before"], beside["during"]
            figures = (
                f"{beside['seconds']:.1f}",
                *(f"{traffic['per_second']:,.0f}" for traffic in (before, during)),
                f"{during['per_second'] / before['per_second']:.2f}",
                *(f"{traffic[name]:.2f}" for name in ("p99_ms", "max_ms") for traffic in (before, during)),
            )
            name = f"{measured['contender']} {measured['version']}, {beside['pipeline']} at a time"
            lines.append((name, *idle, *figures))
    return Rows(
        f"backup, promise {result['promise']}: {parameters['records']:,} records of {KEY_BYTES} B and "
        f"{parameters['value_bytes']} B, SETs of one connection beside it",
        (
            *("", "idle, s", "MB/s", "beside SETs, s", "SETs/s before", "while", "share"),
            *("p99 before, ms", "while", "longest before, ms", "while"),
        ),
        lines,
    )
