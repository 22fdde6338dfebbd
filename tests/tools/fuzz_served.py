"""A real server whose native code is built with sanitizers, real clients, and all that ends a server.

``make fuzz-served SECONDS=30 SEED=7``. Clients that own their keys compare each answer with what it must be: calls of
gRPC, batches, pipelines, scans, tables that come and go, commands of Redis and transactions; keys expire under way.
Others send what is broken. The server is stopped and killed meanwhile. Then its store is checked, and the clients
compare all that they own with what is there. A report of a sanitizer, a wrong value or an end that nobody asked for is
a failure: exit status 1, and the server's log and store are kept.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gpkvs
from gpkvs.client import Client
from tests.conftest import assert_clean
from tests.served.grpc_client import EndedError, GrpcClient
from tests.served.hostile import HostileClient
from tests.served.resp_client import RespClient
from tests.serving import Server

BUILD = Path(__file__).parents[2] / "build" / "address"
LIVES = 5  # of a store
LIFE_SECONDS = 3, 12
START_SECONDS_MAX = STOP_SECONDS_MAX = 600  # on a machine that does much else
REPORTS = ("ERROR: AddressSanitizer", "runtime error:", "Traceback", "AddressSanitizer:DEADLYSIGNAL")
# Small, so that all of it grows.
SIZES = ("--index-bytes", "64KiB", "--heap-bytes", "1MiB", "--heap-bytes-max", "1GiB", "--log-bytes", "4MiB")


class FoundError(Exception):
    """The fuzzer has found something."""


def sanitized() -> dict[str, str]:
    """Return the environment of a server whose kernels and door are the builds with sanitizers."""
    names = ("libasan.so", "libstdc++.so")
    paths = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in names
    ]
    return {
        "GPKVS_KERNELS": str(BUILD / "_kernels.so"),
        "GPKVS_DOOR_LIBRARY": str(BUILD / "_door.so"),
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


class Worker:
    """A client in a thread of its own, through all lives of a store."""

    def __init__(self, client: GrpcClient | RespClient | HostileClient) -> None:
        self.client = client
        self.error: BaseException | None = None
        self.has_ended = False  # the server went away, as far as it knows

    def begin(self, server: Server, stop: threading.Event) -> None:
        """Speak with a server until it ends, or this is told to stop."""
        self.has_ended = False
        self._thread = threading.Thread(target=self._run, args=(server, stop))
        self._thread.start()

    def join(self) -> None:
        """Wait until it has stopped."""
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise FoundError(f"{type(self.client).__name__} waits for an answer")

    def _run(self, server: Server, stop: threading.Event) -> None:
        try:
            if isinstance(self.client, GrpcClient):
                self.client.connect(server.target)
            else:
                self.client.connect(server.target, server.resp_addresses[0])
            try:
                self.client.settle()
                while not stop.is_set():
                    self.client.step()
            finally:
                self.client.close()
        except EndedError:
            self.has_ended = True
        except BaseException as error:  # noqa: BLE001 - the thread that waits for it says so
            self.error = error


def one_store(folder: Path, seed: int, commit: str, counts: Counter[str], until: float) -> None:
    """Let a store live several times.

    Raises
    ------
    FoundError
        If something is wrong.
    """
    chance = random.Random(seed)
    makers: list[Callable[[int, int, Counter[str]], GrpcClient | RespClient | HostileClient]]
    makers = [GrpcClient, GrpcClient, GrpcClient, RespClient, RespClient, HostileClient]
    workers = [Worker(make(number, seed + number, counts)) for number, make in enumerate(makers, 1)]
    for life in range(LIVES):
        options = ("--commit", commit, "--resp", "127.0.0.1:0", *SIZES)
        server = Server(folder / "store", folder, *options, env=sanitized(), start_seconds_max=START_SECONDS_MAX)
        try:
            if not life:
                with Client(server.target) as client:
                    client.create_table("numbers", layout="u64", index_bytes=64 << 10)
                    client.create_table("9", index_bytes=64 << 10)
            seconds = min(chance.uniform(*LIFE_SECONDS), max(until - time.monotonic(), 1))
            live(server, workers, seconds, how(chance), counts)
        finally:
            server.kill()
            server.channel.close()
        check_recovered(folder / "store", folder / "copy")
        counts["stores checked"] += 1
        if time.monotonic() > until:
            return


def check_recovered(store: Path, copy: Path) -> None:
    """Fail unless a copy of a store is clean once it is recovered; the next server recovers the store itself."""
    shutil.copytree(store, copy)
    gpkvs.open(copy).close()
    assert_clean(copy)
    shutil.rmtree(copy)


def how(chance: random.Random) -> str:
    """Return how a life ends."""
    return chance.choice(("kill", "kill", "terminate", "stop clients first"))


def live(server: Server, workers: list[Worker], seconds: float, end: str, counts: Counter[str]) -> None:
    """Let clients speak with a server, and end it."""
    stop = threading.Event()
    for worker in workers:
        worker.begin(server, stop)
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        for worker in workers:
            if worker.error or worker.has_ended:
                time.sleep(1)  # until a report of a sanitizer is written
                look(server, workers, None)
                raise FoundError(f"{type(worker.client).__name__} lost the server") from worker.error
        if server.process.poll() is not None:
            break
        time.sleep(0.05)
    counts[f"lives that ended by {end}"] += 1
    if end == "stop clients first":
        stop.set()
        for worker in workers:
            worker.join()
    server.process.send_signal(signal.SIGKILL if end == "kill" else signal.SIGTERM)
    code = server.process.wait(STOP_SECONDS_MAX)
    stop.set()
    for worker in workers:
        worker.join()
    look(server, workers, -signal.SIGKILL if end == "kill" else 0, code)


def look(server: Server, workers: list[Worker], expected: int | None, code: int | None = None) -> None:
    """Fail where a log, a client or an exit status says that something is wrong."""
    text = server.log.read_text(errors="replace")
    for report in REPORTS:
        if report in text:
            raise FoundError(f"the server's log has {report!r}")
    for worker in workers:
        if worker.error:
            raise FoundError(f"{type(worker.client).__name__}: {worker.error}") from worker.error
    if code != expected:
        raise FoundError(f"the server ended with {code}")


def main() -> None:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="the last store lives on until it is checked")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--commit", choices=["undo", "journal"], help="by default one after the other")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    until, stores = began + given.seconds, 0
    while time.monotonic() < until:
        seed = given.seed + stores
        commit = given.commit or ("undo", "journal")[seed % 2]
        folder = Path(tempfile.mkdtemp(prefix="gpkvs-served-"))
        os.environ.pop("GPKVS_COMMIT", None)
        try:
            one_store(folder, seed, commit, counts, until)
        except BaseException:
            print(f"FAILED: --seed {seed} --commit {commit}; the log and the store are in {folder}", flush=True)
            raise
        shutil.rmtree(folder)
        stores += 1
    print(f"{stores} stores in {time.monotonic() - began:.0f} s; no report, no wrong value, no unexpected end")
    for name, count in sorted(counts.items()):
        print(f"{count:12,} {name}")


if __name__ == "__main__":
    try:
        main()
    except FoundError as error:
        sys.exit(str(error))
