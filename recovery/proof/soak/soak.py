"""The soak: a server that is nearly full works for a long time, and neither loses nor leaks anything.

Clients (clients.py) keep the heap at 0.80 to 0.85 and remember what was acknowledged. In the first half of the time the
server is killed again and again: with SIGKILL at a random moment, or at a failpoint. After each kill it is started
again, everything is read back and compared with the ledgers, and the store is checked. In the second half one server
lives on, and its memory must not grow (memory.py). At the end everything is read back and checked once more. If it is
asked for, backups are taken all the while (copying.py).

Invariants beside those of the ledger:

    tables    a table is there if it was made and not dropped; a new one is empty, whatever a dropped one held
    records   the server counts as many records as the ledger
    promise   a store that compacts refuses no write for the heap while it is at most `SHARE_MAX` full
    deletes   no request that only deletes is refused
    blobs     the server says of its blobs that they take what the ledger says, also when it has run for long
    memory    the server's memory stays the same under the same load
    copies    a backup fails only if its server dies
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from pathlib import Path

from gpkvs.errors import GpkvsError
from gpkvs.process import failpoint
from gpkvs.recovery.proof.servers.kill_plan import IN_CHECKPOINT, SIGKILL, Round, plan
from gpkvs.recovery.proof.servers.killed_servers import KilledServers
from gpkvs.recovery.proof.servers.server_process import ServerOptions, ServerProcess, run_gpkvs
from gpkvs.recovery.proof.soak.clients import SoakClients
from gpkvs.recovery.proof.soak.copying import Copying
from gpkvs.recovery.proof.soak.heap_use import SHARE_MIN
from gpkvs.recovery.proof.soak.memory import MemoryOfLife, anonymous_bytes_of

_PROBLEMS_SHOWN_MAX = 20
_ROUNDS_PLANNED = 500  # then they are repeated
_ROUNDS_BETWEEN = 3
# Not every server passes these; one that did not come in time is not waited for again.
_STEP_POINTS = [name for name in failpoint.ALL if any(step in name for step in ("growth", "heap", "compact"))]
_LOAD_SECONDS = (0.3, 4.0)  # before a SIGKILL
_HIT_FACTORS = (1, 1, 5, 25)  # a failpoint comes after a few batches or after many
_POINT_SECONDS_MAX = 8.0  # a failpoint that does not come in that time is replaced by a SIGKILL
_KILLS_SHARE, _FILL_SHARE = 0.5, 0.2
_STEADY_SECONDS_MIN = 1.0
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class SoakOptions:
    """The settings of a soak.

    Parameters
    ----------
    seconds
        How long it shall take; the last life may end some seconds later.
    seed
        Of all choices.
    directory
        An empty directory for the store and the server's log.
    server
        How to start servers.
    has_copies
        Whether backups are taken all the while, one after the other.
    """

    seconds: float
    seed: int
    directory: Path
    server: ServerOptions
    has_copies: bool = False


@dataclass(frozen=True)
class Life:
    """A life of the server that was found right after its end."""

    end: str
    seconds: float  # under load
    keys_read_back: int
    writes: int  # acknowledged so far, in all lives
    refused: int
    share: float  # of the heap in use at its end


@dataclass
class SoakReport:
    """What happened."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)  # failpoints that did not come in time
    lives: int = 0
    keys_read_back: int = 0
    writes: int = 0
    blobs_written: int = 0
    reads: int = 0
    tables_made: int = 0
    leases_seen: int = 0  # reads of keys that had to be there for some time, before it was over
    expired_seen: int = 0  # and after it
    tables_dropped: int = 0
    copies: int = 0  # backups that are whole
    copies_cut: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    refusal_text: str = ""  # of the last one
    is_promised: bool = False  # whether the store promises to refuse nothing up to 0.85
    shares: list[float] = field(default_factory=list)  # of the heap in use, in the second half
    memory: MemoryOfLife = field(default_factory=MemoryOfLife)
    seconds: float = 0.0
    domain: str = ""
    commit: str = ""


