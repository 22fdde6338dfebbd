"""A process with secrets leaves no core and lets nobody look into it, and still sees what it must see of itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

# As a user that is not root, whose own files in /proc then belong to root.
PROGRAM = """
import ctypes, os, resource
import grpc
from prometheus_client import generate_latest
from gpkvs.engine.tables.table_quota import _require_open_files
from gpkvs.process.machine import anonymous_bytes, free_bytes, machine_bytes
from gpkvs.process.private_memory import keep_memory_private
from gpkvs.process.process_io import process_io
from gpkvs.server.signs.exporter import Metrics

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
prctl = ctypes.CDLL(None).prctl
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as after an exec
def seen():
    names = {line.split()[0] for line in generate_latest(Metrics().registry).decode().splitlines() if line[0] != "#"}
    return sorted(name for name in names if "process" in name)
before = seen()
assert "process_open_fds" in before and "gpkvs_process_written_bytes_total" in before, before
keep_memory_private()
assert prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0
assert os.stat("/proc/self/io").st_uid == 0
assert seen() == before, (seen(), before)
first = process_io()
assert first is not None and process_io() >= first
_require_open_files()
assert min(anonymous_bytes(), free_bytes(), machine_bytes()) > 0
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
os.abort()
"""


def test_a_private_process_sees_itself_and_leaves_no_core() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE)
    assert process.stderr
    with process.stderr:
        assert process.stderr.read() == b""
    _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == -signal.SIGABRT
    assert not os.WCOREDUMP(status)
