"""redis-server, as Debian packages it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from gpkvs.bench.peers.contender import BenchError, Promise
from gpkvs.bench.peers.ports import free_port
from gpkvs.bench.peers.resp_port import RespPort, output_of

NAME = "redis"
_START_SECONDS_MAX = 30.0


class Redis(RespPort):
    """A redis-server of its own, with the append-only file on.

    It runs with ``appendfsync no`` for the promise ``process`` (redis writes the file before it responds, and the file
    survives the process), with ``always`` for ``msync``. Snapshots and rewriting of the file are off: they would only
    cost it time.

    Parameters
    ----------
    directory
        The directory of its file.
    promise
        What an acknowledged write survives.
    io_threads
        In how many it reads and writes.

    Raises
    ------
    BenchError
        If it does not start.
    """

    def __init__(self, directory: Path, promise: Promise, io_threads: int = 1) -> None:
        super().__init__(free_port())
        directory.mkdir(exist_ok=True)
        self.version = output_of("redis-server", "--version").split("v=")[1].split()[0]
        fsync = {"process": "no", "msync": "always"}[promise]
        self.settings = f"appendonly yes, appendfsync {fsync}, save off"
        if io_threads > 1:
            self.settings += f", io-threads {io_threads}, also for reading"
        self.log = directory / "redis.log"
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": fsync,
            "save": "",
            "auto-aof-rewrite-percentage": "0",
            "daemonize": "no",
            "logfile": str(self.log),
            "io-threads": str(io_threads),
            "io-threads-do-reads": "yes" if io_threads > 1 else "no",
        }
        command = ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _wait_ready(self) -> None:
        give_up = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                with self.connect() as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(7) == b"+PONG\r\n":
                        return
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > give_up:
                text = self.log.read_text() if self.log.exists() else "it wrote no log"
                raise BenchError(f"redis-server does not start: {text}")
            time.sleep(0.02)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
