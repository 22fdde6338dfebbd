"""Commands that take long are told to end: their directories and processes go with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import gpkvs
from gpkvs.cli.terminal.cleanup import scratch_directory
from gpkvs.errors import GpkvsError
from tests.serving import COMMAND

SECONDS_MAX = 60.0
# Its directory is in memory wherever that can be had, so the place is told in another way.
BITFLIP = """
import sys, gpkvs.recovery.proof.damage.bitflip as bitflip
from pathlib import Path
from gpkvs.cli.__main__ import main
bitflip._MEMORY = Path(sys.argv.pop())
main()
"""
# Told to end in the middle of a transaction: of Python's, or of native code.
IN_A_TRANSACTION = """
import os, signal, sys, time, gpkvs
from gpkvs.batch import Batch, Op
from gpkvs.cli.terminal.cleanup import ended_by_signals
from gpkvs.engine.seam.native_commit import NativeCommit
from gpkvs.engine.host.own_batch import OwnBatch
from gpkvs.engine.host.own_turn import OwnTurn
commit, answer, result = NativeCommit.run, OwnTurn._answer, OwnBatch.result
def told(*given, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    return commit(*given, **named)
def told_natively(*given, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    return answer(*given, **named)
def told_of_columns(*given, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    return result(*given, **named)
with ended_by_signals():
    store = gpkvs.open(sys.argv[1], index_bytes=1 << 20, heap_bytes=1 << 20, log_bytes=1 << 20)
    if sys.argv[2] == "scan":  # removes an expired key
        store.set(b"key", b"value")
        store.set(b"expired", b"value", ttl=0.01)
        time.sleep(0.02)
    NativeCommit.run = told
    try:
        if sys.argv[2] == "scan":
            OwnBatch.result = told_of_columns
            list(store.scan())
        elif sys.argv[2] == "columns":
            OwnBatch.result = told_of_columns
            store.execute(Batch.of([(Op.SET, b"key", b"value")]))
        elif sys.argv[2] == "batch":  # as on a GPU
            store._backend.host_ops_max = 0
            store._turn_over()
            store._engine.execute(Batch.of([(Op.SET, b"key", b"value")]))
        else:
            OwnTurn._answer = told_natively
            store.set(b"key", b"value")
        time.sleep(60)
    finally:
        print("cleaned up")
"""

# Told to end while it has the lock of a child's status, without which nobody can wait for the child.
IN_A_POLL = """
import os, signal, subprocess, sys, time
from gpkvs.cli.terminal.cleanup import ended_by_signals

class Lock:
    def __init__(self, lock):
        self.lock = lock
        self.tells = True
    def acquire(self, *arguments):
        taken = self.lock.acquire(*arguments)
        if self.tells:  # once: who is told again while it cleans up ends at once
            self.tells = False
            os.kill(os.getpid(), signal.SIGTERM)
        return taken
    def release(self):
        self.lock.release()
    def __enter__(self):
        self.lock.acquire()
    def __exit__(self, *error):
        self.lock.release()

with ended_by_signals():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child._waitpid_lock = Lock(child._waitpid_lock)
    try:
        child.poll()
        time.sleep(60)
    finally:
        child.kill()
        child.wait()
        print("cleaned up")
"""

# Told to end in the middle of the removal of its directory: one of the standard library's, or of our own.
IN_A_REMOVAL = """
import os, signal, sys, tempfile, time
from pathlib import Path
from gpkvs.cli.terminal.cleanup import ended_by_signals, scratch_directory

remove = os.rmdir
def told(*given, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    return remove(*given, **named)

with ended_by_signals():
    of_our_own = scratch_directory(None, "gpkvs-", Path(sys.argv[1]))
    with of_our_own if sys.argv[2] == "own" else tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory:
        Path(directory, "file").touch()
        os.rmdir = told
    time.sleep(60)
"""

# Told to end in a finalizer, which lets no exception out.
IN_A_FINALIZER = """
import os, signal, sys, time
from gpkvs.cli.terminal.cleanup import ended_by_signals

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass

with ended_by_signals():
    try:
        Dropped()
        time.sleep(60)
    finally:
        print("cleaned up")
"""


# Told to end, and then cleaning up fails.
IN_VAIN = """
import os, signal, time
from gpkvs.cli.terminal.cleanup import ended_by_signals
with ended_by_signals():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)
        raise OSError("the child is gone")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return an empty directory in memory, where commands put their own."""
    with tempfile.TemporaryDirectory(prefix="gpkvs-test-", dir="/dev/shm") as directory:
        yield Path(directory)


def wait_until(is_true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that these have."""
    found: set[int] = set()
    with suppress(OSError):  # a process or a thread that has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | descendants(child)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def holds_files(folder: Path) -> bool:
    """Whether some directory in a folder holds anything; a benchmark removes them between two of its parts."""
    with suppress(FileNotFoundError):
        return any(folder.glob("*/*"))
    return False


@pytest.mark.parametrize(
    ("arguments", "children"),
    [
        (["bench", "engine", "--peer=none", "--records=5000000", "--directory"], 0),
        (["bench", "server", "--no-redis", "--part=throughput", "--directory"], 1),
        (["drill", "--rounds=1000"], 1),
        (["consistency", "--operations=10000000"], 1),
        (["bitflip"], 1),
        (["soak"], 1),
        (["demo", "--seconds=1000"], 2),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left(folder: Path, tmp_path: Path, arguments: list[str], children: int, number: int) -> None:
    command = [*COMMAND, *arguments]
    if arguments[-1] == "--directory":
        command.append(str(folder))
    if arguments[0] == "bitflip":
        command = [sys.executable, "-c", BITFLIP, *arguments, str(folder)]
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONFAULTHANDLER": "1"}
    said = (tmp_path / "stderr").open("w+")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment)
    try:
        wait_until(lambda: holds_files(folder) and len(descendants(process.pid)) >= children, process)
        started = descendants(process.pid)
        process.send_signal(number)
        try:
            assert process.wait(SECONDS_MAX) == 128 + number
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says what its threads do
            process.wait(SECONDS_MAX)
            pytest.fail(Path(said.name).read_text())
    finally:
        said.close()
        if process.poll() is None:  # the test failed: nothing may go on after it
            for pid in (*descendants(process.pid), process.pid):
                os.kill(pid, signal.SIGKILL)
    assert list(folder.iterdir()) == []
    assert not any(map(is_running, started))


@pytest.mark.parametrize(
    ("error", "file", "kept"),
    [
        (None, "store", False),
        (SystemExit(143), "store", False),
        (GpkvsError("lost"), "store", True),
        (GpkvsError("wrong options"), "", False),
    ],
)
def test_a_directory_is_kept_only_if_it_tells_something(
    folder: Path, error: BaseException | None, file: str, kept: bool
) -> None:
    with suppress(GpkvsError, SystemExit), scratch_directory(None, "x", folder) as directory:
        if file:
            (directory / file).touch()
        if error:
            raise error
    assert bool(list(folder.iterdir())) is kept


def test_a_directory_of_the_user_is_kept(folder: Path) -> None:
    with suppress(SystemExit), scratch_directory(folder / "mine", "x") as directory:
        raise SystemExit
    assert directory == folder / "mine"
    assert directory.is_dir()


@pytest.mark.parametrize("what", ["batch", "columns", "set", "scan"])
def test_a_transaction_is_not_interrupted(store_path: Path, what: str) -> None:
    command = [sys.executable, "-c", IN_A_TRANSACTION, str(store_path), what]
    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr.decode()
    assert done.stdout == b"cleaned up\n"
    with gpkvs.open(store_path) as store:
        assert store.get(b"key") == b"value"


@pytest.mark.parametrize("program", [IN_A_POLL, IN_A_FINALIZER, IN_VAIN], ids=["poll", "finalizer", "vain"])
def test_it_ends_wherever_it_is_told(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr.decode()
    assert done.stdout == b"cleaned up\n"


@pytest.mark.parametrize("whose", ["own", "standard"])
def test_a_removal_is_not_interrupted(folder: Path, whose: str) -> None:
    command = [sys.executable, "-c", IN_A_REMOVAL, str(folder), whose]
    done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS_MAX)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr.decode()
    assert list(folder.iterdir()) == []
