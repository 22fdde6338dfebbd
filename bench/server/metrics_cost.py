"""Measures what metrics cost: the same load on a server with metrics and on one without, in turn.

It compares the throughput, and the servers' processor time for an operation, which other work on the machine disturbs
less.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gpkvs.bench.peers.contender import Progress
from gpkvs.bench.report.results import Run
from gpkvs.bench.server.load import DrawnKeys, gathered_calls, stream
from gpkvs.bench.server.measured_server import ServerBenchOptions, python_program, serve_numbers
from gpkvs.bench.server.process_usage import cpu_seconds
from gpkvs.client import AsyncClient

_RECORDS_MAX = 1_000_000
_PAIRS_PER_RUN = 4  # the cost is smaller than the noise of one pair


async def measure_metrics_cost(options: ServerBenchOptions, directory: Path, progress: Progress) -> dict[str, Any]:
    """Return the throughput of pairs of runs, and by how many percent metrics lower it (the median of the pairs)."""
    records = min(options.records, _RECORDS_MAX)
    found: dict[str, Any] = {}
    async with (
        serve_numbers(directory / "metered", options, records) as metered,
        serve_numbers(
            directory / "unmetered", options, records, python_program("gpkvs.bench.server.unmetered_server")
        ) as unmetered,
    ):
        for task, measure in _tasks(options, records).items():
            pairs = _PAIRS_PER_RUN * options.runs
            progress(f"cost of metrics, {task}: {pairs} pairs")
            used: tuple[list[_Used], list[_Used]] = ([], [])  # with metrics, without
            for number in range(pairs):
                for which in (number % 2, 1 - number % 2):  # each comes first in every second pair
                    server, client = (metered, unmetered)[which]
                    before = cpu_seconds(server.pid)
                    run = await measure(client)
                    used[which].append(_Used(run.rate, 1e6 * (cpu_seconds(server.pid) - before) / run.operations))
            found[task] = {
                "with": [asdict(one) for one in used[0]],
                "without": [asdict(one) for one in used[1]],
                "cost_percent": 100 * (1 - median(on.rate / off.rate for on, off in zip(*used, strict=True))),
                "cpu_cost_percent": 100 * (median(on.cpu_us / off.cpu_us for on, off in zip(*used, strict=True)) - 1),
            }
    return found


@dataclass(frozen=True)
class _Used:
    """One run: operations a second, and the server's processor time for one."""

    rate: float
    cpu_us: float


def _tasks(options: ServerBenchOptions, records: int) -> dict[str, Callable[[AsyncClient], Awaitable[Run]]]:
    seconds = options.seconds / 2
    batches = DrawnKeys(records, seed=3).batches("SET", options.message)
    keys = DrawnKeys(records, seed=4).singly()
    return {
        "SET stream": lambda client: stream(client, batches, seconds, options.in_flight),
        "GET gathered": lambda client: gathered_calls(client, "GET", keys, seconds, options.callers),
    }
