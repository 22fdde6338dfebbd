"""A server under floods, beside a client that does as it should: how long its calls take, and what the server holds.

The server has a processor of its own, where there are two. The client and whoever floods share the others, and the
client comes first there.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np

from gpkvs.bench.door.crowd import LARGE_KEY
from gpkvs.bench.door.floods import Flood
from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import Run
from gpkvs.bench.server.measured_server import python_program, serve
from gpkvs.credentials import Access, TlsCredentials
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc
from gpkvs.recovery.proof.servers.run_access import RunAccess
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess
from gpkvs.server.signs.metrics_reader import Scrape

MIB = 1 << 20
_FEW_BYTES, _MANY_BYTES = 256 * MIB, 4096 * MIB
_FEW_CONNECTIONS = 100  # more are let in only where there is more memory
_LARGE_VALUE_BYTES = 500_000
_KEY, _VALUE = b"key", b"value"
_PEAK = "5"  # what the kernel calls it
_EMPTY_BYTES, _EMPTY_SECONDS_MAX = MIB // 4, 30.0


@dataclass
class Besieged:
    """A server that is flooded.

    Parameters
    ----------
    server
        Its process.
    memory_bytes
        What its clients may make it hold.
    access
        What its metrics want to see.
    channel, metadata
        Of the client that does as it should.

    Attributes
    ----------
    held_bytes
        How much more than before it held in each round, at most.
    flooding
        How much of a processor the flood took.
    refused
        Calls of the client that were not answered: there should be none.
    """

    server: ServerProcess
    memory_bytes: int
    access: Access
    channel: grpc.Channel
    metadata: tuple[tuple[str, str], ...] = ()
    held_bytes: list[int] = field(default_factory=list)
    flooding: list[float] = field(default_factory=list)
    refused: int = 0

    async def calls(self, seconds: float) -> Run:
        """Make GETs and SETs one at a time."""
        return await asyncio.to_thread(self._calls, seconds)

    def _calls(self, seconds: float) -> Run:
        kv, took = kv_pb2_grpc.KVStub(self.channel), list[float]()
        began = time.perf_counter()
        while not took or took[-1] < began + seconds:
            try:
                if len(took) % 2:
                    kv.Get(kv_pb2.GetRequest(key=_KEY), metadata=self.metadata)
                else:
                    kv.Set(kv_pb2.SetRequest(key=_KEY, value=_VALUE), metadata=self.metadata)
            except grpc.RpcError:
                self.refused += 1
            took.append(time.perf_counter())
        milliseconds = np.diff([began, *took]) * 1e3
        p50, p99 = np.percentile(milliseconds, (50, 99))
        return Run(len(took), took[-1] - began, {"p50": float(p50), "p99": float(p99)})

    async def flooded_calls(self, name: str, seconds: float) -> Run:
        """Make the same calls beside a flood; afterwards the server must hold nothing for it.

        Raises
        ------
        BenchError
            If the server still counts memory for it.
        """
        before, counted = _forget_peak(self.server.pid), self._counted_bytes()
        flood = await asyncio.create_subprocess_exec(
            *python_program("gpkvs.bench.door.floods", name, self.server.target),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert flood.stdout
        try:
            await flood.stdout.readline()  # it begins
            await self.calls(seconds / 4)
            run = await self.calls(seconds)
            done = json.loads((await flood.communicate(b""))[0])
        finally:
            if flood.returncode is None:
                flood.kill()
                await flood.wait()
        self.flooding.append(done["processor"])
        self.held_bytes.append(_status_bytes(self.server.pid, "VmHWM") - before)
        give_up = time.monotonic() + _EMPTY_SECONDS_MAX
        while self._counted_bytes() > counted + _EMPTY_BYTES:
            if time.monotonic() > give_up:
                raise BenchError(f"after the flood {name!r} the server still counts memory for it")
            await asyncio.sleep(0.1)
        return run

    def _counted_bytes(self) -> float:
        return sum(Scrape(self.server.metrics, self.access).by("gpkvs_memory_bytes", "kind").values())


@asynccontextmanager
async def besiege(folder: Path, flood: Flood, options: ServerOptions, access: RunAccess) -> AsyncIterator[Besieged]:
    """Serve what a flood is for: with TLS or users, and with room for its connections."""
    memory_bytes = _MANY_BYTES if flood.connections > _FEW_CONNECTIONS else _FEW_BYTES
    more = [*options.more, f"--memory-max={memory_bytes}"]
    more += access.tls_options if flood.is_tls else ()
    more += [access.users_option] if flood.has_users else ()
    credentials = TlsCredentials(ca=access.cert) if flood.is_tls else None
    shown = Access(credentials, access.token if flood.has_users else None, insecure_secrets=True)
    metadata = (("authorization", f"Bearer {access.token}"),) if flood.has_users else ()
    async with serve(folder, replace(options, more=tuple(more))) as server:
        secure = grpc.ssl_channel_credentials(access.cert.read_bytes()) if flood.is_tls else None
        with (
            _apart(server.pid),
            grpc.secure_channel(server.target, secure) if secure else grpc.insecure_channel(server.target) as channel,
        ):
            large = kv_pb2.SetRequest(key=LARGE_KEY, value=bytes(_LARGE_VALUE_BYTES))
            kv_pb2_grpc.KVStub(channel).Set(large, metadata=metadata)
            yield Besieged(server, memory_bytes, shown, channel, metadata)


@contextmanager
def _apart(pid: int) -> Iterator[None]:
    """Give a process the first of this process's processors, and this one the others."""
    mine = os.sched_getaffinity(0)
    first = {min(mine)}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), first)
    os.sched_setaffinity(0, mine - first or mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def _forget_peak(pid: int) -> int:
    """Begin to look at the peak of a process's memory anew; return what it holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text(_PEAK)
    return _status_bytes(pid, "VmRSS")


def _status_bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name))) << 10
