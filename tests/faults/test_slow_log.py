"""A disk whose writes and flushes take 50 ms each: the slow log says of a call that it waited for the disk."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from gpkvs.proto.v1 import admin_pb2
from gpkvs.server.slow_log import PHASES
from tests.faults.test_slow_disk import SLOW_MS, slow
from tests.server.wire import SET, batch
from tests.serving import StartServer


@pytest.mark.parametrize("commit", ["journal", "undo"])
def test_a_slow_commit_is_durable_time(tmp_path: Path, shim: Path, start_server: StartServer, commit: str) -> None:
    environment = {"LD_PRELOAD": str(shim), **slow(tmp_path / "store")}
    options = ("--commit", commit, "--durability", "msync", "--slow-log-over-ms", str(SLOW_MS))
    server = start_server(*options, env=environment)
    server.kv.Batch(batch([(SET, b"before", b"value")]))
    server.admin.SlowLog(admin_pb2.SlowLogRequest(clear=True))
    took_ms = {}

    def write(name: str) -> None:
        began = time.monotonic()
        server.kv.Batch(
            batch([(SET, b"%d" % at, b"value") for at in range(1000)]), metadata=[("gpkvs-request-id", name)]
        )
        took_ms[name] = 1e3 * (time.monotonic() - began)

    # The second one finds the first one on its way to the disk, and waits for it.
    writers = [threading.Thread(target=write, args=(name,)) for name in ("one", "other")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = {call.request_id: call for call in server.admin.SlowLog(admin_pb2.SlowLogRequest()).calls}
    for name, took in took_ms.items():
        call = found[name]
        parts = {phase: getattr(call, f"{phase}_ms") for phase in PHASES}
        assert parts["durable"] >= SLOW_MS, parts
        assert sum(parts.values()) <= took, parts
        assert (call.command, call.operations, call.bytes_in) == ("Batch", 1000, 2890 + 5000)
    server.stop()
