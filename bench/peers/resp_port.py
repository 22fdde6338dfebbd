"""A port that speaks the Redis protocol, and redis-benchmark on it."""

from __future__ import annotations

import asyncio
import csv
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpkvs.bench.peers.contender import BenchError
from gpkvs.bench.report.results import Run

_LOAD_KEYS = 50_000  # in one send
_PERCENTILES = ("p50", "p95", "p99")
KEY_BYTES = 16
"""Of the keys of redis-benchmark, which begin with ``key:``."""


class RespPort:
    """A server of the Redis protocol on this machine.

    Parameters
    ----------
    port
        Where it listens.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.load_busy: list[float] = []  # of each run of redis-benchmark: how busy its processes were

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def load(self, records: int, value_bytes: int = 8) -> None:
        """Store the keys that redis-benchmark will ask for."""
        with self.connect() as connection:
            for start in range(0, records, _LOAD_KEYS):
                numbers = np.arange(start, min(start + _LOAD_KEYS, records))
                values = np.full((len(numbers), value_bytes), ord("x"), np.uint8)
                _set(connection, self.commands(keys_of(numbers), values), len(numbers))

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
        """Connect; what is yielded sends SETs (`commands`) and waits until so many are answered."""
        with self.connect() as connection:
            yield partial(_set, connection)

    async def benchmark(
        self, operation: str, records: int, seconds: float, connections: int, pipeline: int, processes: int = 1
    ) -> Run:
        """Run redis-benchmark for about as many seconds, in so many processes that share the connections."""
        options = {"d": 8, "r": records, "c": max(connections // processes, 1), "P": pipeline}
        requests = 1000 * pipeline
        run = await self._benchmark(operation, requests, options, processes)
        while True:
            self.load_busy.pop()  # of the trial, which mostly starts
            requests = max(int(requests * seconds / run.seconds), 100 * pipeline)
            run = await self._benchmark(operation, requests, options, processes)
            if run.seconds >= seconds / 4:
                return run
            # Something disturbed the trial: what came out is the next trial.

    async def _benchmark(self, operation: str, requests: int, options: dict[str, int], processes: int) -> Run:
        words = [word for name, value in options.items() for word in (f"-{name}", str(value))]
        command = ("redis-benchmark", "-p", str(self.port), "-n", str(requests), *words, "-t", operation.lower())
        before = _children_seconds()
        running = (asyncio.to_thread(output_of, *command, "--csv") for _ in range(processes))
        rows = [_row(text, operation) for text in await asyncio.gather(*running)]
        # It counts whole milliseconds: its rate is infinite where there were none.
        seconds = max(0.001, *(requests / float(row["rps"]) for row in rows))
        latencies = {name: max(float(row[f"{name}_latency_ms"]) for row in rows) for name in _PERCENTILES}
        self.load_busy.append((_children_seconds() - before) / seconds / processes)
        return Run(requests * processes, seconds, latencies)


def _row(text: str, operation: str) -> dict[str, str]:
    """Return what redis-benchmark found."""
    rows = list(csv.DictReader(text.splitlines()))
    if len(rows) != 1 or rows[0]["test"] != operation:
        raise BenchError(f"redis-benchmark printed: {text}")
    return rows[0]


def _children_seconds() -> float:
    """Return the processor time of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def keys_of(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the keys of redis-benchmark with these numbers, a row each."""
    keys = np.empty((len(numbers), KEY_BYTES), np.uint8)
    keys[:, :4] = np.frombuffer(b"key:", np.uint8)
    keys[:, 4:] = numbers[:, np.newaxis] // 10 ** np.arange(11, -1, -1) % 10 + ord("0")
    return keys


def _set(connection: socket.socket, commands: bytes, count: int) -> None:
    """Send SETs, and wait for the responses."""
    connection.sendall(commands)
    wanted = len(b"+OK\r\n") * count
    while wanted:
        got = connection.recv(wanted)
        if not got or got.strip(b"+OK\r\n"):
            raise BenchError(f"a SET was answered by {got[:80]!r}")
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


def output_of(*command: str) -> str:
    """Return what a program prints.

    Raises
    ------
    BenchError
        If it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout
