"""The servers of gpkvs under load: their own metrics must count what h2load takes for answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpkvs.bench.door.h2load import Load, run_load
from gpkvs.bench.door.options import DoorOptions
from gpkvs.bench.engine.workload import SHAPES
from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.peers.embedded_gpkvs import TABLE, index_bytes
from gpkvs.bench.report.results import Run
from gpkvs.bench.server.load import all_records, fill
from gpkvs.bench.server.measured_server import ServerBenchOptions, python_program, serve, server_options
from gpkvs.client import AsyncClient
from gpkvs.credentials import PLAIN, Access, TlsCredentials
from gpkvs.recovery.proof.servers.run_access import RunAccess
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerProcess
from gpkvs.server.metrics_reader import Scrape

NATIVE = "native"
"""The name of a server's door among what is measured."""

_TRIAL_CALLS = 3  # of each stream: so long is the run that says how many calls take a given time
_COUNT_SECONDS_MAX = 1.0


@dataclass
class Target:
    """A server under load; only those of gpkvs have metrics.

    Parameters
    ----------
    name
        The contender.
    url
        Its scheme, host and port.
    metrics, access
        The address of its metrics, and what they want to see.
    server
        Its process.
    """

    name: str
    url: str
    metrics: str | None = None
    access: Access = PLAIN
    server: ServerProcess | None = None
    _rates: dict[Load, float] = field(default_factory=dict)

    async def run(self, load: Load, seconds: float, operations: int = 1, log: Path | None = None) -> Run:
        """Make calls, each of so many operations, for about so long; return the run in operations.

        Raises
        ------
        BenchError
            If a call was not answered, or the server counted others.
        """
        if load not in self._rates:
            trial = await self._counted(load, _TRIAL_CALLS * load.connections * load.streams, operations)
            self._rates[load] = trial.rate
        run = await self._counted(load, int(self._rates[load] * seconds), operations, log)
        self._rates[load] = run.rate
        return Run(run.operations * operations, run.seconds, run.latencies_ms)

    async def _counted(self, load: Load, calls: int, operations: int, log: Path | None = None) -> Run:
        before = self._counts()
        run = await run_load(self.url, load, calls, log)
        wanted = [run.operations, run.operations * operations]
        give_up = time.monotonic() + _COUNT_SECONDS_MAX
        while self.metrics:
            grown = [now - then for now, then in zip(self._counts(), before, strict=True)]
            if grown == wanted:
                break
            if time.monotonic() > give_up:
                raise BenchError(f"{self.name} counts {grown} good calls and operations, h2load {wanted}")
            await asyncio.sleep(0.05)
        return run

    def _counts(self) -> list[float]:
        """Return the calls and operations that went well so far."""
        if self.metrics is None:
            return []
        scrape = Scrape(self.metrics, self.access)
        calls = scrape.by("grpc_server_handled_total", "grpc_code").get("OK", 0.0)
        return [calls, scrape.by("gpkvs_operations_total", "status").get("ok", 0.0)]


@asynccontextmanager
async def serve_door(
    folder: Path,
    options: DoorOptions,
    more: tuple[str, ...],
    tls: RunAccess | None = None,
    *,
    busy: bool = False,
) -> AsyncIterator[Target]:
    """Serve a table of numbers that holds all records."""
    numbers = SHAPES["u64"]
    sizes = server_options(ServerBenchOptions(folder, options.promise), numbers, options.records)
    sizes = replace(sizes, more=(*more, *(tls.tls_options if tls else ())))
    program = python_program("gpkvs.bench.door.busy_server") if busy else GPKVS
    credentials = TlsCredentials(ca=tls.cert) if tls else None
    name = "-".join([NATIVE, *(["tls"] if tls else []), *(["busy"] if busy else [])])
    async with serve(folder / name, sizes, program) as server:
        async with AsyncClient(server.target, table=TABLE, timeout=60, credentials=credentials) as client:
            await client.create_table(TABLE, layout="u64", index_bytes=index_bytes(numbers, options.records))
            await fill(client, all_records(options.records, options.message))
        url = f"{'https' if tls else 'http'}://{server.target}"
        yield Target(name, url, server.metrics, Access(credentials), server)
