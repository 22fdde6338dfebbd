"""YCSB on a server with the backend cuda and with cpu: several client processes, each with several callers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import Measurement, Run
from gpkvs.bench.server.measured_server import serve
from gpkvs.recovery.proof.servers.server_process import GPKVS, ServerOptions, environment_of_run

_RECORDS = 200_000
_SECONDS = 4
_CALLERS = {1: 64, 64: 8, 4096: 4}  # of a client, by the operations in a message
_SHAPE = ("fieldcount=1", "fieldlength=100", "writeallfields=true", f"recordcount={_RECORDS}")


def measure_server(folder: Path) -> tuple[list[Measurement], dict[str, Any]]:
    """Run workloads a, b and c with each size of message on both backends; a half of the processors is the clients'."""
    clients = max(len(os.sched_getaffinity(0)) // 2, 1)
    measurements = [
        measurement
        for backend in ("cpu", "cuda")
        for measurement in asyncio.run(_measure(folder / backend, backend, clients))
    ]
    return measurements, {"clients": clients, "callers_of_a_client": _CALLERS, "records": _RECORDS, "shape": _SHAPE}


async def _measure(folder: Path, backend: str, clients: int) -> list[Measurement]:
    options = ServerOptions(backend=backend, index="64MiB", heap="4GiB", log="64MiB")
    measurements = []
    async with serve(folder, options) as server:
        await asyncio.to_thread(_ycsb, "load", server.target, "a", 4096, 1, ())
        for workload in "abc":
            for batch in _CALLERS:
                limits = (f"maxexecutiontime={_SECONDS}", "operationcount=1000000000")
                rate = await asyncio.to_thread(_ycsb, "run", server.target, workload, batch, clients, limits)
                task = f"YCSB {workload}, {batch:,} operations a message"
                measurements.append(Measurement(task, backend, [Run(round(rate * _SECONDS), _SECONDS)]))
    return measurements


def _ycsb(phase: str, target: str, workload: str, batch: int, clients: int, properties: tuple[str, ...]) -> float:
    """Run client processes at the same time; return the sum of their operations a second."""
    command = [*GPKVS, "ycsb", phase, f"--workload={workload}", f"--batch={batch}", f"--target={target}", "--json"]
    command.append(f"--threads={_CALLERS[batch]}")
    for setting in (*_SHAPE, *properties):
        command += ["-p", setting]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment_of_run(),
        )
        for _ in range(clients)
    ]
    rates: list[float] = []
    for process in processes:
        output, errors = process.communicate()
        if process.returncode != 0:
            raise BenchError(f"gpkvs ycsb {phase} failed: {errors}")
        rates.append(json.loads(output)["OVERALL"]["Throughput(ops/sec)"])
    return sum(rates)
