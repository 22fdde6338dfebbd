"""A real ``gpkvs serve`` process that can be killed, for the drill, the demo and the benchmarks.

`subprocess` starts it with vfork and exec, because there is no `preexec_fn`. So no gRPC thread of this process is ever
forked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from gpkvs.config import SECURITY, ServerConfig, Setting
from gpkvs.credentials import VARIABLES
from gpkvs.errors import GpkvsError
from gpkvs.process import failpoint

# -P: run the gpkvs of this process, and not a folder of that name in the working directory.
GPKVS: tuple[str, ...] = (sys.executable, "-P", "-m", "gpkvs.cli")

_POLL_SECONDS = 0.005

# What the processes of a run must not take from the environment: they know of no users and no TLS but the run's own.
_NOT_INHERITED = VARIABLES | {
    failpoint.VARIABLE,
    *(
        f"GPKVS_{name.upper()}"
        for name, hint in get_type_hints(ServerConfig, include_extras=True).items()
        if any(isinstance(note, Setting) and note.group == SECURITY for note in getattr(hint, "__metadata__", ()))
    ),
}


class ServerProcessError(GpkvsError):
    """The server did not do what was expected. The message says what, and has the end of the server's log."""


@dataclass(frozen=True)
class ServerOptions:
    """How to start the server; sizes as `gpkvs serve` takes them, an empty one is not given; and more options."""

    backend: str = "auto"
    durability: str = "auto"
    index: str = "1MiB"
    heap: str = "64MiB"
    heap_max: str = ""
    log: str = "4MiB"
    commit: str = "undo"
    journal: str = "1MiB"  # so small that checkpoints come often
    more: tuple[str, ...] = ()  # other options, such as those of TLS and users

    def arguments(self) -> list[str]:
        """Return them as command-line options."""
        given = {
            "backend": self.backend,
            "durability": self.durability,
            "index-bytes": self.index,
            "heap-bytes": self.heap,
            "heap-bytes-max": self.heap_max,
            "log-bytes": self.log,
            "commit": self.commit,
            "journal-bytes": self.journal,
        }
        return [*(f"--{name}={value}" for name, value in given.items() if value), *self.more]


class ServerProcess:
    """One process of a server.

    Parameters
    ----------
    data
        The store's directory.
    options
        Backend and sizes.
    listen
        The gRPC address; port 0 picks a free one.
    armed
        A failpoint to arm, ``name:n``; "" for none.
    program
        The command to start; a benchmark measures variants of it.

    Attributes
    ----------
    target : str
        The gRPC address once `ready` has returned.
    resp : list of str
        The address of the Redis protocol, if the server speaks it.
    ready_seconds : float
        What `ready` returned.
    log : Path
        The file with the standard output and error of all servers of the store; it lies beside the store.
    """

    def __init__(
        self,
        data: Path,
        options: ServerOptions,
        *,
        listen: str = "127.0.0.1:0",
        armed: str = "",
        program: tuple[str, ...] = GPKVS,
    ) -> None:
        self.log = data.with_name(data.name + ".server.log")
        self.target = ""
        self.ready_seconds = 0.0
        self.metrics = ""
        self.resp: list[str] = []
        self._ready_file = ready_file_of(data)
        self._ready_file.unlink(missing_ok=True)
        environment = environment_of_run()
        if armed:
            environment[failpoint.VARIABLE] = armed
        command = [*program, "serve", f"--data={data}", f"--listen={listen}", "--metrics=127.0.0.1:0"]
        command += [f"--ready-file={self._ready_file}", *options.arguments()]
        self.started = time.monotonic()
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(command)} {armed}\n".encode())
            log.flush()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended the process, sent by `kill` or at a failpoint."""
        return self._process.poll() == -signal.SIGKILL

    async def ready(self, seconds_max: float = 60.0) -> float:
        """Wait until the server serves; return the seconds since it was started.

        Raises
        ------
        ServerProcessError
            If it ends, or takes longer than `seconds_max`.
        """
        while not self._ready_file.exists():
            if not self.alive:
                raise self.error("the server ended before it served")
            if time.monotonic() > self.started + seconds_max:
                raise self.error(f"the server does not serve after {seconds_max:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        self.target, self.metrics, *self.resp = self._ready_file.read_text().split()
        self.ready_seconds = time.monotonic() - self.started
        return self.ready_seconds

    async def dead(self, seconds_max: float) -> bool:
        """Wait until the process has ended; return whether it did within `seconds_max`."""
        try:
            await asyncio.to_thread(self._process.wait, seconds_max)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL: the process gets no chance to clean up."""
        self._process.kill()
        self._process.wait()

    async def stop(self, seconds_max: float = 60.0) -> None:
        """Send SIGTERM, as an operator does, and wait until the server has stopped.

        Raises
        ------
        ServerProcessError
            If it does not exit with 0.
        """
        self._process.terminate()
        if not await self.dead(seconds_max):
            self.kill()
            raise self.error(f"the server did not stop within {seconds_max:.0f} s of SIGTERM")
        if self._process.returncode != 0:
            raise self.error("the server did not exit with 0 after SIGTERM")

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self.alive:
            self.kill()

    def error(self, message: str) -> ServerProcessError:
        """Return an error that ends with the last lines of the server's log."""
        tail = "\n    ".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return ServerProcessError(f"{message} (exit status {self._process.poll()}); end of {self.log}:\n    {tail}")


def ready_file_of(data: Path) -> Path:
    """Return the file in which the last server of a store says its addresses: of gRPC, of its metrics, of RESP."""
    return data.with_name(data.name + ".ready")


def environment_of_run() -> dict[str, str]:
    """Return the environment for a server or a client of a run: that of this process, without its users and TLS."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}


def run_gpkvs(*arguments: str, seconds_max: float = 120.0) -> tuple[int, str]:
    """Run one gpkvs command to its end; return its exit status and its output.

    Raises
    ------
    subprocess.TimeoutExpired
        If it takes longer than `seconds_max`; it is then killed.
    """
    done = subprocess.run(
        [*GPKVS, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds_max,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")
