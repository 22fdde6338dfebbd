"""The crash drill: kill a real server under load, again and again; its store must be whole each time.

A round starts a server process. Concurrent clients write, and remember the acknowledged writes (clients.py). The drill
kills the server (servers/kill_plan.py says how), starts it again, and compares its store with the acknowledged writes
(ledger.py). Then it stops the server with SIGTERM and runs ``gpkvs check`` on the directory. A store is used for
several rounds, so that damage can add up which does not show at once.

The seed fixes the choices, but not the scheduling.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.drill.clients import Counts, DrillClientOptions, DrillClients
from gpkvs.recovery.proof.drill.ledger import Ledger
from gpkvs.recovery.proof.servers.kill_plan import Round, plan
from gpkvs.recovery.proof.servers.killed_servers import KilledServers
from gpkvs.recovery.proof.servers.server_process import ServerOptions, run_gpkvs

_PROBLEMS_SHOWN_MAX = 20


@dataclass(frozen=True)
class DrillOptions:
    """The settings of a drill.

    Parameters
    ----------
    rounds
        How many rounds; from one for each failpoint on, all are visited.
    seed
        Of all choices.
    directory
        An empty directory for the stores and the servers' logs.
    server
        How to start servers. The index is so small that the clients nearly fill it.
    clients
        How many clients and keys.
    rounds_per_store
        After so many rounds the drill begins a new store, before the heap is full.
    """

    rounds: int
    seed: int
    directory: Path
    server: ServerOptions = field(default_factory=lambda: ServerOptions(index="128KiB"))
    clients: DrillClientOptions = field(default_factory=DrillClientOptions)
    rounds_per_store: int = 10


@dataclass(frozen=True)
class RoundResult:
    """A round that found nothing wrong."""

    round: Round
    kills: tuple[str, ...]  # `kill_plan.SIGKILL` or failpoints, in order
    counts: Counts
    keys_read_back: int
    undone: bool
    undone_entries: int
    seconds: float


@dataclass
class DrillReport:
    """The sum of all rounds."""

    seed: int
    commit: str  # ``undo`` or ``journal``
    rounds: list[RoundResult] = field(default_factory=list)
    seconds: float = 0.0
    domain: str = ""  # the persistence domain, and what it survives
    domain_note: str = ""

    @property
    def kills(self) -> Counter[str]:
        """Kills by kind."""
        return Counter(kill for result in self.rounds for kill in result.kills)

    @property
    def counts(self) -> Counts:
        """The counts of all clients together."""
        return sum((result.counts for result in self.rounds), Counts())

    @property
    def undone(self) -> int:
        """How many batches recovery has undone."""
        return sum(result.undone for result in self.rounds)

    @property
    def keys_read_back(self) -> int:
        """How many keys were compared with the ledger, over all rounds."""
        return sum(result.keys_read_back for result in self.rounds)


class DrillError(GpkvsError):
    """A round found something wrong.

    Parameters
    ----------
    seed, round
        They repeat the choices.
    directory
        The store, which is left as it is.
    problems
        One line for each problem.
    """

    def __init__(self, seed: int, round: Round, directory: Path, problems: Sequence[str]) -> None:
        lines = list(problems[:_PROBLEMS_SHOWN_MAX])
        if len(problems) > len(lines):
            lines.append(f"... and {len(problems) - len(lines)} more")
        where = f"seed {seed}, round {round.number} ({round})"
        self.seed, self.round, self.directory = seed, round, directory
        super().__init__("\n  ".join([f"the drill failed: {where}; the data is kept in {directory}", *lines]))
        self.problems = tuple(problems)


async def drill(options: DrillOptions, on_round: Callable[[RoundResult], None] | None = None) -> DrillReport:
    """Run a whole drill.

    Parameters
    ----------
    options
        The settings.
    on_round
        Called after each round.

    Raises
    ------
    DrillError
        At the first round that finds anything wrong. The directory is left as it is.
    """
    report = DrillReport(options.seed, options.server.commit)
    begin = time.monotonic()
    for round in plan(options.rounds, options.seed, options.server.commit):
        if (round.number - 1) % options.rounds_per_store == 0:
            store = _StoreDrill(options, round.number)
        try:
            result = await store.run(round)
            problems = store.violations
        except GpkvsError as error:
            problems = [*store.violations, str(error)]
        if problems:
            raise DrillError(options.seed, round, store.path, problems)
        report.rounds.append(result)
        report.domain, report.domain_note = store.domain
        if on_round:
            on_round(result)
    report.seconds = time.monotonic() - begin
    return report


class _WrongError(GpkvsError):
    """A problem that a round found outside the ledger."""


class _StoreDrill:
    """One store, its clients and its rounds."""

    def __init__(self, options: DrillOptions, first_round: int) -> None:
        self.path = options.directory / f"store-{first_round}"
        self._ledger = Ledger()
        self._clients = DrillClients(self._ledger, options.clients, f"{options.seed} {first_round}")
        self._servers = KilledServers(self.path, options.server, self._clients)

    @property
    def violations(self) -> list[str]:
        return [str(violation) for violation in self._ledger.violations]

    @property
    def domain(self) -> tuple[str, str]:
        info = self._clients.info
        return info.domain, info.domain_note

    async def run(self, round: Round) -> RoundResult:
        begin = time.monotonic()
        self._clients.counts = Counts()
        kills = await self._servers.run_and_kill(round)
        with closing(self._servers.start()) as server:
            await server.ready()
            undone_entries = self._undone_entries(round)
            keys = await self._clients.read_back(server.target)
            await server.stop()
        await self._check()
        seconds = time.monotonic() - begin
        return RoundResult(
            round, kills, self._clients.counts, keys, undone_entries is not None, undone_entries or 0, seconds
        )

    def _undone_entries(self, round: Round) -> int | None:
        """Return how many slots the last start has restored; None if it had no batch to undo."""
        report = json.loads((self.path / "recovery.json").read_text())
        undone = bool(report["undone"])
        if round.undoes is not None and undone != round.undoes:
            raise _WrongError(f"recovery.json: expected undone={round.undoes} after {round}, found undone={undone}")
        return int(report["undone_entries"]) if undone else None

    async def _check(self) -> None:
        status, output = await asyncio.to_thread(run_gpkvs, "check", str(self.path))
        if status != 0:
            raise _WrongError(f"gpkvs check: exit status {status}, expected 0:\n{output}")
