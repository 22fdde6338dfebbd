"""What metrics cost: the same load on a server with them and on one without, in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from gpkvs.bench.load import Keys, gathered_calls, stream
from gpkvs.bench.results import Run
from gpkvs.bench.serving import Progress, ServerBenchOptions, python_program, serve_numbers
from gpkvs.client import AsyncClient

_RECORDS_MAX = 1_000_000
_PAIRS_PER_RUN = 4  # what is looked for is smaller than the noise of one pair


async def measure_metrics_cost(options: ServerBenchOptions, directory: Path, progress: Progress) -> dict[str, Any]:
    """Return the throughput of pairs of runs, and by how many percent metrics lower it (the median of the pairs)."""
    records = min(options.records, _RECORDS_MAX)
    found: dict[str, Any] = {}
    async with (
        serve_numbers(directory / "metered", options, records) as (_, metered),
        serve_numbers(directory / "unmetered", options, records, python_program("gpkvs.bench.unmetered_server")) as (
            _,
            unmetered,
        ),
    ):
        for task, measure in _tasks(options, records).items():
            pairs = _PAIRS_PER_RUN * options.runs
            progress(f"cost of metrics, {task}: {pairs} pairs")
            rates: list[tuple[float, float]] = []
            for number in range(pairs):
                # Each comes first in every second pair.
                first, second = (metered, unmetered)[:: 1 if number % 2 else -1]
                runs = {client: (await measure(client)).rate for client in (first, second)}
                rates.append((runs[metered], runs[unmetered]))
            found[task] = {
                "with_per_second": [pair[0] for pair in rates],
                "without_per_second": [pair[1] for pair in rates],
                "cost_percent": 100 * (1 - median(on / off for on, off in rates)),
            }
    return found


def _tasks(options: ServerBenchOptions, records: int) -> dict[str, Callable[[AsyncClient], Awaitable[Run]]]:
    seconds = options.seconds / 2
    batches = Keys(records, seed=3).batches("SET", options.message)
    keys = Keys(records, seed=4).singly()
    return {
        "SET many": lambda client: stream(client, batches, seconds, options.in_flight),
        "GET gathered": lambda client: gathered_calls(client, "GET", keys, seconds, options.callers),
    }
