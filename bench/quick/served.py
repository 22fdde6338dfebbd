"""Servers of this machine: `redis-benchmark` on `gpkvs serve` and on a redis-server in turn, and streams over gRPC."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import ExitStack, closing
from pathlib import Path

from gpkvs.bench.peers.contender import Progress, Promise
from gpkvs.bench.peers.embedded_gpkvs import TABLE
from gpkvs.bench.peers.redis_peer import NAME as REDIS
from gpkvs.bench.peers.redis_peer import Redis
from gpkvs.bench.peers.resp_port import RespPort
from gpkvs.bench.quick.options import BATCH, CONNECTIONS, OPERATIONS, PIPELINE, Found, QuickOptions, in_turn
from gpkvs.bench.server.load import DrawnKeys, all_records, fill, stream
from gpkvs.bench.server.measured_server import serve
from gpkvs.client import AsyncClient
from gpkvs.info import package_version
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess
from gpkvs.server.door.versions import versions

GPKVS = "gpkvs"
_IN_FLIGHT = 32
# As it starts without other options.
_OVER_RESP = ServerOptions(index="", heap="", log="", commit="", journal="", more=("--resp=127.0.0.1:0",))
_LOAD = "rows of the Redis protocol"


async def measure_served(
    options: QuickOptions, promise: Promise, folder: Path, progress: Progress, found: Found
) -> None:
    """Measure both servers."""
    if not versions():
        found.absent["the server"] = "this build of gpkvs has none; see `gpkvs doctor`"
        return
    if not shutil.which("redis-benchmark"):
        found.absent[_LOAD] = "redis-benchmark, which makes their load, is not installed; apt-get install redis-tools"
    elif not shutil.which("redis-server"):
        found.absent[REDIS] = "not installed; apt-get install redis-server"
    progress(f"starting a server and loading {options.records:,} records")
    async with serve(folder / "store", _OVER_RESP) as server:
        found.contenders.setdefault(GPKVS, {"version": package_version()})
        if _LOAD not in found.absent:
            await _over_resp(server, options, promise, folder, progress, found)
        await _over_grpc(server, options, progress, found)


async def _over_resp(
    server: ServerProcess, options: QuickOptions, promise: Promise, folder: Path, progress: Progress, found: Found
) -> None:
    with ExitStack() as stack:
        ports = {GPKVS: RespPort(int(server.resp[0].rpartition(":")[2]))}
        if REDIS not in found.absent:
            progress(f"starting {REDIS} and loading {options.records:,} records")
            redis = stack.enter_context(closing(Redis(folder / REDIS, promise)))
            found.contenders[REDIS] = {"version": redis.version, "settings": redis.settings}
            ports[REDIS] = redis
        for port in ports.values():
            await asyncio.to_thread(port.load, options.records)
        for pipeline in (1, PIPELINE):
            for operation in OPERATIONS:
                task = f"served {operation}, {'one a call' if pipeline == 1 else f'{pipeline} a pipeline'}"
                progress(task)
                for number in range(options.runs):
                    for name in in_turn([*ports], number):
                        run = await ports[name].benchmark(
                            operation, options.records, options.run_seconds, CONNECTIONS, pipeline
                        )
                        found.add(task, name, run)


async def _over_grpc(server: ServerProcess, options: QuickOptions, progress: Progress, found: Found) -> None:
    async with AsyncClient(server.target, table=TABLE, timeout=60) as client:
        await client.create_table(TABLE, layout="u64", records=options.records)
        await fill(client, all_records(options.records, BATCH))
        for operation in OPERATIONS:
            task = f"served {operation} numbers, gRPC stream"
            progress(task)
            batches = DrawnKeys(options.records, seed=1).batches(operation, BATCH)
            for _ in range(options.runs):
                found.add(task, GPKVS, await stream(client, batches, options.run_seconds, _IN_FLIGHT))
