"""The crash drill: a real server is killed under load, again and again, and each time must come back whole.

A round starts a server process. Concurrent clients write, and remember what was acknowledged (clients.py). The drill
kills the server (servers/kill_plan.py says how), restarts it, and compares what it holds with what was acknowledged
(ledger.py). Then it stops the server with SIGTERM and runs ``gpkvs check`` on the directory. A store lives for several
rounds, so damage that does not show at once can add up.

The seed fixes what is done, not what the scheduler makes of it.
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
from gpkvs.recovery.proof.servers.server_lives import ServerLives
from gpkvs.recovery.proof.servers.server_process import ServerOptions, run_gpkvs

_PROBLEMS_SHOWN_MAX = 20


@dataclass(frozen=True)
class DrillOptions:
    """What a drill does.

    Parameters
    ----------
    rounds
        How many; from 27 on, one for each failpoint, all are visited.
    seed
        Of everything that is chosen.
    directory
        An empty directory; the stores and the servers' logs are made in it.
    server
        How servers are started. The index is so small that the clients nearly fill it.
    clients
        The clients.
    rounds_per_store
        After as many rounds a new store is begun, before its heap is full.
    """

    rounds: int
    seed: int
    directory: Path
    server: ServerOptions = field(default_factory=lambda: ServerOptions(index="128KiB"))
    clients: DrillClientOptions = field(default_factory=DrillClientOptions)
    rounds_per_store: int = 10


@dataclass(frozen=True)
class RoundResult:
    """What happened in a round that found nothing wrong."""

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
    rounds: list[RoundResult] = field(default_factory=list)
    seconds: float = 0.0
    domain: str = ""  # the persistence domain that was in force, and what it survives
    domain_note: str = ""

    @property
    def kills(self) -> Counter[str]:
        """Kills by kind."""
        return Counter(kill for result in self.rounds for kill in result.kills)

    @property
    def counts(self) -> Counts:
        """What all clients did."""
        return sum((result.counts for result in self.rounds), Counts())

    @property
    def undone(self) -> int:
        """Batches that recovery reported as undone."""
        return sum(result.undone for result in self.rounds)

    @property
    def keys_read_back(self) -> int:
        """Keys compared with the ledger, over all rounds."""
        return sum(result.keys_read_back for result in self.rounds)


class DrillError(GpkvsError):
    """A round found something wrong.

    Parameters
    ----------
    seed, round
        They repeat what was done.
    directory
        The store, kept as it was found.
    problems
        What is wrong, one line each.
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
        What to do.
    on_round
        Called after each round.

    Raises
    ------
    DrillError
        At the first round that finds anything wrong. The directory is left as it is.
    """
    report = DrillReport(options.seed)
    begin = time.monotonic()
    for round in plan(options.rounds, options.seed):
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
    """Something that a round found apart from the ledger."""


class _StoreDrill:
    """One store, its clients, and the rounds that it lives through."""

    def __init__(self, options: DrillOptions, first_round: int) -> None:
        self.path = options.directory / f"store-{first_round}"
        self._ledger = Ledger()
        self._clients = DrillClients(self._ledger, options.clients, f"{options.seed} {first_round}")
        self._lives = ServerLives(self.path, options.server, self._clients)

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
        kills = await self._lives.die(round)
        with closing(self._lives.server()) as server:
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
        """Return how many slots the last start restored; None if there was no batch to undo."""
        report = json.loads((self.path / "recovery.json").read_text())
        undone = bool(report["undone"])
        if round.undoes is not None and undone != round.undoes:
            raise _WrongError(f"recovery.json: expected undone={round.undoes} after {round}, found undone={undone}")
        return int(report["undone_entries"]) if undone else None

    async def _check(self) -> None:
        status, output = await asyncio.to_thread(run_gpkvs, "check", str(self.path))
        if status != 0:
            raise _WrongError(f"gpkvs check: exit status {status}, expected 0:\n{output}")
