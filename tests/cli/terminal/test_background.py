"""Commands that can wait leave the processors to others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a process of its own: who is not root gets no priority back.
_CHILD = """
import os, sys, threading
import gpkvs.cli.data.{name}_run as run
from gpkvs.cli.main import app

def look(*_, **__):
    nice = lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    thread = threading.Thread(target=nice)
    thread.start()
    thread.join()

found = []
run.{job} = look
os.setpriority(os.PRIO_PROCESS, 0, {before})
app(["{name}", "/nowhere"], standalone_mode=False)
print(found)
"""


@pytest.mark.parametrize(("name", "job"), [("backup", "back_up_server"), ("archive", "archive_server")])
@pytest.mark.parametrize("before", [0, 15])
def test_threads_of_a_copy_have_a_low_priority(name: str, job: str, before: int) -> None:
    before = max(before, os.getpriority(os.PRIO_PROCESS, 0))
    child = _CHILD.format(name=name, job=job, before=before)
    done = subprocess.run([sys.executable, "-P", "-c", child], capture_output=True, text=True, check=True)
    assert done.stdout == f"[{max(before, 10)}]\n"
