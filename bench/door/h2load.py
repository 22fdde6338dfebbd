"""h2load, the load generator of nghttp2: the client of single calls and streams."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import Run

METHODS = {"SET": "/gpkvs.v1.KV/Set", "GET": "/gpkvs.v1.KV/Get"}
PIPELINE = "/gpkvs.v1.KV/Pipeline"
_HEADERS = ("content-type: application/grpc", "te: trailers")
_RATE = re.compile(r"finished in [^,]+, ([\d.]+) req/s")
_ANSWERED = re.compile(r"status codes: (\d+) 2xx")
_DATA_BYTES = re.compile(r"\((\d+)\) data")
_PERCENTILES = (50, 99)


@dataclass(frozen=True)
class Load:
    """What h2load sends.

    Parameters
    ----------
    path
        The method.
    body
        The file of each call's body.
    connections, streams
        How many, and calls on each of them at the same time.
    answer_bytes
        Of each call, with gRPC's prefixes; None if they are not to be checked.
    per_second
        Calls a second on each connection; None: as many as it can.
    """

    path: str
    body: Path
    connections: int = 1
    streams: int = 1
    answer_bytes: int | None = None
    per_second: int | None = None

    def command(self, url: str, calls: int, *more: str) -> list[str]:
        """Return the command of so many calls."""
        options = [f"--clients={self.connections}", f"--max-concurrent-streams={self.streams}", f"--data={self.body}"]
        options += [f"--header={header}" for header in _HEADERS]
        if self.per_second is not None:
            options.append(f"--rps={self.per_second}")
        return ["h2load", "--threads=1", f"--requests={calls}", *options, *more, url + self.path]


def require_h2load() -> None:
    """Make sure that h2load is installed.

    Raises
    ------
    BenchError
        If it is not; the message says what to do.
    """
    if not shutil.which("h2load"):
        raise BenchError("h2load is not installed: apt-get install nghttp2-client")


async def run_load(url: str, load: Load, calls: int, log: Path | None = None, more: tuple[str, ...] = ()) -> Run:
    """Make calls; with a log, each call is timed as well. `more` are other options of h2load.

    Raises
    ------
    BenchError
        If a call was not answered, or not with what it should be.
    """
    calls = max(calls, load.connections * load.streams)
    process = await asyncio.create_subprocess_exec(
        *load.command(url, calls, *([f"--log-file={log}"] if log else []), *more),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode(errors="replace")
    rate, answered, data_bytes = (pattern.search(text) for pattern in (_RATE, _ANSWERED, _DATA_BYTES))
    if not (rate and answered and data_bytes) or int(answered[1]) != calls:
        raise BenchError(f"h2load did not get {calls:,} answers from {url}{load.path}:\n{text}")
    # It takes errors of gRPC for answers; these have no message.
    if load.answer_bytes is not None and int(data_bytes[1]) != calls * load.answer_bytes:
        raise BenchError(
            f"{url}{load.path} answered {calls:,} calls with {int(data_bytes[1]):,} bytes, which should be "
            f"{load.answer_bytes:,} each"
        )
    return Run(calls, calls / float(rate[1]), _latencies_ms(log) if log else {})


def _latencies_ms(log: Path) -> dict[str, float]:
    """Return percentiles of the calls in a log, whose lines are: begin, status, microseconds; and remove it."""
    microseconds = np.loadtxt(log, usecols=2, ndmin=1)
    log.unlink()  # h2load would add to it
    values = np.percentile(microseconds, _PERCENTILES) / 1e3
    return {f"p{percentile}": float(value) for percentile, value in zip(_PERCENTILES, values, strict=True)}
