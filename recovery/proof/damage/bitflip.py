"""Damaged stores by the ten thousand: every one is opened by a worker process, which must neither die nor lie.

Invariants
----------
no worker ends by a signal, by an exit, or by silence
no read gives a wrong value, but of a u64 slot that was damaged (which nothing checks)
a refused store is left as it was, and `gpkvs check` names what is wrong with it
a store that is served keeps what is then written, and loses nothing that `gpkvs check` does not name
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

from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.damage.damage_kinds import Damage, random_bits, random_bursts, structure_bits
from gpkvs.recovery.proof.damage.judge_process import DamageOutcome, DamageVerdict
from gpkvs.recovery.proof.damage.sample_store import IMAGES, SampleStore, make

_ANSWER_SECONDS_MAX = 60.0
_MEMORY = Path("/dev/shm")
_MISSED_MAX = 20  # then enough is known


@dataclass(frozen=True)
class BitflipOptions:
    """What a run damages.

    Parameters
    ----------
    bits
        Random single bits, beside every bit of roots, flag, descriptors and log.
    bursts
        Runs of up to 64 bytes with random bits inverted.
    seed
        Of what is random.
    structures
        Take every n-th bit of the structures; 1 takes all.
    workers
        Processes.
    directory
        Where the stores are made.
    """

    bits: int
    bursts: int
    seed: int
    directory: Path
    structures: int = 1
    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


@dataclass
class BitflipReport:
    """What became of all of them."""

    outcomes: Counter[DamageOutcome] = field(default_factory=Counter)
    by_file: Counter[tuple[str, DamageOutcome]] = field(default_factory=Counter)
    missed: list[DamageVerdict] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, verdict: DamageVerdict) -> None:
        """Count a verdict."""
        self.outcomes[verdict.outcome] += 1
        self.by_file[Damage.parse(verdict.damage).file, verdict.outcome] += 1
        if verdict.outcome is DamageOutcome.MISSED:
            self.missed.append(verdict)


def memory_parent() -> Path | None:
    """Return where directories in memory can be made; None where there is no such place."""
    return _MEMORY if os.access(_MEMORY, os.W_OK) else None


def plan(options: BitflipOptions) -> list[Damage]:
    """Return all that a run visits; the same for the same options."""
    samples: dict[str, SampleStore] = {}
    for image in IMAGES:
        samples[image] = make(options.directory / f"plan-{image}", image)
        shutil.rmtree(options.directory / f"plan-{image}")
    damages = [damage for image in IMAGES for damage in structure_bits(image, samples[image])][:: options.structures]
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
        `plan` has been called with them.
    damages
        What to do to the store.
    on_verdict
        Called with each verdict, from this thread.

    Raises
    ------
    GpkvsError
        If the workers cannot be started.
    """
    report, begin = BitflipReport(), time.monotonic()
    verdicts: queue.Queue[DamageVerdict | BaseException | None] = queue.Queue()
    share = _Share(damages)

    def serve(number: int) -> None:
        try:
            for verdict in _judged(options.directory / f"worker-{number}", share):
                verdicts.put(verdict)
            verdicts.put(None)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            verdicts.put(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(options.workers)]
    for thread in threads:
        thread.start()
    running, failure = len(threads), None
    try:
        while running:
            verdict = verdicts.get()
            if isinstance(verdict, DamageVerdict):
                report.add(verdict)
                on_verdict(verdict)
            else:
                running -= 1
                failure = failure or verdict
            if failure or len(report.missed) >= _MISSED_MAX:
                share.stop()
    finally:
        share.stop()  # also where this thread is interrupted
        for thread in threads:
            thread.join()
    if failure:
        raise failure
    report.seconds = time.monotonic() - begin
    return report


class _Share:
    """Hands out one damage at a time, to any thread."""

    def __init__(self, damages: Iterable[Damage]) -> None:
        self._rest = iter(damages)
        self._lock = threading.Lock()
        self._stopped = False

    def next(self) -> Damage | None:
        with self._lock:
            return None if self._stopped else next(self._rest, None)

    def stop(self) -> None:
        self._stopped = True


def _judged(directory: Path, share: _Share) -> Iterator[DamageVerdict]:
    """Judge what is handed out, in a worker that is started again when it dies."""
    lives = 0
    damage = share.next()
    while damage:
        with _Worker(directory / str(lives)) as worker:
            lives += 1
            while damage and worker.alive:
                yield worker.judge(damage)
                damage = share.next()


class _Worker:
    """One process of `gpkvs.recovery.proof.damage.judge_process`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        command = [sys.executable, "-P", "-m", "gpkvs.recovery.proof.damage.judge_process", str(directory)]
        self._log = (directory.parent / f"{directory.name}.log").open("w+b")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self.alive = True
        if self._ask(b"") != b"ready\n":
            self.alive = False
            raise GpkvsError(f"a worker did not start: {self._end()}")

    def judge(self, damage: Damage) -> DamageVerdict:
        """Ask for a verdict; a worker that dies or is silent has missed."""
        answer = self._ask(f"{damage}\n".encode())
        if answer.endswith(b"\n"):
            fields = json.loads(answer)
            return DamageVerdict(fields["damage"], DamageOutcome(fields["outcome"]), fields["detail"])
        self.alive = False
        return DamageVerdict(str(damage), DamageOutcome.MISSED, f"the process ended: {self._end()}")

    def _ask(self, line: bytes) -> bytes:
        """Send a line and return the answer, b"" if the process died or does not answer in time."""
        stdin, stdout = self._pipes
        watchdog = threading.Timer(_ANSWER_SECONDS_MAX, self._process.kill)
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