class SoakError(GpkvsError):
    """A soak found something wrong.

    Parameters
    ----------
    seed
        It repeats the choices.
    directory
        The store, which is left as it is.
    problems
        One line for each problem.
    """

    def __init__(self, seed: int, directory: Path, problems: Sequence[str]) -> None:
        lines = list(problems[:_PROBLEMS_SHOWN_MAX])
        if len(problems) > len(lines):
            lines.append(f"... and {len(problems) - len(lines)} more")
        self.seed, self.directory, self.problems = seed, directory, tuple(problems)
        super().__init__("\n  ".join([f"the soak failed: seed {seed}; the data is kept in {directory}", *lines]))


async def soak(options: SoakOptions, on_life: Callable[[Life], None] | None = None) -> SoakReport:
    """Run a whole soak.

    Parameters
    ----------
    options
        The settings.
    on_life
        Called after each life of the server.

    Raises
    ------
    SoakError
        When anything is found wrong. The directory is left as it is.
    """
    run = _Soak(options, on_life)
    try:
        await run.run()
        problems = run.problems
    except GpkvsError as error:
        problems = [*run.problems, str(error)]
    if problems:
        raise SoakError(options.seed, run.path, problems)
    return run.report()


class _Soak:
    """One store, its clients and its servers."""

    def __init__(self, options: SoakOptions, on_life: Callable[[Life], None] | None) -> None:
        self.path = options.directory / "store"
        self._options = options
        self._on_life = on_life
        self._random = random.Random(options.seed)
        copies = options.directory / "copies" if options.has_copies else None
        self._clients = SoakClients(self.path, f"{options.seed} clients", copies)
        self._servers = KilledServers(self.path, options.server, self._clients)
        self._report = SoakReport(options.seed)
        self._began = time.monotonic()

    @property
    def problems(self) -> list[str]:
        """All that is wrong so far."""
        return self._clients.violations + self._report.memory.problems

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    async def run(self) -> None:
        """Fill the store, kill the server again and again, let it live on; stop at the first problem."""
        options = self._options
        await self._fill(_FILL_SHARE * options.seconds)
        for round in self._rounds():  # one at least, however short the soak is
            if not self.problems:
                await self._killed_life(round)
            if self.problems or self._elapsed >= _KILLS_SHARE * options.seconds:
                break
        if not self.problems:
            await self._steady_life(max(options.seconds - self._elapsed, _STEADY_SECONDS_MIN))

    def report(self) -> SoakReport:
        """Return what happened."""
        report, clients = self._report, self._clients
        report.writes, report.reads = clients.totals.writes, clients.totals.reads
        report.blobs_written = clients.totals.blobs_written
        report.tables_made, report.tables_dropped = clients.tables_made, clients.tables_dropped
        if clients.copying:
            report.copies, report.copies_cut = clients.copying.made, clients.copying.cut
        report.leases_seen, report.expired_seen = clients.expiring.seen_alive, clients.expiring.seen_expired
        report.refused, report.refusal_text = clients.refused, clients.refusal_text
        report.is_promised = clients.use.is_promised
        report.domain, report.commit = clients.info.domain, clients.info.commit
        report.seconds = self._elapsed
        return report

    def _rounds(self) -> Iterator[Round]:
        """Yield rounds as of a drill, and now and then one that dies while the store grows or compacts."""
        commit = self._options.server.commit
        serving = cycle(plan(_ROUNDS_PLANNED, self._options.seed, commit))
        for number in count(1):
            yield from islice(serving, _ROUNDS_BETWEEN)
            steps = (*_STEP_POINTS, *failpoint.BLOBS) if self._clients.totals.has_blobs else _STEP_POINTS
            points = [point for point in steps if point not in self._report.missed]
            if points:
                point = self._random.choice(points)
                yield Round(number, point, 0.0, point, self._random.randint(1, 3), 0, commit)

    async def _fill(self, seconds_max: float) -> None:
        """Make the store, and let the clients work until the heap is as full as it shall be."""
        with closing(self._servers.start()) as server:
            await server.ready()
            await self._clients.prepare(server.target)
            await self._work(server, seconds_max, lambda: self._clients.use.share >= SHARE_MIN)
            await server.stop()

    async def _killed_life(self, round: Round) -> None:
        """Let a server live until it is killed, as a round says, and perhaps again in recovery."""
        end, seconds = await self._kill(round)
        self._report.kills[end] += 1
        if end == round.engine_point:
            for _ in range(round.recovery_kills):
                await self._servers.die_in_recovery(round.kind)
                self._report.kills[round.kind] += 1
        await self._judge(end, seconds)

    async def _kill(self, round: Round) -> tuple[str, float]:
        """Run a server under load until it dies; return the kind of its death, and the seconds of load."""
        armed = ""
        seconds_max = self._random.uniform(*_LOAD_SECONDS)
        if round.engine_point:
            factor = 1 if round.engine_point in IN_CHECKPOINT else self._random.choice(_HIT_FACTORS)
            armed, seconds_max = f"{round.engine_point}:{round.hit * factor}", _POINT_SECONDS_MAX
        began = time.monotonic()
        async with self._servers.under_load(armed) as (server, load):
            began = time.monotonic()
            await asyncio.wait([load], timeout=seconds_max)
            if load.done():
                is_at_point = bool(armed) and await server.dead(_POINT_SECONDS_MAX) and server.killed
                if not is_at_point:
                    raise server.error(f"the clients lost a server that nobody killed ({self._clients.last_error})")
                return round.engine_point, time.monotonic() - began
        if armed:
            self._report.missed[round.engine_point] += 1
        return SIGKILL, seconds_max

    async def _steady_life(self, seconds: float) -> None:
        """Let one server live under load, and watch its memory."""
        memory = self._report.memory
        with closing(self._servers.start()) as server:
            await server.ready()
            self._clients.shares.clear()
            memory.seconds = await self._work(
                server, seconds, lambda: bool(self._clients.violations), memory.samples, self._clients.copying
            )
            self._report.shares = list(self._clients.shares)
            await server.stop()
        await self._judge("stopped", memory.seconds)

    async def _work(
        self,
        server: ServerProcess,
        seconds_max: float,
        is_done: Callable[[], bool],
        samples: list[int] | None = None,
        copying: Copying | None = None,
    ) -> float:
        """Let the clients work for some seconds, and until a copy is made, or something is done; return the seconds."""
        began, copies = time.monotonic(), copying.made if copying else -1
        load = asyncio.create_task(self._clients.run(server.target))
        while not load.done() and not is_done():
            left = seconds_max - (time.monotonic() - began)
            if left <= 0 and not (copying and copying.made == copies):
                break
            await asyncio.wait([load], timeout=min(_SAMPLE_SECONDS, left) if left > 0 else _SAMPLE_SECONDS)
            if samples is not None and server.alive:
                samples.append(anonymous_bytes_of(server.pid))
        if load.done():
            raise server.error(f"the clients lost a server that nobody killed ({self._clients.last_error})")
        self._clients.stop()
        await load
        seconds = time.monotonic() - began
        await self._clients.compare_blobs(server.target)
        return seconds

    async def _judge(self, end: str, seconds: float) -> None:
        """Start the server again, compare everything with the ledgers, and check the store."""
        with closing(self._servers.start()) as server:
            await server.ready()
            keys = await self._clients.settle(server.target)
            await server.stop()
        status, output = await asyncio.to_thread(run_gpkvs, "check", str(self.path))
        if status != 0:
            self._clients.problems.append(f"gpkvs check: exit status {status}, expected 0:\n{output}")
        self._report.lives += 1
        self._report.keys_read_back += keys
        if self._on_life:
            clients = self._clients
            self._on_life(Life(end, seconds, keys, clients.totals.writes, clients.refused.total(), clients.use.share))
