"""Servers that answer every call with the same message and do nothing else: what a library alone takes for a call."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from gpkvs.bench.door.bodies import ANSWERS
from gpkvs.bench.peers.compiled import compile_program
from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.server.empty_server import empty_server

NGHTTP2, GRPCPP, GRPC_AIO, PYGRPC = "empty nghttp2", "empty grpc++", "empty grpc.aio", "empty pygrpc"

Start = Callable[[str], AbstractContextManager[tuple[str, str]]]
"""Start a server for SET or GET; the context has its URL and the version of its library."""

_HERE = Path(__file__).parent
_SOURCES = {
    NGHTTP2: ("empty_nghttp2.cpp", ("-lnghttp2",), "libnghttp2-dev"),
    GRPCPP: ("empty_grpcpp.cpp", ("-Wl,--copy-dt-needed-entries", "-lgrpc++", "-lgrpc"), "libgrpc++-dev"),
}


def build_empty_servers(folder: Path, missing: Callable[[str], None]) -> dict[str, Start]:
    """Compile the servers in C++, and return all by name; `missing` is told what cannot be built, and why."""
    found: dict[str, Start] = {}
    for name, (source, libraries, package) in _SOURCES.items():
        try:
            found[name] = partial(_program, compile_program(_HERE / source, folder, libraries, package))
        except BenchError as error:
            missing(f"{name}: {error}")
    found[GRPC_AIO] = partial(_in_python, "grpc.aio", "grpcio")
    if find_spec("pygrpc_native"):
        found[PYGRPC] = partial(_in_python, "pygrpc_native.aio", "pygrpc-native")
    else:
        missing(f"{PYGRPC}: pip install pygrpc-native")
    return found


@contextmanager
def _program(program: Path, operation: str) -> Iterator[tuple[str, str]]:
    with subprocess.Popen([program, ANSWERS[operation].hex()], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port, library = process.stdout.readline().split()
            yield f"http://127.0.0.1:{port}", library
        finally:
            process.kill()


@contextmanager
def _in_python(library: str, package: str, _operation: str) -> Iterator[tuple[str, str]]:
    with empty_server(library) as (target, _):
        yield f"http://{target}", version(package)
