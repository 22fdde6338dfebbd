"""Backups of the server under test, one after the other, by the command that people use."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from gpkvs.recovery.proof.servers.server_process import GPKVS, environment_of_run

_POLL_SECONDS = 0.05


class Copying:
    """Takes backups. Each is checked by the command that takes it, and removed.

    Parameters
    ----------
    directory
        Where they are made.
    is_over
        Whether nobody waits for the one that is taken now.

    Attributes
    ----------
    made, cut
        How many are whole, and how many were cut short.
    """

    def __init__(self, directory: Path, is_over: Callable[[], bool]) -> None:
        self._copy = directory / "copy"
        self._log = directory / "backup.log"
        self._is_over = is_over
        self.made = self.cut = 0
        directory.mkdir(exist_ok=True)

    async def take(self, target: str) -> str:
        """Take a backup; return why there is none, if its server is there."""
        nothing = asyncio.subprocess.DEVNULL
        command = [*GPKVS, "backup", str(self._copy), f"--target={target}", "--timeout=5"]
        with self._log.open("wb") as log:
            backup = await asyncio.create_subprocess_exec(
                *command, stdin=nothing, stdout=nothing, stderr=log, env=environment_of_run()
            )
        ended = asyncio.create_task(backup.wait())
        while not ended.done() and not self._is_over():
            await asyncio.wait([ended], timeout=_POLL_SECONDS)
        if not ended.done():
            backup.kill()
        status = await ended
        if not status:
            self.made += 1
            await asyncio.to_thread(shutil.rmtree, self._copy)
            return ""
        self.cut += 1
        return "" if self._is_over() else f"gpkvs backup: exit status {status}: {self._log.read_text(errors='replace')}"
