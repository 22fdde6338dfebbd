"""A program in a fork is a process like any other (`tests.warm`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

WRONG = "\udcff"  # a byte that is no text
ENDS = {
    "print('said')": 0,
    "import sys; print('said', flush=True); sys.exit(3)": 3,
    "import sys; print('said'); sys.exit('an error')": 1,
    "print('said'); 1 / 0": 1,
    "import os; print('said', flush=True); os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "import atexit; atexit.register(print, 'said')": 0,
    "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('said'))).start()": 0,
}


@pytest.mark.parametrize(("program", "status"), ENDS.items())
def test_it_ends_as_with_a_python_of_its_own(program: str, status: int) -> None:
    own = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    done = warm.run(["-c", program])
    assert (done.returncode, done.stdout) == (own.returncode, own.stdout) == (status, b"said\n")
    assert done.stderr.splitlines()[-1:] == own.stderr.splitlines()[-1:]


def test_it_has_its_own_streams_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = "import os, sys; print(sys.argv, sorted(os.environ), os.getcwd(), sys.stdin.read(), file=sys.stderr)"
    start = {name: text for name, text in os.environ.items() if name.startswith(warm.AT_START)}
    done = warm.run(["-c", program, "word", os.fsencode(WRONG)], env={**start, "OURS": "1"}, stdin="ü".encode())
    assert done.stdout == b""
    assert done.stderr.decode() == f"{['-c', 'word', WRONG]} {sorted([*start, 'OURS'])} {tmp_path} ü\n"


def test_scripts_and_modules_run(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'imported'\n")
    (tmp_path / "script.py").write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.WORD)\n")
    assert warm.run([tmp_path / "script.py", "word"]).stdout == b"__main__ ['word'] imported\n"
    assert warm.run(["-m", "gpkvs.cli", "--version"]).stdout.startswith(b"gpkvs ")


def test_two_are_not_the_same_at_random() -> None:
    program = "import random; print(random.random())"
    assert warm.run(["-c", program]).stdout != warm.run(["-c", program]).stdout


def test_nothing_of_the_process_that_forks_is_open() -> None:
    program = "import os; print(sorted(int(file) for file in os.listdir('/proc/self/fd'))[:4])"
    assert warm.run(["-c", program]).stdout == b"[0, 1, 2, 3]\n"  # the last is the folder that is listed


def test_several_run_at_once_and_can_be_told_to_end() -> None:
    with Path(os.devnull).open("r+b") as null:
        started = [warm.start(["-c", "import time; time.sleep(60)"], os.environ, null, null, null) for _ in range(3)]
        assert len({process.pid for process in started}) == 3
        assert [process.poll() for process in started] == [None] * 3
        with pytest.raises(subprocess.TimeoutExpired):
            started[0].wait(0.01)
        started[2].kill()
        assert started[2].wait(60) == -signal.SIGKILL
        started[0].terminate()
        assert started[0].wait(60) == -signal.SIGTERM
        started[1].send_signal(signal.SIGKILL)
        assert [process.wait(60) for process in started] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGKILL]
        started[0].kill()  # which does nothing


def test_what_is_read_at_the_start_gets_a_python_of_its_own() -> None:
    done = warm.run(["-c", "import sys; print(sys.flags.optimize)"], env={**os.environ, "PYTHONOPTIMIZE": "1"})
    assert done.stdout == b"1\n"


def test_a_failpoint_is_armed() -> None:
    program = "from gpkvs.process import failpoint; failpoint.hit('before_route'); print('not reached')"
    done = warm.run(["-c", program], env={**os.environ, "GPKVS_FAILPOINT": "before_route"})
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
