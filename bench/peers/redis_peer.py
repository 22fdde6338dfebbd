"""redis-server and redis-benchmark, as Debian packages them."""

from __future__ import annotations

import asyncio
import csv
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpkvs.bench.peers.contender import BenchError, Promise
from gpkvs.bench.report.results import Run

NAME = "redis"
_START_SECONDS_MAX = 30.0
_LOAD_KEYS = 50_000  # in one send
_PERCENTILES = ("p50", "p95", "p99")


class Redis:
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

    Raises
    ------
    BenchError
        If it does not start.
    """

    def __init__(self, directory: Path, promise: Promise) -> None:
        directory.mkdir(exist_ok=True)
        self.version = _output("redis-server", "--version").split("v=")[1].split()[0]
        fsync = {"process": "no", "msync": "always"}[promise]
        self.settings = f"appendonly yes, appendfsync {fsync}, save off"
        self.port = _free_port()
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

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def load(self, records: int) -> None:
        """Store the keys that redis-benchmark will ask for, with values of 8 bytes."""
        head, middle = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:", b"\r\n$8\r\nxxxxxxxx\r\n"
        with self.connect() as connection:
            for start in range(0, records, _LOAD_KEYS):
                numbers = np.arange(start, min(start + _LOAD_KEYS, records))
                commands = np.empty((len(numbers), len(head) + 12 + len(middle)), np.uint8)
                commands[:, : len(head)] = np.frombuffer(head, np.uint8)
                digits = numbers[:, np.newaxis] // 10 ** np.arange(11, -1, -1) % 10
                commands[:, len(head) : len(head) + 12] = digits + ord("0")
                commands[:, len(head) + 12 :] = np.frombuffer(middle, np.uint8)
                _set(connection, commands.tobytes(), len(numbers))

    @staticmethod
    def commands(keys: NDArray[np.uint8], values: NDArray[np.uint8]) -> bytes:
        """Return the SETs of many keys, as bytes to send."""
        count = len(keys)
        parts: list[NDArray[np.uint8]] = []
        for text, column in ((b"*3\r\n$3\r\nSET\r\n$%d\r\n", keys), (b"\r\n$%d\r\n", values)):
            head = np.frombuffer(text % column.shape[1], np.uint8)
            parts += [np.broadcast_to(head, (count, len(head))), column]
        parts.append(np.broadcast_to(np.frombuffer(b"\r\n", np.uint8), (count, 2)))
        return np.concatenate(parts, axis=1).tobytes()

    @contextmanager
    def connected(self) -> Iterator[Callable[[bytes, int], None]]:
        """Connect; what is yielded sends SETs (`commands`) and waits until redis has responded to so many."""
        with self.connect() as connection:
            yield partial(_set, connection)

    async def benchmark(self, operation: str, records: int, seconds: float, connections: int, pipeline: int) -> Run:
        """Run redis-benchmark for about as many seconds."""
        trial = await self._benchmark(operation, records, 1000 * pipeline, connections, pipeline)
        requests = max(int(trial.rate * seconds), 100 * pipeline)
        return await self._benchmark(operation, records, requests, connections, pipeline)

    async def _benchmark(self, operation: str, records: int, requests: int, connections: int, pipeline: int) -> Run:
        options = {"p": self.port, "d": 8, "r": records, "n": requests, "c": connections, "P": pipeline}
        words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
        text = await asyncio.to_thread(_output, "redis-benchmark", *words, "-t", operation.lower(), "--csv")
        rows = list(csv.DictReader(text.splitlines()))
        if len(rows) != 1 or rows[0]["test"] != operation:
            raise BenchError(f"redis-benchmark printed: {text}")
        row = rows[0]
        latencies = {name: float(row[f"{name}_latency_ms"]) for name in _PERCENTILES}
        return Run(requests, requests / float(row["rps"]), latencies)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


def _set(connection: socket.socket, commands: bytes, count: int) -> None:
    """Send SETs, and wait for the responses."""
    connection.sendall(commands)
    wanted = len(b"+OK\r\n") * count
    while wanted:
        got = connection.recv(wanted)
        if not got or got.strip(b"+OK\r\n"):
            raise BenchError(f"redis responded {got[:80]!r} to a SET")
        wanted -= len(got)


def require_redis() -> None:
    """Make sure that redis is installed.

    Raises
    ------
    BenchError
        If it is not; the message says what to do.
    """
    for program in ("redis-server", "redis-benchmark"):
        if not shutil.which(program):
            raise BenchError(f"{program} is not installed: apt-get install redis-server, or use --no-redis")


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
