"""Programs that begin in a fork of a process which has loaded gpkvs, where a Python of their own would load it first.

That takes longer than most of what tests do with such a program. A forked one is a process like any other: it has its
own streams, environment and folder, it can be killed, and it ends as Python ends. Some variables are read while modules
are loaded; who sets one of them gets a Python of its own. So do servers of tests about the start or about memory, by
the mark `own_python`: a forked one has loaded already what another one loads when it first needs it.

A forked program that ends in order ends behind all that is registered for its end: what Python does then, frees all
modules, takes longer than many a program. One that an exception ends, and each Python of its own, ends as ever.

The process that forks has no threads, and has called nothing of gRPC.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).parents[1]
# Libraries read these when they are loaded, and Python when it starts.
AT_START = ("GPKVS_KERNELS", "GPKVS_DOOR_LIBRARY", "GPKVS_TRACE", "GRPC_", "LD_", "PYTHON", "ASAN_", "MALLOC_")

Word = str | bytes | Path
_REPORT_BYTES = 12  # of a process' number, and of its end


class Process:
    """A forked program, with what tests use of `subprocess.Popen`."""

    def __init__(self, reports: int) -> None:
        self._reports = reports
        self.returncode: int | None = None
        self.pid = int(self._report())

    def _report(self) -> bytes:
        report = os.read(self._reports, _REPORT_BYTES)
        assert report, "the process that forks has ended"
        return report

    def poll(self) -> int | None:
        """Return how it ended, or None if it has not."""
        return self._ended_within(0)

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            reports = select.poll()  # a test may have more files than `select` can name
            reports.register(self._reports, select.POLLIN)
            if reports.poll(None if seconds is None else seconds * 1000):
                self.returncode = int(self._report())
                os.close(self._reports)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends; return how."""
        status = self._ended_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the report is on its way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[Word],
    env: Mapping[str, str],
    stdin: IO[bytes],
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> Process | subprocess.Popen[bytes]:
    """Start ``python ARGUMENTS``, which are ``-m MODULE ...``, ``-c CODE ...`` or ``SCRIPT ...``."""
    words = [os.fsdecode(argument) for argument in arguments]
    if _of_start(env) != _of_start(os.environ):
        return start_python(words, env, stdin, stdout, stderr)
    reports, end = os.pipe()
    with tempfile.TemporaryFile() as job:
        job.write(json.dumps([words, dict(env), str(Path.cwd())]).encode())
        job.seek(0)
        socket.send_fds(_forker(), [b"job"], [job.fileno(), end, *(file.fileno() for file in (stdin, stdout, stderr))])
    os.close(end)
    return Process(reports)


def start_python(
    arguments: Sequence[Word], env: Mapping[str, str], stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start the same in a Python of its own."""
    return subprocess.Popen([sys.executable, *arguments], env=env, stdin=stdin, stdout=stdout, stderr=stderr)


def run(
    arguments: Sequence[Word],
    *,
    env: Mapping[str, str] = os.environ,
    stdin: bytes = b"",
    timeout: float = 60,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, as `subprocess.run` does with captured output."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        process = start(arguments, env, given, output, errors)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(arguments), status, output.read(), errors.read())


def _of_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if name.startswith(AT_START)}


@cache
def _forker() -> socket.socket:
    """Return the end of a socket where a process takes jobs; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", "tests.warm", str(its.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _load() -> None:
    from gpkvs.cli.lazy_commands import load  # noqa: PLC0415 - the tests themselves do not need all of this
    from gpkvs.cli.main import Gpkvs, app  # noqa: PLC0415
    from gpkvs.cli.serving import served  # noqa: F401, PLC0415
    from gpkvs.server.calls import grpc_services  # noqa: F401, PLC0415

    for name, (place, _) in Gpkvs.subcommands.items():
        load(name, place)
    with redirect_stdout(StringIO()):  # typer loads pydantic when it first reads an option: half of a server's start
        app(["config", "show"], standalone_mode=False)
    gc.freeze()


def _next_job() -> tuple[int, int, list[int]]:
    """Fork for each job; return in the child that is to do it, with its description and its streams."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    _load()
    while True:
        message, files, _, _ = socket.recv_fds(asked, 10, 5)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not message:
            sys.exit()
        if not os.fork():
            job, reports, *streams = files
            asked.detach()
            child = os.fork()
            if not child:
                return job, reports, streams
            os.write(reports, str(child).rjust(_REPORT_BYTES).encode())
            for file in (*streams, job):
                os.close(file)
            _, status = os.waitpid(child, 0)
            os.write(reports, str(os.waitstatus_to_exitcode(status)).rjust(_REPORT_BYTES).encode())
            os._exit(0)
        for file in files:
            os.close(file)


def _go_on(_python: str, _arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Go on in this process where `gpkvs serve` would execute itself again, in a Python that has loaded nothing."""
    from gpkvs.cli.__main__ import main as run_gpkvs  # noqa: PLC0415

    os.environ.clear()
    os.environ.update(environment)
    run_gpkvs()
    raise AssertionError("gpkvs ends the process")


class _End:
    """How a program ends, once that is known."""

    status: int | None = None

    def at_once(self) -> None:
        """End the process, when threads have ended and all else is done that is registered for its end."""
        if self.status is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return  # Python says what happens then
        os._exit(self.status)


def main() -> None:
    """Take jobs; in the fork that does one, be that program."""
    end = _End()
    atexit.register(end.at_once)  # first, to be called last
    job, _, streams = _next_job()
    with open(job, closefd=False) as description:
        (first, *rest), environment, folder = json.load(description)
    for number, file in enumerate(streams):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - as Python begins
    from gpkvs.process import failpoint  # noqa: PLC0415

    failpoint.arm(os.environ.get(failpoint.VARIABLE, ""))
    os.execve = _go_on
    try:
        _be(first, rest)
    except SystemExit as exit_:
        if not isinstance(exit_.code, int | None):
            raise
        end.status = (exit_.code or 0) & 0xFF
    else:
        end.status = 0


def _be(first: str, rest: list[str]) -> None:
    """Run a program."""
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *rest]
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
