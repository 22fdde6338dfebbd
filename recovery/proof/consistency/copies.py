"""Backups and an archive of the store under test, taken beside its clients: each copy is a read of all keys at once.

So nothing else judges them. A backup goes into the history as a request that was sent when the command began, and
answered when it had ended. A store that is restored to a moment goes into it as one that was sent and answered then.
The judge places such a read between two requests that wrote, behind all that were answered before it was sent: then the
copy is a prefix of the history, and has what was acknowledged before.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpkvs.archive.contents import read_contents
from gpkvs.archive.restore import restore
from gpkvs.batch import U8, U32, U64
from gpkvs.changes import Position
from gpkvs.client import AsyncClient
from gpkvs.config import Making, StoreConfig
from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.servers.server_process import GPKVS, environment_of_run
from gpkvs.store import Store

_NOTE_SECONDS = 0.05  # between two moments that may be restored
_SLACK_NS = 20_000_000  # the server's clock tells milliseconds, and its thread may lose its turn behind the look
_RESTORED_MAX = 12
_BASE_EVERY = "2s"
_SECONDS_MAX = 120.0


class Columns(NamedTuple):
    """What a copy holds of the keys of the history."""

    names: list[bytes]
    lengths: U32
    values: U8
    versions: U64


class Moment(NamedTuple):
    """A time that may be restored, by the clock of the machine: it lies between `sent_ns` and `answered_ns`."""

    sent_ns: int
    time_ms: int
    answered_ns: int


@dataclass
class CopyCounts:
    """What came of the copies."""

    backups: int = 0
    cut: int = 0  # their server died meanwhile
    restored: int = 0
    in_gaps: int = 0  # moments that the archive refuses, since its server died about then


class Copies:
    """Takes backups of a server one after the other, and archives it.

    Parameters
    ----------
    directory
        For the copies.
    seed
        Of the moments that are restored.
    prefix
        Of the keys that are read.
    take
        Gets what a copy holds, and when it was asked for and was there, in ns of `time.monotonic_ns`.

    Attributes
    ----------
    counts
        What came of the copies.
    error
        Why the last backup failed in this life of the server; empty: none did.
    """

    def __init__(self, directory: Path, seed: int, prefix: bytes, take: Callable[[Columns, int, int], None]) -> None:
        self._directory = directory
        self._archive = directory / "archive"
        self._log = directory / "gpkvs.log"  # of the command that began last
        self._prefix = prefix
        self._take = take
        self._random = random.Random(seed)
        self._moments: list[Moment] = []
        self._numbers = 0
        self.counts = CopyCounts()
        self.error = ""

    async def run(self, target: str) -> None:
        """Copy until cancelled, or a backup fails; the archive is left as a kill leaves it."""
        self._directory.mkdir(exist_ok=True)
        self.error = ""
        archiver = await self._gpkvs("archive", str(self._archive), f"--target={target}", f"--base-every={_BASE_EVERY}")
        try:
            await asyncio.gather(self._back_up(target), self._note())
        finally:
            archiver.kill()
            await archiver.wait()

    async def finish(self, target: str) -> None:
        """Archive what is left, while nobody writes; restore some moments of all lives, and the last one.

        Raises
        ------
        GpkvsError
            If the archive does not come to an end, or cannot be restored.
        """
        sent_ns = time.monotonic_ns()
        archiver = await self._gpkvs("archive", str(self._archive), f"--target={target}")
        try:
            async with AsyncClient(target) as client, await client.follow(all_tables=True) as following:
                await self._archived(following.position, archiver)
            archiver.send_signal(signal.SIGTERM)
            if (status := await archiver.wait()) not in (0, -signal.SIGTERM):  # it may just have begun: all was there
                raise self._failed("archive", status)
        finally:
            if archiver.returncode is None:
                archiver.kill()
                await archiver.wait()
        await self._restore(None, sent_ns, time.monotonic_ns())
        runs = read_contents(self._archive).runs
        bounds = [(run.first_ms, run.last_ms) for run in runs if run.first_ms]
        there = [one for one in self._moments if any(first <= one.time_ms <= last for first, last in bounds)]
        self.counts.in_gaps = len(self._moments) - len(there)
        for one in self._random.sample(there, min(_RESTORED_MAX, len(there))):
            await self._restore(one.time_ms, one.sent_ns, one.answered_ns)

    async def _archived(self, newest: Position, archiver: asyncio.subprocess.Process) -> None:
        """Wait until an archive has all up to a position, and a base to begin with."""
        give_up = time.monotonic() + _SECONDS_MAX
        while not await asyncio.to_thread(self._reaches, newest):
            if archiver.returncode is not None:
                raise self._failed("archive", archiver.returncode)
            if time.monotonic() > give_up:
                raise GpkvsError(f"{self._archive}: the archive does not come to {newest}")
            await asyncio.sleep(_NOTE_SECONDS)

    def _reaches(self, newest: Position) -> bool:
        runs = read_contents(self._archive).runs
        if not runs or not runs[-1].bases or runs[-1].end.timeline != newest.timeline:
            return False
        return runs[-1].end.reaches(newest)

    async def _gpkvs(self, *arguments: str) -> asyncio.subprocess.Process:
        nothing = asyncio.subprocess.DEVNULL
        with self._log.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *GPKVS, *arguments, stdin=nothing, stdout=nothing, stderr=log, env=environment_of_run()
            )

    def _failed(self, command: str, status: int) -> GpkvsError:
        return GpkvsError(f"gpkvs {command}: exit status {status}: {self._log.read_text(errors='replace')}")

    async def _back_up(self, target: str) -> None:
        """Take one backup after the other, until one fails: perhaps its server is gone."""
        while True:
            self._numbers += 1
            place, sent_ns = self._directory / f"{self._numbers}", time.monotonic_ns()
            backup = await self._gpkvs("backup", str(place), f"--target={target}", "--timeout=5")
            try:
                status = await backup.wait()
            finally:
                if backup.returncode is None:
                    backup.kill()
                    await backup.wait()
                self.counts.cut += not place.exists()
            if status:
                self.error = str(self._failed("backup", status))
                return
            await self._read(place, sent_ns, time.monotonic_ns())
            self.counts.backups += 1

    async def _note(self) -> None:
        """Note moments that may be restored."""
        while True:
            sent_ns, time_ms = time.monotonic_ns() - _SLACK_NS, int(time.time() * 1000)
            self._moments.append(Moment(sent_ns, time_ms, time.monotonic_ns() + _SLACK_NS))
            await asyncio.sleep(_NOTE_SECONDS)

    async def _restore(self, until: int | None, sent_ns: int, answered_ns: int) -> None:
        self._numbers += 1
        place = self._directory / f"{self._numbers}"
        await asyncio.to_thread(restore, self._archive, place, until, lambda *_: None)
        await self._read(place, sent_ns, answered_ns)
        self.counts.restored += 1

    async def _read(self, place: Path, sent_ns: int, answered_ns: int) -> None:
        """Hand over what a copy holds, and remove it; to the end, also when this is cancelled."""
        reading = asyncio.create_task(asyncio.to_thread(_columns_of, place, self._prefix))
        try:
            await asyncio.shield(reading)
        finally:
            await asyncio.wait([reading])
            self._take(reading.result(), sent_ns, answered_ns)


def _columns_of(place: Path, prefix: bytes) -> Columns:
    """Return what a copy holds, and remove it."""
    store = Store(place, StoreConfig("cpu", threads=1, making=Making(1)))  # no time passes in it
    try:
        pieces = list(store.scan_pieces(prefix))
    finally:
        store.close()
    shutil.rmtree(place)
    return Columns(
        [name for piece in pieces for name in piece.key_list()],
        _joined([piece.value_lengths for piece in pieces], "<u4"),
        _joined([piece.values for piece in pieces], "u1"),
        _joined([piece.versions for piece in pieces], "<u8"),
    )


def _joined(columns: list[NDArray[Any]], dtype: str) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *columns])
