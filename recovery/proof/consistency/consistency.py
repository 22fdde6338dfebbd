"""Run concurrent clients, kill their server again and again, and judge whether the history is strictly serializable.

All servers serve one store, one after the other. Each dies by SIGKILL, at a random moment or at a failpoint, also of
recovery (servers/kill_plan.py). Clients cancel some calls, and some calls miss their deadline. Another client has the
index grow and the heap compacted meanwhile (filler.py). If it is asked for, backups are taken one after the other, and
the store is archived (copies.py). At the end the clients work until they have done enough and read everything back,
moments are restored of the archive, and serializability.py judges the history.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from gpkvs.errors import GpkvsError
from gpkvs.recovery.proof.consistency.clients import ConsistencyClientOptions, ConsistencyClients
from gpkvs.recovery.proof.consistency.copies import CopyCounts
from gpkvs.recovery.proof.consistency.serializability import Judgement, judge
from gpkvs.recovery.proof.servers.kill_plan import plan
from gpkvs.recovery.proof.servers.killed_servers import KilledServers
from gpkvs.recovery.proof.servers.server_process import ServerOptions, run_gpkvs

_HISTORY_FILE, _COPIES = "history.npz", "copies"
_SHOWN_MAX = 20
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class ConsistencyOptions:
    """The settings of a run.

    Parameters
    ----------
    operations
        How many operations to record, at least.
    faults
        How many kills, at least.
    seed
        Of all choices.
    directory
        An empty directory for the store, the server's log and the history.
    server, clients
        How to start the server, and how many clients of each kind.
    backups
        So many are taken in the last life of the server, at least, and moments are restored of an archive; 0: neither.
    """

    operations: int
    faults: int
    seed: int
    directory: Path
    server: ServerOptions = field(default_factory=lambda: ServerOptions(index="64KiB", heap="8MiB"))
    clients: ConsistencyClientOptions = field(default_factory=ConsistencyClientOptions)
    backups: int = 0


@dataclass
class ConsistencyReport:
    """What the clients did, and the judgement."""

    judgement: Judgement
    seed: int
    operations: int = 0
    requests: int = 0
    refused: int = 0
    cancelled: int = 0
    deadlines: int = 0
    keys_read_back: int = 0
    looking_operations: int = 0  # of requests with conditions, checks, increments and appends
    conflicts: int = 0  # of those requests, refused by a check
    doublings: int = 0  # of the index
    moved_bytes: int = 0  # by compaction
    copies: CopyCounts = field(default_factory=CopyCounts)
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    seconds_judged: float = 0.0


class NotSerializableError(GpkvsError):
    """No serial order explains the responses that the clients got."""

    def __init__(self, problems: list[str], seed: int, directory: Path) -> None:
        lines = problems[:_SHOWN_MAX]
        super().__init__(
            "\n  ".join([f"the history is not strictly serializable: seed {seed}; it is kept in {directory}", *lines])
        )


async def check_consistency(
    options: ConsistencyOptions, on_death: Callable[[int, int, str], None] = lambda *_: None
) -> ConsistencyReport:
    """Run clients and faults, then judge the history.

    Parameters
    ----------
    options
        The settings.
    on_death
        Called after each death of a server with the number of kills, the number of operations, and how it died.

    Raises
    ------
    NotSerializableError
        If the history is wrong; the history and the store are kept.
    GpkvsError
        If a server did not die or did not start as planned, or `gpkvs check` found anything.
    """
    begin = time.monotonic()
    clients = ConsistencyClients(
        options.clients, options.seed, options.directory / _COPIES if options.backups else None
    )
    kills, keys = await _kill_and_read_back(options, clients, on_death)
    history, judged = clients.recorder.history(), time.monotonic()
    report = ConsistencyReport(
        judge(history),
        options.seed,
        operations=len(history.op),
        requests=len(history.outcome),
        refused=clients.refused,
        cancelled=clients.cancelled,
        deadlines=clients.deadlines,
        keys_read_back=keys,
        doublings=clients.filler.doublings,
        moved_bytes=clients.filler.moved_bytes,
        copies=clients.copies.counts if clients.copies else CopyCounts(),
        kills=kills,
    )
    looking = clients.looking
    looking.judge()
    report.looking_operations, report.conflicts = looking.operations, looking.conflicts
    report.seconds_judged = time.monotonic() - judged
    report.seconds = time.monotonic() - begin
    problems = [*clients.strange, *clients.looking.anomalies, *map(str, report.judgement.anomalies)]
    if problems:
        history.save(options.directory / _HISTORY_FILE)
        raise NotSerializableError(problems, options.seed, options.directory)
    return report


async def _kill_and_read_back(
    options: ConsistencyOptions, clients: ConsistencyClients, on_death: Callable[[int, int, str], None]
) -> tuple[Counter[str], int]:
    """Let the clients work while servers die; return the kills, and how many keys were read back at the end."""
    servers = KilledServers(options.directory / "store", options.server, clients)
    kills: Counter[str] = Counter()
    for round in plan(options.faults, options.seed, options.server.commit) if options.faults else []:
        if kills.total() >= options.faults:
            break
        kills.update(await servers.run_and_kill(round))
        on_death(kills.total(), clients.recorder.operations, str(round))
    keys = await _finish(servers, clients, options)
    on_death(kills.total(), clients.recorder.operations, "SIGTERM")
    status, output = await asyncio.to_thread(run_gpkvs, "check", str(servers.path))
    if status != 0:
        raise GpkvsError(f"gpkvs check: exit status {status}, expected 0:\n{output}")
    return kills, keys


async def _finish(servers: KilledServers, clients: ConsistencyClients, options: ConsistencyOptions) -> int:
    """Let the clients do the operations that are left, read everything back, and stop the server in order."""
    copies = clients.copies
    wanted = copies.counts.backups + options.backups if copies else 0
    with closing(servers.start()) as server:
        await server.ready()
        load = asyncio.create_task(clients.run(server.target))
        while not load.done() and not (copies and copies.error):
            if clients.recorder.operations >= options.operations and (not copies or copies.counts.backups >= wanted):
                break
            await asyncio.wait([load], timeout=_POLL_SECONDS)
        is_lost = load.done()
        clients.stopping = True
        await load
        if is_lost:
            raise server.error(f"the clients lost a server that nobody killed ({clients.last_error})")
        if copies:
            if copies.error:
                raise GpkvsError(copies.error)
            await copies.finish(server.target)
        keys = await clients.read_back(server.target)
        await server.stop()
    return keys
