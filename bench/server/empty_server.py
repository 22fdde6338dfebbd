"""A gRPC server in Python that responds to `Get` and `Set` and does nothing else: any server pays that for a call.

It has the event loop and the library of `gpkvs serve`, so the difference between the two is the cost of gpkvs. `gpkvs
bench server` starts it as a process of its own; it prints its port.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import uvloop

from gpkvs.bench.server.measured_server import python_program
from gpkvs.proto.v1 import kv_pb2, kv_pb2_grpc

NAME = "empty gRPC"


@contextmanager
def empty_server(library: str = "grpc.aio") -> Iterator[tuple[str, int]]:
    """Start an empty server on a library with the interface of grpc.aio; yield its address and process id."""
    with subprocess.Popen(python_program(__name__, library), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.kill()


class _Nothing(kv_pb2_grpc.KVServicer):  # type: ignore[misc] # grpc has no types
    async def Get(self, _request: kv_pb2.GetRequest, _context: object) -> kv_pb2.GetResponse:  # noqa: N802
        return kv_pb2.GetResponse(found=True, value=bytes(8))

    async def Set(self, _request: kv_pb2.SetRequest, _context: object) -> kv_pb2.SetResponse:  # noqa: N802
        return kv_pb2.SetResponse()


async def _serve(library: str) -> None:
    server = import_module(library).server()
    kv_pb2_grpc.add_KVServicer_to_server(_Nothing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1]))
