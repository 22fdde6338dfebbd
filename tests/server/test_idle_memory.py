"""What an idle server takes for itself: memory that belongs to no file, beside its store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.serving import StartServer

pytestmark = pytest.mark.own_python

OWN_BYTES_MAX = 36 << 20
SETTLED_SECONDS = 2.0


def own_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize("options", [(), ("--resp", "127.0.0.1:0")], ids=["gRPC", "Redis, too"])
def test_an_idle_server_takes_little_for_itself(start_server: StartServer, options: tuple[str, ...]) -> None:
    """`RssAnon` of a server of an empty store with an undo log, which lies in its file; a journal's index does not.

    It is 34.9 MiB with Python 3.11. The room above is for other versions of the
    libraries. The first server writes the bytecode of modules that are new: to compile them takes memory, which stays.
    """
    given = ("--commit", "undo", *options)
    start_server(*given, env={"PYTHONDONTWRITEBYTECODE": ""}).stop()
    server = start_server(*given)
    time.sleep(SETTLED_SECONDS)
    assert own_bytes(server.process.pid) < OWN_BYTES_MAX
    libraries = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "numpy" in libraries
    assert "cygrpc" not in libraries  # of grpcio
    assert "pydantic" not in libraries
