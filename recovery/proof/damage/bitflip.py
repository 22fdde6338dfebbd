"""Damages a small store in many ways; worker processes open and judge each, and must neither die nor read wrong values.

Invariants
----------
no worker dies by a signal, exits, or stops responding
no read gives a wrong value, except from a damaged u64 slot (which nothing checks)
a refused store stays as it was, and `gpkvs check` names what is wrong with it
a batch of which nobody was told may be gone, but only whole, where its frame or its records are damaged
a store that is served keeps new writes, and loses nothing that `gpkvs check` does not name
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gpkvs.config import CommitName
from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.damage.damage_kinds import Damage, random_bits, random_bursts, structure_bits
from gpkvs.recovery.proof.damage.judge_process import DamageOutcome, DamageVerdict
from gpkvs.recovery.proof.damage.sample_store import IMAGES, make

_RESPONSE_SECONDS_MAX = 60.0
_MEMORY = Path("/dev/shm")
_MISSED_MAX = 20  # after so many, the run ends


@dataclass(frozen=True)
class BitflipOptions:
    """What a run damages, and how.

    Parameters
    ----------
    bits
        Random single bits, besides every bit of the structures.
    bursts
        Runs of up to 64 bytes with random bits inverted.
    seed
        Of the random choices.
    structures
        Take every n-th bit of the structures; 1 takes all.
    workers
        How many processes.
    directory
        The directory for the stores.
    commit
        Of the stores.
    """

    bits: int
    bursts: int
    seed: int
    directory: Path
    structures: int = 1
    commit: CommitName = "undo"
    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    @property
    def samples(self) -> Path:
        """Where a plan leaves the images."""
        return self.directory / "samples"


@dataclass
class BitflipReport:
    """The verdicts of a run, counted: all of them, and by the file or the part of it that was damaged."""

    outcomes: Counter[DamageOutcome] = field(default_factory=Counter)
    by_file: Counter[tuple[str, DamageOutcome]] = field(default_factory=Counter)
    missed: list[DamageVerdict] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, verdict: DamageVerdict) -> None:
        """Count a verdict."""
        self.outcomes[verdict.outcome] += 1
        self.by_file[verdict.place, verdict.outcome] += 1
        if verdict.outcome is DamageOutcome.MISSED:
            self.missed.append(verdict)


def memory_parent() -> Path | None:
    """Return the parent of directories in memory; None if there is no such place."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def plan(options: BitflipOptions) -> list[Damage]:
    """Return all damages of a run; the same for the same options. Leave the images to those who judge."""
    shutil.rmtree(options.samples, ignore_errors=True)
    options.samples.mkdir()
    samples = make(options.samples, IMAGES[options.commit])
    damages = [damage for image in samples for damage in structure_bits(image, samples[image])][:: options.structures]
    damages += random_bits(samples, options.bits, options.seed)
    damages += random_bursts(samples, options.bursts, options.seed)
    return damages


def bitflip(
    options: BitflipOptions, damages: Iterable[Damage], on_verdict: Callable[[DamageVerdict], None] = lambda _: None
) -> BitflipReport:
    """Judge every damage, in several processes.

    Parameters
    ----------
    options
        Those that `plan` was called with.
    damages
        The damages to judge.
    on_verdict
        Called with each verdict, from this thread.

    Raises
    ------
    GpkvsError
        If the workers cannot be started.
    """
    report, begin = BitflipReport(), time.monotonic()
    with _Judges(options, damages) as judges:
        for verdict in judges.verdicts():
            report.add(verdict)
            on_verdict(verdict)
            if len(report.missed) >= _MISSED_MAX:
                judges.stop()
    report.seconds = time.monotonic() - begin
    return report


class _Judges:
    """Threads that each take one damage after the other to a process of their own."""

    def __init__(self, options: BitflipOptions, damages: Iterable[Damage]) -> None:
        self._options = options
        self._rest = iter(damages)
        self._lock = threading.Lock()
        self._stopped = False
        self._said: queue.Queue[DamageVerdict | BaseException | None] = queue.Queue()  # None: a thread has ended
        self._threads = [
            threading.Thread(target=self._work, args=(options.directory / f"worker-{number}",))
            for number in range(options.workers)
        ]

    def __enter__(self) -> _Judges:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()  # also where the thread that waits is interrupted
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Take no further damage; what is being judged is finished."""
        self._stopped = True

    def verdicts(self) -> Iterator[DamageVerdict]:
        """Return verdicts as they come; raise the first error of a thread when all have ended."""
        running, failure = len(self._threads), None
        while running:
            said = self._said.get()
            if isinstance(said, DamageVerdict):
                yield said
                continue
            running -= 1
            failure = failure or said
            if failure:
                self.stop()
        if failure:
            raise failure

    def _work(self, directory: Path) -> None:
        try:
            for verdict in self._judged(directory):
                self._said.put(verdict)
            self._said.put(None)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._said.put(error)

    def _judged(self, directory: Path) -> Iterator[DamageVerdict]:
        """Judge in a worker process; start it again when it dies."""
        starts = 0
        damage = self._next()
        while damage:
            with _Worker(directory / str(starts), self._options) as worker:
                starts += 1
                while damage and worker.alive:
                    yield worker.judge(damage)
                    damage = self._next()

    def _next(self) -> Damage | None:
        with self._lock:
            return None if self._stopped else next(self._rest, None)


class _Worker:
    """One judge process (judge_process.py)."""

    def __init__(self, directory: Path, options: BitflipOptions) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        made = [options.samples] if options.samples.exists() else []  # a damage that is named needs no plan
        module = [sys.executable, "-P", "-m", "gpkvs.recovery.proof.damage.judge_process"]
        command: list[str | Path] = [*module, directory, options.commit, *made]
        self._log = (directory.parent / f"{directory.name}.log").open("w+b")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self.alive = True
        if self._ask(b"") != b"ready\n":
            self.alive = False
            raise GpkvsError(f"a worker did not start: {self._end()}")

    def judge(self, damage: Damage) -> DamageVerdict:
        """Ask for a verdict; if the worker dies or does not respond, the damage was missed."""
        response = self._ask(f"{damage}\n".encode())
        if response.endswith(b"\n"):
            fields = json.loads(response)
            return DamageVerdict(**{**fields, "outcome": DamageOutcome(fields["outcome"])})
        self.alive = False
        return DamageVerdict(str(damage), damage.file, DamageOutcome.MISSED, f"the process ended: {self._end()}")

    def _ask(self, line: bytes) -> bytes:
        """Send a line and return the response, b"" if the process died or did not respond in time."""
        stdin, stdout = self._pipes
        watchdog = threading.Timer(_RESPONSE_SECONDS_MAX, self._process.kill)
        watchdog.start()
        try:
            stdin.write(line)
            stdin.flush()
            return stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            watchdog.cancel()

    @property
    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin
        assert self._process.stdout
        return self._process.stdin, self._process.stdout

    def _end(self) -> str:
        self._process.kill()
        status = self._process.wait()
        self._log.seek(0)
        return f"exit status {status}; {self._log.read().decode(errors='replace')[-1500:]}"

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (*self._pipes, self._log):
            pipe.close()
        if self.alive:
            shutil.rmtree(self._directory)
