"""What `Store.info` says of a store with a journal: nothing that a crash could take back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gpkvs

# Frames go to the file half a second late.
KILLED = """
import ctypes, json, os, signal, sys
import gpkvs
from gpkvs.batch import Batch, Op
store = gpkvs.open(sys.argv[1], commit="journal", index_bytes=1 << 16, heap_bytes=1 << 20)
store.set(b"before", b"value")
shim = ctypes.CDLL(None)
shim.shim_path(sys.argv[1].encode() + b"/data")
shim.shim_arm(b"pwrite:1:late:forever")
store.begin_requests(Batch.of([(Op.SET, b"key", b"value")]))
info = store.info()
print(json.dumps([info.tables[0].records, info.heap_live_bytes, info.next_version]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_after_info_takes_nothing_back_that_it_counted(shim: Path, store_path: Path) -> None:
    command, environment = [sys.executable, "-c", KILLED, str(store_path)], {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    said = json.loads(done.stdout)
    assert (said[0], said[2]) == (2, 3)
    with gpkvs.open(store_path, create=False) as store:
        info = store.info()
        assert [info.tables[0].records, info.heap_live_bytes, info.next_version] == said
